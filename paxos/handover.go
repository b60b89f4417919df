package paxos

import "time"

// handoverTimeout bounds how long a leader looks for a successor, beyond what
// rounds take: what is open must be chosen first.
const handoverTimeout = 1 * time.Second

// retirement is a hand-over under way.
type retirement struct {
	to    ReplicaID // wanted, 0: whoever is furthest
	since time.Duration
}

// handOver makes a leader stop: from now on it proposes nothing and confirms
// no read in its ballot, for good. When a follower has everything it is told
// to campaign, and only then may the others follow it before their time.
func (r *Replica) handOver(to ReplicaID) {
	l := r.lead
	if l == nil || l.retiring != nil {
		return
	}
	l.retiring = &retirement{to: to, since: r.now}
	r.out.Dropped = append(r.out.Dropped, l.pending...)
	l.pending, l.pendingBytes, l.reads, l.round = nil, 0, nil, nil
	r.note("handing over: %v proposes nothing more", r.ballot)
	r.retireStep()
}

// retireStep sends the successor off once it has accepted everything.
func (r *Replica) retireStep() {
	l := r.lead
	if l.retiring == nil {
		return
	}
	var best *follower
	for _, p := range l.peers {
		if !p.voter || r.now-p.heard >= r.deaf(p.id) || (l.retiring.to != 0 && p.id != l.retiring.to) {
			continue
		}
		if best == nil || p.accepted > best.accepted {
			best = p
		}
	}
	if best == nil || best.accepted < l.next-1 || r.chosen < l.next-1 {
		return
	}
	// The others are to leave the successor the time that an election takes.
	r.heartbeatFor(r.electing())
	r.send(Message{Kind: MsgHandover, To: best.id, Ballot: r.ballot, Chosen: r.chosen})
	r.note("handed over to replica %d", best.id)
	r.abdicate()
	r.courtedAt = r.now
}

func (r *Replica) retireTick() {
	if t := r.lead.retiring; t != nil && r.now-t.since > handoverTimeout+2*r.electing() {
		r.note("no successor within %v: stepping down", (r.now - t.since).Round(time.Millisecond))
		r.abdicate()
	}
}

// onHandover campaigns at once, with the word of the leader that it followed.
func (r *Replica) onHandover(m *Message) {
	if r.role != Follower || m.Ballot != r.promised || r.leader != m.From || !r.eligible() {
		return
	}
	r.commit(m.Ballot, m.Chosen, m.From)
	r.prepare(true)
}
