package sim

import (
	"github.com/seed70370324/lockd/client/machine"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// yield gives a lock back in a transaction that also writes the two registers that
// are always written together; in part of the cases a condition in it does not
// hold, or a Release of its own goes beside it. It reports whether the lock is on
// its way back: else the caller releases it.
func (c *client) yield(h *hold) bool {
	w := c.w
	s := w.workRandom
	share := w.plan.load.kinds.yields
	if share == 0 || h.yields > 0 || c.ending || c.state != machine.Live || !s.chance(share) {
		return false
	}
	h.yields++
	w.nextToken++
	data := w.value(w.nextToken)
	var ops []*storepb.MultiOp
	for _, path := range []string{"/m/a", "/m/b"} {
		ops = append(ops, &storepb.MultiOp{Op: &storepb.MultiOp_Put{Put: &storepb.Put{
			Path: path, Data: data, HasData: true, Create: true, Parents: true}}})
	}
	if s.chance(300_000) {
		ops = append(ops, &storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: h.path,
			Conditions: []*storepb.Condition{{Demand: &storepb.Condition_Fence{Fence: h.fence + 1}}}}}})
	}
	ops = append(ops, &storepb.MultiOp{Op: &storepb.MultiOp_Release{Release: &storepb.Release{Path: h.path, Ticket: h.ticket.number}}})
	m := &storepb.Command{Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: ops}}}
	k := &call{kind: opYield, path: h.path, lock: h, bytes: m.SizeVT()}
	c.start(k)
	c.step(machine.Call{ID: k.id, Command: m, Releases: []machine.CallID{h.id}})
	return !s.chance(300_000)
}

// yielded takes the answer. What was not done, or perhaps not, is released.
func (c *client) yielded(k *call) {
	h := k.lock
	if h.released {
		return
	}
	if k.result.GetCode() == storepb.Code_OK && k.result != nil {
		h.released = true
		c.released(k)
		return
	}
	c.later(c.w.workRandom.below(5*millisecond), func() { c.giveBack(h) })
}
