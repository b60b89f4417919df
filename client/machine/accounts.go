package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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

// differs returns an error if a count is not what it counts.
func differs(what string, counted, found int) error {
	if counted == found {
		return nil
	}
	return fmt.Errorf("client: %s: %d counted, %d found", what, counted, found)
}

// keysOf returns the keys of a map in order, so that of several faults always the
// same one is reported.
func keysOf[K cmp.Ordered, V any](of map[K]V) []K { return slices.Sorted(maps.Keys(of)) }

// Check compares each count with what it counts. It walks over everything, so it is
// for tests and the simulator.
func (m *Machine) Check() error {
	if m.ended() {
		return differs("calls of a session that has ended", 0, len(m.calls))
	}
	for _, check := range []func() error{m.checkNumbers, m.checkLocks, m.checkWatches} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkNumbers checks the counts of requests and reads.
func (m *Machine) checkNumbers() error {
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
		} else if n < q.from {
			return fmt.Errorf("client: request %d is not sent on this connection, all up to %d are said to be", n, q.from-1)
		}
	}
	for i, r := range q.queue {
		if (r == nil) != (i < q.head) {
			return fmt.Errorf("client: place %d of the queue, which begins at %d, is wrong", i, q.head)
		}
	}
	reads := 0
	for _, r := range m.reads.all {
		if r.sent {
			reads++
		}
	}
	for _, err := range []error{
		differs("requests without an answer", q.numbered.count, count),
		differs("bytes of requests without an answer", q.bytes, bytes),
		differs("requests sent on this connection", q.sent, sent),
		differs("reads sent on this connection", m.reads.sent, reads),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkLocks checks the counts of locks.
func (m *Machine) checkLocks() error {
	k := &m.locks
	working, held, tickets := 0, 0, 0
	for _, id := range keysOf(k.byID) {
		a := k.byID[id]
		if a.phase == acqHeld {
			working++
		}
		if a.index >= 0 {
			held++
			if a.index >= len(k.held) || k.held[a.index] != a {
				return fmt.Errorf("client: lock %d does not stand where it says among those with a deadline", id)
			}
			if a.lost || a.phase != acqHeld && a.phase != acqParked {
				return fmt.Errorf("client: lock %d is in phase %d (lost %v) and has a deadline", id, a.phase, a.lost)
			}
		}
		if a.ticket != 0 {
			tickets++
			if k.byTicket[a.ticket] != a {
				return fmt.Errorf("client: lock %d is not found by its ticket %d", id, a.ticket)
			}
		}
	}
	for _, err := range []error{
		differs("locks handed over", k.working, working),
		differs("locks with a deadline", len(k.held), held),
		differs("tickets of locks", len(k.byTicket), tickets),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkWatches checks the counts of watches.
func (m *Machine) checkWatches() error {
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
		switch {
		case w.wire != 0:
			wires++
			if q.byWire[w.wire] != w {
				return fmt.Errorf("client: watch %d is not found by its number on the connection", id)
			}
		case !w.paused && !idle[id]:
			return fmt.Errorf("client: watch %d is not registered and will not be", id)
		}
	}
	if err := differs("watches that read their state", q.syncing, syncing); err != nil {
		return err
	}
	return differs("watches by their numbers on the connection", len(q.byWire), wires)
}
