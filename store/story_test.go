package store

import (
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

func TestGhostKeepsALostLockForItsDelay(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	first := c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000)).Grant
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
	c.expire(a)
	c.wantHeld("/x", "(1)|2")
	c.pass(4999)
	c.wantHeld("/x", "(1)|2")
	c.pass(1)
	c.wantHeld("/x", "2")
	v, _ := c.s.Lock("/x")
	if v.Fence <= first.Fence || v.Generation != first.LockGeneration+1 {
		t.Fatalf("granted %v after %v", v, first)
	}
}

func TestExpiryWithoutDelayFreesAtOnce(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
	c.expire(a)
	c.wantHeld("/x", "2")
}

func TestDeadReaderDoesNotStopReaders(t *testing.T) {
	c := newCell(t)
	a, b, d := c.open(), c.open(), c.open()
	one := c.want(pb.Code_OK, a, acquire("/x", shared, 5000)).Grant
	c.expire(a)
	two := c.want(pb.Code_OK, b, acquire("/x", shared, 0)).Grant
	if one.Fence != two.Fence {
		t.Fatalf("the ghost's period ended: fences %d, %d", one.Fence, two.Fence)
	}
	c.want(pb.Code_WAITING, d, acquire("/x", exclusive, 0))
	c.want(pb.Code_OK, b, release(1))
	c.wantHeld("/x", "(1)|3")
	c.pass(5000)
	c.wantHeld("/x", "3")
}

func TestCloseWithAndWithoutWorkEnded(t *testing.T) {
	c := newCell(t)
	a, b, d := c.open(), c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000))
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 5000))
	c.want(pb.Code_WAITING, d, acquire("/x", exclusive, 5000))
	c.want(pb.Code_OK, a, closeSession(true))
	c.wantHeld("/x", "2|3")
	c.want(pb.Code_OK, b, closeSession(false))
	// The guarded work may take as long to stop as if its client had died.
	x, _ := c.s.Session(d)
	c.pass(int64(x.LeaseMS) + 5000 - 1)
	c.wantHeld("/x", "(2)|3")
	c.pass(1)
	c.wantHeld("/x", "3")
	if r := c.do(a, closeSession(true)); r.Code != pb.Code_UNKNOWN_SESSION {
		t.Fatalf("a closed session got %v", r)
	}
}

func TestBrokenLockWaitsForLeaseAndDelayOrTheOwnersRelease(t *testing.T) {
	for _, early := range []bool{false, true} {
		c := newCell(t)
		a, b := c.open(), c.open()
		g := c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000)).Grant
		c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
		brk := func(fence uint64) *pb.Command {
			return &pb.Command{Op: &pb.Command_BreakLock{BreakLock: &pb.Break{Path: "/x", Fence: fence}}}
		}
		c.want(pb.Code_NOT_HELD, b, brk(g.Fence+1))
		c.want(pb.Code_OK, b, brk(g.Fence))
		c.want(pb.Code_NOT_HELD, b, brk(g.Fence))
		c.wantHeld("/x", "(1)|2")
		if got := c.eventsOf(a); got != "LOST 1" {
			t.Fatalf("events %q", got)
		}
		// Taking note of the loss does not end the guarded work.
		c.apply(&pb.Command{Session: a, AckedEvent: 1, Op: &pb.Command_AckEvents{AckEvents: &pb.AckEvents{}}})
		if got := c.eventsOf(a); got != "" {
			t.Fatalf("events %q", got)
		}
		c.wantHeld("/x", "(1)|2")
		if early {
			c.want(pb.Code_OK, a, release(1))
		} else {
			c.pass(12_000 + 4_999)
			c.wantHeld("/x", "(1)|2")
			c.pass(1)
		}
		c.wantHeld("/x", "2")
	}
}

func TestExpiryBringsAGhostsEndNearer(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000))
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
	c.want(pb.Code_OK, b, delForce("/x")) // a's lock is lost, b is sent away
	c.pass(1000)
	c.expire(a) // the lease is over: 5 s are left, not 16
	v, _ := c.s.Lock("/x")
	if left := v.Holders[0].GhostUntilCell - c.now; left != 5_000_000_000 {
		t.Fatalf("%d ns are left", left)
	}
}

func TestGhostOutlivesItsNodeAndItsRecreation(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, create("/x"))
	g := c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000)).Grant
	c.want(pb.Code_LOCKED, b, del("/x"))
	c.want(pb.Code_OK, b, delForce("/x"))
	if c.exists("/x") {
		t.Fatal("not deleted")
	}
	c.wantHeld("/x", "(1)")
	c.s = restore(t, snapshot(t, c.s)) // a lock without a node is in the snapshot
	c.want(pb.Code_HELD, b, acquireWait("/x", exclusive, 0))
	if c.exists("/x") {
		t.Fatal("a refused try has created the node")
	}
	c.want(pb.Code_OK, b, create("/x"))
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
	c.pass(17_000)
	c.wantHeld("/x", "2")
	v, _ := c.s.Lock("/x")
	if v.Generation != g.LockGeneration+1 || v.Fence <= g.Fence {
		t.Fatalf("%+v after %v", v, g)
	}
}

func TestTombstoneGoesWithItsLastGhost(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", shared, 5000))
	c.want(pb.Code_OK, b, acquire("/x", shared, 1000))
	c.want(pb.Code_OK, b, delForce("/x"))
	c.pass(13_000)
	c.wantHeld("/x", "(1)")
	c.pass(4_000)
	if _, ok := c.s.Lock("/x"); ok {
		t.Fatal("the tombstone stayed")
	}
}

func TestWaitersDeadline(t *testing.T) {
	c := newCell(t)
	a, b, d := c.open(), c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", shared, 0))
	c.want(pb.Code_WAITING, b, acquireWait("/x", exclusive, 1000))
	c.want(pb.Code_WAITING, d, acquire("/x", shared, 0))
	c.pass(999)
	c.wantHeld("/x", "1|23")
	c.pass(1)
	c.wantHeld("/x", "13") // with the writer gone from the head the reader passes
	if got := c.eventsOf(b) + "; " + c.eventsOf(d); got != "TIMED_OUT 1; GRANTED 1" {
		t.Fatalf("events %q", got)
	}
}

func TestGhostsEndIsServedBeforeALaterDeadline(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 1000))
	c.want(pb.Code_WAITING, b, acquireWait("/x", exclusive, 1001))
	c.expire(a)
	c.pass(5000) // both are due; the ghost's end came first
	c.wantHeld("/x", "2")
	if got := c.eventsOf(b); got != "GRANTED 1" {
		t.Fatalf("events %q", got)
	}
}

func TestTimersOfWhatHasMovedOnAreVoid(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, create("/x"))
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 1000))
	c.want(pb.Code_OK, b, delForce("/x"))
	c.due()
	old := c.s.NextDue(1)[0].Ref // the ghost's end, without a node
	c.want(pb.Code_OK, b, create("/x"))
	c.now += 3_600_000_000_000
	timers := func(ref *pb.TimerRef) {
		c.apply(&pb.Command{Op: &pb.Command_Timers{Timers: &pb.Timers{Due: []*pb.TimerRef{ref}}}})
	}
	timers(old) // names another instance
	c.wantHeld("/x", "(1)")
	now := c.s.NextDue(1)[0].Ref
	now.DueAt--
	timers(now)
	c.wantHeld("/x", "(1)")
	now.DueAt++
	now.Kind = pb.TimerKind_WAITER_DEADLINE
	timers(now)
	c.wantHeld("/x", "(1)")
	now.Kind = pb.TimerKind_GHOST_END
	timers(now)
	c.wantHeld("/x", "")
}

func TestADeposedMastersClockCountsForNothing(t *testing.T) {
	c := newCell(t)
	a := c.open()
	x, _ := c.s.Session(a)
	expire := &pb.Command{Epoch: c.s.Epoch(), CellTime: 5, Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: a, LastChange: x.LastChange}}}
	c.s.ApplyLead(0, 0, 0)
	r := c.applyBytes(marshal(t, expire))
	if r.Code != pb.Code_STALE_EPOCH || c.s.CellTime() != 0 {
		t.Fatalf("%v, cell time %d", r, c.s.CellTime())
	}
	if _, ok := c.s.Session(a); !ok {
		t.Fatal("expired")
	}
}

func TestRequestsAreNoSignOfLife(t *testing.T) {
	c := newCell(t)
	a := c.open()
	x, _ := c.s.Session(a)
	expire := &pb.Command{Epoch: c.s.Epoch(), Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: a, LastChange: x.LastChange + 1}}}
	if r := c.applyBytes(marshal(t, expire)); r.Code != pb.Code_STALE_EPOCH {
		t.Fatalf("a session that is not as the master saw it was expired: %v", r)
	}
	expire.GetExpireSession().LastChange = x.LastChange
	c.want(pb.Code_OK, a, create("/late"))
	if r := c.applyBytes(marshal(t, expire)); r.Code != pb.Code_OK {
		t.Fatalf("a request kept a session without a lease alive: %v", r)
	}
}

func TestWithdrawAndRelease(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
	wrong := &pb.Command{Op: &pb.Command_Release{Release: &pb.Release{Ticket: 1, Path: "/y"}}}
	c.want(pb.Code_BAD_COMMAND, b, wrong)
	c.want(pb.Code_WITHDRAWN, b, release(1))
	c.want(pb.Code_NOT_HELD, b, release(1))
	c.wantHeld("/x", "1")
	c.want(pb.Code_NOT_HELD, b, release(99))
	c.want(pb.Code_OK, a, release(1))
	if len(c.s.Clone().blockers("/x", 9)) != 0 || c.exists("/x") {
		t.Fatal("something is left")
	}
}

func TestOneSessionQueuesTwiceLikeTwo(t *testing.T) {
	c := newCell(t)
	a := c.open()
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
	c.want(pb.Code_WAITING, a, acquire("/x", exclusive, 0))
	c.want(pb.Code_OK, a, release(1))
	c.wantHeld("/x", "1")
	c.want(pb.Code_OK, a, release(2))
}

func TestContainersGoWhenLastUsed(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	c.want(pb.Code_OK, a, createKind("/keep", pb.NodeKind_CONTAINER))
	c.want(pb.Code_OK, a, acquire("/keep/p/q/lock", exclusive, 1000))
	c.want(pb.Code_OK, b, acquireWait("/keep/p/other", exclusive, 0))
	c.expire(a)
	if !c.exists("/keep/p/q/lock") {
		t.Fatal("the container went while its lock-delay runs")
	}
	c.pass(1000)
	if c.exists("/keep/p/q") || !c.exists("/keep/p/other") {
		t.Fatal("the empty branch is to go, the other to stay")
	}
	c.want(pb.Code_OK, b, release(1))
	if _, nodes := c.s.Counts(); nodes != 1 {
		t.Fatalf("%d nodes are left", nodes)
	}
	c.want(pb.Code_OK, b, createKind("/new", pb.NodeKind_CONTAINER))
	if !c.exists("/new") {
		t.Fatal("a container that was never used went")
	}
}

func TestSessionsEndFreesAllInOneEntry(t *testing.T) {
	c := newCell(t)
	a, b, d := c.open(), c.open(), c.open()
	c.want(pb.Code_OK, a, createKind("/e1", pb.NodeKind_EPHEMERAL))
	c.want(pb.Code_OK, a, createKind("/e2", pb.NodeKind_EPHEMERAL))
	c.want(pb.Code_EPHEMERAL_PARENT, b, create("/e1/x"))
	c.want(pb.Code_OK, b, acquire("/e1", exclusive, 0))
	c.want(pb.Code_WAITING, d, acquire("/e1", exclusive, 0))
	c.want(pb.Code_OK, a, acquire("/l", exclusive, 0))
	c.want(pb.Code_WAITING, a, acquire("/l", shared, 0))
	c.want(pb.Code_WAITING, d, acquire("/l", exclusive, 0))
	before := c.s.Revision()
	c.expire(a)
	if c.s.Revision() != before+1 {
		t.Fatal("not one revision")
	}
	if c.exists("/e1") || c.exists("/e2") {
		t.Fatal("ephemeral nodes stayed")
	}
	c.wantHeld("/e1", "(2)")
	c.wantHeld("/l", "3")
	if got := c.eventsOf(b) + "; " + c.eventsOf(d); got != "LOST 2; WITHDRAWN 1, GRANTED 2" {
		t.Fatalf("events %q", got)
	}
	closed := 0
	for _, x := range c.last {
		if x.Kind == ChangeSessionClosed && x.Session == a {
			closed++
		}
		if x.Revision != before+1 {
			t.Fatalf("change %v", x)
		}
	}
	if closed != 1 {
		t.Fatalf("changes %v", c.last)
	}
}

func TestMultiIsAllOrNone(t *testing.T) {
	c := newCell(t)
	a := c.open()
	mk := func(path string) *pb.MultiOp {
		return &pb.MultiOp{Op: &pb.MultiOp_Create{Create: &pb.Create{Path: path}}}
	}
	r := c.want(pb.Code_OK, a, multi(mk("/a"), mk("/a/b"), check("/a/b")))
	if len(r.Results) != 3 || r.Results[1].Stat.Instance != r.Revision || r.Results[0].Revision != r.Revision {
		t.Fatalf("%v", r)
	}
	before := c.s.Revision()
	r = c.want(pb.Code_NOT_FOUND, a, multi(mk("/c"), check("/none"), mk("/d")))
	if r.FailedOp != 1 || r.Results[0].Code != pb.Code_MULTI_FAILED || r.Results[1].Code != pb.Code_NOT_FOUND || c.exists("/c") || c.s.Revision() != before {
		t.Fatalf("%v", r)
	}
	g := c.want(pb.Code_OK, a, acquire("/l", exclusive, 0)).Grant
	c.want(pb.Code_OK, a, multi(check("/l", ifFence(g.Fence)), mk("/guarded")))
	c.want(pb.Code_CONFLICT, a, multi(check("/l", ifFence(g.Fence+1)), mk("/no")))
	c.want(pb.Code_EXISTS, a, multi(check("/l", exists(false))))
	c.want(pb.Code_OK, a, &pb.Command{Op: &pb.Command_BreakLock{BreakLock: &pb.Break{Path: "/l", Fence: g.Fence}}})
	c.want(pb.Code_CONFLICT, a, multi(check("/l", ifFence(g.Fence)))) // a ghost guards nothing
	c.want(pb.Code_BAD_COMMAND, a, multi(&pb.MultiOp{}))
	c.want(pb.Code_LIMIT, a, multi(make([]*pb.MultiOp, MultiMax+1)...))
}
