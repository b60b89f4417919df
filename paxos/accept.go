package paxos

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// The bounds of what waits to be proposed; beyond them proposals are dropped
// (and said to be), which the layers above turn into "overloaded".
const (
	pendingMax      = 1 << 17
	pendingBytesMax = 64 << 20
)

// flushWindows is how many windows of bytes may wait for the own disk. Others
// can choose without it, so the window of open slots alone does not bound them.
const flushWindows = 4

// leadership is the state of a leader, gone when it steps down.
type leadership struct {
	since    time.Duration
	next     Slot // next free slot
	leadSlot Slot // of the own Lead entry; 0 until it is proposed
	peers    []*follower

	pending      [][]byte // commands not yet in a slot
	pendingBytes int
	cutAt        time.Duration // when commands last got a slot

	lastBeat time.Duration
	beat     uint64 // heartbeat round
	wall     int64  // lowest wall clock of the others whose promises it has
	reads    []uint64
	round    *readRound

	retiring *retirement // hand-over under way: proposes and serves nothing more
	thrift   thrift
}

// follower is the leader's view of another member.
type follower struct {
	id ReplicaID
	// accepted: every slot up to it is accepted at this leader's ballot, or
	// known chosen, by the follower. Only grows.
	accepted Slot
	sent     Slot // accepts up to it have been sent
	chosen   Slot
	// skipped: of the slots up to it some were not sent in this ballot. most: the
	// highest slot ever sent in it.
	skipped, most Slot
	// flights are on their way, flying is their size; resends is how often all was
	// sent again since something was accepted.
	flights []batchSent
	flying  int
	resends int
	link    *link
	heard   time.Duration
	beat    uint64 // highest heartbeat round acknowledged
	voter   bool
	// progressAt is when accepted last grew, a resend began, or something was
	// sent when nothing was outstanding.
	progressAt time.Duration
	// first: it is asked first, see thrift; timely is how often it was in time.
	first  bool
	timely uint64
	// counted: slots up to it are in ThriftCounts as sent.
	counted Slot
}

// newLeadership begins with what the promises told of each follower. One that
// does not know yet how far slots are chosen is sent those it may have at an
// older ballot once more: without them its votes behind them would not count.
// Its heartbeat rounds follow those of the campaign, so that an answer to one of
// those proves nothing to a read.
func newLeadership(r *Replica, p *phaseOne) *leadership {
	promised := p.promises
	l := &leadership{since: r.now, next: r.chosen + 1, beat: p.beat, wall: p.wall}
	if len(promised) == 0 {
		l.wall = r.wallSeconds // alone
	}
	l.thrift.since, l.thrift.eager = r.now, r.o.EagerTime
	for _, m := range r.cfg.Members {
		if m.ID != r.o.ID {
			sent := r.chosen
			if c, ok := promised[m.ID]; ok && c+Slot(r.o.WindowSlots) >= r.chosen {
				sent = min(sent, c)
			}
			l.peers = append(l.peers, &follower{id: m.ID, sent: sent, skipped: sent, chosen: promised[m.ID], heard: r.now, voter: m.Voter,
				progressAt: r.now, link: r.link(m.ID)})
		}
	}
	return l
}

func (l *leadership) peer(id ReplicaID) *follower {
	for _, p := range l.peers {
		if p.id == id {
			return p
		}
	}
	invariant.Unreachable("a leader has a follower for each other member, and is asked for members alone")
	return nil
}

// propose takes commands for the log.
func (r *Replica) propose(commands [][]byte) {
	l := r.lead
	if l == nil || r.role != Leader || l.retiring != nil {
		r.out.Dropped = append(r.out.Dropped, commands...)
		return
	}
	for _, c := range commands {
		if len(l.pending) >= pendingMax || l.pendingBytes+len(c) > pendingBytesMax {
			r.out.Dropped = append(r.out.Dropped, c)
			continue
		}
		l.pending = append(l.pending, c)
		l.pendingBytes += len(c)
	}
}

// cutProposals puts what waits into as few slots as the limits allow. Nothing
// waits for company, but for what is under way: see Gathering.
func (r *Replica) cutProposals() {
	l := r.lead
	gathering := r.Gathering(r.now) > 0
	for len(l.pending) > 0 && r.windowOpen() && !gathering {
		n, bytes := 0, 0
		for n < len(l.pending) && (n == 0 || bytes+len(l.pending[n]) <= r.o.BatchBytes) {
			bytes += len(l.pending[n])
			n++
		}
		batch := l.pending[:n:n]
		l.pending = l.pending[n:]
		l.pendingBytes -= bytes
		l.cutAt = r.now
		r.proposeIn(l.next, Value{Kind: Batch, Commands: batch})
	}
	if len(l.pending) == 0 {
		l.pending = nil // the slots own the array now
	}
}

const (
	// flushPatience and roundPatience bound how long commands wait for the flush
	// and for the round under way. A round is seldom longer than a flush on a
	// local network; where it is, slots are pipelined, so many at a time.
	flushPatience = 20 * time.Millisecond
	roundPatience = 2 * time.Millisecond
)

// Gathering tells how many commands more have to come together before it is
// worth while to propose them; 0: what is proposed now is put into a slot by
// the next Take. While the own flush or a round is under way, commands wait
// until they are as many as are under way: so they fill one slot, one record and
// one message a follower together, instead of one each, and yet a few that were
// early hold up nobody. Nothing waits when nothing is under way, and a disk or
// follower that hangs holds nobody up.
func (r *Replica) Gathering(now time.Duration) int {
	l := r.lead
	if l == nil || r.role != Leader || l.pendingBytes >= r.o.BatchBytes {
		return 0
	}
	if r.gatheredAt(now) <= now {
		return 0
	}
	return max(0, r.underWay()-len(l.pending))
}

// gatheredAt is when commands gather no longer, whatever is under way; now, if
// nothing is that they wait for.
func (r *Replica) gatheredAt(now time.Duration) time.Duration {
	if len(r.owed) > 0 {
		now = max(now, r.owed[0].at+flushPatience)
	}
	if r.lead.next-1 > r.chosen {
		now = max(now, r.lead.cutAt+roundPatience)
	}
	return now
}

// underWay counts the commands in open slots.
func (r *Replica) underWay() int {
	n := 0
	for s := r.chosen + 1; s < r.lead.next; s++ {
		if x := r.log.get(s); x != nil {
			n += len(x.Value.Commands)
		}
	}
	return n
}

// Awaits reports whether anything depends on the end of the own flush, and
// above which slot anything depends on the votes (MsgAccepted) of others, NoSlot:
// on none. Other such events may be given late, up to the next Tick. A
// follower's own votes have left with the flush; a leader learns nothing urgent
// from votes for what is chosen, unless they let it send more.
func (r *Replica) Awaits() (flush bool, votes Slot) {
	flush = r.role != Follower || r.leader == 0 || r.holdsBack()
	l := r.lead
	switch {
	case l == nil:
		return flush, NoSlot
	case l.retiring != nil:
		return flush, 0
	}
	last := l.next - 1
	for _, p := range l.peers {
		if p.sent < last && p.accepted < p.sent && !r.spare(p) && !r.fetches(p) {
			return flush, 0
		}
	}
	if last > r.chosen {
		return flush, r.chosen
	}
	return flush, NoSlot
}

// windowOpen reports whether another slot may be opened. The window bounds
// what a successor has to recover, and memory.
func (r *Replica) windowOpen() bool {
	return r.lead.next-1-r.chosen < Slot(r.o.WindowSlots) && r.openBytes < r.o.WindowBytes && !r.diskBehind()
}

// proposeIn is the leader's own phase 2: it accepts the value itself, at its
// ballot; the accepts for the others leave with the next Take.
// Invariant: one leader proposes one value in a slot at its ballot.
func (r *Replica) proposeIn(s Slot, v Value) {
	if x := r.log.get(s); x != nil && x.Ballot == r.ballot {
		invariant.Assert(false, "slot %d is proposed twice at %v", s, r.ballot)
	}
	r.store(Entry{Slot: s, Ballot: r.ballot, Value: v})
	r.log.get(s).at = r.now
	r.lead.next = s + 1
}

// store accepts (or learns) an entry: in memory and in the next record.
// Invariant: nothing is accepted below the promise.
func (r *Replica) store(e Entry) {
	if !e.Chosen && e.Ballot.Less(r.promised) {
		invariant.Assert(false, "slot %d would be accepted at %v below the promise %v", e.Slot, e.Ballot, r.promised)
	}
	if old := r.log.get(e.Slot); old != nil {
		r.openBytes -= old.size
	}
	r.log.put(e)
	size := r.log.get(e.Slot).size
	r.openBytes += size
	r.records = append(r.records, e)
	r.unflushed += size
	r.gathered += size
}

// diskBehind reports whether so much waits for the own disk that nothing more
// is taken on until some of it is durable.
func (r *Replica) diskBehind() bool { return r.unflushed > flushWindows*r.o.WindowBytes }

// sendAccepts streams open slots to the followers; see sendTo for how far. A
// follower that is too far behind to store them gets none: it fetches what is
// chosen.
func (r *Replica) sendAccepts() {
	l := r.lead
	hurries := r.hurries()
	var shared []Entry // followers that are equally far get the same slice
	var from, upTo Slot
	for _, p := range l.peers {
		to := r.sendTo(p, hurries)
		if p.sent < to && p.sent+1 < r.log.base {
			p.sent, p.skipped = r.chosen, r.chosen // older ones are no longer in memory
		}
		if p.sent < to && p.sent <= p.accepted {
			p.progressAt = r.now // before, there was nothing that it could have answered
		}
		for p.sent < to && !p.full() {
			if shared == nil || from != p.sent+1 || upTo != to {
				from, upTo = p.sent+1, to
				shared = r.log.collect(from, to, 2*r.o.BatchBytes)
			}
			if len(shared) == 0 {
				break
			}
			r.send(Message{Kind: MsgAccept, To: p.id, Ballot: r.ballot, Chosen: r.chosen, Entries: shared})
			p.launched(r.now, shared)
		}
		if r.spare(p) && !r.fetches(p) && !p.full() && r.chosen >= p.sent+r.holdSlots() {
			invariant.Assert(false, "replica %d has been sent slots up to %d, and %d are chosen: too much is held back", p.id, p.sent, r.chosen)
		}
	}
}

// onAccept is phase 2b.
func (r *Replica) onAccept(m *Message) {
	r.alive(m.Ballot)
	if m.Ballot.Less(r.promised) {
		r.send(Message{Kind: MsgAccepted, To: m.From, Ballot: m.Ballot, Promised: r.promised, Chosen: r.chosen})
		return
	}
	r.follow(m.Ballot, m.From)
	r.catch.cameAt = r.now
	limit := r.chosen + r.ahead()
	if n := len(m.Entries); n > 0 && r.catch.sent > 0 && m.Entries[0].Slot <= r.catch.sent+1 {
		r.catch.sent = max(r.catch.sent, m.Entries[n-1].Slot)
	}
	for _, e := range m.Entries {
		if e.Slot <= r.chosen {
			continue
		}
		x := r.log.get(e.Slot)
		if x != nil && x.Ballot == m.Ballot {
			continue // repeated
		}
		// What finds no room is sent again, or fetched.
		beyond := x == nil && e.Slot > r.chosen+1 && r.openBytes > 2*r.o.WindowBytes
		if e.Slot > limit || beyond || r.diskBehind() {
			r.catch.dropped = true
			continue
		}
		r.store(Entry{Slot: e.Slot, Ballot: m.Ballot, Value: e.Value})
	}
	r.commit(m.Ballot, m.Chosen, m.From)
	r.ackTo = m.From
}

// acknowledge sends one answer for all accepts of the batch.
func (r *Replica) acknowledge() {
	if r.ackTo == 0 {
		return
	}
	v := vote{ballot: r.ballot, upTo: r.acceptedUpTo(r.ballot), chosen: r.chosen}
	if r.role == Follower && r.leader == r.ackTo && r.ballot == r.promised && (r.voted != v || r.votedWith <= r.durSequence) {
		r.voted, r.votedWith = v, r.sequence+1
		r.sendAfter(Message{Kind: MsgAccepted, To: r.ackTo, Ballot: r.ballot, Promised: r.promised, OK: true, Slot: v.upTo, Chosen: v.chosen})
	}
	r.ackTo = 0
}

// vote is what an Accepted says. It is not said again while the same one waits
// for its flush.
type vote struct {
	ballot       Ballot
	upTo, chosen Slot
}

// acceptedUpTo is the highest slot such that every slot up to it is known
// chosen or accepted at b: what this replica's vote at b covers.
func (r *Replica) acceptedUpTo(b Ballot) Slot {
	s := r.chosen
	if r.durBallot == b {
		s = max(s, r.durUpTo) // never walk over what was counted before
	}
	for {
		x := r.log.get(s + 1)
		if x == nil || (x.Ballot != b && !invariant.Planted(invariant.VotesOfAnyBallot)) {
			return s
		}
		s++
	}
}

func (r *Replica) onAccepted(m *Message) {
	if p := r.answer(m); p != nil {
		r.progress(p, m)
	}
}

// answer checks a follower's answer to the leader. nil: it does not count.
// Invariant: only votes of the leader's own ballot are counted.
func (r *Replica) answer(m *Message) *follower {
	if r.lead == nil || m.Ballot != r.ballot {
		return nil
	}
	if !m.OK {
		if r.ballot.Less(m.Promised) {
			r.superseded(m.Promised)
		}
		return nil
	}
	p := r.lead.peer(m.From)
	if p == nil {
		invariant.Unreachable("what a stranger sends is not taken")
		return nil
	}
	if r.now-p.heard >= r.deaf(p.id) {
		p.resends = 0 // it is back
	}
	p.heard = r.now
	p.chosen = max(p.chosen, m.Chosen)
	return p
}

// progress takes a vote.
func (r *Replica) progress(p *follower, m *Message) {
	if m.Slot >= r.lead.next {
		return // votes for what was never proposed
	}
	if m.Slot > p.accepted {
		p.accepted, p.progressAt = m.Slot, r.now
		p.sent = max(p.sent, p.accepted)
		p.landed(r.now, p.accepted)
	}
	r.countVotes()
	if r.lead != nil {
		r.retireStep()
	}
}
