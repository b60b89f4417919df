package sim

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// The plain operations say little of what the store takes. What they leave out is
// drawn here, below a node of its own: all kinds of nodes, conditions of every kind,
// sequential names whose nodes go again, deletions of whole trees with locks in them,
// transactions of anything, some of which give a lock up before they fail. The checks
// of the plain operations follow little of it; the model judges all of it.

const (
	variedRoot     = "/v"
	variedSequence = variedRoot + "/q"
)

// vary starts a call of this kind.
func (c *client) vary() {
	w := c.w
	s := w.workRandom
	if s.chance(100_000) && slices.ContainsFunc(c.holds, func(h *hold) bool { return h.stop > second }) {
		c.close(true) // with its ephemeral nodes, and before the work has ended
		return
	}
	k := &call{path: c.variedPath()}
	m := &storepb.Command{}
	switch s.below(12) {
	case 0, 1, 2:
		m.Op = &storepb.Command_Create{Create: c.variedCreate(k)}
	case 3, 4:
		k.kind = opPut
		m.Op = &storepb.Command_Put{Put: c.variedPut(k)}
	case 5, 6, 7:
		m.Op = &storepb.Command_Delete{Delete: c.variedDelete(k)}
	case 8:
		k.kind = opMulti
		m.Op = &storepb.Command_Multi{Multi: c.variedMulti()}
	case 9:
		k.kind = opMulti
		m.Op = &storepb.Command_Multi{Multi: c.failingRelease()}
	case 10:
		k.kind = opBreak
		w.counts.breaks++
		if s.chance(600_000) {
			k.path = lockPath(s.below(int64(w.plan.load.locks)))
		}
		fence := w.history.queue(k.path).fence
		if s.chance(500_000) {
			fence += uint64(s.between(1, 20)) // of no holder yet
		}
		m.Op = &storepb.Command_BreakLock{BreakLock: &storepb.Break{Path: k.path, Fence: fence}}
	default:
		k = &call{kind: pick(s, []opKind{opLock, opShared, opTry}), varied: true}
		if s.chance(400_000) { // longer than a close waits for it
			k.stop = min(int64(c.m.Lease())*5/10+slices.Min(w.plan.load.lockDelays)*millisecond*9/10, 3*second)
		}
		c.acquire(k)
		return
	}
	k.bytes = m.SizeVT()
	c.start(k)
	c.step(machine.Call{ID: k.id, Command: m})
}

// variedPath draws one of a few paths. No part of one has a letter that comes
// before the slash, so that all orders of paths are the same.
func (c *client) variedPath() string {
	s := c.w.workRandom
	if s.chance(80_000) {
		return variedSequence
	}
	path := variedRoot
	for range s.between(1, 2) {
		path += "/" + pick(s, []string{"a", "b"})
	}
	if s.chance(100_000) {
		path += "/c"
	}
	return path
}

// variedCreate draws a Create. Ephemeral nodes have names of their client.
func (c *client) variedCreate(k *call) *storepb.Create {
	s := c.w.workRandom
	k.kind = opCreate
	o := &storepb.Create{Path: k.path, Kind: pick(s, []storepb.NodeKind{storepb.NodeKind_NODE_KIND_UNSPECIFIED, storepb.NodeKind_PERMANENT,
		storepb.NodeKind_EPHEMERAL, storepb.NodeKind_CONTAINER, storepb.NodeKind_CONTAINER}), Parents: s.chance(700_000)}
	own := fmt.Sprintf("/e%d", c.index)
	switch {
	case s.chance(300_000):
		k.kind, o.Sequential = opSequential, true
		k.path = variedSequence + pick(s, []string{"/", "/n"})
		o.Path, o.Conditions = k.path, c.demands("", true, false)
	case o.Kind == storepb.NodeKind_EPHEMERAL:
		k.path += own
	case s.chance(60_000):
		k.path += own + "/x"
	}
	if !o.Sequential {
		o.Path, o.Conditions = k.path, c.demands(k.path, true, false)
	}
	o.Data, o.HasData = c.token(k), true
	return o
}

// token gives a call content of its own.
func (c *client) token(k *call) []byte {
	c.w.nextToken++
	k.token = c.w.nextToken
	return c.w.value(k.token)
}

func (c *client) variedPut(k *call) *storepb.Put {
	s := c.w.workRandom
	o := &storepb.Put{Path: k.path, Create: s.chance(300_000), Parents: s.chance(500_000)}
	o.Conditions = c.demands(k.path, o.Create, !o.Create)
	o.Data, o.HasData = c.token(k), true
	return o
}

func (c *client) variedDelete(k *call) *storepb.Delete {
	w := c.w
	s := w.workRandom
	o := &storepb.Delete{Recursive: s.chance(400_000), Force: s.chance(150_000)}
	switch all := w.history.sequence; {
	case len(all) > 0 && s.chance(400_000):
		k.path = pick(s, all)
	case s.chance(30_000):
		k.path = variedRoot
	}
	k.kind = opDelete
	if o.Force {
		k.kind = opForce
		w.counts.breaks++
	}
	o.Path, o.Conditions = k.path, c.demands(k.path, false, true)
	return o
}

// variedMulti draws a transaction. Content in it may be missing.
func (c *client) variedMulti() *storepb.Multi {
	s := c.w.workRandom
	o := &storepb.Multi{}
	for range s.between(1, 4) {
		k := &call{path: c.variedPath()}
		switch s.below(4) {
		case 0:
			create := c.variedCreate(k)
			if s.chance(200_000) {
				create.Data, create.HasData = nil, false
			}
			o.Ops = append(o.Ops, &storepb.MultiOp{Op: &storepb.MultiOp_Create{Create: create}})
		case 1:
			put := c.variedPut(k)
			if s.chance(200_000) {
				put.Data, put.HasData = nil, false
			}
			o.Ops = append(o.Ops, &storepb.MultiOp{Op: &storepb.MultiOp_Put{Put: put}})
		case 2:
			o.Ops = append(o.Ops, &storepb.MultiOp{Op: &storepb.MultiOp_Delete{Delete: c.variedDelete(k)}})
		default:
			o.Ops = append(o.Ops, &storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: k.path,
				Conditions: c.demands(k.path, s.chance(300_000), true)}}})
		}
	}
	return o
}

// failingRelease gives up a lock that the program holds, and demands what cannot be:
// so the lock must stay.
func (c *client) failingRelease() *storepb.Multi {
	o := c.variedMulti()
	if len(c.holds) > 0 {
		h := pick(c.w.workRandom, c.holds)
		r := &storepb.Release{Path: h.path, Ticket: h.ticket.number}
		o.Ops = slices.Insert(o.Ops, int(c.w.workRandom.below(2)), &storepb.MultiOp{Op: &storepb.MultiOp_Release{Release: r}})
	}
	o.Ops = append(o.Ops, &storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: "/",
		Conditions: []*storepb.Condition{{Demand: &storepb.Condition_Exists{}}}}}})
	return o
}

// demands draws the conditions of an operation on path ("": not known yet) that may
// demand that the node is absent, or something of the node.
func (c *client) demands(path string, absent, present bool) (all []*storepb.Condition) {
	w := c.w
	s := w.workRandom
	if s.chance(500_000) {
		return nil
	}
	if absent && s.chance(300_000) {
		all, present = append(all, &storepb.Condition{Demand: &storepb.Condition_Exists{}}), false
	}
	if present {
		v := w.history.versionAt(path, ^uint64(0))
		for _, d := range []*storepb.Condition{
			{Demand: &storepb.Condition_Exists{Exists: true}},
			{Demand: &storepb.Condition_Generation{Generation: c.nearly(v.generation)}},
			{Demand: &storepb.Condition_Revision{Revision: c.nearly(v.revision)}},
			{Demand: &storepb.Condition_Instance{Instance: c.nearly(v.instance)}},
			{Demand: &storepb.Condition_Fence{Fence: c.nearly(w.history.queue(path).fence)}},
		} {
			if s.chance(200_000) {
				all = append(all, d)
			}
		}
	}
	from := w.granted
	if len(c.holds) > 0 && s.chance(600_000) {
		from = c.holds
	}
	if len(from) > 0 && s.chance(350_000) {
		h := pick(s, from)
		if h.path != path || present {
			all = append(all, &storepb.Condition{Demand: &storepb.Condition_HeldBy{
				HeldBy: &storepb.Holding{Path: h.path, Session: h.ticket.session, Ticket: h.ticket.number}}})
		}
	}
	return all
}

// nearly returns a number that is mostly right, and never 0.
func (c *client) nearly(n uint64) uint64 {
	if n == 0 || c.w.workRandom.chance(150_000) {
		return n + 1
	}
	return n
}

// takeVaried follows which sequential nodes there are, in the order of their creation.
func (h *history) takeVaried(c *store.Change) {
	if !strings.HasPrefix(c.Path, variedSequence+"/") {
		return
	}
	switch c.Kind {
	case store.ChangeCreated:
		h.sequence = append(h.sequence, c.Path)
	case store.ChangeDeleted:
		h.sequence = slices.DeleteFunc(h.sequence, func(p string) bool { return p == c.Path })
	}
}
