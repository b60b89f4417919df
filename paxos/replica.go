package paxos

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// roundMax bounds the rounds that are believed: a message with a higher one is
// nonsense, and following it would use the numbers up.
const roundMax = 1 << 62

// aheadWindows is how many windows above its chosen index an acceptor stores
// accepts: it bounds memory and the size of a promise.
const aheadWindows = 4

// Replica is one member of a cell: proposer, acceptor and learner in one. It
// is a state machine: no goroutine, lock, clock or I/O. One caller at a time.
type Replica struct {
	o   Options
	rng *rand.Rand
	now time.Duration
	cfg Configuration

	// promised is the highest ballot promised; no accept of a lower one is
	// taken any more. Only grows. It is in every record, so it is durable
	// before anything in After that depends on it leaves.
	promised Ballot
	// log holds accepted and chosen entries in memory. Every slot <= chosen in
	// it is present.
	log entryLog
	// chosen is the highest slot known chosen with no slot unknown below it.
	// Only grows; all slots up to it have been given out in Effects.Chosen (or
	// are in a snapshot).
	chosen Slot
	// openBytes is the size of the entries above chosen.
	openBytes int
	// diskFirst is the first slot that the log on disk still has.
	diskFirst Slot

	role   Role
	ballot Ballot    // led, campaigned for, or followed
	leader ReplicaID // followed, or itself
	// heard is when a live leader was last heard; valid if leader != 0.
	heard time.Duration
	// maxRound is the highest round seen anywhere: the next own one is higher.
	maxRound uint64
	ticked   time.Duration // last tick, see thaw
	// electionAt is when to probe if no leader is heard before.
	electionAt time.Duration
	born       time.Duration // until ElectionMin after a restart the leader is presumed alive
	attempts   int           // failed elections since a leader was last known

	found      *Configuration // to propose in slot 1, founding only
	campaigned bool           // Campaign was given: eligible although nothing is chosen

	// What is known of the times that answers take, see patience.go.
	links    map[ReplicaID]*link
	arrivals bool          // links tell of bytes that arrive
	trip     time.Duration // see roundTrip
	toldTrip time.Duration // by the leader that is followed or elected
	doubt    peak          // silences of leaders that were alive
	suspect  suspicion
	flush    peak // of the own disk
	beats    beats
	probes   probeTimes
	prepared struct { // the last own campaign: when its prepares left
		ballot Ballot
		at     time.Duration
	}
	courtedAt time.Duration // when a candidate was last promised, or a successor sent off

	// As of the last tick.
	wallSeconds, cellTime int64
	cellEpoch             uint64

	probe *probeState
	phase *phaseOne
	lead  *leadership
	catch catchUp
	// salvage has values that a campaign has fetched and could not use.
	salvage map[Slot]Entry

	// Durability: what is owed, oldest first, and what is durable.
	sequence    uint64
	owed        []owedWrite
	durSequence uint64
	durBallot   Ballot // ballot of durUpTo
	durUpTo     Slot   // accepted without a gap at durBallot, durably
	durChosen   Slot   // up to here the last record of each slot is durable
	// Sizes of the entries recorded: all that is not durable, and of these what
	// is not handed out yet.
	unflushed int
	gathered  int

	// Gathered for Take.
	records     []Entry
	dirty       bool // promise changed since the last record
	nowBox      []Message
	afterBox    []Message
	ackTo       ReplicaID // owes an Accepted to this leader
	owesPromise owedPromise
	// What waits for its flush, so that it need not be said again.
	pledged struct {
		ballot   Ballot
		sequence uint64
	}
	voted     vote
	votedWith uint64
	noted     bool // the next Effects have a Record whatever is owed
	out       Effects
	told      RoleEvent // role as last reported
	thrift    ThriftCounts
}

// New makes a replica from what was found on disk; a zero Restored is a fresh
// one. Entries up to Restored.Chosen come out of the first Take for applying.
func New(o Options, r Restored) *Replica {
	setDefaults(&o)
	p := &Replica{
		o:         o,
		rng:       rand.New(rand.NewPCG(o.Seed, uint64(o.ID))),
		now:       o.Now,
		cfg:       o.Configuration,
		promised:  r.Promised,
		maxRound:  r.Promised.Round,
		chosen:    r.Applied,
		diskFirst: max(r.First, 1),
		log:       entryLog{base: r.Applied + 1},
		links:     map[ReplicaID]*link{},
	}
	if r.First == 0 {
		p.diskFirst = r.Applied + 1
	}
	for _, e := range r.Entries {
		if e.Slot > r.Applied {
			p.log.put(e)
			p.openBytes += e.Value.size()
			p.maxRound = max(p.maxRound, e.Ballot.Round)
		}
	}
	p.durChosen = max(r.Applied, r.Chosen)
	// A record's chosen index was written after the entries it covers, and
	// each of those was then at the ballot that chose it, or learnt.
	for p.chosen < r.Chosen && p.log.get(p.chosen+1) != nil {
		p.choose(p.chosen + 1)
	}
	p.born = -o.ElectionMin
	if p.chosen > 0 {
		p.born = o.Now
	}
	p.resetElection()
	if len(p.voters()) == 1 {
		p.electionAt = p.now
	}
	p.told = RoleEvent{Role: Follower}
	p.ticked = p.now
	return p
}

func setDefaults(o *Options) {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	def(&o.Heartbeat, 100*time.Millisecond)
	def(&o.ElectionMin, 500*time.Millisecond)
	def(&o.ElectionMax, max(900*time.Millisecond, 2*o.ElectionMin-100*time.Millisecond))
	if o.ElectionMax <= o.ElectionMin {
		o.ElectionMax = o.ElectionMin + 1
	}
	def(&o.DiskTimeout, 2*time.Second)
	def(&o.EagerTime, time.Second)
	num(&o.WindowSlots, 256)
	num(&o.WindowBytes, 16<<20)
	num(&o.BatchBytes, 1<<20)
	num(&o.MemoryBytes, 64<<20)
}

func (r *Replica) label(l Label) {
	r.wallSeconds, r.cellTime, r.cellEpoch = max(l.WallSeconds, 0), l.CellTime, l.CellEpoch
}

// Step takes one event at time now, which never goes back. What it causes
// gathers until Take.
func (r *Replica) Step(now time.Duration, ev Event) {
	r.now = max(r.now, now)
	switch ev := ev.(type) {
	case Tick:
		r.label(Label(ev))
		r.tick()
	case Label:
		r.label(ev)
	case Receive:
		r.receive(&ev.Message)
	case Arriving:
		r.arriving(ev.From)
	case Sent:
		r.linkSent(ev)
	case Persisted:
		r.persisted(ev.Sequence)
	case Propose:
		r.propose(ev.Commands)
	case ProposeConfig:
		if r.chosen == 0 {
			c := ev.Configuration
			r.found = &c
			if r.lead != nil && r.lead.next == 1 {
				r.proposeIn(1, Value{Kind: Config, Config: r.found})
			}
		}
	case ConfirmRead:
		r.confirmRead(ev.ID)
	case Handover:
		r.handOver(ev.To)
	case LogRead:
		r.logRead(ev)
	case Trimmed:
		r.trimmed(ev.Slot)
	case Installed:
		r.installed(ev)
	case Campaign:
		r.campaigned = true
		if r.role == Follower || r.role == Candidate {
			r.prepare(false)
		}
	case NoteChosen:
		r.dirty, r.noted = true, true
	}
}

// Take closes the batch and returns what the driver owes.
func (r *Replica) Take(now time.Duration) Effects {
	r.now = max(r.now, now)
	if r.lead != nil {
		r.cutProposals()
		r.startReadRound()
		r.sendAccepts()
	}
	out := r.out
	r.out = Effects{}
	if !r.holdsBack() {
		r.promise()
		r.acknowledge()
		out.After, r.afterBox = r.afterBox, nil
		if r.dirty || len(r.records) > 0 {
			out.Record = &Record{Promised: r.promised, Chosen: r.chosen, Entries: r.records}
			r.records, r.dirty, r.noted = nil, false, false
		}
	}
	out.Now, r.nowBox = r.nowBox, nil
	if out.Record != nil || len(out.After) > 0 {
		r.sequence++
		out.Sequence = r.sequence
		r.owed = append(r.owed, owedWrite{
			sequence: r.sequence, at: r.now, ballot: r.promised, upTo: r.acceptedUpTo(r.promised),
			promise: r.promised, chosen: r.chosen, bytes: r.gathered,
		})
		r.gathered = 0
	}
	if len(r.owed) == 0 && len(r.records) == 0 {
		r.durChosen = r.chosen
		r.shrink()
	}
	if role := (RoleEvent{r.role, r.ballot, r.leader}); role != r.told {
		r.told = role
		told := role // a copy of its own: only a change costs an allocation
		out.Role = &told
	}
	return out
}

// receive dispatches a message after checking that it makes sense at all.
func (r *Replica) receive(m *Message) {
	if !r.sane(m) {
		return
	}
	r.maxRound = max(r.maxRound, m.Ballot.Round, m.Promised.Round)
	switch m.Kind {
	case MsgProbe:
		r.onProbe(m)
	case MsgProbeReply:
		r.onProbeReply(m)
	case MsgPrepare:
		r.onPrepare(m)
	case MsgPromise:
		r.onPromise(m)
	case MsgAccept:
		r.onAccept(m)
	case MsgAccepted:
		r.onAccepted(m)
	case MsgHeartbeat:
		r.onHeartbeat(m)
	case MsgHeartbeatAck:
		r.onHeartbeatAck(m)
	case MsgCatchUp:
		r.onCatchUp(m)
	case MsgCatchUpReply:
		r.onCatchUpReply(m)
	case MsgHandover:
		r.onHandover(m)
	case MsgFetch:
		r.onFetch(m)
	case MsgValues:
		r.onValues(m)
	}
}

// sane refuses what no correct replica sends, so that the rest may rely on it.
func (r *Replica) sane(m *Message) bool {
	if m.From == r.o.ID || (m.To != 0 && m.To != r.o.ID) || r.member(m.From) == nil {
		invariant.Unreachable("the node names the sender by its connection, and hears members alone")
		return false
	}
	if m.Ballot.Round > roundMax || m.Promised.Round > roundMax {
		return false
	}
	switch m.Kind {
	case MsgPrepare, MsgAccept, MsgHeartbeat:
		if m.Ballot.Round == 0 || m.Ballot.Replica != m.From {
			return false
		}
	}
	for i := range m.Entries {
		e := &m.Entries[i]
		// A value that is only named is no value. Promises may have values too.
		if e.Named != (m.Kind == MsgFetch) && m.Kind != MsgPromise {
			return false
		}
		if e.Slot == 0 || e.Value.Kind > Config || e.Ballot.Round > roundMax ||
			(e.Value.Kind == Config && e.Value.Config == nil) {
			return false
		}
	}
	return true
}

func (r *Replica) tick() {
	r.thaw()
	r.measureTrip()
	switch r.role {
	case Preparing, Leader:
		r.leaderTick()
	default:
		r.electionTick()
	}
	r.catchUpTick()
}

// ---- small helpers ----

func (r *Replica) member(id ReplicaID) *Member {
	for i := range r.cfg.Members {
		if r.cfg.Members[i].ID == id {
			return &r.cfg.Members[i]
		}
	}
	return nil
}

// voters are the members whose votes count.
func (r *Replica) voters() []ReplicaID {
	ids := make([]ReplicaID, 0, len(r.cfg.Members))
	for _, m := range r.cfg.Members {
		if m.Voter {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// quorum is the size of a majority of the voters. Any two majorities share a
// member: all of Paxos rests on that.
func (r *Replica) quorum() int { return len(r.voters())/2 + 1 }

func (r *Replica) isVoter() bool {
	m := r.member(r.o.ID)
	return m != nil && m.Voter
}

// send queues a message that depends on nothing that is not durable.
func (r *Replica) send(m Message) {
	m.From = r.o.ID
	r.nowBox = append(r.nowBox, m)
}

// sendAfter queues a message that may leave only when all that was recorded
// up to now is durable.
func (r *Replica) sendAfter(m Message) {
	m.From = r.o.ID
	r.afterBox = append(r.afterBox, m)
}

// raisePromise promises b. Invariant: a promise never goes back.
func (r *Replica) raisePromise(b Ballot) {
	if b == r.promised {
		return
	}
	invariant.Assert(!b.Less(r.promised), "promise of %v would go back to %v", r.promised, b)
	r.promised = b
	r.dirty = true
}

func (r *Replica) note(format string, args ...any) {
	r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...))
}

// Status returns a view for people.
func (r *Replica) Status() Status {
	s := Status{
		ID: r.o.ID, Role: r.role, Promised: r.promised, Ballot: r.ballot, Leader: r.leader,
		Chosen: r.chosen, Target: max(r.chosen, r.catch.target), First: r.first(), Last: max(r.log.last(), r.chosen),
		LogBytes: r.log.bytes, Thrift: r.thrift, InFlight: r.inFlight(),
	}
	if r.lead != nil {
		for _, p := range r.lead.peers {
			s.Peers = append(s.Peers, PeerProgress{p.id, p.accepted, p.chosen, p.heard, p.flying, p.first})
		}
	}
	return s
}

// first is the first slot that can be given to others.
func (r *Replica) first() Slot { return min(r.diskFirst, r.log.base) }

// Check verifies the invariants that cost a walk over the log in memory; for
// tests and the simulator.
func (r *Replica) Check() error {
	var f invariant.Faults
	open := 0
	for i := range r.log.e {
		x := &r.log.e[i]
		s := r.log.base + Slot(i)
		// Of each entry only its address is given: a number would take memory each time.
		f.That(!x.present || x.Slot == s, "an entry stands in another slot than its own: %+v", x)
		f.That(x.present || s > r.chosen, "an entry at or below the chosen index is unknown: %+v", x)
		if x.present && s > r.chosen {
			open += x.size
			f.That(x.Chosen || !r.promised.Less(x.Ballot), "an entry was accepted above the promise: %+v", x)
		}
	}
	f.Count("bytes of what is not known to be chosen", r.openBytes, open)
	f.That(r.chosen+1 >= r.log.base, "log in memory begins at %d behind the chosen index %d", r.log.base, r.chosen)
	f.That((r.role == Leader || r.role == Preparing) == (r.lead != nil), "role %v does not fit the leadership's state", r.role)
	f.That(r.lead == nil || r.promised == r.ballot, "leads %v having promised %v", r.ballot, r.promised)
	r.checkAccounts(&f)
	if err := f.Err(); err != nil {
		return fmt.Errorf("paxos: %w", err)
	}
	return nil
}
