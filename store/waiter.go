package store

import (
	"slices"

	"github.com/google/btree"
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// The queue of a lock is strict: requests are granted in the order in which
// their Acquires were applied. Its records are in one B-tree for all locks, so
// a change at its head costs the same however long it is.

func (s *Store) queue(c *claim) *btree.BTreeG[queueItem] {
	if c.state == waiting {
		return s.waiters
	}
	return s.holders
}

// scan calls f for the claims of path in a queue, in order, until f returns
// false. f must not change the queue.
func scan(queue *btree.BTreeG[queueItem], path string, f func(*claim) bool) {
	queue.AscendGreaterOrEqual(queueItem{path: path}, func(i queueItem) bool {
		return i.path == path && f(i.claim)
	})
}

func (s *Store) holdersOf(path string) (list []*claim) {
	scan(s.holders, path, func(c *claim) bool { list = append(list, c); return true })
	return list
}

// enqueue puts c at the end of its lock's queue.
func (s *Store) enqueue(c *claim, a *pb.Acquire) *pb.Result {
	r := &pb.Result{Code: pb.Code_WAITING, Path: c.path, Blockers: s.blockers(c.path, BlockersMax)}
	if !a.NoDeadline {
		c.until = later(s.cellTime, a.WaitMs)
		if invariant.Planted(invariant.WaitInWrongUnit) {
			c.until = s.cellTime + int64(a.WaitMs)*1000
		}
	}
	s.addClaim(c)
	s.noteLock(c, LockEventNone, 0)
	l, _ := s.lock(c.path)
	r.Position = uint32(l.waiters)
	return r
}

// settle grants what can be granted now, drops the locks that nobody uses, and
// removes the containers that have become empty, at all touched paths, in path
// order. Commands end with it: until then no queue moves, so nothing is granted
// to a session that ends in the same command.
func (s *Store) settle() {
	if len(s.touched) == 0 {
		return
	}
	slices.SortFunc(s.touched, comparePaths)
	s.touched = slices.Compact(s.touched)
	for _, path := range s.touched {
		s.promote(path)
	}
	for _, path := range slices.Backward(s.touched) {
		s.reap(path)
	}
	s.touched = s.touched[:0]
}

// promote grants the longest compatible run at the head of the queue of path:
// readers pass together, nobody overtakes.
//
// Invariant: after it, the head of the queue is not compatible with those who
// hold the lock.
func (s *Store) promote(path string) {
	for {
		l, ok := s.lock(path)
		if !ok {
			return
		}
		if l.waiters == 0 {
			if l.holders == 0 {
				s.closeLock(path)
			}
			return
		}
		var head *claim
		scan(s.waiters, path, func(c *claim) bool {
			head = c
			return invariant.Planted(invariant.WaiterOvertakes) && !l.admits(c.mode)
		})
		if !l.admits(head.mode) {
			return
		}
		s.grant(head)
	}
}

// grant makes a waiter a holder and tells its session.
func (s *Store) grant(c *claim) {
	c = s.take(c)
	s.admit(c)
	s.file(c)
	s.noteLock(c, LockAcquired, 0)
	both := new(struct {
		event pb.SessionEvent
		grant pb.Grant
	})
	s.fillGrant(&both.grant, c)
	e := &both.event
	e.Code, e.Ticket, e.Path, e.Grant = pb.Code_GRANTED, c.ticket, c.path, &both.grant
	s.addEvent(c.session, e)
}

// withdrawAll sends all waiters of path away.
func (s *Store) withdrawAll(path, reason string) {
	var list []*claim
	scan(s.waiters, path, func(c *claim) bool { list = append(list, c); return true })
	for _, c := range list {
		s.end(c, LockEventNone)
		s.addEvent(c.session, &pb.SessionEvent{
			Code: pb.Code_WITHDRAWN, Ticket: c.ticket, Path: path, Reason: reason,
		})
	}
}

// timeOut ends a waiter whose deadline has passed; it is told who is in its
// way, as far as there is room for it.
func (s *Store) timeOut(c *claim) {
	blockers := s.fitting(c, s.blockersOf(c.path, c.revision, BlockersMax))
	s.end(c, LockEventNone)
	s.addEvent(c.session, &pb.SessionEvent{
		Code: pb.Code_TIMED_OUT, Ticket: c.ticket, Path: c.path, Blockers: blockers,
	})
}

// blockers are those in the way of a new request: holders, ghosts among them,
// and then waiters, at most max.
func (s *Store) blockers(path string, max int) []*pb.Blocker {
	return s.blockersOf(path, 1<<63, max)
}

// blockersOf are those in the way of the waiter with the given revision.
func (s *Store) blockersOf(path string, revision uint64, max int) (list []*pb.Blocker) {
	l, used := s.lock(path)
	if !used {
		return nil
	}
	all := make([]pb.Blocker, min(l.holders+l.waiters, max))
	list = make([]*pb.Blocker, 0, len(all))
	add := func(c *claim) bool {
		if len(list) >= max || c.revision >= revision {
			return false
		}
		b := &all[len(list)]
		c.describe(b)
		list = append(list, b)
		return true
	}
	scan(s.holders, path, add)
	scan(s.waiters, path, add)
	return list
}

func (c *claim) blocker() *pb.Blocker {
	b := new(pb.Blocker)
	c.describe(b)
	return b
}

// describe fills in an empty Blocker.
func (c *claim) describe(b *pb.Blocker) {
	b.Session, b.Client, b.Mode, b.Fence = c.session, c.client, c.mode, c.fence
	b.SinceWallMs, b.SinceCell, b.LockDelayMs = c.sinceWall, c.sinceCell, c.delayMS
	b.Ticket, b.LeaseMs, b.Revision = c.ticket, c.leaseMS, c.revision
	switch c.state {
	case ghost:
		b.Ghost, b.GhostUntilCell = true, c.until
	case waiting:
		b.DeadlineCell = c.until
	}
}

// Contended reports whether a request for the lock of a path in this mode would
// have to wait.
func (s *Store) Contended(path string, mode pb.LockMode) bool {
	l, used := s.lock(path)
	return used && !l.free(mode)
}

// Lock returns the lock state of a path, if there is a node or a ghost.
func (s *Store) Lock(path string) (LockView, bool) {
	if badPath(path) != "" {
		return LockView{}, false
	}
	v := LockView{Path: path}
	n, exists := s.node(path)
	if exists {
		v.Instance, v.Generation, v.Fence = n.instance, n.lockGen, n.fence
	}
	l, used := s.lock(path)
	if !used {
		return v, exists
	}
	v.Generation, v.Fence = l.generation, l.fence
	scan(s.holders, path, func(c *claim) bool { v.Holders = append(v.Holders, c.blocker()); return true })
	scan(s.waiters, path, func(c *claim) bool { v.Waiters = append(v.Waiters, c.blocker()); return true })
	return v, true
}

// Locks calls f for each path at or below prefix, behind the path after, that
// has a holder, a ghost or a waiter, until f returns false.
func (s *Store) Locks(prefix, after string, f func(LockView) bool) {
	if badPath(prefix) != "" {
		return
	}
	from := prefix
	if after != "" && comparePaths(after, prefix) >= 0 {
		from = after
	}
	s.locks.AscendGreaterOrEqual(lockItem{path: from}, func(i lockItem) bool {
		if !below(i.path, prefix) {
			return false
		}
		if i.path == after {
			return true
		}
		v, _ := s.Lock(i.path)
		return f(v)
	})
}
