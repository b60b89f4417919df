package sim

import (
	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
)

// watch is a watch of an application and what it shows.
type watch struct {
	c        *client
	id       machine.CallID
	path     string
	scope    wirepb.WatchScope
	whole    bool // the first state has been seen to its end
	revision uint64
	view     map[string]seen
	newest   map[string]uint64 // highest modification seen of each path
	holds    map[request]bool  // of locks
	ended    bool
	order    watchOrder
}

// seen is a node as a watch shows it.
type seen struct {
	generation, instance, modified, token uint64
}

// watch starts one.
func (c *client) watch(k *call) {
	s := c.w.workRandom
	if len(c.watches) >= 4 {
		c.endWatch()
		return
	}
	a := &watch{c: c, path: "/r", view: map[string]seen{}, newest: map[string]uint64{}, holds: map[request]bool{}}
	locks := false
	switch s.below(5) {
	case 0:
		a.path, a.scope = c.register(), wirepb.WatchScope_NODE
	case 1:
		a.scope = wirepb.WatchScope_CHILDREN
	case 2:
		a.path, a.scope, locks = "/l", wirepb.WatchScope_CHILDREN, true
	case 3:
		a.path, a.scope, locks = lockPath(s.below(int64(c.w.plan.load.locks))), wirepb.WatchScope_NODE, true
	default:
		a.scope = wirepb.WatchScope_SUBTREE
	}
	c.nextCall++
	a.id = c.nextCall
	c.watches = append(c.watches, a)
	c.w.trace.add(c.w.now, "watch", uint64(c.index), uint64(a.id), uint64(a.scope))
	c.w.tell(c.name, "watch %d: %s %v", a.id, a.path, int(a.scope))
	a.order.locks = locks
	c.step(machine.Watch{ID: a.id, Watch: &wirepb.Watch{Path: a.path, Scope: a.scope, Locks: locks}})
	if s.chance(300_000) {
		c.later(s.skewed(0, 3*second), func() { c.step(machine.Pause{ID: a.id}) })
		c.later(3*second+s.skewed(0, 2*second), func() { c.step(machine.Resume{ID: a.id}) })
	}
}

func (c *client) endWatch() {
	a := c.watches[0]
	c.watches = c.watches[1:]
	a.ended = true
	c.w.tell(c.name, "ends watch %d", a.id)
	c.step(machine.Cancel{ID: a.id})
}

// update takes what a watch delivers.
func (c *client) update(u machine.Update) {
	w := c.w
	var a *watch
	for _, o := range c.watches {
		if o.id == u.ID {
			a = o
		}
	}
	if a == nil && c.refusedUpdate(u) {
		return
	}
	if a == nil {
		return // ended; what was on its way does not count
	}
	if u.Err != nil {
		w.tell(c.name, "watch %d has ended: %v", a.id, u.Err)
		a.ended = true
		for i, o := range c.watches {
			if o == a {
				c.watches = append(c.watches[:i:i], c.watches[i+1:]...)
				break
			}
		}
		return
	}
	m := u.Update
	w.trace.add(w.now, "update", uint64(c.index), uint64(a.id), m.GetRevision(), uint64(len(m.GetItems())))
	if w.telling() {
		w.tell(c.name, "watch %d at %s: %s", a.id, short(m.GetRevision()), tellItems(m))
	}
	if m.GetRevision() < a.revision {
		w.fail("watches", "%s: watch %d of %s goes back from revision %d to %d", c.name, a.id, a.path, a.revision, m.GetRevision())
		return
	}
	a.revision = m.GetRevision()
	for _, item := range m.GetItems() {
		if a.whole && !m.GetState() {
			w.history.checkOrder(a, m, item)
		}
		a.take(m, item)
	}
	if m.GetState() && m.GetEnd() {
		a.whole = true
		w.history.passOver(a, m.GetRevision())
	}
}

func (a *watch) take(m *wirepb.WatchUpdate, item *wirepb.WatchItem) {
	w, path := a.c.w, item.GetPath()
	if l := item.GetLock(); l != nil {
		holder := request{l.GetHolder().GetSession(), l.GetHolder().GetTicket()}
		switch l.GetEvent() {
		case wirepb.LockEvent_LOCK_ACQUIRED, wirepb.LockEvent_LOCK_LOST:
			a.holds[holder] = true
		default:
			delete(a.holds, holder)
		}
		return
	}
	if item.GetDeleted() {
		delete(a.view, path)
		return
	}
	s := item.GetStat()
	// The revision of an update is the one that the client then has completely: of a
	// state only with its last page, of changes not where the page ends amid a command.
	if most := max(m.GetRevision(), item.GetRevision()); s.GetModifyRevision() > most && (!m.GetState() || m.GetEnd()) {
		w.fail("watches", "%s: watch %d of %s at revision %d shows a change of revision %d",
			a.c.name, a.id, path, m.GetRevision(), s.GetModifyRevision())
		return
	}
	if s.GetModifyRevision() < a.newest[path] {
		w.fail("watches", "%s: watch %d shows %s of revision %d after it has shown revision %d",
			a.c.name, a.id, path, s.GetModifyRevision(), a.newest[path])
		return
	}
	a.newest[path] = s.GetModifyRevision()
	n := seen{s.GetContentGeneration(), s.GetInstance(), s.GetModifyRevision(), tokenOf(item.GetData())}
	if item.GetDataLeftOut() {
		old, ok := a.view[path]
		if v, may := w.history.leavesOut(path, item); may && path[1] == 'r' {
			old, ok = seen{v.generation, v.instance, v.revision, v.token}, true
		}
		if !ok || old.instance != n.instance || old.generation != n.generation {
			w.fail("watches", "%s: watch %d leaves out content of %s that it has not shown", a.c.name, a.id, path)
			return
		}
		n.token = old.token
	}
	w.history.checkSeen(a, path, n)
	a.view[path] = n
}
