package sim

import "time"

const (
	microsecond = int64(time.Microsecond)
	millisecond = int64(time.Millisecond)
	second      = int64(time.Second)
)

// plan is what was drawn for a whole run before it began: its size, its
// speeds, and which faults it has and how strong they are. Most runs have only
// some of the faults: a fault that is always there hides what others would
// show.
type plan struct {
	seed     uint64
	scripted bool // a script says what happens
	replicas int
	clients  int

	work int64 // how long the clients work, faults included
	calm int64 // faults begin only after this much of it

	// Network.
	latencyLo, latencyHi int64
	drop, duplicate      int64 // ppm of the messages between replicas
	late                 int64 // ppm of them that take up to lateMost more
	lateMost             int64
	ordered              bool // else every message takes its own time

	// Disks.
	flushLo, flushHi int64
	slowFlush        int64 // ppm of the flushes that take up to slowMost
	slowMost         int64
	tearing          bool // a crash leaves any part of what was not flushed

	drifting bool

	// Faults that come and go: mean time between two of a kind, 0 for never. They
	// are only what planned was drawn from.
	every   [plannedKinds]int64
	planned []planned
	// skipped operations of clients: they are drawn and not done.
	skipped []opSpan
	// Faults aimed at a moment, in ppm of those moments: a crash just after a
	// promise or a vote has left.
	crashAtPromise, crashAtVote int64
	longDown                    bool  // or of many seconds: what is missed is trimmed meanwhile
	quickRestart                bool  // down times of milliseconds
	crashInOpen                 int64 // ppm of the starts at which the power goes again
	cutAtAccept                 int64 // ppm of the accepts in whose middle a leader is cut off
	seizeHolder                 int64 // ppm of the grants at which the holder is frozen or cut off at some time
	powerCut                    bool  // now and then the power of all machines goes at once
	wiping                      bool  // what spoils a disk may empty it

	// Log and snapshots.
	snapshotSlots int
	trailSlots    int
	segmentBytes  int64

	restartAtEnd bool // all replicas restart at the end and must find the same state

	load workload

	// Drawn by drawMore.
	limits       limits
	noise        bool  // what is written does not compress
	turnMost     int64 // a turn of a slow replica begins so late
	slowReplicas int   // how many, from the first
	healMajority bool  // at the end only a majority is mended at first
	oddAnswers   int64 // ppm of the requests of replicas that are answered by nonsense
	// strangers take part in the founding; founders die in it.
	strangeFounding, foundingCrash bool
	lazyLoop                       bool // a replica's turn waits for what it awaits, as in the daemon

	// Drawn by drawRaws.
	raws     int   // clients that are driven by no machine
	rawThink int64 // mean time between two messages of one
	rawWild  int64 // ppm of the moments at which one does something large
}

// workload says what the clients do.
type workload struct {
	pathsOfEach int   // registers
	locks       int   // lock paths
	think       int64 // mean time between two calls of a client
	outstanding int   // calls of a client at a time
	weights     [opKinds]int64
	lease       int64
	leaseMost   int64   // if not 0, leases of all lengths up to that
	lockDelays  []int64 // milliseconds
	valueBytes  int64
	variety     int64 // ppm of the operations that are what the store takes besides

	ephemeralLocks bool // some locks are on ephemeral nodes
	hastyClose     bool // sessions are closed while work under a lock still stops

	kinds kinds // drawn by drawKinds
}

// drawPlan draws a run's plan. The weights are chosen so that every fault is
// in a good part of the runs, alone in some.
func drawPlan(seed uint64) plan {
	s := newStream(seed, 6)
	p := plan{seed: seed}
	switch n := s.below(100); {
	case n < 12:
		p.replicas = 1
	case n < 75:
		p.replicas = 3
	default:
		p.replicas = 5
	}
	p.clients = int(s.between(3, 8))
	p.work = s.between(8, 22) * second
	p.calm = pick(s, []int64{50, 1500}) * millisecond
	p.latencyLo = pick(s, []int64{30, 200, 1000}) * microsecond
	p.latencyHi = p.latencyLo * s.between(2, 8)
	p.flushLo = pick(s, []int64{50, 500, 3000}) * microsecond
	p.flushHi = p.flushLo * s.between(2, 6)
	p.ordered = true
	p.drawNetworkFaults(s)
	p.drawProcessFaults(s)
	p.snapshotSlots = int(pick(s, []int64{20, 40, 150, 600, 50_000}))
	p.trailSlots = int(pick(s, []int64{5, 5, 50, 500}))
	p.segmentBytes = pick(s, []int64{64 << 10, 256 << 10, 1 << 20})
	p.restartAtEnd = s.chance(400_000)
	p.load = drawWorkload(s)
	p.drawDiskFaults(s)
	if s.chance(300_000) {
		p.drawRelays(s)
	}
	p.drawMore()
	p.drawLog()
	p.drawKinds()
	p.drawRaws()
	p.planned = p.drawPlanned()
	return p
}

// drawRelays draws relays of the lead, often with nothing beside them that
// would disturb them.
func (p *plan) drawRelays(s *stream) {
	if s.chance(600_000) {
		p.replicas, p.work = 3, s.between(16, 24)*second
		p.drop, p.cutAtAccept, p.crashAtPromise, p.crashAtVote = 0, 0, 0, 0
		for k := range p.every {
			if k := plannedKind(k); k != planClientCrash && k != planReset {
				p.every[k] = 0
			}
		}
	}
	p.every[planRelay] = s.between(1200, 3500) * millisecond
}

// drawDiskFaults draws what happens to disks besides crashes.
func (p *plan) drawDiskFaults(s *stream) {
	if s.chance(250_000) {
		p.every[planSlowDisk] = s.between(1500, 7000) * millisecond
	}
	if s.chance(200_000) {
		p.every[planFullDisk] = s.between(2000, 8000) * millisecond
	}
	if s.chance(300_000) {
		p.every[planSpoil] = s.between(1500, 9000) * millisecond
		p.wiping = s.chance(300_000)
	}
	if s.chance(100_000) {
		p.every[planSecond] = s.between(2000, 9000) * millisecond
	}
	if s.chance(200_000) {
		// A small log, and replicas that miss more than it keeps.
		p.snapshotSlots, p.trailSlots, p.segmentBytes = int(s.between(12, 40)), int(s.between(1, 5)), 16<<10
		p.load.valueBytes = pick(s, []int64{1000, 3000})
		p.longDown = p.longDown || s.chance(700_000)
	}
}

func (p *plan) drawNetworkFaults(s *stream) {
	if s.chance(450_000) {
		p.drop = pick(s, []int64{2_000, 20_000, 100_000, 250_000})
	}
	if s.chance(400_000) {
		p.duplicate = pick(s, []int64{5_000, 50_000, 200_000})
	}
	if s.chance(500_000) {
		p.ordered = false
		p.late = pick(s, []int64{2_000, 20_000, 100_000})
		p.lateMost = pick(s, []int64{20, 300, 1500, 4000}) * millisecond
	}
	if s.chance(500_000) {
		p.every[planPartition] = s.between(1500, 8000) * millisecond
	}
	if s.chance(350_000) {
		p.every[planReset] = s.between(200, 5000) * millisecond
	}
}

func (p *plan) drawProcessFaults(s *stream) {
	p.drifting = s.chance(700_000)
	p.tearing = s.chance(500_000)
	if s.chance(350_000) {
		p.slowFlush = pick(s, []int64{2_000, 20_000, 80_000})
		p.slowMost = pick(s, []int64{50, 600, 3000}) * millisecond
	}
	if s.chance(550_000) {
		p.every[planCrash] = s.between(700, 8000) * millisecond
	}
	if s.chance(350_000) {
		p.crashAtPromise = pick(s, []int64{100_000, 400_000, 800_000})
	}
	if s.chance(200_000) {
		p.crashAtVote = pick(s, []int64{500, 5_000, 20_000})
	}
	if s.chance(250_000) {
		p.crashInOpen = 250_000
	}
	if s.chance(250_000) {
		p.every[planDisk] = s.between(800, 6000) * millisecond
	}
	if s.chance(300_000) {
		p.seizeHolder = pick(s, []int64{20_000, 150_000})
	}
	if s.chance(250_000) {
		p.every[planDepose] = s.between(2000, 6000) * millisecond
	}
	p.quickRestart = s.chance(500_000)
	if s.chance(250_000) {
		p.cutAtAccept = pick(s, []int64{300, 2_000})
	}
	p.longDown = s.chance(200_000)
	p.powerCut = s.chance(150_000)
	if s.chance(400_000) {
		p.every[planPause] = s.between(600, 6000) * millisecond
	}
	if s.chance(350_000) {
		p.every[planClientPause] = s.between(1500, 8000) * millisecond
	}
	if s.chance(400_000) {
		p.every[planClientCrash] = s.between(1500, 9000) * millisecond
	}
	if s.chance(200_000) {
		p.every[planHandOver] = s.between(2000, 9000) * millisecond
	}
}

func drawWorkload(s *stream) workload {
	l := workload{
		pathsOfEach: int(s.between(1, 3)),
		locks:       int(s.between(1, 3)),
		think:       pick(s, []int64{8, 25, 80, 250}) * millisecond,
		outstanding: int(s.between(1, 5)),
		lease:       2 * second,
		lockDelays:  [][]int64{{0}, {500}, {1000}, {0, 500, 1000}}[s.below(4)],
		valueBytes:  pick(s, []int64{0, 20, 200, 3000}),
	}
	for k := range l.weights[:opRelease+1] {
		l.weights[k] = opWeights[k]
		if s.chance(250_000) {
			l.weights[k] = 0
		} else if s.chance(200_000) {
			l.weights[k] *= 4
		}
	}
	l.weights[opPut] += 2
	l.weights[opGet] += 2
	l.weights[opLock] += 2
	return l
}
