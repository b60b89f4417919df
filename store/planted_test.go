//go:build plantedbugs

package store

import (
	"fmt"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// The planted bugs do what they say, and none of it without being planted.
func TestPlantedBugs(t *testing.T) {
	run := func(bug invariant.Bug) (generation uint64, holder string) {
		invariant.Plant(bug)
		defer invariant.Plant("")
		k := newCell(t)
		a, b := k.open(), k.open()
		for range 2 {
			cmd := put("/x", "same")
			cmd.Session, cmd.Number, cmd.Epoch = a, 1, k.s.Epoch()
			k.s.Apply(marshal(t, cmd))
		}
		lock := acquire("/l", exclusive, 0)
		lock.Session, lock.Number = b, 1
		k.s.Apply(marshal(t, lock))
		x, _ := k.s.Session(b)
		k.s.Apply(marshal(t, &pb.Command{Epoch: k.s.Epoch(), Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: b, LastChange: x.LastChange}}}))
		n, _ := k.s.Node("/x")
		return n.Stat.ContentGeneration, k.held("/l")
	}
	for _, x := range []struct {
		bug        invariant.Bug
		generation uint64
		holder     string
	}{{"", 1, ""}, {invariant.RepeatAppliedTwice, 2, ""}, {invariant.DeadSessionKeepLock, 1, "2"}} {
		if generation, holder := run(x.bug); generation != x.generation || holder != x.holder {
			t.Errorf("%q: generation %d, held by %q", x.bug, generation, holder)
		}
	}
}

// Each bug of the store changes what its story ends with, and nothing else does.
func TestStoresPlantedBugs(t *testing.T) {
	for _, x := range []struct {
		bug        invariant.Bug
		story      func(c *cell, a, b uint64) string
		good, with string
	}{
		{invariant.OldCellTimeTaken, func(c *cell, _, _ uint64) string {
			read, ahead := c.s.Epoch(), c.s.CellTime()+5
			c.s.ApplyLead(0, 0, read) // another master in between
			c.s.ApplyLead(0, ahead, read)
			return fmt.Sprint(c.s.CellTime() == ahead)
		}, "false", "true"},
		{invariant.EphemeralOfNext, func(c *cell, a, b uint64) string {
			c.want(pb.Code_OK, a, createKind("/a", pb.NodeKind_EPHEMERAL))
			c.want(pb.Code_OK, b, createKind("/b", pb.NodeKind_EPHEMERAL))
			c.expire(a)
			return fmt.Sprint(c.exists("/a"), c.exists("/b"))
		}, "false true", "false false"},
		{invariant.WaitInWrongUnit, func(c *cell, a, b uint64) string {
			c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
			c.want(pb.Code_WAITING, b, acquireWait("/x", exclusive, 1000))
			c.pass(500)
			return c.held("/x")
		}, "1|2", "1"},
		{invariant.GhostStartsItself, func(c *cell, a, b uint64) string {
			c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
			c.want(pb.Code_OK, a, forfeit(1))
			return fmt.Sprint(c.ghost().GhostUntilCell)
		}, "0", "12000000000"},
		{invariant.HeldByAnybody, func(c *cell, a, b uint64) string {
			c.want(pb.Code_OK, a, acquire("/x", shared, 0))
			c.want(pb.Code_OK, b, acquire("/x", shared, 0))
			c.want(pb.Code_OK, a, release(1))
			return c.do(a, multi(check("/x", heldBy(&pb.Holding{Path: "/x", Session: a, Ticket: 1})))).Code.String()
		}, "CONFLICT", "OK"},
		{invariant.ClearVoidsNothing, func(c *cell, a, b uint64) string {
			c.apply(note(5, a))
			c.apply(note(0, a))
			return c.apply(&pb.Command{Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: a, LastChange: a}}}).Code.String()
		}, "STALE_EPOCH", "OK"},
		{invariant.OldExpiryTaken, func(c *cell, a, b uint64) string {
			x, _ := c.s.Session(a)
			old := &pb.Command{Epoch: c.s.Epoch(), Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: a, LastChange: x.LastChange}}}
			c.s.ApplyLead(0, 0, c.s.Epoch())
			return c.applyBytes(marshal(c.t, old)).Code.String()
		}, "STALE_EPOCH", "OK"},
		{invariant.OldRequestTaken, func(c *cell, a, b uint64) string {
			old := acquireWait("/x", exclusive, 1000)
			old.Session, old.Number, old.Epoch, old.CellTime = a, 1, c.s.Epoch(), c.s.CellTime()+5
			c.s.ApplyLead(0, 0, c.s.Epoch())
			before := c.s.Hash()
			r := c.applyBytes(marshal(c.t, old))
			return fmt.Sprint(r.Code, c.s.Hash() == before)
		}, "STALE_EPOCH true", "OK false"},
		{invariant.PutOnContainerGoes, func(c *cell, a, b uint64) string {
			c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
			c.want(pb.Code_OK, a, putIf("/x", "content"))
			c.want(pb.Code_OK, a, release(1))
			return fmt.Sprint(c.exists("/x"))
		}, "true", "false"},
	} {
		for _, bug := range []invariant.Bug{"", x.bug} {
			invariant.Plant(bug)
			c := newCell(t)
			got := x.story(c, c.open(), c.open())
			invariant.Plant("")
			if want := map[bool]string{true: x.with, false: x.good}[bug != ""]; got != want {
				t.Errorf("%s, planted %q: %s, want %s", x.bug, bug, got, want)
			}
		}
	}
}
