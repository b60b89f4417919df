package machine

import (
	"cmp"
	"maps"
	"slices"

	"github.com/seed70370324/lockd/internal/invariant"
)

// InFlight counts what is under way in a Machine. All of it is zero when no call is
// open and no lock is held.
type InFlight struct {
	Calls    int // of the application, without an answer; watches are not among them
	Queued   int // requests without a number
	Numbered int // requests without an answer
	Bytes    int // of these
	Reads    int
	Locks    int // asked for, held, or being given back
	Syncing  int // watches that read their state
	Unread   int // watches that are to be registered
}

// InFlight returns what is under way.
func (m *Machine) InFlight() InFlight {
	return InFlight{Calls: len(m.calls) - len(m.watch.all), Queued: m.reqs.queued(), Numbered: m.reqs.numbered.count, Bytes: m.reqs.bytes,
		Reads: len(m.reads.all), Locks: len(m.locks.byID), Syncing: m.watch.syncing, Unread: len(m.watch.idle)}
}

// keysOf returns the keys of a map in order, so that of several faults always the
// same one is reported.
func keysOf[K cmp.Ordered, V any](of map[K]V) []K { return slices.Sorted(maps.Keys(of)) }

// Check compares each count with what it counts. It walks over everything, so it is
// for tests and the simulator.
func (m *Machine) Check() error {
	var f invariant.Faults
	if m.ended() {
		f.Count("calls of a session that has ended", 0, len(m.calls))
		return f.Err()
	}
	for _, check := range []func(*invariant.Faults){m.checkNumbers, m.checkLocks, m.checkWatches} {
		check(&f)
	}
	return f.Err()
}

// checkNumbers checks the counts of requests and reads.
func (m *Machine) checkNumbers(f *invariant.Faults) {
	q := &m.reqs
	count, sent, bytes := 0, 0, 0
	for n := q.lowest; n < q.next; n++ {
		r := q.numbered.get(n)
		if r == nil {
			continue
		}
		count, bytes = count+1, bytes+r.bytes
		if r.sent {
			sent++
		}
		f.That(r.sent || n >= q.from, "request %d is not sent on this connection, and said to be", n)
	}
	for i, r := range q.queue {
		f.That((r == nil) == (i < q.head), "place %d of the queue, which begins at %d, is wrong", i, q.head)
	}
	reads := 0
	for _, r := range m.reads.all {
		if r.sent {
			reads++
		}
	}
	f.Count("requests without an answer", q.numbered.count, count)
	f.Count("bytes of requests without an answer", q.bytes, bytes)
	f.Count("requests sent on this connection", q.sent, sent)
	f.Count("reads sent on this connection", m.reads.sent, reads)
}

// checkLocks checks the counts of locks.
func (m *Machine) checkLocks(f *invariant.Faults) {
	k := &m.locks
	working, held, tickets := 0, 0, 0
	for _, id := range keysOf(k.byID) {
		a := k.byID[id]
		if a.phase == acqHeld {
			working++
		}
		if a.index >= 0 {
			held++
			f.That(a.index < len(k.held) && k.held[a.index] == a, "lock %d does not stand where it says among those with a deadline", id)
			f.That(!a.lost && (a.phase == acqHeld || a.phase == acqParked), "lock %d is in phase %d (lost %v) and has a deadline", id, a.phase, a.lost)
		}
		if a.ticket != 0 {
			tickets++
			f.That(k.byTicket[a.ticket] == a, "lock %d is not found by its ticket %d", id, a.ticket)
		}
	}
	f.Count("locks handed over", k.working, working)
	f.Count("locks with a deadline", len(k.held), held)
	f.Count("tickets of locks", len(k.byTicket), tickets)
}

// checkWatches checks the counts of watches.
func (m *Machine) checkWatches(f *invariant.Faults) {
	q := &m.watch
	syncing, wires := 0, 0
	idle := make(map[CallID]bool)
	for _, w := range q.idle {
		idle[w.id] = true
	}
	for _, id := range keysOf(q.all) {
		w := q.all[id]
		if w.sync != nil {
			syncing++
		}
		if w.wire != 0 {
			wires++
			f.That(q.byWire[w.wire] == w, "watch %d is not found by its number on the connection", id)
		}
		f.That(w.wire != 0 || w.paused || idle[id], "watch %d is not registered and will not be", id)
	}
	f.Count("watches that read their state", q.syncing, syncing)
	f.Count("watches by their numbers on the connection", len(q.byWire), wires)
}
