package paxos

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// countVotes moves the chosen index: a slot is chosen once a majority has
// accepted it at the leader's ballot. The leader's own vote counts only for
// what its own disk has.
func (r *Replica) countVotes() {
	own := Slot(0)
	if r.durBallot == r.ballot {
		own = r.durUpTo
	}
	var votes [16]Slot
	v := votes[:0]
	if r.isVoter() {
		v = append(v, own)
	}
	for _, p := range r.lead.peers {
		if p.voter {
			v = append(v, p.accepted)
		}
	}
	// Insertion sort, highest first: a handful of numbers.
	for i := 1; i < len(v); i++ {
		for j := i; j > 0 && v[j] > v[j-1]; j-- {
			v[j], v[j-1] = v[j-1], v[j]
		}
	}
	n := min(v[len(v)/2], r.lead.next-1)
	r.observe(own, n)
	for r.lead != nil && r.chosen < n {
		s := r.chosen + 1
		x := r.log.get(s)
		if x == nil || x.Ballot != r.ballot {
			invariant.Assert(false, "leader of %v counts votes for slot %d, which it has not proposed", r.ballot, s)
		}
		r.choose(s)
	}
	r.opened()
}

// opened proposes the leader's Lead entry, and makes it serve once all slots
// it found open and that entry are chosen.
// Invariant: nothing is proposed behind slot 1 before slot 1, which founds the
// cell, is chosen.
func (r *Replica) opened() {
	l := r.lead
	if l == nil || r.role != Preparing {
		return
	}
	if l.leadSlot == 0 && r.chosen > 0 {
		l.leadSlot = l.next
		r.proposeIn(l.next, Value{Kind: Lead, Leader: r.ballot, WallSeconds: min(l.wall, r.wallSeconds), CellTime: r.cellTime, CellEpoch: r.cellEpoch})
	}
	if l.leadSlot != 0 && (r.chosen >= l.leadSlot || invariant.Planted(invariant.ServesBeforeClosed)) {
		r.role = Leader
		r.attempts = 0
		r.note("leads with %v, all open slots chosen up to %d after %v", r.ballot, r.chosen, (r.now - l.since).Round(time.Millisecond))
	}
}

// choose marks the slot behind the chosen index as chosen and hands it out.
// Invariant: slots are handed out in order, without a gap, once.
func (r *Replica) choose(s Slot) {
	x := r.log.get(s)
	if x == nil || s != r.chosen+1 {
		invariant.Assert(false, "slot %d would be handed out behind %d", s, r.chosen)
	}
	x.Chosen = true
	r.openBytes -= x.size
	r.chosen = s
	r.out.Chosen = append(r.out.Chosen, x.Entry)
	if x.Value.Kind == Config && len(x.Value.Config.Members) > 0 {
		r.cfg = *x.Value.Config
		r.found = nil
	}
	r.shrink()
}

// shrink keeps the chosen entries in memory within their bound; others are
// read from disk when somebody asks.
// Invariant: what is read from disk as chosen is durable there, over whatever
// was accepted in its slot before.
func (r *Replica) shrink() {
	for r.log.bytes-r.openBytes > r.o.MemoryBytes && r.log.base < r.chosen && r.log.base <= r.durChosen {
		r.log.dropTo(r.log.base)
	}
}

// commit follows a leader's commit index: "what I proposed at b is chosen up
// to n".
// Invariant: an entry is taken for chosen only if it was accepted at that
// very ballot (or is known chosen); one accepted at an older ballot may hold
// another value, and is fetched.
func (r *Replica) commit(b Ballot, n Slot, from ReplicaID) {
	for r.chosen < n {
		x := r.log.get(r.chosen + 1)
		if x == nil {
			break
		}
		if !x.Chosen && x.Ballot != b && !invariant.Planted(invariant.OldBallotIsChosen) {
			break
		}
		r.choose(r.chosen + 1)
	}
	if n > r.chosen {
		r.behind(n, from)
	} else {
		r.catch.gapSince = 0
	}
}

// heartbeat tells every follower the commit index and starts a new round.
func (r *Replica) heartbeat() { r.heartbeatFor(r.roundTrip()) }

// heartbeatFor tells the followers for how much longer than where messages take
// no time they may hear nothing.
func (r *Replica) heartbeatFor(trip time.Duration) {
	l := r.lead
	l.beat++
	l.lastBeat = r.now
	r.beats.left(r.now, r.o.Heartbeat/2, r.ballot, l.beat)
	for _, p := range l.peers {
		r.send(Message{Kind: MsgHeartbeat, To: p.id, Ballot: r.ballot, Slot: r.namedTo(p), Chosen: r.chosen, Sequence: l.beat, First: r.first(), RoundTrip: trip})
	}
}

// leaderTick sends heartbeats, sends again what seems lost, and steps down
// when a majority is not heard or the own disk hangs: a leader that only
// sends, or that cannot write, must not keep the others quiet.
func (r *Replica) leaderTick() {
	l := r.lead
	hangs := r.diskHangs()
	if invariant.Planted(invariant.HungDiskKeepsLead) {
		hangs = len(r.owed) > 0 && r.now-r.owed[len(r.owed)-1].at > r.o.DiskTimeout
	}
	if hangs {
		r.note("own disk has not finished a write for %v: stepping down", (r.now - r.owed[0].at).Round(time.Millisecond))
		r.abdicate()
		return
	}
	alive := 0
	if r.isVoter() {
		alive++
	}
	for _, p := range l.peers {
		// Silence counts from the first possible answer.
		if p.voter && (r.now-p.heard < r.deaf(p.id) || invariant.Planted(invariant.MinorityKeepsLead) && r.now-l.lastBeat < r.o.ElectionMin) {
			alive++
		}
	}
	if alive < r.quorum() {
		r.note("no majority heard for %v: stepping down", r.o.ElectionMin+r.roundTrip())
		r.abdicate()
		return
	}
	if r.retireTick(); r.lead == nil {
		return
	}
	r.thriftTick()
	for _, p := range l.peers {
		if r.seemsLost(p) {
			// Silence about what was sent: send it again. The chosen values of
			// slots at or below the chosen index are safe at any ballot.
			// A chosen index above the own one may have been forgotten since.
			p.resendFrom(max(p.accepted, min(p.chosen, r.chosen), r.log.base-1))
			p.progressAt = r.now
		}
	}
	if r.now-l.lastBeat >= r.o.Heartbeat {
		r.heartbeat()
	}
}

// abdicate steps down and lets others go first.
func (r *Replica) abdicate() {
	r.becomeFollower(Ballot{}, 0)
	r.resetElection()
	r.electionAt += r.o.ElectionMax
}

func (r *Replica) onHeartbeat(m *Message) {
	r.alive(m.Ballot)
	if m.Ballot.Less(r.promised) {
		r.send(Message{Kind: MsgHeartbeatAck, To: m.From, Ballot: m.Ballot, Promised: r.promised, Sequence: m.Sequence, Chosen: r.chosen})
		return
	}
	r.toldTrip = min(max(m.RoundTrip, 0), patienceMost)
	r.follow(m.Ballot, m.From)
	r.catch.sent = m.Slot
	r.commit(m.Ballot, m.Chosen, m.From)
	// The acknowledgement leaves at once, so it tells only of what is durable.
	upTo := Slot(0)
	if r.durBallot == m.Ballot {
		upTo = r.durUpTo
	}
	r.send(Message{Kind: MsgHeartbeatAck, To: m.From, Ballot: m.Ballot, Promised: r.promised, OK: true,
		Sequence: m.Sequence, Slot: upTo, Chosen: r.chosen})
}

func (r *Replica) onHeartbeatAck(m *Message) {
	r.measure(m)
	if p := r.phase; p != nil && p.won && m.Ballot == p.ballot {
		if m.OK {
			p.heard[m.From] = r.now
		} else if p.ballot.Less(m.Promised) {
			r.superseded(m.Promised)
		}
		return
	}
	p := r.answer(m)
	if p == nil {
		return
	}
	if m.Sequence > p.beat && m.Sequence <= r.lead.beat {
		p.beat = m.Sequence
	}
	r.progress(p, m)
	if r.lead != nil {
		r.readStep()
	}
}
