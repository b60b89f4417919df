package sim

import (
	"errors"
	"fmt"
	"strings"

	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// expectMaster: one of the list serves; or, with not, one that is none of them.
func (d *director) expectMaster(list []who, not bool, bound int64) {
	named := map[*process]bool{}
	for _, r := range d.replicas(list) {
		named[r] = true
	}
	d.until(bound, func() string {
		for _, r := range d.w.replicas {
			if r.up && r.pauses == 0 && r.role.Master && named[r] != not {
				return ""
			}
		}
		if m := d.w.master(); m != nil {
			return m.name + " is master"
		}
		return "there is no master"
	})
}

func (d *director) expectNoMaster(bound int64) {
	d.until(bound, func() string {
		if m := d.w.master(); m != nil {
			return m.name + " is master"
		}
		return ""
	})
}

// expectNoProgress: nothing is chosen for a while.
func (d *director) expectNoProgress(t int64) {
	before := len(d.w.history.slots)
	d.wait(t)
	if n := len(d.w.history.slots); n != before {
		d.fail("%d slots were chosen", n-before)
	}
}

// expectProgress: a client that can has a write answered in time.
func (d *director) expectProgress(bound int64) {
	for _, c := range d.w.clients {
		if c.m == nil || c.pauses > 0 {
			continue
		}
		d.w.nextToken++
		k := &call{kind: opPut, path: "/r/_progress", token: d.w.nextToken}
		c.post(func() {
			c.start(k)
			c.step(machine.Call{ID: k.id, Command: &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{
				Path: k.path, Data: d.w.value(k.token), HasData: true, Create: true, Parents: true}}}})
		})
		d.until(bound, func() string {
			if k.end == 0 {
				return "a write of " + c.name + " has no answer"
			}
			return ""
		})
		if d.w.failure == nil {
			d.done(k, storepb.Code_OK)
		}
		return
	}
	d.fail("no client is free to try")
}

// expectEqual: every replica that runs has applied all there is. That their
// states are the same to the hash is checked in every run, slot by slot.
func (d *director) expectEqual(bound int64) {
	d.until(bound, func() string {
		n := 0
		for _, r := range d.w.replicas {
			if r.up && r.refused == nil {
				n++
				if int(r.applied) != len(d.w.history.slots) {
					return fmt.Sprintf("%s has applied slot %d of %d", r.name, r.applied, len(d.w.history.slots))
				}
			}
		}
		if n == 0 {
			return "no replica runs"
		}
		return ""
	})
	if d.w.failure == nil {
		for _, r := range d.w.replicas {
			if r.up && r.rep != nil {
				d.w.history.checkState(r, r.applied, r.rep.Store())
			}
		}
	}
}

func refuses(r *process, why string) string {
	if r.refused == nil {
		return fmt.Sprintf("%s does not refuse (up: %v)", r.name, r.up)
	}
	var damaged *ondisk.DamagedError
	var stranger *replog.RefusedError
	is := "something else"
	switch {
	case errors.As(r.refused, &damaged) && damaged.Doubtful:
		is = "doubtful"
	case errors.As(r.refused, &damaged):
		is = "damaged"
	case errors.As(r.refused, &stranger):
		is = "emptied"
	}
	if is != why && !(is == "doubtful" && why == "damaged") {
		return fmt.Sprintf("%s refuses as %s: %v", r.name, is, r.refused)
	}
	return ""
}

func isUp(r *process, up bool) string {
	switch {
	case r.up == up:
		return ""
	case r.refused != nil:
		return fmt.Sprintf("%s refuses: %v", r.name, r.refused)
	case r.up:
		return r.name + " runs"
	}
	return r.name + " is down"
}

func installedOne(r *process) string {
	if r.installs == 0 {
		return r.name + " has installed no snapshot"
	}
	return ""
}

func noted(r *process, text string) string {
	for _, n := range r.notes {
		if strings.Contains(n, text) {
			return ""
		}
	}
	return fmt.Sprintf("%s started with the notes %q", r.name, r.notes)
}

func inState(c *client, s machine.State) string {
	if c.m == nil || c.state != s {
		return fmt.Sprintf("the session of %s is %v", c.name, c.state)
	}
	return ""
}

func (d *director) expectClient(c *client, state, arg string, bound int64) {
	path := "/l/" + arg
	d.until(bound, func() string {
		switch state {
		case "holds":
			if c.holding(path) == nil {
				return fmt.Sprintf("%s does not hold %s", c.name, arg)
			}
		case "lost":
			if !c.lostLocks[path] {
				return fmt.Sprintf("%s has not lost %s", c.name, arg)
			}
		case "waits":
			for _, r := range d.w.history.queue(path).waiting {
				if r.session == c.session {
					return ""
				}
			}
			return fmt.Sprintf("%s does not wait for %s", c.name, arg)
		case "answered":
			if n := c.calling() + len(c.mailbox); n > 0 {
				return fmt.Sprintf("%d calls of %s have no answer", n, c.name)
			}
		case "unanswered":
			if c.calling() == 0 {
				return "all calls of " + c.name + " are answered"
			}
		case "answer":
			if c.lastAnswer != arg {
				return fmt.Sprintf("the last answer of %s was %q", c.name, c.lastAnswer)
			}
		case "live":
			return inState(c, machine.Live)
		case "jeopardy":
			return inState(c, machine.Jeopardy)
		case "expired":
			if c.expired == 0 {
				return fmt.Sprintf("no session of %s has expired, it is %v", c.name, c.state)
			}
		}
		return ""
	})
}

// calling counts the calls without an answer that the script has begun.
func (c *client) calling() int {
	n := 0
	for _, k := range c.open {
		if k.kind != opCheck {
			n++
		}
	}
	return n
}

// expectValue: a linearizable read shows it.
func (d *director) expectValue(c *client, key, value string, bound int64) {
	k := &call{kind: opGet, path: "/r/" + key}
	if c.m == nil {
		d.fail("%s does not run", c.name)
		return
	}
	c.post(func() {
		c.start(k)
		c.read(k, wirepb.ReadLevel_LINEARIZABLE)
	})
	d.until(bound, func() string {
		if k.end == 0 {
			return c.name + " has no answer"
		}
		return ""
	})
	if d.w.failure != nil {
		return
	}
	found := "missing"
	if n := k.read.GetNode(); n != nil {
		found = d.values[tokenOf(n.GetData())]
	} else if k.read.GetCode() != storepb.Code_NOT_FOUND {
		found = answerName(k)
	}
	if found != value {
		d.fail("it is %s", found)
	}
}

// lockOf finds a lock in the state of the master.
func (d *director) lockOf(name string) (view store.LockView, held bool, why string) {
	m := d.w.master()
	if m == nil {
		return view, false, "there is no master"
	}
	view, held = m.rep.Store().Lock("/l/" + name)
	return view, held && len(view.Holders)+len(view.Waiters) > 0, ""
}

func (d *director) expectFree(lock string, bound int64) {
	d.until(bound, func() string {
		v, held, why := d.lockOf(lock)
		if held {
			why = fmt.Sprintf("it has %d holders (or ghosts of such) and %d waiters", len(v.Holders), len(v.Waiters))
		}
		return why
	})
}

func (d *director) expectHeld(lock string, c *client, bound int64) {
	d.until(bound, func() string {
		v, _, why := d.lockOf(lock)
		if why != "" {
			return why
		}
		for _, h := range v.Holders {
			if h.GetSession() == c.session && !h.GetGhost() {
				return ""
			}
		}
		return fmt.Sprintf("it has %d holders, and %s is none", len(v.Holders), c.name)
	})
}
