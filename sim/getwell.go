package sim

import (
	"fmt"
	"strings"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/store"
)

// failoverWithin bounds how long after the end of all faults, or after they
// ended for a majority, a cell may be without a master. A candidate that has won
// and lacks values that one replica alone has waits 15 s for them; without that it
// would be a few.
const failoverWithin = 25 * second

// getWell lets the clients work on for a moment without faults, then finish,
// and demands that everything comes to rest in a good state.
func (w *World) getWell() {
	w.run(w.now+w.workRandom.between(500*millisecond, 1500*millisecond), nil)
	w.winding = true
	w.trace.add(w.now, "winding")
	w.tell("net", "the clients begin nothing new")
	w.rest(w.plan.wellWithin())
	if w.failure == nil && w.takeBack() {
		w.rest(w.plan.wellWithin())
	}
}

// rest runs until nothing is open any more.
func (w *World) rest(within int64) {
	until := w.now + within
	next, ruled := int64(0), w.now
	why := ""
	w.run(until, func() bool {
		if w.now < next {
			return false
		}
		next = w.now + 100*millisecond
		if w.unfoundable() { // a member may be found lost when it starts again, after the faults
			return true
		}
		why = w.unsettled()
		if w.master() != nil {
			ruled = w.now
		} else if w.now-ruled > failoverWithin {
			w.fail("progress", "without any fault there was no master for %s", tellTime(w.now-ruled))
		}
		return why == ""
	})
	if w.unfoundable() {
		return
	}
	if w.failure == nil && why != "" {
		w.fail("progress", "%s after the last fault: %s", tellTime(within), why)
	}
	if w.failure == nil {
		w.restAccounts()
	}
}

// unsettled says what is still open; "" when all is well.
func (w *World) unsettled() string {
	master := ""
	for _, p := range w.replicas {
		switch {
		case p.refused != nil || p.aside:
			continue
		case !p.up:
			return p.name + " is down"
		case p.role.Master && master != "":
			return master + " and " + p.name + " both serve as master"
		case p.role.Master:
			master = p.name
		}
	}
	if master == "" {
		return "there is no master"
	}
	for _, p := range w.replicas {
		if p.refused == nil && !p.aside && int(p.applied) != len(w.history.slots) {
			return fmt.Sprintf("%s has applied slot %d of %d", p.name, p.applied, len(w.history.slots))
		}
	}
	for _, c := range w.clients {
		if why := c.unsettled(); why != "" {
			return why
		}
	}
	for _, r := range w.raws {
		if why := r.unsettled(); why != "" {
			return why
		}
	}
	return w.unsettledState(w.master().rep.Store())
}

func (c *client) unsettled() string {
	if c.m == nil {
		return ""
	}
	if c.state != machine.Live {
		return fmt.Sprintf("%s has no live session (state %d)", c.name, c.state)
	}
	for _, k := range c.open {
		return fmt.Sprintf("%s has no answer to call %d (%v %s)", c.name, k.id, k.kind, k.path)
	}
	for _, h := range c.holds {
		return fmt.Sprintf("%s still holds %s (call %d)", c.name, h.path, h.id)
	}
	return ""
}

// unsettledState looks for what dead clients have left, and whether the
// watches of the living show what is there.
func (w *World) unsettledState(s *store.Store) string {
	why := ""
	s.Sessions(0, func(v store.SessionView) bool {
		o, ok := w.byNonce[string(v.Nonce)]
		if !ok || o.c.life != o.life || !o.c.live() {
			why = fmt.Sprintf("session %s of a program that is gone still lives", short(v.ID))
		}
		return why == ""
	})
	s.Locks("", "", func(l store.LockView) bool {
		if why == "" {
			why = fmt.Sprintf("%s is not free: %d holders, %d waiters", l.Path, len(l.Holders), len(l.Waiters))
		}
		return false
	})
	if why != "" {
		return why
	}
	for _, c := range w.clients {
		for _, a := range c.watches {
			if why := a.unsettled(s); c.m != nil && why != "" {
				return why
			}
		}
	}
	return ""
}

// unsettled compares what a watch shows with what is there.
func (a *watch) unsettled(s *store.Store) string {
	if a.ended {
		return ""
	}
	if !a.whole {
		return fmt.Sprintf("watch %d of %s has not got its first state", a.id, a.c.name)
	}
	found, why := 0, ""
	look := func(n store.NodeView) {
		found++
		v, ok := a.view[n.Path]
		if !ok || v.instance != n.Stat.GetInstance() || v.generation != n.Stat.GetContentGeneration() || (n.HasData && v.token != tokenOf(n.Data)) {
			why = fmt.Sprintf("watch %d of %s does not show %s of generation %d (shows generation %d)", a.id, a.c.name, n.Path, n.Stat.GetContentGeneration(), v.generation)
		}
	}
	if n, ok := s.Node(a.path); ok {
		look(n)
		if a.scope != 0 {
			s.Children(a.path, "", func(_ string, n store.NodeView) bool {
				look(n)
				return why == ""
			})
		}
	}
	if len(a.holds) != 0 {
		why = fmt.Sprintf("watch %d of %s shows %d holders of locks, all are free", a.id, a.c.name, len(a.holds))
	}
	if why == "" && found != len(a.view) {
		why = fmt.Sprintf("watch %d of %s shows %d nodes, there are %d", a.id, a.c.name, len(a.view), found)
	}
	return why
}

// restartAll stops every replica in order of their names and starts them on
// their disks: what they find must be what they had.
func (w *World) restartAll() {
	w.tell("net", "ALL REPLICAS RESTART")
	for _, p := range w.replicas {
		if p.up {
			p.crash("all restart")
			w.restartLater(p, w.faultRandom.below(300*millisecond))
		}
	}
	w.rest(w.plan.wellWithin())
}

// checkEnd runs the checks of a finished run.
func (w *World) checkEnd() {
	for _, p := range w.replicas {
		p.check()
		if p.up {
			w.history.checkState(p, p.applied, p.rep.Store())
			w.history.judgeEnd(p)
		}
	}
	w.history.checkOutcomes()
	w.history.checkDeeds()
	if m := w.master(); m != nil {
		w.history.checkCreated(m.rep.Store())
	}
}

// check runs the own checks of a replica; that of the state, which takes long,
// once for each state.
func (p *process) check() {
	if !p.up || p.rep == nil {
		return
	}
	p.checkShell()
	check := p.rep.Check
	if p.applied == p.checked {
		check = p.rep.CheckMachines
	}
	p.checked = p.applied
	if err := check(); err != nil {
		p.w.fail("state", "the state of %s is not sound: %v", p.name, err)
	}
}

// checkCreated: every sequential create made one node, which is there.
func (h *history) checkCreated(s *store.Store) {
	found := 0
	s.Children("/s", "", func(_ string, n store.NodeView) bool {
		found++
		if path := h.created[tokenOf(n.Data)]; path != n.Path {
			h.w.fail("exactly-once", "%s was made by the create that made %q", n.Path, path)
		}
		return true
	})
	made := 0
	for _, path := range h.created {
		if strings.HasPrefix(path, "/s/") {
			made++ // others go again
		}
	}
	if found != made {
		h.w.fail("durability", "%d sequential nodes were made and %d are there", made, found)
	}
}
