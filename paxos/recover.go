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
	sent     time.Duration      // when the last ones did
	again    int                // how often prepares were sent again
	promises map[ReplicaID]Slot // who promised, and its chosen index
	wall     int64              // lowest wall clock of those, 0: one does not know it
	refused  map[ReplicaID]bool
	// best is, for each open slot reported, the entry with the highest ballot:
	// named, until its value is there.
	best map[Slot]Entry
	last Slot // highest slot reported
	// chosen is the highest chosen index reported: what lies below is fetched,
	// not voted on. trimmed prefixes are therefore never taken for empty.
	chosen Slot
	holder ReplicaID // who reported it

	// won: a majority has promised. While what is lacking is fetched, heartbeats
	// keep others from electing: that takes long where values are large and links
	// slow, and another candidate would have to do the same from its beginning.
	won        bool
	beat       uint64
	lastBeat   time.Duration
	heard      map[ReplicaID]time.Duration
	progressAt time.Duration // when something that was lacking last came
	fetch      valueFetch
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
		heard: map[ReplicaID]time.Duration{}, fetch: valueFetch{holders: map[Slot][]ReplicaID{}},
	}
	r.phase = p
	for _, e := range r.openEntries(p.from) {
		p.report(e, r.o.ID)
	}
	r.prepared.ballot, r.prepared.at = b, r.now
	r.note("campaigning with %v for slots from %d", b, p.from)
	r.sendPrepares()
}

// report takes an accepted entry into account, which may be named only.
// Invariant: of the values that a quorum reports for a slot, the one accepted
// at the highest ballot is proposed (Paxos Made Simple, P2c).
func (p *phaseOne) report(e Entry, by ReplicaID) {
	p.last = max(p.last, e.Slot)
	f := &p.fetch
	old, ok := p.best[e.Slot]
	switch {
	case !ok || (!old.Chosen && (e.Chosen || old.Ballot.Less(e.Ballot) != invariant.Planted(invariant.LowestBallotWins))):
		p.best[e.Slot] = e
		f.holders[e.Slot] = []ReplicaID{by}
	case !old.Chosen && old.Ballot == e.Ballot:
		f.holders[e.Slot] = append(f.holders[e.Slot], by)
		if old.Named && !e.Named {
			p.best[e.Slot] = e
		}
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

// named tells of entries without their values. Values may be large: with them a
// promise could take longer than a candidate is waited for.
func named(entries []Entry) []Entry {
	for i := range entries {
		entries[i] = Entry{Slot: entries[i].Slot, Ballot: entries[i].Ballot, Named: true}
	}
	return entries
}

func (r *Replica) sendPrepares() {
	p := r.phase
	p.sent = r.now
	for _, id := range r.voters() {
		if _, ok := p.promises[id]; ok || id == r.o.ID {
			continue
		}
		m := Message{Kind: MsgPrepare, To: id, Ballot: p.ballot, Slot: p.from, OK: p.handover, RoundTrip: r.electing()}
		if p.durable {
			r.send(m)
			continue
		}
		// After: the own promise must be durable first, or the ballot could be
		// used again after a crash.
		r.sendAfter(m)
	}
}

func (r *Replica) resendPrepare() {
	if p := r.phase; p != nil && p.durable && r.now-p.sent >= max(r.o.Heartbeat, r.voteTrip())<<min(p.again, 3) {
		p.again++
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
		r.toldTrip = min(max(m.RoundTrip, 0), patienceMost)
		r.courtedAt = r.now
		r.resetElection()
	}
	r.probe = nil
	r.raisePromise(m.Ballot)
	r.owesPromise = owedPromise{to: m.From, ballot: m.Ballot, from: m.Slot}
}

// owedPromise is the promise that is to leave with the next batch. One is
// enough: what was promised before, to another candidate, is broken by the last.
type owedPromise struct {
	to     ReplicaID // 0: none
	ballot Ballot
	from   Slot
}

// promise gives the promise that is owed. One waits for its flush at a time: a
// candidate repeats its prepare, candidates follow one another, and behind a disk
// that hangs that could go on without end. To wait costs nothing, since a flush
// that has begun takes no more with it.
func (r *Replica) promise() {
	o := r.owesPromise
	waits := r.pledged.sequence > r.durSequence
	if o.to != 0 && o.ballot == r.promised && waits && r.pledged.ballot != o.ballot {
		return
	}
	r.owesPromise = owedPromise{}
	if o.to == 0 || o.ballot != r.promised || waits {
		return
	}
	r.pledged.ballot, r.pledged.sequence = o.ballot, r.sequence+1
	promise := Message{
		Kind: MsgPromise, To: o.to, Ballot: o.ballot, Promised: r.promised, OK: true,
		Slot: o.from, Chosen: r.chosen, First: r.first(), Entries: named(r.openEntries(o.from)), WallSeconds: r.wallSeconds,
	}
	if invariant.Planted(invariant.PromiseBeforeFlush) {
		r.send(promise)
		return
	}
	r.sendAfter(promise)
}

func (r *Replica) onPromise(m *Message) {
	if m.Ballot == r.prepared.ballot && m.OK {
		r.link(m.From).vote.sample(r.now, r.now-r.prepared.at)
	}
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
	if _, again := p.promises[m.From]; again || (!r.member(m.From).Voter && !invariant.Planted(invariant.LearnersPromise)) {
		return
	}
	if !r.storable(m) {
		r.note("replica %d promises %v and names slots that it cannot have: not counted", m.From, m.Ballot)
		return
	}
	delete(p.refused, m.From)
	if len(p.promises) == 0 || m.WallSeconds < p.wall {
		p.wall = max(m.WallSeconds, 0)
	}
	p.promises[m.From] = m.Chosen
	p.heard[m.From] = r.now
	for _, e := range m.Entries {
		if e.Slot >= p.from {
			p.report(e, m.From)
		}
	}
	if m.Chosen > p.chosen {
		p.chosen, p.holder = m.Chosen, m.From
	}
	r.phaseOneStep()
}

// storable reports whether a promise names only slots that an acceptor may
// have stored, see onAccept: its chosen index was on its disk with the first
// of them. Invariant: what a candidate takes on by promises is bounded. A promise
// counts as a whole or not at all: without one of its entries it would say that
// nothing was accepted there.
func (r *Replica) storable(m *Message) bool {
	for i := range m.Entries {
		if m.Entries[i].Slot > m.Chosen+r.ahead() {
			return false
		}
	}
	return true
}

// ahead is how far above its chosen index an acceptor stores what it accepts.
func (r *Replica) ahead() Slot { return Slot(aheadWindows * r.o.WindowSlots) }

// phaseOneStep goes on when a majority, the own durable promise included, has
// promised and all that is known chosen to it has been fetched, and so have the
// values that it named.
func (r *Replica) phaseOneStep() {
	p := r.phase
	votes := len(p.promises)
	if p.durable {
		votes++
	}
	if !p.durable || votes < r.quorum() {
		return
	}
	if !p.won {
		p.won, p.progressAt = true, r.now
		p.beat = r.rng.Uint64() >> 32
	}
	if r.chosen < p.chosen {
		r.behind(p.chosen, p.holder)
		r.keepQuiet()
		return // learn() comes back here
	}
	if r.fetchValues() {
		r.keepQuiet()
		return // onValues comes back here
	}
	r.takeOver()
}

// keepQuiet sends the heartbeats of a candidate that has won and is not ready.
func (r *Replica) keepQuiet() {
	p := r.phase
	if p == nil || (p.lastBeat != 0 && r.now-p.lastBeat < r.o.Heartbeat) {
		return
	}
	p.lastBeat = r.now
	p.beat++
	r.beats.left(r.now, r.o.Heartbeat/2, p.ballot, p.beat)
	for _, m := range r.cfg.Members {
		if m.ID != r.o.ID {
			r.send(Message{Kind: MsgHeartbeat, To: m.ID, Ballot: p.ballot, Chosen: r.chosen, Sequence: p.beat, First: r.first(), RoundTrip: r.roundTrip()})
		}
	}
}

// winnerTime is for how long a candidate that has won goes on when nothing comes
// that it lacks.
const winnerTime = 15 * time.Second

// holderTime is the same where it lacks chosen slots and the replica that knows
// them is not heard: another may have them, or be elected by those that answer.
const holderTime = 2 * time.Second

// winnerTick is to a candidate that has won what leaderTick is to a leader: it
// must not keep the others quiet in vain.
func (r *Replica) winnerTick() {
	p := r.phase
	alive := 1
	for _, id := range r.voters() {
		if id != r.o.ID && p.heard[id] != 0 && r.now-p.heard[id] < r.deaf(id) {
			alive++
		}
	}
	// Bytes of what was asked for are progress.
	for _, id := range []ReplicaID{p.fetch.from, r.catch.peer} {
		if l := r.links[id]; l != nil {
			p.progressAt = max(p.progressAt, l.arrived)
		}
	}
	switch {
	case alive < r.quorum():
		r.giveUp("no majority heard")
	case r.diskHangs():
		r.giveUp("own disk hangs")
	case r.chosen < p.chosen && r.now-p.heard[p.holder] > r.deaf(p.holder) && r.now-p.progressAt > holderTime+2*r.patience():
		r.giveUp("replica %d, which knows of a higher chosen slot, is not heard", p.holder)
	case r.now-p.progressAt > winnerTime+2*r.patience():
		r.giveUp("nothing of what is lacking comes")
	default:
		r.fetchTick()
		if r.phase != nil {
			r.keepQuiet()
		}
	}
}

// giveUp ends a campaign and lets others go first.
func (r *Replica) giveUp(why string, args ...any) {
	r.note("%v is given up: "+why, append([]any{r.ballot}, args...)...)
	r.attempts++
	r.abdicate()
}

// takeOver begins the leadership: every open slot is proposed again at the new
// ballot, holes become no-ops, and the own Lead entry goes behind them. In a
// cell that is not founded there is slot 1 alone, for the configuration.
func (r *Replica) takeOver() {
	p := r.phase
	r.phase = nil
	r.role, r.ballot, r.leader = Preparing, p.ballot, r.o.ID
	r.lead = newLeadership(r, p)
	r.salvage = nil
	r.catch = catchUp{}
	holes, again := 0, 0
	last := max(p.last, r.chosen)
	if last == 0 && r.found != nil {
		last = 1 // founding: slot 1 is the configuration's
	}
	for s := r.chosen + 1; s <= last; s++ {
		e, ok := p.best[s]
		invariant.Assert(!e.Named, "slot %d would be proposed without the value that was named", s)
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
