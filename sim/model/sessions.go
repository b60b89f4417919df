package model

import (
	"sort"

	"github.com/seed70370324/lockd/store"
	"github.com/seed70370324/lockd/store/pb"
)

func (m *Model) open(op *pb.OpenSession) *pb.Result {
	if n := len(op.GetNonce()); n < store.NonceMin || n > store.NonceMax {
		return code(pb.Code_BAD_COMMAND)
	}
	s := m.sessions[m.nonces[string(op.GetNonce())]]
	if s == nil {
		s = &session{id: m.next, nonce: string(op.GetNonce()), lease: min(max(op.GetLeaseMs(), store.LeaseMinMillis), store.LeaseMaxMillis),
			client: op.GetClient(), results: map[uint64]*pb.Result{}, nextEvent: 1, lastChange: m.next, opened: m.wall}
		m.sessions[s.id] = s
		m.nonces[s.nonce] = s.id
		m.change(store.Change{Kind: store.ChangeSessionOpened, Session: s.id})
	}
	return &pb.Result{Session: s.id, LastChange: s.lastChange, LeaseMs: s.lease}
}

func (s *session) ack(n uint64) {
	n = min(n, s.nextEvent-1)
	for len(s.events) > 0 && s.events[0].Number <= n {
		s.events = s.events[1:]
	}
	s.acked = max(s.acked, n)
}

func (s *session) forget(below uint64) {
	for below = min(below, s.last+1); s.lowest < below; s.lowest++ {
		delete(s.results, s.lowest)
	}
}

func (m *Model) event(id uint64, e *pb.SessionEvent) {
	s := m.sessions[id]
	if s == nil {
		return
	}
	if m.undo != nil {
		if _, ok := m.undo.sessions[id]; !ok {
			m.undo.sessions[id] = *s
		}
	}
	e.Number, e.Revision = s.nextEvent, m.next
	s.nextEvent++
	s.events = append(s.events, e)
	m.change(store.Change{Kind: store.ChangeSessionEvent, Session: id, Event: e})
}

// end ends a session: its waiters go, its locks are freed or become ghosts
// whose time runs, its ephemeral nodes go.
func (m *Model) end(s *session, why pb.LossReason, workEnded bool) {
	delete(m.sessions, s.id)
	delete(m.nonces, s.nonce)
	for _, t := range m.ticketsOf(s.id) {
		m.endClaim(t.path, m.locks[t.path], s, t.ticket, why, workEnded)
	}
	var paths []string
	for path, n := range m.nodes {
		if n.stat.Owner == s.id {
			paths = append(paths, path)
		}
	}
	sort.Strings(paths)
	reason := pb.DeleteReason_SESSION_CLOSED
	if why == pb.LossReason_HOLDER_EXPIRED {
		reason = pb.DeleteReason_SESSION_EXPIRED
	}
	for _, path := range paths {
		m.remove(path, reason)
	}
	m.change(store.Change{Kind: store.ChangeSessionClosed, Session: s.id})
}

type ticket struct {
	ticket uint64
	path   string
}

// ticketsOf returns what a session holds, has lost or waits for, by ticket.
func (m *Model) ticketsOf(id uint64) (all []ticket) {
	for path, l := range m.locks {
		for _, list := range [][]claim{l.holders, l.waiters} {
			for i := range list {
				if list[i].session == id {
					all = append(all, ticket{list[i].ticket, path})
				}
			}
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].ticket < all[j].ticket })
	return all
}

// endClaim ends one of them.
func (m *Model) endClaim(path string, l *lock, s *session, ticket uint64, why pb.LossReason, workEnded bool) {
	for i := 0; i < len(l.waiters); {
		if c := l.waiters[i]; c.session == s.id && c.ticket == ticket {
			l.waiters = without(l.waiters, i)
			m.lockChange(path, l, &c, store.LockEventNone, 0)
		} else {
			i++
		}
	}
	for i := 0; i < len(l.holders); {
		c := l.holders[i]
		if c.session != s.id || c.ticket != ticket {
			i++
			continue
		}
		switch {
		case workEnded:
			l.holders = without(l.holders, i)
			m.lockChange(path, l, &c, left(&c), 0)
		case why == pb.LossReason_HOLDER_CLOSED: // unstarted, as if the session lived
			if h := &l.holders[i]; !h.ghost {
				h.ghost = true
				m.lockChange(path, l, h, store.LockLost, why)
			}
			i++
		case c.delay == 0, c.ghost && c.until != 0 && c.until <= m.cellTime: // its time is over
			l.holders = without(l.holders, i)
			if !c.ghost {
				m.lockChange(path, l, &c, store.LockLost, why)
			}
			m.lockChange(path, l, &c, store.LockGhostEnded, 0) // its ghost lasts for no time
		default:
			until := m.cellTime + int64(c.delay)*nanosOfMilli
			h := &l.holders[i]
			if !h.ghost {
				h.ghost, h.until = true, until
				m.lockChange(path, l, h, store.LockLost, why)
			} else if h.until == 0 || until < h.until {
				h.until = until
			}
			m.lockChange(path, l, h, store.LockEventNone, 0) // its time runs
			i++
		}
	}
}
