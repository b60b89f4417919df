package paxos

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

const (
	fetchBytes = 1 << 20 // asked for at a time
	fetchNames = 256     // values named in a request
	// fetchTimeout is how long a replica that was asked for values may say
	// nothing, and send no byte. Where links do not tell of bytes it is longer,
	// since a large value may be on its way for long.
	fetchTimeout     = 1 * time.Second
	fetchTimeoutDark = 5 * time.Second
)

// valueFetch is the state of a candidate's fetching of the values that promises
// have named. Invariant: a value counts only if it is of the ballot named (or
// learnt as chosen, see learn).
type valueFetch struct {
	from  ReplicaID // asked; 0: none is
	at    time.Duration
	slots []Slot // asked for
	// holders are the replicas that have named the entry in phaseOne.best, by slot.
	holders map[Slot][]ReplicaID
}

// lacking returns the first slot whose value is named and not there, 0: none.
func (p *phaseOne) lacking(from Slot) Slot {
	for s := from; s <= p.last; s++ {
		if e, ok := p.best[s]; ok && e.Named {
			return s
		}
	}
	return 0
}

// fetchValues asks for values that are lacking. It reports whether any are.
func (r *Replica) fetchValues() bool {
	p := r.phase
	f := &p.fetch
	for s := p.lacking(r.chosen + 1); s != 0; s = p.lacking(s + 1) {
		if e, ok := r.salvage[s]; ok && e.Ballot == p.best[s].Ballot {
			p.best[s] = e
		}
	}
	first := p.lacking(r.chosen + 1)
	if first == 0 {
		return false
	}
	if f.from != 0 {
		return true
	}
	holders := f.holders[first]
	if len(holders) == 0 {
		r.giveUp("no replica that named the value of slot %d gives it", first)
		return true
	}
	f.from, f.at, f.slots = holders[0], r.now, nil
	m := Message{Kind: MsgFetch, To: f.from, Ballot: p.ballot, Slot: first, Limit: fetchBytes}
	for s := first; s <= p.last && len(m.Entries) < fetchNames; s++ {
		if e, ok := p.best[s]; ok && e.Named && contains(f.holders[s], f.from) {
			m.Entries = append(m.Entries, e)
			f.slots = append(f.slots, s)
		}
	}
	r.send(m)
	return true
}

func contains(ids []ReplicaID, id ReplicaID) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}

// inVain strikes the replica that was asked off the holders of what it did not give.
func (p *phaseOne) inVain() {
	f := &p.fetch
	for _, s := range f.slots {
		var rest []ReplicaID
		for _, id := range f.holders[s] {
			if id != f.from {
				rest = append(rest, id)
			}
		}
		f.holders[s] = rest
	}
	f.from, f.slots = 0, nil
}

// keepValues keeps what a campaign has fetched for the next one, if no leader is
// followed before: what took too long once must not begin again.
func (r *Replica) keepValues() {
	p := r.phase
	if p == nil || r.chosen < p.chosen {
		return // nothing was fetched yet
	}
	for s := r.chosen + 1; s <= p.last; s++ {
		e, ok := p.best[s]
		if !ok || e.Named {
			continue
		}
		if x := r.log.get(s); x != nil && x.Ballot == e.Ballot {
			continue
		}
		if r.salvage == nil {
			r.salvage = map[Slot]Entry{}
		}
		r.salvage[s] = e
	}
}

// fetchTick asks another if no byte comes from the one that was asked, and at
// once if it is not heard at all.
func (r *Replica) fetchTick() {
	p := r.phase
	f := &p.fetch
	if f.from == 0 {
		return
	}
	wait := fetchTimeout
	if !r.arrivals {
		wait = fetchTimeoutDark
	}
	arrived := r.link(f.from).arrived
	gone := r.now-max(p.heard[f.from], f.at, arrived) > r.deaf(f.from)
	if gone || r.now-max(f.at, arrived) > wait+2*r.patience() {
		r.note("replica %d does not give the values that it named", f.from)
		p.inVain()
		r.fetchValues()
	}
}

// onFetch gives values that this replica has accepted. What it knows to be
// chosen by now it does not give here: Chosen tells the candidate to catch up.
func (r *Replica) onFetch(m *Message) {
	reply := Message{Kind: MsgValues, To: m.From, Ballot: m.Ballot, Promised: r.promised, Slot: m.Slot, Chosen: r.chosen, First: r.first()}
	if m.Ballot.Less(r.promised) {
		r.send(reply)
		return
	}
	if r.onItsWay(m.From, answered{MsgFetch, m.Ballot, m.Slot}) {
		return
	}
	reply.OK = true
	limit, size := int(min(max(m.Limit, 1), catchUpMax)), 0
	for i := range m.Entries {
		e := &m.Entries[i]
		x := r.log.get(e.Slot)
		if x == nil || e.Slot <= r.chosen || (x.Ballot != e.Ballot && !invariant.Planted(invariant.ValueOfAnyBallot)) {
			continue
		}
		if size += x.size; len(reply.Entries) > 0 && size > limit {
			break
		}
		reply.Entries = append(reply.Entries, x.Entry)
	}
	r.send(reply)
}

// onValues takes values that were fetched, from any replica and at any time: a
// slot has one value at a ballot.
func (r *Replica) onValues(m *Message) {
	p := r.phase
	if p == nil {
		return
	}
	if !m.OK {
		if m.Ballot == p.ballot && p.ballot.Less(m.Promised) {
			r.superseded(m.Promised)
		}
		return
	}
	came := false
	for _, e := range m.Entries {
		old, ok := p.best[e.Slot]
		if !ok || !old.Named || (old.Ballot != e.Ballot && !invariant.Planted(invariant.ValueOfAnyBallot)) {
			continue
		}
		e.Ballot, e.Chosen = old.Ballot, false
		p.best[e.Slot] = e
		came = true
	}
	if m.Chosen > p.chosen {
		p.chosen, p.holder = m.Chosen, m.From
		came = true
	}
	if came {
		p.progressAt = r.now
	}
	// An answer to an earlier request says nothing of the present one.
	if f := &p.fetch; m.From == f.from && m.Ballot == p.ballot && m.Slot == f.slots[0] {
		if !came {
			p.inVain()
		}
		p.fetch.from, p.fetch.slots = 0, nil
	}
	r.phaseOneStep()
}
