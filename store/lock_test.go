package store

import (
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

func TestReadersPassTogetherAndNobodyOvertakes(t *testing.T) {
	c := newCell(t)
	a, b, d, e, f := c.open(), c.open(), c.open(), c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
	for i, x := range []struct {
		session uint64
		mode    pb.LockMode
	}{{b, shared}, {d, shared}, {e, exclusive}, {f, shared}} {
		r := c.want(pb.Code_WAITING, x.session, acquire("/x", x.mode, 0))
		if int(r.Position) != i+1 || len(r.Blockers) != i+1 {
			t.Fatalf("waiter %d is told position %d and %d blockers", i+1, r.Position, len(r.Blockers))
		}
	}
	c.wantHeld("/x", "1|2345")
	c.want(pb.Code_OK, a, release(1))
	c.wantHeld("/x", "23|45") // the late reader does not overtake the writer
	v, _ := c.s.Lock("/x")
	if v.Holders[0].Fence != v.Holders[1].Fence || v.Generation != 2 {
		t.Fatalf("one shared period, yet %v", v)
	}
	c.want(pb.Code_OK, b, release(1))
	c.wantHeld("/x", "3|45")
	c.want(pb.Code_OK, d, release(1))
	c.wantHeld("/x", "4|5")
	c.want(pb.Code_OK, e, release(1))
	c.wantHeld("/x", "5")
	c.want(pb.Code_OK, f, release(1))
	if c.exists("/x") {
		t.Fatal("the container stayed")
	}
	if got := c.eventsOf(e); got != "GRANTED 1" {
		t.Fatalf("events %q", got)
	}
}
