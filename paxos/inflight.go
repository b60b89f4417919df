package paxos

import "time"

// flightBytes bounds what a follower has been sent and has not accepted. One
// value may be larger. More would stand in queues, before what is urgent.
const flightBytes = 4 << 20

// batchSent is an accept on its way: its last slot and its size.
type batchSent struct {
	slot  Slot
	bytes int
	at    time.Duration
	again bool // some of it had been sent before: its answer measures nothing
}

// full reports whether so much is in flight to a follower that no more is sent
// before it has accepted some of that.
func (p *follower) full() bool { return p.flying >= flightBytes }

// launched notes what has been sent to a follower.
func (p *follower) launched(now time.Duration, entries []Entry) {
	x := batchSent{slot: entries[len(entries)-1].Slot, at: now, again: entries[0].Slot <= p.most}
	for i := range entries {
		x.bytes += entries[i].Value.size()
	}
	p.flights = append(p.flights, x)
	p.flying += x.bytes
	p.sent, p.most = x.slot, max(p.most, x.slot)
}

// landed notes that a follower has accepted up to a slot, and measures how long
// that took.
func (p *follower) landed(now time.Duration, upTo Slot) {
	done := 0
	for ; done < len(p.flights) && p.flights[done].slot <= upTo; done++ {
		x := &p.flights[done]
		p.flying -= x.bytes
		if !x.again {
			p.link.vote.sample(now, now-x.at)
		}
	}
	p.flights = p.flights[:copy(p.flights, p.flights[done:])]
	p.resends = 0
}

// resendFrom makes what is behind a slot be sent again. The links carry none of
// it any more.
func (p *follower) resendFrom(s Slot) {
	p.sent, p.flights, p.flying = s, p.flights[:0], 0
	if s > p.accepted {
		p.skipped = s
	}
	p.resends++
}

// namedTo is the slot that heartbeats name: up to it, beyond what the follower
// has, everything has been sent to it in this ballot. 0: something was left out,
// or was lost and is no longer in memory, so that the follower has to fetch it.
func (r *Replica) namedTo(p *follower) Slot {
	has := max(p.accepted, p.chosen)
	gone := has+1 < r.log.base || r.fetches(p) // it will not be sent again
	if has < p.skipped || (gone && p.link.queued == 0) {
		return 0
	}
	return p.sent
}

// seemsLost reports whether what a follower was sent has to be sent again: for
// longer than its votes usually take it has accepted nothing, and nothing is on
// its way to it. Of a link that does not tell, what is on its way is guessed.
func (r *Replica) seemsLost(p *follower) bool {
	if p.sent <= p.accepted || p.link.queued > 0 || r.fetches(p) || r.now-p.heard >= r.deaf(p.id) {
		return false
	}
	wait := 2 * max(r.o.Heartbeat, p.link.trip.d, p.link.vote.d)
	if !p.link.reports {
		wait += time.Duration(p.flying) * time.Second / slowRate
	}
	return r.now-max(p.progressAt, p.link.movedAt) > wait<<min(p.resends, 4)
}

// carried reports whether a large value is on its way to a replica that was
// asked first: it takes long, and to send it to others as well would make it
// take longer.
func (r *Replica) carried() bool {
	const large = 64 << 10
	x := r.log.get(r.chosen + 1)
	if x == nil || x.size < large {
		return false
	}
	for _, p := range r.lead.peers {
		if p.first && p.link.queued > 0 && r.now-p.link.movedAt < 2*(r.o.Heartbeat+p.link.trip.d) {
			return true
		}
	}
	return false
}
