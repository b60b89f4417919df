package store

import (
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// A lock that leaves its holder otherwise than by its own release leaves a
// ghost, which keeps the lock in its mode until its end. If the session is over
// by its lease, the end is set at once: the client's lease is over too, so the
// lock-delay alone is left. Otherwise the client may still have a lease that a
// master has given, or will give, without having applied the loss. So the ghost
// is unstarted: it has no end and blocks until a master that has applied the loss
// has said so in the log (GHOST_START). From then on every lease is given with
// the news of the loss ahead of it, and the ghost ends when the longest lease
// that was given before, and then the lock-delay, are over.
//
// Invariants: a ghost's end, once set, never moves away. An unstarted ghost ends
// by its start and its time, by its client's Release, or by the expiry of its
// session and the lock-delay, and never by time alone.

// timed reports whether a claim has a place among the timers: a waiter with a
// deadline, and every ghost, an unstarted one at 0.
func (c *claim) timed() bool { return c.until != 0 || c.state == ghost }

// leave makes a live holder an unstarted ghost, and returns it.
func (s *Store) leave(c *claim, why pb.LossReason) (*claim, bool) {
	if invariant.Planted(invariant.GrantsInLockDelay) {
		s.end(c, LockLost)
		return nil, false
	}
	c = s.take(c)
	c.state, c.until = ghost, 0
	if invariant.Planted(invariant.GhostStartsItself) {
		c.until = later(s.cellTime, c.leaseMS+c.delayMS)
	}
	s.file(c)
	s.noteLock(c, LockLost, why)
	s.touch(c.path)
	return c, true
}

// endBy has a ghost end at a cell time, or earlier if it already does; at once
// if that is not in the future.
func (s *Store) endBy(c *claim, until int64) {
	if c.until != 0 {
		until = min(until, c.until)
	}
	if until <= s.cellTime {
		s.end(c, LockGhostEnded)
		return
	}
	c = s.take(c)
	c.until = until
	s.file(c)
	s.noteLock(c, LockEventNone, 0)
}

// start has the time of an unstarted ghost run: the longest lease that its
// session has had since the grant, which is its only one, and the lock-delay.
func (s *Store) start(c *claim) { s.endBy(c, later(s.cellTime, c.leaseMS+c.delayMS)) }

// expireClaim ends what an expired session holds, or has lost, by its
// lock-delay.
func (s *Store) expireClaim(c *claim) {
	if c.state == held {
		var left bool
		if c, left = s.leave(c, pb.LossReason_HOLDER_EXPIRED); !left {
			return
		}
	}
	s.endBy(c, later(s.cellTime, c.delayMS))
}

// lose takes the lock away from a holder whose session lives on, and tells its
// client.
func (s *Store) lose(c *claim, why pb.LossReason, reason string) {
	grant := new(pb.Grant)
	s.fillGrant(grant, c)
	s.leave(c, why)
	s.addEvent(c.session, &pb.SessionEvent{
		Code: pb.Code_LOST, Ticket: c.ticket, Path: c.path, Grant: grant, Reason: reason, Loss: why,
	})
}

// loseAll takes the lock of path away from all its live holders.
func (s *Store) loseAll(path string, why pb.LossReason, reason string) {
	for _, c := range s.holdersOf(path) {
		if c.state == held {
			s.lose(c, why, reason)
		}
	}
}

// forfeit executes a Forfeit. Its client says that it has lost the lock, so it
// gets no event. It does not say that the guarded work has ended, and it may
// still get leases: so the ghost is that of any lock that a living session loses.
func (s *Store) forfeit(session uint64, f *pb.Forfeit) *pb.Result {
	c, ok := s.claim(session, f.GetTicket())
	if !ok || c.state != held {
		return &pb.Result{}
	}
	s.leave(c, pb.LossReason_FORFEITED)
	return &pb.Result{Path: c.path}
}

// breakLock executes a Break.
func (s *Store) breakLock(b *pb.Break) *pb.Result {
	if reason := badPath(b.Path); reason != "" {
		return refusePath(b.Path, reason)
	}
	broken := false
	for _, c := range s.holdersOf(b.Path) {
		if c.state == held && c.fence == b.Fence {
			s.lose(c, pb.LossReason_BROKEN, "the lock was broken by an operator")
			broken = true
		}
	}
	if !broken {
		r := refuse(pb.Code_NOT_HELD, "%s is not held under fence %d", b.Path, b.Fence)
		r.Blockers = s.blockers(b.Path, BlockersMax)
		return r
	}
	return &pb.Result{Path: b.Path}
}
