package store

import (
	"maps"
	"slices"
	"sort"

	"github.com/seed70370324/lockd/store/pb"
)

// The locks of the model.

func (m *model) acquire(session, ticket uint64, a *pb.Acquire) mResult {
	_, ok := m.nodes[a.Path]
	if !ok && !a.Create {
		return mResult{code: pb.Code_NOT_FOUND}
	}
	l := m.locks[a.Path]
	free := len(l.queue) == 0 && l.admits(a.Mode)
	if !free && a.WaitMs == 0 && !a.NoDeadline {
		return mResult{code: pb.Code_HELD, path: a.Path}
	}
	if !ok {
		before := m.copy()
		if code := m.add(a.Path, mNode{kind: pb.NodeKind_CONTAINER, implied: true}, true); code != pb.Code_OK {
			*m = *before
			return mResult{code: code}
		}
	}
	n := m.nodes[a.Path]
	n.used = n.kind == pb.NodeKind_CONTAINER
	m.nodes[a.Path] = n
	m.changed = true
	c := mClaim{session: session, ticket: ticket, mode: a.Mode, delay: a.LockDelayMs, lease: m.sessions[session].lease}
	if !free && !a.NoDeadline {
		c.until = m.cell + int64(a.WaitMs)*1e6
	}
	l = m.locks[a.Path]
	l.queue = append(l.queue, c)
	m.locks[a.Path] = l
	if free {
		return mResult{path: a.Path, fence: m.grant(a.Path)}
	}
	return mResult{code: pb.Code_WAITING, path: a.Path, position: len(l.queue)}
}

// grant moves the head of the queue to the holders.
func (m *model) grant(p string) uint64 {
	l := m.locks[p]
	if len(l.holders) == 0 {
		l.gen++
		l.fence = m.rev + 1
	}
	c := l.queue[0]
	c.fence, c.until = l.fence, 0
	l.queue = l.queue[1:]
	l.holders = append(l.holders, c)
	m.locks[p] = l
	m.changed = true
	return c.fence
}

func (m *model) release(session, ticket uint64) mResult {
	mine := func(c mClaim) bool { return c.session == session && c.ticket == ticket }
	for p, l := range m.locks {
		if slices.ContainsFunc(l.queue, mine) {
			l.queue = slices.DeleteFunc(l.queue, mine)
			m.locks[p], m.changed = l, true
			return mResult{code: pb.Code_WITHDRAWN, path: p}
		}
		if slices.ContainsFunc(l.holders, mine) {
			l.holders = slices.DeleteFunc(l.holders, mine)
			m.locks[p], m.changed = l, true
			return mResult{path: p}
		}
	}
	return mResult{code: pb.Code_NOT_HELD}
}

func (m *model) end(session uint64, expired, workEnded bool) {
	for p, l := range m.locks {
		l.queue = slices.DeleteFunc(l.queue, func(c mClaim) bool { return c.session == session })
		l.holders = slices.DeleteFunc(l.holders, func(c mClaim) bool {
			return c.session == session && (workEnded || expired && c.delay == 0)
		})
		for i := range l.holders {
			h := &l.holders[i]
			if h.session != session {
				continue
			}
			h.ghost = true
			if end := m.cell + int64(h.delay)*1e6; expired && (h.until == 0 || end < h.until) {
				h.until = end
			}
		}
		l.holders = slices.DeleteFunc(l.holders, func(c mClaim) bool {
			return expired && c.session == session && c.until <= m.cell
		})
		m.locks[p] = l
	}
	var mine []string
	for p, n := range m.nodes {
		if n.owner == session {
			mine = append(mine, p)
		}
	}
	sort.Strings(mine)
	for _, p := range mine {
		m.remove(p)
	}
	delete(m.sessions, session)
	m.changed = true
}

func (m *model) timer(ref *pb.TimerRef) {
	l, n := m.locks[ref.Path], m.nodes[ref.Path]
	if n.inst != ref.Instance || ref.DueAt > m.cell {
		return
	}
	is := func(c mClaim) bool {
		return c.session == ref.Session && c.ticket == ref.Ticket && c.until != 0 && c.until == ref.DueAt
	}
	if ref.Kind == pb.TimerKind_GHOST_START && ref.DueAt == 0 {
		for i, h := range l.holders {
			if h.session == ref.Session && h.ticket == ref.Ticket && h.ghost && h.until == 0 {
				l.holders[i].until, m.changed = m.cell+int64(h.lease+h.delay)*1e6, true
			}
		}
	}
	if ref.Kind == pb.TimerKind_GHOST_END && slices.ContainsFunc(l.holders, is) {
		l.holders = slices.DeleteFunc(l.holders, is)
		m.locks[ref.Path], m.changed = l, true
	}
	if ref.Kind == pb.TimerKind_WAITER_DEADLINE && slices.ContainsFunc(l.queue, is) {
		l.queue = slices.DeleteFunc(l.queue, is)
		m.locks[ref.Path], m.changed = l, true
		m.event(ref.Session, "TIMED_OUT", ref.Ticket)
	}
}

// settle grants what can be granted, forgets ghosts' locks without a node, and
// removes empty containers, until nothing moves.
func (m *model) settle() {
	paths := slices.SortedFunc(maps.Keys(m.locks), comparePaths)
	for _, p := range paths {
		for len(m.locks[p].queue) > 0 && m.locks[p].admits(m.locks[p].queue[0].mode) {
			c := m.locks[p].queue[0]
			m.grant(p)
			m.event(c.session, "GRANTED", c.ticket)
		}
		if _, ok := m.nodes[p]; !ok && len(m.locks[p].holders) == 0 {
			delete(m.locks, p)
		}
	}
	for again := true; again; {
		again = false
		for p, n := range m.nodes {
			if n.used && m.children(p) == 0 && len(m.locks[p].holders) == 0 {
				delete(m.nodes, p)
				delete(m.locks, p)
				m.changed, again = true, true
			}
		}
	}
}
