package sim

import (
	"fmt"
	"slices"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/replog"
)

// restWithin bounds how long, after every call is answered and all state is as it
// has to be, anything may still be under way: KeepAlives, notes, what is held back.
const restWithin = 20 * second

// restAccounts demands of a cell that has come to rest that nothing counts as under
// way: what was counted and never taken back would count for ever. Replicas that were
// set aside are excused, and with them those that serve them.
func (w *World) restAccounts() {
	for _, p := range w.replicas {
		if p.aside {
			return
		}
	}
	next, why := int64(0), ""
	w.run(w.now+restWithin, func() bool {
		if w.now < next {
			return false
		}
		next = w.now + 100*millisecond
		why = w.underWay()
		return why == ""
	})
	if w.failure == nil && why != "" {
		w.fail("accounts", "%s after all had come to rest %s", tellTime(restWithin), why)
	}
	w.checkAccounts()
}

// underWay says what counts as under way, or as registered without anybody who wants
// it; "" nothing.
func (w *World) underWay() string {
	watches := 0
	for _, c := range w.clients {
		for _, a := range c.watches {
			if c.m != nil && !a.ended && !c.lostItsWay() {
				watches++
			}
		}
	}
	for _, p := range w.replicas {
		if !p.up || p.rep == nil {
			continue
		}
		m := p.rep.Metrics()
		if m.InFlight != (master.InFlight{}) {
			return fmt.Sprintf("the master of %s has under way %+v", p.name, m.InFlight)
		}
		if m.LogInFlight != (replog.InFlight{}) {
			return fmt.Sprintf("the log of %s has under way %+v", p.name, m.LogInFlight)
		}
		if m.Connections != len(p.conns) {
			return fmt.Sprintf("%s counts %d connections, and has %d", p.name, m.Connections, len(p.conns))
		}
		if p.role.Master && m.Watches != watches || !p.role.Master && m.Watches != 0 {
			return fmt.Sprintf("%s has %d watches (master: %v), clients have %d", p.name, m.Watches, p.role.Master, watches)
		}
	}
	for _, c := range w.clients {
		if c.m == nil || c.lostItsWay() {
			continue
		}
		if f := c.m.InFlight(); f != (machine.InFlight{}) {
			return fmt.Sprintf("%s has under way %+v", c.name, f)
		}
	}
	return ""
}

// lostItsWay reports whether a client was given addresses of strangers alone, and has
// nothing that leads it back to the cell.
func (c *client) lostItsWay() bool {
	return !c.hasReplicas && (c.state != machine.Live || c.dialed == nil || !slices.Contains(c.w.replicas, c.dialed.p))
}

// checkAccounts holds the counts of all machines against what they count.
func (w *World) checkAccounts() {
	for _, p := range w.replicas {
		p.check()
	}
	for _, c := range w.clients {
		if c.m == nil {
			continue
		}
		if err := c.m.Check(); err != nil {
			w.fail("accounts", "%s: %v", c.name, err)
		}
	}
}
