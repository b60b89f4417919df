package store

import (
	"github.com/seed70370324/lockd/store/pb"
)

// Deadlines of waiters and ends of ghosts are in cell time; the start of an
// unstarted ghost is due at once. The store never acts on time by itself: the
// master asks what falls due (NextDue) and, when its own cell time has passed
// it, logs a Timers command that names it. By then the thing may be gone or
// another, so each reference is checked against the state again.

type timerItem struct {
	at              int64
	session, ticket uint64 // of a claim with until = at that is timed
}

func lessTimer(a, b timerItem) bool {
	if a.at != b.at {
		return a.at < b.at
	}
	if a.session != b.session {
		return a.session < b.session
	}
	return a.ticket < b.ticket
}

// NextDue returns the timers that fall due first, at most max, earliest first:
// ahead of all, at 0, the starts of unstarted ghosts.
func (s *Store) NextDue(max int) []Due {
	var list []Due
	if max <= 0 {
		return nil
	}
	s.timers.Ascend(func(t timerItem) bool {
		c, _ := s.claim(t.session, t.ticket)
		list = append(list, Due{At: t.at, Ref: s.timerRef(c)})
		return len(list) < max
	})
	return list
}

func (s *Store) timerRef(c *claim) *pb.TimerRef {
	ref := &pb.TimerRef{
		Kind: pb.TimerKind_WAITER_DEADLINE, Path: c.path,
		Session: c.session, Ticket: c.ticket, DueAt: c.until,
	}
	switch {
	case c.state == ghost && c.until == 0:
		ref.Kind = pb.TimerKind_GHOST_START
	case c.state == ghost:
		ref.Kind = pb.TimerKind_GHOST_END
	}
	if n, ok := s.node(c.path); ok {
		ref.Instance = n.instance
	}
	return ref
}

// applyTimers executes a Timers command. References to what is not so any more
// are void. Queues move after each: a waiter that the end of a ghost lets in is
// granted even if its own deadline is named next.
func (s *Store) applyTimers(t *pb.Timers) *pb.Result {
	for _, ref := range t.Due {
		c, ok := s.claim(ref.GetSession(), ref.GetTicket())
		if !ok || !c.timed() || c.until > s.cellTime {
			continue
		}
		now := s.timerRef(c)
		if now.Kind != ref.GetKind() || now.Path != ref.GetPath() || now.Instance != ref.GetInstance() || now.DueAt != ref.GetDueAt() {
			continue
		}
		switch now.Kind {
		case pb.TimerKind_GHOST_START:
			s.start(c)
		case pb.TimerKind_GHOST_END:
			s.end(c, LockGhostEnded)
		default:
			s.timeOut(c)
		}
		s.settle()
	}
	return &pb.Result{}
}
