package sim

// limits are what a run makes smaller than a daemon has it; 0 is the default.
// With the defaults no run of some seconds meets any of them, and what is done at
// a limit (refusing, waiting, dropping what memory holds) would never be run.
type limits struct {
	windowSlots, windowBytes, batchBytes int // proposed and not chosen; of a slot
	memoryBytes                          int // chosen entries kept in memory
	snapshotBytes                        int64
	pending, pendingSession              int // requests under way
	watches                              int // of a connection
	room                                 int // bytes queued for a client
	linkBytes                            int // queued on each lane of a narrow link

	// Drawn by drawRaws.
	sessions, connSessions, connections int
	watchTopic, watchLog                int // bytes of changes that wait for watches
	stateNodes                          int
	stateBytes                          int64
	frame                               int
}

// drawMore draws what came to the plans later. It has a stream of its own, so
// that what was drawn before stays what it was.
func (p *plan) drawMore() {
	s := newStream(p.seed, 7)
	if s.chance(350_000) {
		p.drawLimits(s)
	}
	p.drawLeases(s)
	p.noise = s.chance(400_000)
	if s.chance(80_000) {
		p.noise, p.load.valueBytes = true, pick(s, []int64{20_000, 60_000})
	}
	if p.tearing && s.chance(600_000) {
		// What is torn has to be longer than a sector, and no zeros.
		p.noise, p.load.valueBytes = true, max(p.load.valueBytes, 4000)
	}
	if s.chance(150_000) {
		p.calm = millisecond // trouble while the cell is founded
	}
	if s.chance(150_000) {
		p.turnMost = pick(s, []int64{3, 20, 120}) * millisecond
		p.slowReplicas = int(s.between(1, int64(p.replicas)))
	}
	if s.chance(200_000) {
		p.every[planHalfCut] = s.between(800, 5000) * millisecond
	}
	if s.chance(80_000) && p.replicas > 1 {
		p.drawMasterCrashes(s)
	}
	if s.chance(15_000) {
		p.drawLong(s)
	}
	p.healMajority = s.chance(300_000)
	p.load.ephemeralLocks = s.chance(300_000)
	p.load.hastyClose = s.chance(300_000)
	if s.chance(500_000) {
		p.load.variety = pick(s, []int64{50_000, 300_000})
	}
}

func (p *plan) drawLimits(s *stream) {
	l := &p.limits
	some := func() bool { return s.chance(400_000) }
	if some() {
		l.windowSlots = int(pick(s, []int64{1, 2, 4, 16}))
	}
	if some() {
		l.windowBytes = int(pick(s, []int64{2 << 10, 16 << 10, 128 << 10}))
	}
	if some() {
		l.batchBytes = int(pick(s, []int64{128, 1 << 10, 8 << 10}))
	}
	if some() {
		l.memoryBytes = int(pick(s, []int64{1 << 10, 16 << 10}))
	}
	if some() {
		l.snapshotBytes = pick(s, []int64{4 << 10, 64 << 10})
	}
	if some() {
		l.pending = int(pick(s, []int64{1, 3, 8}))
	}
	if some() {
		l.pendingSession = int(pick(s, []int64{1, 2, 4}))
	}
	if some() {
		l.watches = int(s.between(1, 3))
	}
	if some() {
		l.room = int(pick(s, []int64{1000, 10_000, 100_000})) // beside what has to fit, see process.room
	}
}

// drawLeases: most runs have leases of 2 s, in which a run of some seconds has
// everything that can become of a session; some have all kinds side by side, and
// a few the longest, which cost minutes of waiting at the end.
func (p *plan) drawLeases(s *stream) {
	switch n := s.below(1000); {
	case n < 600:
	case n < 850:
		p.load.leaseMost = 5 * second
	case n < 970:
		p.load.leaseMost = 20 * second
	case n < 990:
		p.load.leaseMost = 60 * second
	default:
		p.load.leaseMost = 600 * second
	}
	if s.chance(100_000) {
		p.load.lockDelays = [][]int64{{5000}, {0, 100, 20_000}}[s.below(2)]
	}
}

// drawMasterCrashes draws masters that die again and again, for longer than the
// leases of the clients that are gone meanwhile.
func (p *plan) drawMasterCrashes(s *stream) {
	p.every[planMasterCrash] = s.between(1500, 4000) * millisecond
	p.every[planClientCrash] = s.between(1500, 6000) * millisecond
	p.work, p.quickRestart, p.longDown = s.between(20, 40)*second, true, false
}

// drawLong draws a run of minutes in which little happens at a time.
func (p *plan) drawLong(s *stream) {
	p.work = s.between(100, 240) * second
	p.load.think *= 8
	for k := range p.every {
		p.every[k] *= 6
	}
}

// drawLease draws the lease of a new session.
func (l *workload) drawLease(s *stream) int64 {
	if l.leaseMost == 0 {
		return l.lease
	}
	return pick(s, []int64{second, l.lease, s.between(second, l.leaseMost), l.leaseMost})
}

// wellWithin bounds how long, after the last fault, a cell and its clients may
// take to get well: sessions of dead clients expire (2 s and a full lease after
// an election), locks pass through their queues, and the ghost of a lock lasts a
// lease and its lock-delay.
func (p *plan) wellWithin() int64 {
	delay := int64(0)
	for _, d := range p.load.lockDelays {
		delay = max(delay, d*millisecond)
	}
	return 75*second + 3*p.load.leaseMost + p.load.kinds.wait() + 3*max(0, delay-second)
}
