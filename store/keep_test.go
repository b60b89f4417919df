package store

import (
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

// What a client puts on a container that no client asked for stays.
func TestFirstPutKeepsAnImpliedContainer(t *testing.T) {
	putOn := func(path, data string) *pb.Command {
		return &pb.Command{Op: &pb.Command_Put{Put: &pb.Put{Path: path, Data: []byte(data)}}}
	}
	for _, data := range []string{"", "10.0.0.1"} {
		c := newCell(t)
		a := c.open()
		c.want(pb.Code_OK, a, acquire("/d/lock", exclusive, 0))
		c.want(pb.Code_OK, a, acquire("/other/lock", exclusive, 0))
		c.s = restore(t, snapshot(t, c.s))
		if r := c.want(pb.Code_OK, a, putOn("/d/lock", data)); r.Stat.Kind != pb.NodeKind_PERMANENT {
			t.Fatalf("%v", r)
		}
		c.want(pb.Code_OK, a, putOn("/d/lock", data))
		c.want(pb.Code_OK, a, release(1))
		c.want(pb.Code_OK, a, release(2))
		if n, ok := c.s.Node("/d/lock"); !ok || string(n.Data) != data || !c.exists("/d") || c.exists("/other") {
			t.Fatalf("%q: there %t; /other %t", data, ok, c.exists("/other"))
		}
		// Its parent is implied still, and goes with it.
		c.want(pb.Code_OK, a, del("/d/lock"))
		if c.exists("/d") {
			t.Fatal("/d stayed")
		}
		// A parent that the path implied, kept by a Put.
		c.want(pb.Code_OK, a, &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: "/p/q", Parents: true}}})
		c.want(pb.Code_OK, a, putOn("/p", data))
		c.want(pb.Code_OK, a, del("/p/q"))
		if !c.exists("/p") {
			t.Fatal("/p went, though a client has written it")
		}
	}
	// One that was asked for keeps its rule.
	c := newCell(t)
	a := c.open()
	c.want(pb.Code_OK, a, createKind("/asked", pb.NodeKind_CONTAINER))
	c.want(pb.Code_OK, a, putOn("/asked", "content"))
	c.want(pb.Code_OK, a, acquire("/asked", exclusive, 0))
	c.want(pb.Code_OK, a, release(c.next[a]-1))
	if c.exists("/asked") {
		t.Fatal("a container that was asked for stayed")
	}
}

func multiRelease(ticket uint64) *pb.MultiOp {
	return &pb.MultiOp{Op: &pb.MultiOp_Release{Release: &pb.Release{Ticket: ticket}}}
}

func multiPut(path string) *pb.MultiOp {
	return &pb.MultiOp{Op: &pb.MultiOp_Put{Put: &pb.Put{Path: path, Create: true}}}
}

func TestReleaseInATransaction(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	g := c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000)).Grant
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
	by := heldBy(&pb.Holding{Path: "/x", Session: a, Ticket: 1})
	// All or none: the release is undone with the rest.
	c.want(pb.Code_NOT_FOUND, a, multi(multiPut("/p"), multiRelease(1), check("/none")))
	c.wantHeld("/x", "1|2")
	c.want(pb.Code_NOT_HELD, b, multi(multiPut("/p"), multiRelease(1))) // it waits
	c.want(pb.Code_NOT_HELD, b, multi(multiPut("/p"), multiRelease(99)))
	c.want(pb.Code_NOT_HELD, a, multi(multiRelease(1), multiRelease(1)))
	c.want(pb.Code_CONFLICT, a, multi(multiRelease(1), check("/x", by)))
	if c.exists("/p") {
		t.Fatal("a transaction that failed has written")
	}
	// The lock passes on when all is done: nothing of the transaction is under b's.
	c.want(pb.Code_CONFLICT, a, multi(multiRelease(1), check("/x", heldBy(&pb.Holding{Path: "/x", Session: b, Ticket: 1}))))
	r := c.want(pb.Code_OK, a, multi(check("/x", by), multiRelease(1), multiPut("/p")))
	c.wantStory("/x released by 1/1", "+/p", "/x acquired by 2/1", "event GRANTED")
	if v, _ := c.s.Lock("/x"); v.Fence != r.Revision || v.Fence <= g.Fence || r.Results[1].Path != "/x" {
		t.Fatalf("%+v, %v", v, r)
	}
	// Of a ghost: the guarded work has ended.
	v, _ := c.s.Lock("/x")
	c.want(pb.Code_OK, a, breakLock("/x", v.Fence))
	c.want(pb.Code_OK, b, multi(multiRelease(1), multiPut("/q")))
	c.wantHeld("/x", "")
}
