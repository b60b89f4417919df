package master

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// What a master counts it counts as it goes: under way, promised, waiting. A count
// that is not taken back when its reason has gone stays until the master steps down,
// refuses others what is free, and shows in nothing else.

// InFlight counts what is under way in a master. All of it is zero at rest, and
// whatever does not come back to that counts against the limits for ever.
type InFlight struct {
	Requests, Bytes int // proposed and not applied
	Openings        int // sessions
	Nodes           int // that requests and openings may add to the state
	StateBytes      int64
	Expiries        int
	Waiting         int // messages that wait for a proof of leadership
	Reads           int // reads and watches among these
	WaitingBytes    int // of all these
	Proposals       int // commands that the log was not given yet
	WatchesBehind   int // watches that were not told everything, for want of room
	WatchLogBytes   int // of changes that some watch was not told yet
}

// InFlight returns what is under way.
func (m *Master) InFlight() InFlight {
	f := InFlight{Requests: m.pending, Bytes: m.bytes, Openings: len(m.opening), Expiries: m.expiring, Reads: m.rounds.reads,
		Nodes: m.growing.nodes, StateBytes: m.growing.bytes, WaitingBytes: m.rounds.bytes, Proposals: len(m.proposals),
		WatchesBehind: m.watches.behind, WatchLogBytes: m.watches.log.bytes}
	for _, c := range m.conns {
		f.Waiting += c.waiting
	}
	return f
}

// Check compares each count with what it counts. It walks over everything, so it is
// for tests and the simulator; call it between batches, behind Take.
func (m *Master) Check() error {
	for _, check := range []func() error{m.checkRequests, m.checkWaiting, m.checkDeadlines, m.checkConns, m.watches.check} {
		if err := check(); err != nil {
			return fmt.Errorf("master: %w", err)
		}
	}
	if watches := m.countWatches(); watches != m.watches.count {
		return fmt.Errorf("master: %d watches counted, connections have %d", m.watches.count, watches)
	}
	return nil
}

// differs returns an error if a count is not what it counts.
func differs[N int | int64](what string, counted, found N) error {
	if counted == found {
		return nil
	}
	return fmt.Errorf("%s: %d counted, %d found", what, counted, found)
}

// sorted returns the keys of a map in order, so that of several faults always the
// same one is reported.
func sorted[K cmp.Ordered, V any](of map[K]V) []K { return slices.Sorted(maps.Keys(of)) }

// checkRequests checks the counts of requests, openings and expiries.
func (m *Master) checkRequests() error {
	var requests, bytes, expiring int
	var grows size
	for _, id := range sorted(m.sessions) {
		s := m.sessions[id]
		for i, r := range s.requests {
			requests++
			bytes += r.bytes
			grows = grows.plus(r.grows)
			if i > 0 && s.requests[i-1].number >= r.number {
				return fmt.Errorf("session %d: request %d stands behind %d", s.id, r.number, s.requests[i-1].number)
			}
		}
		if s.expiring {
			expiring++
		}
		if s.ended && len(s.requests) == 0 {
			return fmt.Errorf("session %d has ended, has no request under way, and is kept", s.id)
		}
	}
	for _, nonce := range sorted(m.opening) {
		o := m.opening[nonce]
		if o.nonce != nonce {
			return fmt.Errorf("the opening of nonce %x is filed under %x", o.nonce, nonce)
		}
		if o.applied == nil {
			grows = grows.plus(o.grows)
		}
	}
	for _, err := range []error{
		differs("requests under way", m.pending, requests),
		differs("bytes of requests under way", m.bytes, bytes),
		differs("nodes that requests may add", m.growing.nodes, grows.nodes),
		differs("bytes that requests may add", m.growing.bytes, grows.bytes),
		differs("expiries under way", m.expiring, expiring),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkWaiting checks the counts of what waits for a proof of leadership.
func (m *Master) checkWaiting() error {
	reads, bytes := 0, 0
	waiting, weights := make(map[*conn]int), make(map[*conn]int)
	count := func(ws []waiter) {
		for i := range ws {
			weight := ws[i].weight()
			bytes += weight
			waiting[ws[i].conn]++
			weights[ws[i].conn] += weight
			if ws[i].read != nil || ws[i].watch != nil {
				reads++
			}
		}
	}
	r := &m.rounds
	count(r.gather)
	for _, rounds := range [][]round{r.flying, r.proven} {
		for i := range rounds {
			count(rounds[i].waiters)
		}
	}
	if err := differs("reads and watches that wait for a proof", r.reads, reads); err != nil {
		return err
	}
	if err := differs("bytes of what waits for a proof", r.bytes, bytes); err != nil {
		return err
	}
	for _, id := range sorted(m.conns) {
		c := m.conns[id]
		if c.closing {
			continue // a master that stepped down has forgotten what waited
		}
		if err := differs(fmt.Sprintf("messages of connection %d that wait for a proof", c.id), c.waiting, waiting[c]); err != nil {
			return err
		}
		if err := differs(fmt.Sprintf("bytes of connection %d that wait for a proof", c.id), c.waitingBytes, weights[c]); err != nil {
			return err
		}
	}
	return nil
}

// checkDeadlines checks that each session is looked at when its time comes.
func (m *Master) checkDeadlines() error {
	deadlines, silences := make(map[uint64]int), make(map[uint64]int)
	m.deadlines.Ascend(func(d deadline) bool { deadlines[d.id]++; return true })
	m.silence.Ascend(func(d deadline) bool { silences[d.id]++; return true })
	for _, id := range sorted(m.sessions) {
		s := m.sessions[id]
		if s.ended {
			continue
		}
		want := 1
		if s.expiring {
			want = 0
		}
		if n := deadlines[s.id]; n != want {
			return fmt.Errorf("session %d stands %d times among the deadlines (its expiry is under way: %v)", s.id, n, s.expiring)
		}
		if !s.noted && !s.expiring && silences[s.id] == 0 {
			return fmt.Errorf("nothing looks whether session %d is silent", s.id)
		}
		if s.clearing && !s.noted {
			return fmt.Errorf("session %d has no note, and one is being cleared", s.id)
		}
	}
	return nil
}

// checkConns checks what connections have: sessions, held KeepAlives, room that
// was promised.
func (m *Master) checkConns() error {
	held, promised := 0, 0
	opening := make(map[*conn]int)
	for _, o := range m.opening {
		opening[o.conn]++
	}
	for _, id := range sorted(m.conns) {
		c := m.conns[id]
		for i, s := range c.sessions {
			if s.conn != c || s.place != i {
				return fmt.Errorf("connection %d has session %d, which does not know it", c.id, s.id)
			}
		}
		if c.keep != nil {
			held++
			if !m.held.Has(heldUntil{c.keepDue, c.id}) {
				return fmt.Errorf("the KeepAlive of connection %d is held and will not be let go", c.id)
			}
		}
		if err := differs(fmt.Sprintf("sessions that are being opened for connection %d", c.id), c.opening, opening[c]); err != nil {
			return err
		}
		promised += c.promised
		if !c.dirty && len(c.out) > 0 {
			return fmt.Errorf("connection %d has %d messages that will not be sent", c.id, len(c.out))
		}
	}
	if err := differs("KeepAlives held", m.held.Len(), held); err != nil {
		return err
	}
	if len(m.watches.promised) == 0 {
		return differs("bytes promised to watches and not sent", 0, promised)
	}
	return nil
}

func (m *Master) countWatches() (n int) {
	for _, c := range m.conns {
		n += len(c.watches)
	}
	return n
}

// check checks the change log against its topics, and these against their watches.
func (ws *watches) check() error {
	bytes, topics, behind := 0, 0, 0
	for c := ws.log.oldest; c != nil; c = c.next {
		bytes += c.size
		if c.left <= 0 {
			return fmt.Errorf("change of revision %d is in the log, and %d topics have it", c.revision, c.left)
		}
		topics += c.left
	}
	if err := differs("bytes of the change log", ws.log.bytes, bytes); err != nil {
		return err
	}
	for _, path := range sorted(ws.byPath) {
		for _, t := range ws.byPath[path] {
			size, dead := 0, 0
			for _, c := range t.changes {
				size += c.size
			}
			topics -= len(t.changes)
			for _, w := range t.watches {
				if w.dead {
					dead++
					continue
				}
				if w.blocked || w.fallen {
					behind++
				}
				if w.next > t.end() {
					return fmt.Errorf("watch %d of %s waits for change %d, the next is %d", w.id, path, w.next, t.end())
				}
			}
			if err := differs("bytes of the topic "+path, t.bytes, size); err != nil {
				return err
			}
			if err := differs("dropped watches of the topic "+path, t.dead, dead); err != nil {
				return err
			}
		}
	}
	if topics != 0 {
		return fmt.Errorf("changes stand in %d topics more than have them", topics)
	}
	return differs("watches behind", ws.behind, behind)
}
