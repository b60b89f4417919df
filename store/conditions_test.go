package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// What the model thinks of conditions: it takes them in pairs.

// mKey names what a condition demands, and of what.
func mKey(c *pb.Condition) string {
	if h := c.GetHeldBy(); h != nil {
		return fmt.Sprintf("held %s %d %d", h.Path, h.Session, h.Ticket)
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", c.Demand), "*pb.Condition_")
}

func mVoid(c *pb.Condition) bool {
	h := c.GetHeldBy()
	_, isExists := c.Demand.(*pb.Condition_Exists)
	return !isExists && c.GetGeneration() == 0 && c.GetRevision() == 0 && c.GetInstance() == 0 && c.GetFence() == 0 &&
		(h == nil || badPath(h.Path) != "" || h.Session == 0 || h.Ticket == 0)
}

func mAbsent(c *pb.Condition) bool { return mKey(c) == "Exists" && !c.GetExists() }

// mPresent reports whether a condition means that the node at path exists.
func mPresent(c *pb.Condition, path string) bool {
	if h := c.GetHeldBy(); h != nil {
		return h.Path == path
	}
	return !mAbsent(c)
}

func mClash(a, b *pb.Condition, path string) bool {
	ha, hb := a.GetHeldBy(), b.GetHeldBy()
	return mKey(a) == mKey(b) || mAbsent(a) && mPresent(b, path) || mAbsent(b) && mPresent(a, path) ||
		ha != nil && hb != nil && ha.Session == hb.Session && ha.Ticket == hb.Ticket
}

// mBad reports whether conditions are refused, whatever the state.
func mBad(op proto.Message, list []*pb.Condition) bool {
	for i, a := range list {
		own := a.GetHeldBy() == nil
		switch op := op.(type) {
		case *pb.Create:
			if !mAbsent(a) && (own || a.GetHeldBy().Path == op.Path && !op.Sequential) {
				return true
			}
		case *pb.Put:
			if !op.Create && mAbsent(a) || op.Create && own && !mAbsent(a) {
				return true
			}
		case *pb.Delete:
			if mAbsent(a) {
				return true
			}
		}
		path := op.(interface{ GetPath() string }).GetPath()
		if c, ok := op.(*pb.Create); ok && c.Sequential {
			path = "" // not known yet
		}
		if mVoid(a) || slices.ContainsFunc(list[:i], func(b *pb.Condition) bool { return mClash(a, b, path) }) {
			return true
		}
	}
	return false
}

func mRefuses(c *pb.Command) (failed int, bad bool) {
	switch op := c.Op.(type) {
	case *pb.Command_Create:
		return 0, mBad(op.Create, op.Create.Conditions)
	case *pb.Command_Put:
		return 0, mBad(op.Put, op.Put.Conditions)
	case *pb.Command_Delete:
		return 0, mBad(op.Delete, op.Delete.Conditions)
	case *pb.Command_Multi:
		for i, one := range op.Multi.Ops {
			switch {
			case one.GetCreate() != nil:
				bad = mBad(one.GetCreate(), one.GetCreate().Conditions)
			case one.GetPut() != nil:
				bad = mBad(one.GetPut(), one.GetPut().Conditions)
			case one.GetDelete() != nil:
				bad = mBad(one.GetDelete(), one.GetDelete().Conditions)
			case one.GetCheck() != nil:
				bad = mBad(one.GetCheck(), one.GetCheck().Conditions)
			}
			if bad {
				return i, true
			}
		}
	}
	return 0, false
}

// holds is OK, or the answer to the first condition that does not hold.
func (m *model) holds(list []*pb.Condition, path string, taken pb.Code) pb.Code {
	n, ok := m.nodes[path]
	held := func(path string, is func(mClaim) bool) bool {
		return slices.ContainsFunc(m.locks[path].holders, func(h mClaim) bool { return !h.ghost && is(h) })
	}
	for _, c := range list {
		yes := false
		switch d := c.Demand.(type) {
		case *pb.Condition_HeldBy:
			if !held(d.HeldBy.Path, func(h mClaim) bool { return h.session == d.HeldBy.Session && h.ticket == d.HeldBy.Ticket }) {
				return pb.Code_CONFLICT
			}
			continue
		case *pb.Condition_Exists:
			if ok && !d.Exists {
				return taken
			}
			if !d.Exists {
				continue
			}
			yes = true
		case *pb.Condition_Generation:
			yes = n.gen == d.Generation
		case *pb.Condition_Revision:
			yes = n.rev == d.Revision
		case *pb.Condition_Instance:
			yes = n.inst == d.Instance
		case *pb.Condition_Fence:
			yes = held(path, func(h mClaim) bool { return h.fence == d.Fence })
		}
		switch {
		case !ok:
			return pb.Code_NOT_FOUND
		case !yes:
			return pb.Code_CONFLICT
		}
	}
	return pb.Code_OK
}

// guarded is a cell with a node /n, locked by two readers, and a lock /other of
// which one reader is a ghost; and every condition on /n and /none that is true,
// false, or void there.
func guarded(t *testing.T) (c *cell, session uint64, all []*pb.Condition, truth func(cond *pb.Condition, exists bool) bool) {
	c = newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, put("/n", "1"))
	stat := c.want(pb.Code_OK, a, put("/n", "2")).Stat
	lock := func(s uint64, path string) *pb.Holding {
		c.want(pb.Code_OK, s, acquire(path, shared, 5000))
		return &pb.Holding{Path: path, Session: s, Ticket: c.next[s] - 1}
	}
	mine, others := lock(a, "/n"), lock(b, "/n")
	elsewhere, lost := lock(a, "/other"), lock(b, "/other")
	c.expire(b)
	v, _ := c.s.Lock("/n")
	moved := proto.Clone(mine).(*pb.Holding)
	moved.Path = "/other" // the ticket is for another path
	missing := &pb.Holding{Path: "/none", Session: a, Ticket: 99}
	yes := []*pb.Condition{generation(2), ifRevision(stat.ModifyRevision), ifInstance(stat.Instance), ifFence(v.Fence)}
	no := []*pb.Condition{generation(1), ifRevision(stat.Instance), ifInstance(stat.ModifyRevision), ifFence(v.Fence + 1)}
	holds, not := []*pb.Condition{heldBy(mine), heldBy(elsewhere)}, []*pb.Condition{heldBy(others), heldBy(lost), heldBy(moved), heldBy(missing)}
	void := []*pb.Condition{
		{}, generation(0), ifRevision(0), ifInstance(0), ifFence(0), heldBy(&pb.Holding{}),
		heldBy(&pb.Holding{Session: a, Ticket: 1}), heldBy(&pb.Holding{Path: "/n", Ticket: 1}), heldBy(&pb.Holding{Path: "/n", Session: a}),
	}
	all = slices.Concat(yes, no, holds, not, void, []*pb.Condition{exists(true), exists(false)})
	return c, a, all, func(cond *pb.Condition, here bool) bool {
		if mKey(cond) == "Exists" {
			return cond.GetExists() == here
		}
		return slices.Contains(holds, cond) || here && slices.Contains(yes, cond)
	}
}

// Every pair of conditions with every operation, on a node that exists and on
// one that does not, alone and in a transaction: what is void, given twice or
// contradictory is refused whatever the state, and then nothing is done; the
// rest is done if both hold, and else not.
func TestAllPairsOfConditionsWithAllOperations(t *testing.T) {
	c, a, all, truth := guarded(t)
	ops := []func(path string, list []*pb.Condition) (proto.Message, *pb.MultiOp){
		func(path string, list []*pb.Condition) (proto.Message, *pb.MultiOp) {
			op := &pb.Create{Path: path, Conditions: list}
			return op, &pb.MultiOp{Op: &pb.MultiOp_Create{Create: op}}
		},
		func(path string, list []*pb.Condition) (proto.Message, *pb.MultiOp) {
			op := &pb.Put{Path: path, Create: true, Conditions: list}
			return op, &pb.MultiOp{Op: &pb.MultiOp_Put{Put: op}}
		},
		func(path string, list []*pb.Condition) (proto.Message, *pb.MultiOp) {
			op := &pb.Put{Path: path, Conditions: list}
			return op, &pb.MultiOp{Op: &pb.MultiOp_Put{Put: op}}
		},
		func(path string, list []*pb.Condition) (proto.Message, *pb.MultiOp) {
			op := &pb.Delete{Path: path, Force: true, Conditions: list}
			return op, &pb.MultiOp{Op: &pb.MultiOp_Delete{Delete: op}}
		},
		func(path string, list []*pb.Condition) (proto.Message, *pb.MultiOp) {
			op := &pb.Check{Path: path, Conditions: list}
			return op, &pb.MultiOp{Op: &pb.MultiOp_Check{Check: op}}
		},
	}
	lists := [][]*pb.Condition{nil}
	for _, x := range all {
		lists = append(lists, []*pb.Condition{x})
		for _, y := range all {
			lists = append(lists, []*pb.Condition{x, y})
		}
	}
	counts := map[pb.Code]int{}
	for _, list := range lists {
		for k, op := range ops {
			for _, path := range []string{"/n", "/none"} {
				here := path == "/n"
				needs, makes := k == 2 || k == 3 || k == 4 && len(list) == 0, k == 0
				message, inMulti := op(path, list)
				done := !(needs && !here || makes && here)
				for _, x := range list {
					done = done && truth(x, here)
				}
				bad := mBad(message, list)
				text := fmt.Sprintf("%T %s %v", message, path, list)
				s := c.s.Clone()
				first := &pb.MultiOp{Op: &pb.MultiOp_Create{Create: &pb.Create{Path: "/first"}}}
				cmd := multi(first, inMulti)
				cmd.Session, cmd.Number, cmd.Epoch = a, c.next[a], c.s.Epoch()
				if refused := BadConditions(cmd); (refused != nil) != bad {
					t.Fatalf("%s: ahead of Apply it is refused with %v, refused by the rules: %t", text, refused, bad)
				}
				r, _ := s.Apply(marshal(t, cmd))
				_, firstDone := s.Node("/first")
				counts[r.Code]++
				switch {
				case bad && (r.Code != pb.Code_BAD_COMMAND || r.FailedOp != 1):
					t.Fatalf("%s: %v, it should be refused", text, r)
				case !bad && (r.Code == pb.Code_OK) != done:
					t.Fatalf("%s: %v, done %t", text, r, done)
				case firstDone != (r.Code == pb.Code_OK):
					t.Fatalf("%s: %v: the operation before it was done: %t", text, r, firstDone)
				}
				if k == 4 { // a check stands in transactions alone
					continue
				}
				s = c.s.Clone()
				alone := &pb.Command{Epoch: c.s.Epoch(), Session: a, Number: c.next[a]}
				switch op := message.(type) {
				case *pb.Create:
					alone.Op = &pb.Command_Create{Create: op}
				case *pb.Put:
					alone.Op = &pb.Command_Put{Put: op}
				case *pb.Delete:
					alone.Op = &pb.Command_Delete{Delete: op}
				}
				before := s.Revision()
				if one, _ := s.Apply(marshal(t, alone)); one.Code != r.Code || (s.Revision() > before) != (one.Code == pb.Code_OK) {
					t.Fatalf("%s: alone it is answered %v, in a transaction %v", text, one, r)
				}
			}
		}
	}
	for _, code := range []pb.Code{pb.Code_OK, pb.Code_BAD_COMMAND, pb.Code_CONFLICT, pb.Code_NOT_FOUND, pb.Code_EXISTS} {
		if counts[code] == 0 {
			t.Errorf("no pair is answered %s", code)
		}
	}
	t.Log(counts)
}

func TestAnswersToConditions(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	st := c.want(pb.Code_OK, a, put("/n", "1")).Stat
	for _, bad := range []*pb.Condition{generation(7), ifRevision(7), ifInstance(7), ifFence(7), heldBy(&pb.Holding{Path: "/l", Session: a, Ticket: 1})} {
		if r := c.want(pb.Code_CONFLICT, a, putIf("/n", "2", bad)); r.Stat.GetModifyRevision() != st.ModifyRevision {
			t.Errorf("%v: %v does not describe the node", bad, r)
		}
	}
	// Taken away and made anew the generation is what it was, the rest is not.
	c.want(pb.Code_OK, a, del("/n"))
	c.want(pb.Code_OK, b, put("/n", "other"))
	c.want(pb.Code_CONFLICT, a, putIf("/n", "2", ifInstance(st.Instance)))
	c.want(pb.Code_CONFLICT, a, putIf("/n", "2", ifRevision(st.ModifyRevision)))
	c.want(pb.Code_OK, a, putIf("/n", "2", generation(1)))
	c.want(pb.Code_CONFLICT, a, putIf("/n", "3", exists(false)))
	c.want(pb.Code_NOT_FOUND, a, putIf("/none", "3", exists(true)))
	c.want(pb.Code_EXISTS, a, multi(check("/n", exists(false))))
	c.want(pb.Code_BAD_COMMAND, a, multi(check("/n", heldBy(&pb.Holding{Path: "n", Session: 1, Ticket: 1}))))
	r := c.want(pb.Code_LIMIT, a, multi(check("/n", make([]*pb.Condition, ConditionsMax+1)...)))
	if r.Limit != LimitConditions {
		t.Errorf("%v", r)
	}
}

// A reader's guarded write fails from its own release on, though another reader
// of the same period holds the lock under the same fence.
func TestHeldByIsOneHolding(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	mine := c.want(pb.Code_OK, a, acquire("/l", shared, 0)).Grant
	c.want(pb.Code_OK, b, acquire("/l", shared, 0))
	by := &pb.Holding{Path: "/l", Session: a, Ticket: mine.Ticket}
	c.want(pb.Code_OK, a, multi(check("/l", heldBy(by), ifFence(mine.Fence)), check("/none", heldBy(by))))
	c.want(pb.Code_OK, a, release(mine.Ticket))
	c.want(pb.Code_OK, a, multi(check("/l", ifFence(mine.Fence))))
	c.want(pb.Code_CONFLICT, a, multi(check("/l", heldBy(by))))
	waits := c.want(pb.Code_WAITING, a, acquire("/l", exclusive, 0))
	c.want(pb.Code_CONFLICT, a, multi(check("/l", heldBy(&pb.Holding{Path: "/l", Session: a, Ticket: waits.Number}))))
}
