package paxos

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// phaseOne is a campaign: one ballot, one prepare for every slot from from on.
type phaseOne struct {
	ballot   Ballot
	from     Slot
	handover bool
	durable  bool // own promise is on disk: own vote counts
	began    time.Duration
	sent     time.Duration
	promises map[ReplicaID]Slot // who promised, and its chosen index
	refused  map[ReplicaID]bool
	// best is, for each open slot reported, the entry with the highest ballot.
	best map[Slot]Entry
	last Slot // highest slot reported
	// chosen is the highest chosen index reported: what lies below is fetched,
	// not voted on. trimmed prefixes are therefore never taken for empty.
	chosen Slot
	holder ReplicaID // who reported it
}

// prepare starts phase 1 with a ballot above all that was seen (Paxos Made
// Simple, section 2.2; one phase 1 for the whole suffix: section 3).
// Invariant: own ballots are never used twice, since the round is above the
// own promise, which is durable before the prepare leaves.
func (r *Replica) prepare(handover bool) {
	r.probe = nil
	if !r.isVoter() || r.maxRound >= roundMax {
		return
	}
	b := Ballot{Round: max(r.maxRound, r.promised.Round) + 1, Replica: r.o.ID}
	r.maxRound = b.Round
	r.becomeFollower(b, 0)
	r.role = Candidate
	r.raisePromise(b)
	r.resetElection()
	p := &phaseOne{
		ballot: b, from: r.chosen + 1, handover: handover, began: r.now, chosen: r.chosen,
		promises: map[ReplicaID]Slot{}, refused: map[ReplicaID]bool{}, best: map[Slot]Entry{}, last: r.chosen,
	}
	r.phase = p
	for _, e := range r.openEntries(p.from) {
		p.report(e)
	}
	r.note("campaigning with %v for slots from %d", b, p.from)
	r.sendPrepares()
}

// report takes an accepted entry into account.
// Invariant: of the values that a quorum reports for a slot, the one accepted
// at the highest ballot is proposed (Paxos Made Simple, P2c).
func (p *phaseOne) report(e Entry) {
	p.last = max(p.last, e.Slot)
	if old, ok := p.best[e.Slot]; !ok || (!old.Chosen && (e.Chosen || old.Ballot.Less(e.Ballot) != invariant.Planted(invariant.LowestBallotWins))) {
		p.best[e.Slot] = e
	}
}

// openEntries are the entries accepted from slot s on and not known chosen.
func (r *Replica) openEntries(s Slot) []Entry {
	var out []Entry
	for s = max(s, r.chosen+1); s <= r.log.last(); s++ {
		if x := r.log.get(s); x != nil {
			out = append(out, x.Entry)
		}
	}
	return out
}

func (r *Replica) sendPrepares() {
	p := r.phase
	p.sent = r.now
	for _, id := range r.voters() {
		if _, ok := p.promises[id]; ok || id == r.o.ID {
			continue
		}
		// After: the own promise must be durable first, or the ballot could be
		// used again after a crash.
		r.sendAfter(Message{Kind: MsgPrepare, To: id, Ballot: p.ballot, Slot: p.from, OK: p.handover})
	}
}

func (r *Replica) resendPrepare() {
	if p := r.phase; p != nil && p.durable && r.now-p.sent >= r.o.Heartbeat {
		r.sendPrepares()
	}
}

// onPrepare is phase 1b. While a live leader is heard nobody else is promised
// anything, except the successor that the leader named.
func (r *Replica) onPrepare(m *Message) {
	refuse := m.Ballot.Less(r.promised) || (m.Ballot != r.promised && !m.OK && r.hearsLeader())
	if refuse {
		r.send(Message{Kind: MsgPromise, To: m.From, Ballot: m.Ballot, Promised: r.promised, Chosen: r.chosen})
		return
	}
	if r.ballot != m.Ballot {
		r.becomeFollower(m.Ballot, 0)
		r.resetElection()
	}
	r.probe = nil
	r.raisePromise(m.Ballot)
	promise := Message{
		Kind: MsgPromise, To: m.From, Ballot: m.Ballot, Promised: r.promised, OK: true,
		Slot: m.Slot, Chosen: r.chosen, First: r.first(), Entries: r.openEntries(m.Slot),
	}
	if invariant.Planted(invariant.PromiseBeforeFlush) {
		r.send(promise)
		return
	}
	r.sendAfter(promise)
}

func (r *Replica) onPromise(m *Message) {
	p := r.phase
	if p == nil || m.Ballot != p.ballot {
		return
	}
	if !m.OK {
		if p.ballot.Less(m.Promised) {
			r.superseded(m.Promised)
			return
		}
		p.refused[m.From] = true
		if len(r.voters())-len(p.refused) < r.quorum() {
			r.note("%v is refused by a majority that hears a leader", p.ballot)
			r.attempts++
			r.becomeFollower(Ballot{}, 0)
			r.resetElection()
		}
		return
	}
	if _, again := p.promises[m.From]; again || !r.member(m.From).Voter {
		return
	}
	delete(p.refused, m.From)
	p.promises[m.From] = m.Chosen
	for _, e := range m.Entries {
		if e.Slot >= p.from {
			p.report(e)
		}
	}
	if m.Chosen > p.chosen {
		p.chosen, p.holder = m.Chosen, m.From
	}
	r.phaseOneStep()
}

// phaseOneStep goes on when a majority, the own durable promise included, has
// promised and all that is known chosen to it has been fetched.
func (r *Replica) phaseOneStep() {
	p := r.phase
	votes := len(p.promises)
	if p.durable {
		votes++
	}
	if !p.durable || votes < r.quorum() {
		return
	}
	if r.chosen < p.chosen {
		r.behind(p.chosen, p.holder)
		return // learn() comes back here
	}
	r.takeOver()
}

// takeOver begins the leadership: every open slot is proposed again at the new
// ballot, holes become no-ops, and the own Lead entry goes behind them. In a
// cell that is not founded there is slot 1 alone, for the configuration.
func (r *Replica) takeOver() {
	p := r.phase
	r.phase = nil
	r.role, r.ballot, r.leader = Preparing, p.ballot, r.o.ID
	r.lead = newLeadership(r, p.promises)
	r.catch = catchUp{}
	holes, again := 0, 0
	last := max(p.last, r.chosen)
	if last == 0 && r.found != nil {
		last = 1 // founding: slot 1 is the configuration's
	}
	for s := r.chosen + 1; s <= last; s++ {
		e, ok := p.best[s]
		switch {
		case ok:
			again++
		case s == 1 && r.found != nil:
			e.Value = Value{Kind: Config, Config: r.found}
		default:
			holes++ // nobody of the quorum accepted anything: nothing can be chosen
		}
		r.proposeIn(s, e.Value)
	}
	r.note("won %v after %v: %d open slots proposed again, %d holes filled, next slot %d",
		p.ballot, (r.now - p.began).Round(time.Millisecond), again, holes, r.lead.next)
	r.opened()
	r.heartbeat()
}
