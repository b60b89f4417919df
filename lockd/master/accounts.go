package master

import (
	"cmp"
	"maps"
	"slices"

	"github.com/seed70370324/lockd/internal/invariant"
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
	var f invariant.Faults
	for _, check := range []func(*invariant.Faults){m.checkRequests, m.checkWaiting, m.checkDeadlines, m.checkConns, m.watches.check} {
		check(&f)
	}
	f.Count("watches of connections", m.watches.count, m.countWatches())
	return f.Err()
}

// sorted returns the keys of a map in order, so that of several faults always the
// same one is reported.
func sorted[K cmp.Ordered, V any](of map[K]V) []K { return slices.Sorted(maps.Keys(of)) }

// checkRequests checks the counts of requests, openings and expiries.
func (m *Master) checkRequests(f *invariant.Faults) {
	var requests, bytes, expiring int
	var grows size
	for _, id := range sorted(m.sessions) {
		s := m.sessions[id]
		for i, r := range s.requests {
			requests++
			bytes += r.bytes
			grows = grows.plus(r.grows)
			f.That(i == 0 || s.requests[i-1].number < r.number, "session %d: request %d stands behind a higher one", s.id, r.number)
		}
		if s.expiring {
			expiring++
		}
		f.That(!s.ended || len(s.requests) > 0, "session %d has ended, has no request under way, and is kept", s.id)
	}
	for _, nonce := range sorted(m.opening) {
		o := m.opening[nonce]
		f.That(o.nonce == nonce, "the opening of nonce %x is filed under %x", o.nonce, nonce)
		if o.applied == nil {
			grows = grows.plus(o.grows)
		}
	}
	f.Count("requests under way", m.pending, requests)
	f.Count("bytes of requests under way", m.bytes, bytes)
	f.Count("nodes that requests may add", int(m.growing.nodes), int(grows.nodes))
	f.Count("bytes that requests may add", int(m.growing.bytes), int(grows.bytes))
	f.Count("expiries under way", m.expiring, expiring)
}

// checkWaiting checks the counts of what waits for a proof of leadership.
func (m *Master) checkWaiting(f *invariant.Faults) {
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
	f.Count("reads and watches that wait for a proof", r.reads, reads)
	f.Count("bytes of what waits for a proof", r.bytes, bytes)
	for _, id := range sorted(m.conns) {
		c := m.conns[id]
		if c.closing {
			continue // a master that stepped down has forgotten what waited
		}
		f.Count("messages of a connection that wait for a proof", c.waiting, waiting[c])
		f.Count("bytes of a connection that wait for a proof", c.waitingBytes, weights[c])
	}
}

// checkDeadlines checks that each session is looked at when its time comes.
func (m *Master) checkDeadlines(f *invariant.Faults) {
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
		f.Count("deadlines of a session whose expiry is not under way", deadlines[s.id], want)
		f.That(s.noted || s.expiring || silences[s.id] > 0, "nothing looks whether session %d is silent", s.id)
		f.That(!s.clearing || s.noted, "session %d has no note, and one is being cleared", s.id)
	}
}

// checkConns checks what connections have: sessions, held KeepAlives, room that
// was promised.
func (m *Master) checkConns(f *invariant.Faults) {
	held, promised := 0, 0
	opening := make(map[*conn]int)
	for _, o := range m.opening {
		opening[o.conn]++
	}
	for _, id := range sorted(m.conns) {
		c := m.conns[id]
		for i, s := range c.sessions {
			f.That(s.conn == c && s.place == i, "connection %d has session %d, which does not know it", c.id, s.id)
		}
		if c.keep != nil {
			held++
			f.That(m.held.Has(heldUntil{c.keepDue, c.id}), "the KeepAlive of connection %d is held and will not be let go", c.id)
		}
		f.Count("sessions that are being opened for a connection", c.opening, opening[c])
		promised += c.promised
		f.That(c.dirty || len(c.out) == 0, "connection %d has messages that will not be sent", c.id)
	}
	f.Count("KeepAlives held", m.held.Len(), held)
	if len(m.watches.promised) == 0 {
		f.Count("bytes promised to watches and not sent", 0, promised)
	}
}

func (m *Master) countWatches() (n int) {
	for _, c := range m.conns {
		n += len(c.watches)
	}
	return n
}

// check checks the change log against its topics, and these against their watches.
func (ws *watches) check(f *invariant.Faults) {
	bytes, topics, behind := 0, 0, 0
	for c := ws.log.oldest; c != nil; c = c.next {
		bytes += c.size
		f.That(c.left > 0, "change of revision %d is in the log, and no topic has it", c.revision)
		topics += c.left
	}
	f.Count("bytes of the change log", ws.log.bytes, bytes)
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
				f.That(w.next <= t.end(), "watch %d of %s waits for change %d, the next is %d", w.id, path, w.next, t.end())
			}
			f.Count("bytes of a topic", t.bytes, size)
			f.Count("dropped watches of a topic", t.dead, dead)
		}
	}
	f.Count("topics that have a change", topics, 0)
	f.Count("watches behind", ws.behind, behind)
}
