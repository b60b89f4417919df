package store

import (
	"errors"
	"fmt"

	"github.com/seed70370324/lockd/store/pb"
)

// Check verifies the invariants of the whole state in O(n): for tests, the
// simulator, and after a snapshot was read. Apply keeps them; each is stated
// where it is kept.
func (s *Store) Check() error {
	var k checker
	k.s = s
	k.header()
	k.nodes()
	k.locks()
	k.claims()
	k.sessions()
	k.indexes()
	k.atHand()
	k.hash()
	if len(k.broken) == 0 {
		return nil
	}
	return fmt.Errorf("the state breaks its invariants: %w", errors.Join(k.broken...))
}

type checker struct {
	s      *Store
	broken []error
	sum    uint64
	bytes  int64
}

// brokenMax bounds the list of what is broken: the first few tell enough.
const brokenMax = 20

func (k *checker) that(ok bool, format string, args ...any) {
	if !ok && len(k.broken) < brokenMax {
		k.broken = append(k.broken, fmt.Errorf(format, args...))
	}
}

func (k *checker) header() {
	k.that(k.s.revision>>63 == 0, "revision %d does not fit 63 bits", k.s.revision)
	k.that(k.s.cellTime >= 0, "cell time %d is negative", k.s.cellTime)
	_, ok := k.s.node("/")
	k.that(ok, "there is no root")
}

func (k *checker) nodes() {
	ephemerals := 0
	s := k.s
	s.nodes.Ascend(func(i nodeItem) bool {
		path, n := join(i.dir, i.name), i.node
		var named any = path // made once: each argument of a message that is not told costs memory
		k.that(n.hash == n.computeHash(i.dir, i.name), "%s: its hash is not that of its fields", named)
		k.sum += n.hash
		k.bytes += i.size()
		k.that(badPath(path) == "", "%s: bad path: %s", named, badPath(path))
		k.that(n.checksum == Checksum(n.data), "%s: its checksum is not that of its content", named)
		k.that(len(n.data) <= DataMax && (n.hasData || len(n.data) == 0), "%s: content of %d bytes, hasData %t", named, len(n.data), n.hasData)
		k.that(n.instance <= s.revision && n.modifyRev <= s.revision && n.childRev <= s.revision && n.fence <= s.revision,
			"%s: it is of a later revision than the state", named)
		k.that(n.contentGen >= 1, "%s: its content generation is 0", named)
		if path != "/" {
			p, ok := s.node(i.dir)
			k.that(ok, "%s: it has no parent", named)
			k.that(!ok || p.kind != pb.NodeKind_EPHEMERAL, "%s: its parent is ephemeral", named)
		}
		children := uint32(0)
		s.children(path, "", func(nodeItem) bool { children++; return true })
		k.that(children == n.children, "%s: it has %d children and counts %d", named, children, n.children)
		l, locked := s.lock(path)
		k.that(locked == n.locked, "%s: it is marked locked %t, there is a lock record %t", named, n.locked, locked)
		k.that(!locked || (n.lockGen == 0 && n.fence == 0), "%s: the node keeps generation and fence of a lock in use", named)
		switch n.kind {
		case pb.NodeKind_PERMANENT:
		case pb.NodeKind_EPHEMERAL:
			ephemerals++
			_, ok := s.session(n.owner)
			k.that(ok, "%s: its owner, session %d, does not exist", named, n.owner)
			_, ok = s.ephemerals.Get(ephemeralItem{n.owner, path})
			k.that(ok, "%s: it is not in the index of ephemeral nodes", named)
		case pb.NodeKind_CONTAINER:
			k.that(!n.used || n.children > 0 || locked, "%s: a container that was used and is empty", named)
			k.that(n.used || n.children == 0 && (!locked || l.live()+l.waiters == 0), "%s: a container in use that is not marked used", named)
		default:
			k.that(false, "%s: unknown kind %d", named, n.kind)
		}
		k.that(n.kind == pb.NodeKind_CONTAINER || !n.implied, "%s: implied, and no container", named)
		k.that(n.kind == pb.NodeKind_EPHEMERAL || n.owner == 0, "%s: it is not ephemeral and has the owner %d", named, n.owner)
		return true
	})
	k.that(ephemerals == s.ephemerals.Len(), "%d ephemeral nodes, %d in their index", ephemerals, s.ephemerals.Len())
}

func (k *checker) locks() {
	s := k.s
	s.locks.Ascend(func(i lockItem) bool {
		path, l := i.path, i.lock
		k.that(l.hash == l.computeHash(path), "lock of %s: its hash is not that of its fields", path)
		k.sum += l.hash
		k.bytes += i.size()
		have := lock{}
		scan(s.holders, path, func(c *claim) bool {
			have.count(c, +1)
			k.that(c.mode == l.mode, "lock of %s: a holder in mode %d, the lock is in mode %d", path, c.mode, l.mode)
			k.that(c.fence == l.fence, "lock of %s: a holder with fence %d, the lock has %d", path, c.fence, l.fence)
			return true
		})
		var head *claim
		scan(s.waiters, path, func(c *claim) bool {
			have.count(c, +1)
			if head == nil {
				head = c
			}
			return true
		})
		k.that(have.holders == l.holders && have.ghosts == l.ghosts && have.waiters == l.waiters,
			"lock of %s: %d holders, %d ghosts, %d waiters, it counts %d, %d, %d",
			path, have.holders, have.ghosts, have.waiters, l.holders, l.ghosts, l.waiters)
		k.that(l.holders > 0, "lock of %s: nobody holds it, %d wait", path, l.waiters)
		k.that(l.holders <= 1 || l.mode == pb.LockMode_SHARED, "lock of %s: %d holders, ghosts among them, in mode %d", path, l.holders, l.mode)
		k.that(head == nil || !l.admits(head.mode), "lock of %s: the head of its queue is compatible and waits", path)
		k.that(l.fence <= s.revision && l.generation > 0, "lock of %s: fence %d, generation %d", path, l.fence, l.generation)
		_, exists := s.node(path)
		k.that(exists || (l.live() == 0 && l.waiters == 0), "lock of %s: no node, and more than ghosts", path)
		return true
	})
}

func (k *checker) claims() {
	s := k.s
	timers := 0
	s.claims.Ascend(func(i claimItem) bool {
		c := i.claim
		named := claimName{c}
		k.that(c.session == i.session && c.ticket == i.ticket, "%v is filed under another session or ticket", named)
		k.that(c.hash == c.computeHash(), "%v: its hash is not that of its fields", named)
		k.sum += c.hash
		k.bytes += c.size()
		x, alive := s.session(c.session)
		k.that(alive || c.state == ghost, "%v: it waits or holds, its session does not exist", named)
		k.that(!alive || c.ticket <= x.last, "%v: its session has executed fewer requests", named)
		at, ok := s.queue(c).Get(queueItem{path: c.path, revision: c.revision})
		k.that(ok && at.claim == c, "%v is not in the queue of its lock", named)
		k.that(c.revision <= s.revision, "%v: it is of a later revision than the state", named)
		k.that(c.mode == pb.LockMode_EXCLUSIVE || c.mode == pb.LockMode_SHARED, "%v: there is no such mode", named)
		k.that(c.until >= 0 && (c.state != held || c.until == 0), "%v: it has an end in a state that has none, or a negative one", named)
		k.that((c.state == waiting) == (c.fence == 0), "%v: it waits and has a fence, or does not wait and has none", named)
		k.that(c.delayMS <= LockDelayMaxMillis && c.leaseMS <= LeaseMaxMillis, "%v: its lock-delay or lease is too long", named)
		_, locked := s.lock(c.path)
		k.that(locked, "%v: there is no lock record", named)
		if c.timed() {
			timers++
			_, ok := s.timers.Get(timerItem{c.until, c.session, c.ticket})
			k.that(ok, "%v: it has no timer", named)
		}
		return true
	})
	k.that(timers == s.timers.Len(), "%d timers, %d in their index", timers, s.timers.Len())
	k.that(s.claims.Len() == s.holders.Len()+s.waiters.Len(), "%d claims, %d holders, %d waiters", s.claims.Len(), s.holders.Len(), s.waiters.Len())
}

// claimName tells of a claim in messages. Given to that as one pointer it costs no
// memory while all is well.
type claimName struct{ *claim }

func (n claimName) String() string {
	c := n.claim
	return fmt.Sprintf("claim %d/%d on %s (revision %d, mode %d, state %d until %d, fence %d, lock-delay %d ms, lease %d ms)",
		c.session, c.ticket, c.path, c.revision, c.mode, c.state, c.until, c.fence, c.delayMS, c.leaseMS)
}

func (k *checker) sessions() {
	s := k.s
	events, noted := 0, 0
	s.sessions.Ascend(func(i sessionItem) bool {
		id, x := i.id, i.session
		var named any = id
		k.that(x.hash == x.computeHash(id) && x.who == x.identityHash(id), "session %d: its hash is not that of its fields", named)
		k.sum += x.hash
		k.bytes += x.size()
		k.that(id > 0 && id <= s.revision, "session %d: the state is of revision %d", named, s.revision)
		n, ok := s.nonces.Get(nonceItem{nonce: x.nonce})
		k.that(ok && n.id == id, "session %d: its nonce finds session %d", named, n.id)
		k.that(len(x.nonce) >= NonceMin && len(x.nonce) <= NonceMax, "session %d: a nonce of %d bytes", named, len(x.nonce))
		k.that(x.leaseMS >= LeaseMinMillis && x.leaseMS <= LeaseMaxMillis, "session %d: a lease of %d ms", named, x.leaseMS)
		k.that(x.lowest >= 1 && x.lowest <= x.last+1, "session %d: lowest unanswered %d, last %d", named, x.lowest, x.last)
		k.that(x.acked < x.nextEvent, "session %d: event %d acknowledged, the next is %d", named, x.acked, x.nextEvent)
		k.that(x.leaseEnd >= 0 && (x.leaseEnd != 0) == s.noted.Has(id), "session %d: its lease ends at %d, it is in the index of noted ones: %t", named, x.leaseEnd, s.noted.Has(id))
		if x.leaseEnd != 0 {
			noted++
		}
		results, eventSizes := 0, 0
		next := x.lowest
		for _, r := range x.results.all() {
			k.that(r.Number == next, "session %d: result %d in the place of %d", named, r.Number, next)
			k.that(r.hash == hashOfResult(id, r.Number, r.Result), "session %d: the hash of result %d is not that of its fields", named, r.Number)
			next, k.sum = next+1, k.sum+r.hash
			results += resultSize(r.Result)
		}
		k.that(next == x.last+1 && x.last+1-x.lowest <= keptMax, "session %d: results %d to %d, it has executed %d", named, x.lowest, next-1, x.last)
		next = x.acked + 1
		s.events.AscendGreaterOrEqual(eventItem{session: id}, func(e eventItem) bool {
			if e.session != id {
				return false
			}
			k.that(e.number == next && e.SessionEvent.GetNumber() == next, "session %d: event %d in the place of %d", named, e.number, next)
			k.that(e.hash == hashOfEvent(id, e.SessionEvent), "session %d: the hash of event %d is not that of its fields", named, e.number)
			next, k.sum, events = next+1, k.sum+e.hash, events+1
			eventSizes += eventSize(e.SessionEvent)
			return true
		})
		k.that(next == x.nextEvent, "session %d: events %d to %d, the next is %d", named, x.acked+1, next-1, x.nextEvent)
		k.that(x.pendingEvents()+x.locks+2*x.waiting <= EventsMax, "session %d: %d events, %d locks, %d waiting", named, x.pendingEvents(), x.locks, x.waiting)
		k.bytes += int64(results + eventSizes)
		k.that(results == x.resultBytes && results <= ResultBytesMax+keptMax*smallMax, "session %d: results of %d bytes, it counts %d", named, results, x.resultBytes)
		k.that(eventSizes == x.eventBytes && eventSizes+x.reserved <= EventBytesMax, "session %d: events of %d bytes, it counts %d, and has reserved %d", named, eventSizes, x.eventBytes, x.reserved)
		k.sessionCounts(id, x)
		return true
	})
	k.that(events == s.events.Len(), "%d events of sessions, %d in all", events, s.events.Len())
	k.that(noted == s.noted.Len(), "%d sessions are noted as silent, %d in their index", noted, s.noted.Len())
	k.that(s.nonces.Len() == s.sessions.Len(), "%d nonces, %d sessions", s.nonces.Len(), s.sessions.Len())
}

func (k *checker) sessionCounts(id uint64, x *session) {
	locks, ghosts, waits, ephemerals, reserved := 0, 0, 0, 0, 0
	for _, c := range k.s.claimsOf(id) {
		reserved += c.reserve()
		switch c.state {
		case held:
			locks++
		case ghost:
			ghosts++
		case waiting:
			waits++
		}
	}
	k.s.ephemerals.AscendGreaterOrEqual(ephemeralItem{owner: id}, func(e ephemeralItem) bool {
		if e.owner == id {
			ephemerals++
		}
		return e.owner == id
	})
	k.that(reserved == x.reserved, "session %d: its claims reserve %d bytes for events, it counts %d", id, reserved, x.reserved)
	k.that(locks == x.locks && ghosts == x.ghosts && waits == x.waiting && ephemerals == x.ephemerals,
		"session %d: %d locks, %d ghosts, %d waiting, %d ephemeral nodes, it counts %d, %d, %d, %d",
		id, locks, ghosts, waits, ephemerals, x.locks, x.ghosts, x.waiting, x.ephemerals)
}

// indexes verifies that nothing is in an index that is not in a table; the
// other direction is checked with the tables.
func (k *checker) indexes() {
	s := k.s
	s.ephemerals.Ascend(func(e ephemeralItem) bool {
		n, ok := s.node(e.path)
		k.that(ok && n.kind == pb.NodeKind_EPHEMERAL && n.owner == e.owner, "%s is in the index of session %d's ephemeral nodes", e.path, e.owner)
		return true
	})
	s.timers.Ascend(func(t timerItem) bool {
		c, ok := s.claim(t.session, t.ticket)
		k.that(ok && c.timed() && c.until == t.at, "a timer at %d for claim %d/%d, which does not have it", t.at, t.session, t.ticket)
		return true
	})
}

// atHand verifies what is kept beside the tables to find records again, and
// that no record is of a generation that is to come.
func (k *checker) atHand() {
	s := k.s
	if x := s.recent; x.session != nil {
		i, _ := s.sessions.Get(x)
		k.that(i == x, "session %d: the record kept at hand is not the table's", x.id)
	}
	if l := s.recentLock; l.lock != nil {
		i, _ := s.locks.Get(l)
		k.that(i == l, "lock of %s: the record kept at hand is not the table's", l.path)
	}
	for _, n := range s.cache.places {
		if n.node != nil {
			i, _ := s.nodes.Get(n)
			k.that(i == n, "%s: the record kept at hand is not the table's", join(n.dir, n.name))
		}
	}
	late := uint64(0)
	s.nodes.Ascend(func(i nodeItem) bool { late = max(late, i.made); return true })
	s.sessions.Ascend(func(i sessionItem) bool { late = max(late, i.made); return true })
	s.locks.Ascend(func(i lockItem) bool { late = max(late, i.made); return true })
	s.claims.Ascend(func(i claimItem) bool { late = max(late, i.made); return true })
	k.that(late <= s.generation, "a record was made in generation %d of the store, it is generation %d", late, s.generation)
}

func (k *checker) hash() {
	k.that(k.bytes == k.s.bytes, "the sum of the records' sizes is %d, the state keeps %d", k.bytes, k.s.bytes)
	k.that(k.sum == k.s.sum, "the sum of the records' hashes is %016x, the state keeps %016x", k.sum, k.s.sum)
}
