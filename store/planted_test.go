//go:build plantedbugs

package store

import (
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
