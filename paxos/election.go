package paxos

import "time"

// probeState is a pre-election round: would a majority follow me?
type probeState struct {
	first uint64 // the first number of its probes; answers to lower ones do not count
	yes   map[ReplicaID]bool
	sent  time.Duration
}

// probeTimes remembers when probes left, by their number: an answer may take
// longer than until the next.
type probeTimes struct {
	last uint64
	at   [32]time.Duration
}

// resetElection draws the next instant at which silence makes us probe. Each
// failed attempt doubles the spread, up to eight times, so that duelling
// candidates part. Where no leader is followed, the wait is for an election.
func (r *Replica) resetElection() {
	spread := r.o.ElectionMax - r.o.ElectionMin
	spread <<= min(r.attempts, 3)
	least := r.silence()
	if r.leader == 0 {
		least = r.o.ElectionMin + r.electing()
	}
	r.electionAt = r.now + least + time.Duration(r.rng.Int64N(int64(spread)))
}

// hearsLeader reports whether a live leader was heard within the time in
// which nobody else is followed. Who has just started has had no chance to
// hear one, and counts as if it had.
func (r *Replica) hearsLeader() bool {
	if r.role == Leader || r.role == Preparing || (r.phase != nil && r.phase.won) {
		return true
	}
	return r.now-r.born < r.o.ElectionMin || (r.leader != 0 && r.now-r.heard < r.silence())
}

// courted reports whether an election is under way: of this replica, of one to
// which it gave its promise, or of its successor. While that may end well no other
// candidate is encouraged, since each new ballot ends what was begun in the last.
func (r *Replica) courted() bool {
	return r.role == Candidate || (r.courtedAt != 0 && r.leader == 0 && r.now-r.courtedAt < r.o.ElectionMin+r.electing())
}

// diskHangs reports whether the own disk has taken too long for its oldest write.
func (r *Replica) diskHangs() bool {
	return len(r.owed) > 0 && r.now-r.owed[0].at > r.o.DiskTimeout
}

// eligible reports whether this replica may campaign. Before founding only
// the founder may, and who has accepted what it proposed.
func (r *Replica) eligible() bool {
	if !r.isVoter() || r.diskHangs() {
		return false
	}
	return r.chosen > 0 || r.campaigned || r.log.get(1) != nil
}

// thaw takes care that time in which this replica did not run is not taken for
// silence of the others: what they said meanwhile has yet to be read. So one
// step of the clock counts as a quarter of ElectionMin at most. Otherwise a
// machine without time for all of its processes would elect without end: each
// stall ends an office, and all clients that then look for the new master cause
// the next.
//
// Invariant: no instant moves behind the present. Nothing but liveness depends
// on these; a leader that was superseded meanwhile is told so by the first
// answer.
func (r *Replica) thaw() {
	gap := r.now - r.ticked - r.o.ElectionMin/4
	r.ticked = r.now
	if gap <= 0 {
		return
	}
	later := func(t time.Duration) time.Duration {
		if t == 0 {
			return 0 // never
		}
		return max(t, min(t+gap, r.now))
	}
	r.heard = later(r.heard)
	r.courtedAt = later(r.courtedAt)
	for i := range r.beats.sent {
		r.beats.sent[i].at = later(r.beats.sent[i].at)
	}
	for i := range r.probes.at {
		r.probes.at[i] = later(r.probes.at[i])
	}
	r.prepared.at = later(r.prepared.at)
	if p := r.phase; p != nil {
		for _, id := range r.voters() {
			p.heard[id] = later(p.heard[id])
		}
		p.progressAt = later(p.progressAt)
	}
	if r.lead != nil {
		for _, p := range r.lead.peers {
			p.heard = later(p.heard)
		}
	}
	// Nor is it slowness of the own disk, whose word may wait to be read too.
	for i := range r.owed {
		r.owed[i].at = later(r.owed[i].at)
	}
	// What was left of the wait is left still, as far as a message that was read
	// before this tick has not made it longer.
	r.electionAt = max(r.electionAt, min(r.electionAt+gap, r.now+r.silence()))
}

func (r *Replica) electionTick() {
	if p := r.phase; p != nil && p.won {
		r.winnerTick()
		return
	}
	if r.role == Candidate {
		r.resendPrepare()
	}
	if r.probe != nil && r.now-r.probe.sent >= r.o.Heartbeat {
		r.sendProbes()
	}
	if r.now < r.electionAt {
		return
	}
	if !r.eligible() {
		r.resetElection()
		return
	}
	if r.role == Candidate {
		r.attempts++
		r.becomeFollower(Ballot{}, 0)
	}
	if r.leader != 0 {
		r.suspect = suspicion{r.ballot, r.heard}
		r.note("leader %d not heard for %v: asking whether to elect another", r.leader, (r.now - r.heard).Round(time.Millisecond))
		r.leader = 0
	}
	r.resetElection()
	if r.probes.last == 0 {
		r.probes.last = r.rng.Uint64() >> 1
	}
	r.probe = &probeState{first: r.probes.last + 1, yes: map[ReplicaID]bool{r.o.ID: true}}
	r.sendProbes()
	r.probeStep()
}

func (r *Replica) sendProbes() {
	r.probe.sent = r.now
	t := &r.probes
	t.last++
	t.at[t.last%uint64(len(t.at))] = r.now
	for _, id := range r.voters() {
		if id != r.o.ID && !r.probe.yes[id] {
			r.send(Message{Kind: MsgProbe, To: id, Chosen: r.chosen, Sequence: t.last})
		}
	}
}

// onProbe answers whether this replica would follow the asker. The answer
// changes nothing here: a replica that cannot hear the leader disturbs nobody
// by asking.
func (r *Replica) onProbe(m *Message) {
	ok := !r.hearsLeader() && !r.courted() && r.chosen <= m.Chosen+Slot(r.o.WindowSlots)
	r.send(Message{Kind: MsgProbeReply, To: m.From, OK: ok, Promised: r.promised, Chosen: r.chosen,
		First: r.first(), Sequence: m.Sequence})
}

func (r *Replica) onProbeReply(m *Message) {
	if m.Chosen > r.chosen {
		r.behind(m.Chosen, m.From)
	}
	t := &r.probes
	if m.Sequence > t.last || m.Sequence+uint64(len(t.at)) <= t.last {
		return
	}
	r.link(m.From).trip.sample(r.now, r.now-t.at[m.Sequence%uint64(len(t.at))])
	r.measureTrip()
	if r.probe == nil || m.Sequence < r.probe.first || !m.OK || !r.member(m.From).Voter {
		return
	}
	r.probe.yes[m.From] = true
	r.probeStep()
}

func (r *Replica) probeStep() {
	if len(r.probe.yes) >= r.quorum() {
		r.prepare(false)
	}
}

// becomeFollower leaves any other role. With a leader it follows that one at
// ballot b.
func (r *Replica) becomeFollower(b Ballot, leader ReplicaID) {
	if r.lead != nil {
		r.note("stepped down from %v", r.ballot)
		r.out.Dropped = append(r.out.Dropped, r.lead.pending...)
		r.lead = nil
	}
	r.keepValues()
	r.role, r.phase = Follower, nil
	r.ballot, r.leader = b, leader
	r.dropPrepares()
	if leader != 0 {
		r.probe = nil
		r.attempts = 0
	}
}

// follow notes a live leader at ballot b, which is not below the promise.
func (r *Replica) follow(b Ballot, leader ReplicaID) {
	r.raisePromise(b)
	if r.role != Follower || r.ballot != b || r.leader != leader {
		r.becomeFollower(b, leader)
		// The leader knows all that is chosen, and it is heard: what was asked of
		// others, who may be dead, need not be waited for.
		r.catch.sent, r.catch.asked, r.catch.vain, r.catch.dropped = 0, false, 0, false
		if leader != 0 {
			r.catch.peer = leader
		}
	}
	r.probe = nil
	r.heard = r.now
	r.salvage = nil
	r.resetElection()
}

// superseded reacts to a higher ballot seen in a refusal.
func (r *Replica) superseded(by Ballot) {
	r.note("ballot %v is preempted by %v", r.ballot, by)
	r.attempts++
	r.becomeFollower(Ballot{}, 0)
	r.resetElection()
}
