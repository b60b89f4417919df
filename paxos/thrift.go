package paxos

import "time"

// A thrifty leader asks no more followers for their votes than make a majority
// with itself: the firsts. The others, the spares, get what is chosen already,
// many slots in one message that they write with one flush. That spares the
// disks and the processors where they are shared, and the network. ("Thrifty"
// is what I. Moraru, D. Andersen, M. Kaminsky, There Is More Consensus in
// Egalitarian Parliaments (SOSP 2013), call a leader that sends its accepts to
// a majority only.) What it costs is the benefit of the faster of several
// followers, so a slot that takes too long goes to all (a hedge).
//
// Invariant: to hold back delays messages and does nothing else. A message that
// was delayed, lost or never sent is the same to Paxos.
const (
	// holdTime, holdSlots and BatchBytes bound what is held back for a spare:
	// these, and what is open.
	holdTime  = 10 * time.Millisecond
	holdSlots = 32
	// A hedge comes when the oldest open slot is older than twice the usual time
	// from proposing to choosing, within these bounds.
	hurryMin = 2 * time.Millisecond
	hurryMax = 20 * time.Millisecond
	// judgedSlots is how many slots at least a leader judges its followers by.
	judgedSlots = 8
	// eagerLeast and eagerMost bound for how long misses make a leader eager: a
	// part of EagerTime, and a multiple of it.
	eagerLeast = 32
	eagerMost  = 16
	// A miss is missStrikes strikes, a slot that was chosen in time takes one
	// away; strikesMost end the thrift: two misses in a row, or more than one in
	// eight.
	missStrikes = 8
	strikesMost = 2 * missStrikes
	// Who was in time for less than one slot in so many is not asked first. It is
	// no more than that: of three that share a machine each may be the last most of
	// the time, and a little later; misses tell whether it matters.
	seldom = 8
)

// Never is an instant that does not come.
const Never = time.Duration(1<<63 - 1)

// NoSlot is above every slot.
const NoSlot = Slot(1<<64 - 1)

// thrift is whom a leader asks first. A new leader is eager: everything goes to
// everybody, and it counts who answers in time. When it has seen enough it is
// thrifty, until there are too many misses: slots that a hedge brought to their
// majority, before those had answered that were asked first. So where the others
// help, or where a first (or the own disk) is dead, slow or frozen, it is eager
// again after two hedges; and the sooner that happens the longer it stays so. A
// stall now and then is no reason: it costs one hedge, and thrift saves a good
// part of every slot.
type thrift struct {
	on    bool
	since time.Duration // on, or off
	eager time.Duration // how long it is off, at least

	// Counted while it is off: slots chosen, and in how many of them the own vote
	// was there in time; the others' are in follower.timely.
	seen, own uint64

	usual   time.Duration // from proposing a slot to its being chosen, on average
	hedged  Slot          // a hedge has sent slots up to it to spares
	strikes int           // of misses, see missStrikes
}

// ThriftCounts say what a leader's thrift came to, since the start.
type ThriftCounts struct {
	HeldBack uint64 // slots that a follower was sent late on purpose
	Hedged   uint64 // slots that it was sent after all because they took too long
	Misses   uint64 // slots for which that was needed
}

// thrifty reports whether anything is held back. Invariant: a leader that
// prepares or hands over holds nothing back: others wait for all it has.
func (l *leadership) thrifty(role Role) bool {
	return l.thrift.on && role == Leader && l.retiring == nil
}

// spare reports whether accepts are held back for a follower.
func (r *Replica) spare(p *follower) bool { return !p.first && r.lead.thrifty(r.role) }

// fetches reports whether a follower is too far behind to store what is open: it
// fetches what is chosen, and is sent nothing.
func (r *Replica) fetches(p *follower) bool {
	return p.chosen+r.ahead() < r.chosen
}

// The bounds, where options make them smaller: a follower must not be missing
// anything for so long that it begins to fetch it (catchUpTick), nor what is
// held for it fall out of memory.
func (r *Replica) holdTime() time.Duration { return min(holdTime, r.o.Heartbeat/10) }
func (r *Replica) holdSlots() Slot         { return max(1, min(holdSlots, Slot(r.o.WindowSlots/4))) }
func (r *Replica) holdBytes() int          { return min(r.o.BatchBytes, r.o.MemoryBytes/4) }

// hurryAfter is the age at which an open slot takes too long.
func (r *Replica) hurryAfter() time.Duration {
	return min(max(hurryMin, 2*r.lead.thrift.usual), r.hurryMost())
}

// hurryMost is the most of that: longer where a round takes longer.
func (r *Replica) hurryMost() time.Duration {
	return min(hurryMax, r.o.Heartbeat/5) + 2*r.roundTrip()
}

// hurries reports whether the oldest open slot takes too long.
func (r *Replica) hurries() bool {
	return r.now >= r.hurryAt()
}

// hurryAt is when the oldest open slot will take too long.
func (r *Replica) hurryAt() time.Duration {
	if x := r.log.get(r.chosen + 1); x != nil && !r.carried() {
		return x.at + r.hurryAfter()
	}
	return Never
}

// releaseAt returns when the leader sends a spare the chosen slots that it holds
// back from it.
func (r *Replica) releaseAt(p *follower) time.Duration {
	if p.sent >= r.chosen || p.full() {
		return Never
	}
	x := r.log.get(p.sent + 1)
	if x == nil || r.chosen-p.sent >= r.holdSlots() {
		return r.now
	}
	bytes := 0
	for s := p.sent + 1; s <= r.chosen; s++ {
		bytes += r.log.get(s).size
	}
	if bytes >= r.holdBytes() {
		return r.now
	}
	return x.at + r.holdTime()
}

// sendTo returns the slot up to which the leader sends a follower accepts now.
// Invariant: a spare whose votes count and that does not fetch has been sent each
// slot hurryMax after it was proposed, or at the next Take behind that; and when
// less than that is chosen and held back, it is within holdSlots and holdBytes.
func (r *Replica) sendTo(p *follower, hurries bool) Slot {
	last := r.lead.next - 1
	switch {
	case p.sent >= last || p.full() || r.fetches(p):
		return p.sent
	case !r.spare(p):
		return min(last, max(p.accepted, r.chosen)+Slot(2*r.o.WindowSlots))
	case hurries && p.voter:
		r.thrift.HeldBack += p.count(r.chosen)
		r.thrift.Hedged += p.count(last)
		r.lead.thrift.hedged = last
		return last
	case r.now >= r.releaseAt(p):
		r.thrift.HeldBack += p.count(r.chosen)
		return r.chosen
	}
	return p.sent
}

// count gives how many slots up to upTo are sent for the first time.
func (p *follower) count(upTo Slot) uint64 {
	from := max(p.sent, p.counted)
	p.counted = max(from, upTo)
	return uint64(p.counted - from)
}

// Due is the earliest instant at which Take does something although no event
// comes; at or before now: it would do so now. Never: it has nothing to wait for.
// While commands gather (see Gathering) it is when they are to wait no longer,
// whether there are any yet or not.
func (r *Replica) Due(now time.Duration) time.Duration {
	l := r.lead
	if l == nil || r.role != Leader {
		return Never
	}
	at := Never
	switch {
	case r.Gathering(now) > 0:
		at = r.gatheredAt(now)
	case len(l.pending) > 0 && r.windowOpen():
		return now
	}
	if !l.thrifty(r.role) {
		return at
	}
	for _, p := range l.peers {
		if p.first || p.sent >= l.next-1 || p.full() || r.fetches(p) {
			continue
		}
		if at = min(at, r.releaseAt(p)); p.voter {
			at = min(at, r.hurryAt())
		}
	}
	return at
}

// observe takes into account that slots up to n are about to be chosen, the own
// disk having them up to own.
func (r *Replica) observe(own, n Slot) {
	l := r.lead
	t := &l.thrift
	if r.role != Leader || n <= r.chosen {
		return
	}
	// What lasts longer changes nothing, and would count for long.
	took := min(r.now-r.log.get(r.chosen+1).at, max(hurryMax, r.hurryMost()))
	if t.usual == 0 {
		t.usual = took
	}
	t.usual += (took - t.usual) / 8
	// Of slots that were just chosen, those up to upTo.
	inTime := func(upTo Slot) uint64 { return uint64(max(r.chosen, min(upTo, n)) - r.chosen) }
	if !l.thrifty(r.role) {
		t.seen += uint64(n - r.chosen)
		t.own += inTime(own)
		for _, p := range l.peers {
			p.timely += inTime(p.accepted)
		}
		return
	}
	asked := own // all that were asked first have voted up to it
	for _, p := range l.peers {
		if p.first {
			asked = min(asked, p.accepted)
		}
	}
	missed := inTime(t.hedged) - min(inTime(t.hedged), inTime(asked))
	if missed == 0 {
		t.strikes = max(0, t.strikes-1)
		return
	}
	r.thrift.Misses += missed
	if t.strikes += missStrikes; t.strikes >= strikesMost {
		r.beEager()
	}
}

// beEager follows misses. If the thrift that they end was shorter than the
// shortest eager time, the next eager time is twice the last, else half of it.
func (r *Replica) beEager() {
	t := &r.lead.thrift
	least := r.o.EagerTime / eagerLeast
	if r.now-t.since < least {
		t.eager = min(2*t.eager, eagerMost*r.o.EagerTime)
	} else {
		t.eager = max(t.eager/2, least)
	}
	t.on = false
	r.judgeAgain()
}

// judgeAgain begins to count anew.
func (r *Replica) judgeAgain() {
	t := &r.lead.thrift
	t.since, t.seen, t.own, t.hedged, t.strikes = r.now, 0, 0, 0, 0
	for _, p := range r.lead.peers {
		p.first, p.timely = false, 0
	}
}

// thriftTick makes an eager leader thrifty when it has seen whom to ask first:
// those that were in time most often, if each was often enough, and the own disk
// too.
func (r *Replica) thriftTick() {
	l := r.lead
	t := &l.thrift
	if t.on || r.role != Leader || r.now-t.since < t.eager || t.seen < judgedSlots {
		return
	}
	need := r.quorum()
	ok := true
	if r.isVoter() {
		need--
		ok = seldom*t.own >= t.seen
	}
	for range need {
		var best *follower
		for _, p := range l.peers {
			if p.voter && !p.first && (best == nil || p.timely > best.timely) {
				best = p
			}
		}
		if best == nil || seldom*best.timely < t.seen {
			ok = false
			break
		}
		best.first = true
	}
	if !ok {
		r.judgeAgain()
		return
	}
	t.on, t.since = true, r.now
}
