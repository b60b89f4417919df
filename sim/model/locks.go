package model

import (
	"math"

	"github.com/seed70370324/lockd/store"
	"github.com/seed70370324/lockd/store/pb"
)

const nanosOfMilli = 1_000_000

func (l *lock) live() int {
	n := 0
	for i := range l.holders {
		if !l.holders[i].ghost {
			n++
		}
	}
	return n
}

// lets reports whether holders and ghosts let this mode in.
func (l *lock) lets(mode pb.LockMode) bool {
	for i := range l.holders {
		if mode == pb.LockMode_EXCLUSIVE || l.holders[i].mode == pb.LockMode_EXCLUSIVE {
			return false
		}
	}
	return true
}

// editLock returns a lock to be changed, or nil; a Multi can put it back.
func (m *Model) editLock(path string) *lock {
	l := m.locks[path]
	if m.undo == nil {
		return l
	}
	if _, ok := m.undo.locks[path]; ok {
		return l
	}
	var old *lock
	if l != nil {
		c := *l
		c.holders = append([]claim(nil), l.holders...)
		c.waiters = append([]claim(nil), l.waiters...)
		old = &c
	}
	m.undo.locks[path] = old
	return l
}

func (m *Model) acquire(s *session, ticket uint64, op *pb.Acquire) *pb.Result {
	path, mode := op.GetPath(), op.GetMode()
	if badPath(path) {
		return code(pb.Code_BAD_PATH)
	}
	if (mode != pb.LockMode_EXCLUSIVE && mode != pb.LockMode_SHARED) || op.GetLockDelayMs() > store.LockDelayMaxMillis {
		return code(pb.Code_BAD_COMMAND)
	}
	if m.nodes[path] == nil && !op.GetCreate() {
		return code(pb.Code_NOT_FOUND)
	}
	l := m.locks[path]
	free := l == nil || (len(l.waiters) == 0 && l.lets(mode))
	if !free && op.GetWaitMs() == 0 && !op.GetNoDeadline() {
		return &pb.Result{Code: pb.Code_HELD, Blockers: l.blockers()}
	}
	if m.nodes[path] == nil {
		if c := m.reachable(path, true); c != pb.Code_OK {
			return code(c)
		}
		m.make(path, pb.NodeKind_CONTAINER, 0, nil, false, true)
	}
	m.edit(path).used = true
	if l == nil {
		l = &lock{}
		m.locks[path] = l
	}
	c := claim{session: s.id, ticket: ticket, client: s.client, mode: mode, delay: op.GetLockDelayMs(), lease: s.lease, wall: m.wall, cell: m.cellTime, revision: m.next}
	if free {
		return &pb.Result{Path: path, Grant: m.grant(path, l, c)}
	}
	if !op.GetNoDeadline() {
		c.deadline = math.MaxInt64 // what does not fit is for ever
		if op.GetWaitMs() <= uint64(math.MaxInt64-m.cellTime)/nanosOfMilli {
			c.deadline = m.cellTime + int64(op.GetWaitMs())*nanosOfMilli
		}
	}
	r := &pb.Result{Code: pb.Code_WAITING, Path: path, Blockers: l.blockers()}
	l.waiters = append(l.waiters, c)
	r.Position = uint32(len(l.waiters))
	m.lockChange(path, l, &c, store.LockEventNone, 0)
	return r
}

// blockers names who is in the way, as far as answers go.
func (l *lock) blockers() []*pb.Blocker {
	var all []*pb.Blocker
	for _, list := range [][]claim{l.holders, l.waiters} {
		for i := range list {
			if len(all) < store.BlockersMax {
				all = append(all, &pb.Blocker{Session: list[i].session, Ticket: list[i].ticket, Mode: list[i].mode, Ghost: list[i].ghost})
			}
		}
	}
	return all
}

// grant makes a holder of a claim. An exclusive grant, and the first of a
// shared period, which ghosts prolong, takes a new generation and fence.
func (m *Model) grant(path string, l *lock, c claim) *pb.Grant {
	if len(l.holders) == 0 {
		l.generation++
		l.fence = m.next
	}
	c.fence, c.deadline, c.wall, c.cell = l.fence, 0, m.wall, m.cellTime
	l.holders = append(l.holders, c)
	m.lockChange(path, l, &c, store.LockAcquired, 0)
	return m.grantOf(path, l, &c)
}

func (m *Model) grantOf(path string, l *lock, c *claim) *pb.Grant {
	g := &pb.Grant{Path: path, Mode: c.mode, Fence: c.fence, LockGeneration: l.generation, Ticket: c.ticket, LockDelayMs: c.delay}
	if n := m.nodes[path]; n != nil {
		g.Instance = n.stat.Instance
	}
	return g
}

func (m *Model) lockChange(path string, l *lock, c *claim, e store.LockEvent, loss pb.LossReason) {
	m.change(store.Change{Kind: store.ChangeLock, Path: path, Lock: store.LockChange{Event: e, Loss: loss, Mode: c.mode,
		Session: c.session, Ticket: c.ticket, Client: c.client, Fence: c.fence, Generation: l.generation, LockDelayMS: c.delay}})
	m.touch(path)
}

// passOn grants the longest compatible prefix of the queue.
func (m *Model) passOn(path string) {
	l := m.locks[path]
	if l == nil {
		return
	}
	for len(l.waiters) > 0 && l.lets(l.waiters[0].mode) {
		c := l.waiters[0]
		l.waiters = l.waiters[1:]
		g := m.grant(path, l, c)
		m.event(c.session, &pb.SessionEvent{Code: pb.Code_GRANTED, Ticket: c.ticket, Path: path, Grant: g})
	}
	if len(l.holders)+len(l.waiters) == 0 && m.nodes[path] == nil {
		delete(m.locks, path)
	}
}

// lose makes an unstarted ghost of a live holder whose session lives. The
// session is told, unless it was the one that said so.
func (m *Model) lose(path string, l *lock, c *claim, why pb.LossReason) {
	c.ghost, c.until = true, 0
	m.lockChange(path, l, c, store.LockLost, why)
	if why != pb.LossReason_FORFEITED {
		m.event(c.session, &pb.SessionEvent{Code: pb.Code_LOST, Ticket: c.ticket, Path: path, Grant: m.grantOf(path, l, c), Loss: why})
	}
}

// find looks for a session's ticket in all locks.
func (m *Model) find(session, ticket uint64) (path string, holder, waiter int) {
	for p, l := range m.locks {
		for i := range l.holders {
			if l.holders[i].session == session && l.holders[i].ticket == ticket {
				return p, i, -1
			}
		}
		for i := range l.waiters {
			if l.waiters[i].session == session && l.waiters[i].ticket == ticket {
				return p, -1, i
			}
		}
	}
	return "", -1, -1
}

func without(list []claim, i int) []claim { return append(list[:i:i], list[i+1:]...) }

func (m *Model) release(s *session, op *pb.Release, alone bool) *pb.Result {
	path, holder, waiter := m.find(s.id, op.GetTicket())
	if path == "" || waiter >= 0 && !alone {
		return code(pb.Code_NOT_HELD)
	}
	if op.GetPath() != "" && op.GetPath() != path {
		return code(pb.Code_BAD_COMMAND)
	}
	l := m.editLock(path)
	if waiter >= 0 {
		c := l.waiters[waiter]
		l.waiters = without(l.waiters, waiter)
		m.lockChange(path, l, &c, store.LockEventNone, 0)
		return code(pb.Code_WITHDRAWN)
	}
	c := l.holders[holder]
	l.holders = without(l.holders, holder)
	m.lockChange(path, l, &c, left(&c), 0)
	return code(pb.Code_OK)
}

func left(c *claim) store.LockEvent {
	if c.ghost {
		return store.LockGhostEnded
	}
	return store.LockReleased
}

func (m *Model) forfeit(s *session, ticket uint64) *pb.Result {
	if path, i, _ := m.find(s.id, ticket); i >= 0 {
		l := m.locks[path]
		if !l.holders[i].ghost {
			m.lose(path, l, &l.holders[i], pb.LossReason_FORFEITED)
		}
	}
	return code(pb.Code_OK)
}

func (m *Model) breakLock(op *pb.Break) *pb.Result {
	path := op.GetPath()
	if badPath(path) {
		return code(pb.Code_BAD_PATH)
	}
	n := 0
	if l := m.locks[path]; l != nil {
		for i := range l.holders {
			if h := &l.holders[i]; !h.ghost && h.fence == op.GetFence() {
				m.lose(path, l, h, pb.LossReason_BROKEN)
				n++
			}
		}
	}
	if n == 0 {
		r := code(pb.Code_NOT_HELD)
		if l := m.locks[path]; l != nil {
			r.Blockers = l.blockers()
		}
		return r
	}
	return code(pb.Code_OK)
}

// timer lets one thing fall due, if it still is as the timer names it.
func (m *Model) timer(t *pb.TimerRef) {
	l := m.locks[t.GetPath()]
	if l == nil || m.cellTime < t.GetDueAt() {
		return
	}
	instance := uint64(0)
	if n := m.nodes[t.GetPath()]; n != nil {
		instance = n.stat.Instance
	}
	if t.GetInstance() != instance {
		return
	}
	switch t.GetKind() {
	case pb.TimerKind_WAITER_DEADLINE:
		for i := range l.waiters {
			c := l.waiters[i]
			if c.session != t.GetSession() || c.ticket != t.GetTicket() || c.deadline != t.GetDueAt() || c.deadline == 0 {
				continue
			}
			l.waiters = without(l.waiters, i)
			m.lockChange(t.GetPath(), l, &c, store.LockEventNone, 0)
			m.event(c.session, &pb.SessionEvent{Code: pb.Code_TIMED_OUT, Ticket: c.ticket, Path: t.GetPath()})
			return
		}
	case pb.TimerKind_GHOST_END, pb.TimerKind_GHOST_START:
		for i := range l.holders {
			c := &l.holders[i]
			if !c.ghost || c.session != t.GetSession() || c.ticket != t.GetTicket() || c.until != t.GetDueAt() {
				continue
			}
			if (t.GetKind() == pb.TimerKind_GHOST_START) != (c.until == 0) {
				continue
			}
			if c.until == 0 {
				c.until = m.cellTime + int64(c.lease+c.delay)*nanosOfMilli
				m.lockChange(t.GetPath(), l, c, store.LockEventNone, 0)
				return
			}
			gone := *c
			l.holders = without(l.holders, i)
			m.lockChange(t.GetPath(), l, &gone, store.LockGhostEnded, 0)
			return
		}
	}
}
