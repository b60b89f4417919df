package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

// The ways in which a lock leaves a session that lives, or whose client has said
// that its work goes on. Each takes /x, held by a, and says why.
var losses = []struct {
	name  string
	take  func(c *cell, a, b uint64, fence uint64)
	event bool
	loss  pb.LossReason
}{
	{"broken", func(c *cell, a, b, fence uint64) { c.want(pb.Code_OK, b, breakLock("/x", fence)) }, true, pb.LossReason_BROKEN},
	{"deleted", func(c *cell, a, b, _ uint64) { c.want(pb.Code_OK, b, delForce("/x")) }, true, pb.LossReason_NODE_DELETED},
	{"owner's session expired", func(c *cell, a, b, _ uint64) { c.expire(b) }, true, pb.LossReason_NODE_DELETED},
	{"owner's session closed", func(c *cell, a, b, _ uint64) { c.want(pb.Code_OK, b, closeSession(true)) }, true, pb.LossReason_NODE_DELETED},
	{"forfeited", func(c *cell, a, b, _ uint64) { c.want(pb.Code_OK, a, forfeit(1)) }, false, pb.LossReason_FORFEITED},
	{"closed", func(c *cell, a, b, _ uint64) { c.want(pb.Code_OK, a, closeSession(false)) }, false, pb.LossReason_HOLDER_CLOSED},
}

// lost is a cell in which a has lost /x, an ephemeral node of b's, that way; d
// waits for it, if the node is there.
func lost(t *testing.T, way int) (c *cell, a, d uint64) {
	c = newCell(t)
	a, b := c.open(), c.open()
	d = c.open()
	c.want(pb.Code_OK, b, createKind("/x", pb.NodeKind_EPHEMERAL))
	g := c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000)).Grant
	losses[way].take(c, a, b, g.Fence)
	c.want(pb.Code_WAITING, d, acquire("/x", exclusive, 0))
	return c, a, d
}

func (c *cell) timers(refs ...*pb.TimerRef) {
	c.t.Helper()
	c.apply(&pb.Command{Op: &pb.Command_Timers{Timers: &pb.Timers{Due: refs}}})
}

func (c *cell) ghost() *pb.Blocker {
	v, _ := c.s.Lock("/x")
	return v.Holders[0]
}

// An unstarted ghost blocks however long it takes until a master starts it; from
// then on it takes the lease and the lock-delay, and a second start is void.
func TestUnstartedGhostBlocksUntilItIsStarted(t *testing.T) {
	for way, x := range losses {
		t.Run(x.name, func(t *testing.T) {
			c, a, d := lost(t, way)
			a2 := c.open()
			c.now += 3_600_000_000_000 // and no master has started it
			c.apply(&pb.Command{Op: &pb.Command_Clock{Clock: &pb.Clock{}}})
			c.s = restore(t, snapshot(t, c.s))
			c.wantHeld("/x", "(1)|3")
			if b := c.ghost(); !b.Ghost || b.GhostUntilCell != 0 {
				t.Fatalf("%v", b)
			}
			c.want(pb.Code_OK, a2, acquire("/other", exclusive, 0))
			c.want(pb.Code_WAITING, d, acquireWait("/other", exclusive, 1)) // its deadline comes behind the start
			due := c.s.NextDue(8)
			if len(due) < 1 || due[0].At != 0 || due[0].Ref.Kind != pb.TimerKind_GHOST_START || due[0].Ref.DueAt != 0 {
				t.Fatalf("due: %v", due)
			}
			c.timers(due[0].Ref)
			end := c.ghost().GhostUntilCell
			if end != c.now+17_000_000_000 {
				t.Fatalf("started at %d it ends at %d", c.now, end)
			}
			c.now += 10_000_000_000
			c.timers(due[0].Ref) // another master's
			if got := c.ghost().GhostUntilCell; got != end {
				t.Fatalf("its end moved from %d to %d", end, got)
			}
			c.pass(6_999)
			c.wantHeld("/x", "(1)|3")
			c.pass(1)
			c.wantHeld("/x", "3")
			if got := c.eventsOf(a); x.event && got != "LOST 1" || !x.event && got != "" {
				t.Fatalf("events of the one that lost it: %q", got)
			}
			c.s.Events(a, 0, func(e *pb.SessionEvent) bool {
				if e.Loss != x.loss {
					t.Errorf("it was lost since %s, the event says %s", x.loss, e.Loss)
				}
				return true
			})
		})
	}
}

func TestExpirySetsTheEndOfAnUnstartedGhost(t *testing.T) {
	for way, x := range losses {
		if x.loss == pb.LossReason_HOLDER_CLOSED {
			continue // there is no session left to expire
		}
		c, a, _ := lost(t, way)
		start := c.s.NextDue(1)[0].Ref
		c.now += 1_000_000_000
		c.expire(a)
		end := c.ghost().GhostUntilCell
		if end != c.now+5_000_000_000 {
			t.Fatalf("%s: expired at %d it ends at %d", x.name, c.now, end)
		}
		c.timers(start)
		if got := c.ghost().GhostUntilCell; got != end {
			t.Fatalf("%s: a late start moved its end from %d to %d", x.name, end, got)
		}
		c.pass(5_000)
		c.wantHeld("/x", "3")
	}
}

func TestReleaseEndsAnUnstartedGhost(t *testing.T) {
	for way, x := range losses {
		if x.loss == pb.LossReason_HOLDER_CLOSED {
			continue
		}
		c, a, _ := lost(t, way)
		c.want(pb.Code_OK, a, release(1))
		c.wantHeld("/x", "3")
		if due := c.s.NextDue(1); len(due) != 0 {
			t.Fatalf("%s: %v is due", x.name, due)
		}
	}
}

// A lock that its client has lost is no obstacle to its own next request for
// longer than the ghost; and it guards nothing from then on.
func TestForfeit(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	g := c.want(pb.Code_OK, a, acquire("/x", exclusive, 5000)).Grant
	by := &pb.Holding{Path: "/x", Session: a, Ticket: 1}
	c.want(pb.Code_OK, a, multi(check("/x", heldBy(by), ifFence(g.Fence))))
	c.want(pb.Code_OK, a, forfeit(1))
	c.want(pb.Code_CONFLICT, a, multi(check("/x", heldBy(by))))
	c.want(pb.Code_CONFLICT, a, multi(check("/x", ifFence(g.Fence))))
	again := c.want(pb.Code_WAITING, a, acquire("/x", exclusive, 5000)).Number
	held := c.want(pb.Code_OK, b, acquire("/y", exclusive, 0)).Number
	for _, x := range []struct {
		session, ticket uint64
		what            string
	}{{a, 1, "a ghost"}, {a, again, "a waiter"}, {a, 99, "nothing"}, {a, 2, "another request"}, {b, 2, "no ticket of this session"}} {
		revision := c.s.Revision()
		c.want(pb.Code_OK, x.session, forfeit(x.ticket))
		if c.s.Revision() != revision {
			t.Fatalf("forfeiting %s has changed the state", x.what)
		}
	}
	c.wantHeld("/y", "2")
	c.want(pb.Code_OK, b, release(held))
	if got := c.eventsOf(a); got != "" {
		t.Fatalf("events %q", got)
	}
	c.pass(17_000)
	c.wantHeld("/x", "1")
	if got := c.eventsOf(a); got != fmt.Sprintf("GRANTED %d", again) {
		t.Fatalf("events %q", got)
	}
}

// No limit refuses a Forfeit of something held, nor the Release behind it.
func TestForfeitPassesAFullWindow(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	const locks = 3
	for i := range locks {
		q.passes(a, acquire(fmt.Sprintf("/l/%d", i), exclusive, 0))
	}
	first := q.next[a]
	n := first
	send := func(c *pb.Command) pb.Code {
		c.Session, c.Number, c.LowestUnanswered = a, n, first
		r := q.send(c)
		if r.Code != pb.Code_LIMIT {
			n++
		}
		return r.Code
	}
	for send(put("/x", "")) == pb.Code_OK {
	}
	for send(forfeit(99)) == pb.Code_OK {
	}
	if n-first != 2*WindowMax {
		t.Fatalf("%d results", n-first)
	}
	for i := range uint64(locks) {
		if one, two, three := send(forfeit(i+1)), send(forfeit(i+1)), send(release(i+1)); one != pb.Code_OK || two != pb.Code_LIMIT || three != pb.Code_OK {
			t.Fatalf("%v, a second time %v, released %v", one, two, three)
		}
	}
	if err := q.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// story tells a command's changes in their order.
func (c *cell) story() string {
	var out []string
	for _, x := range c.last {
		s := ""
		switch x.Kind {
		case ChangeCreated:
			s = "+" + x.Path
		case ChangeContent:
			s = "=" + x.Path
		case ChangeDeleted:
			s = fmt.Sprintf("-%s %s", x.Path, x.Reason)
		case ChangeSessionEvent:
			s = fmt.Sprintf("event %s", x.Event.Code)
		case ChangeLock:
			name := []string{"queue", "acquired", "released", "lost", "ghost-ended"}[x.Lock.Event]
			s = fmt.Sprintf("%s %s by %s/%d", x.Path, name, strings.TrimPrefix(x.Lock.Client.GetName(), "client"), x.Lock.Ticket)
			if x.Lock.Loss != 0 {
				s += " " + x.Lock.Loss.String()
			}
			if b := x.Lock.Blocker(); b.Session != x.Lock.Session || b.Fence != x.Lock.Fence || b.Mode != x.Lock.Mode || b.Ticket != x.Lock.Ticket {
				c.t.Fatalf("%v of %+v", b, x.Lock)
			}
		case ChangeSessionOpened:
			s = "opened"
		case ChangeSessionClosed:
			s = "closed"
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func (c *cell) wantStory(want ...string) {
	c.t.Helper()
	if got := c.story(); got != strings.Join(want, ", ") {
		c.t.Fatalf("the changes are\n%s\nnot\n%s", got, strings.Join(want, ", "))
	}
}

func TestChangesSayWhatHappenedInItsOrder(t *testing.T) {
	c := newCell(t)
	a, b, d := c.open(), c.open(), c.open()
	c.want(pb.Code_OK, a, acquire("/d/x", exclusive, 1000))
	c.wantStory("+/d", "+/d/x", "/d/x acquired by 1/1")
	g := c.last[2].Lock
	if g.Fence != c.s.Revision() || g.Generation != 1 || g.Mode != exclusive || g.Session != a || g.LockDelayMS != 1000 {
		t.Fatalf("%+v", g)
	}
	c.want(pb.Code_WAITING, b, acquire("/d/x", exclusive, 0))
	c.wantStory("/d/x queue by 2/1")
	c.want(pb.Code_OK, d, breakLock("/d/x", g.Fence))
	c.wantStory("/d/x lost by 1/1 BROKEN", "event LOST")
	c.timers(c.s.NextDue(1)[0].Ref)
	c.wantStory("/d/x queue by 1/1")
	c.want(pb.Code_OK, a, release(1))
	c.wantStory("/d/x ghost-ended by 1/1", "/d/x acquired by 2/1", "event GRANTED")
	if l := c.last[1].Lock; l.Generation != 2 || l.Fence != c.s.Revision() {
		t.Fatalf("%+v", l)
	}
	c.want(pb.Code_OK, b, release(1))
	c.wantStory("/d/x released by 2/1", "-/d/x CONTAINER_IDLE", "-/d CONTAINER_IDLE")
	c.want(pb.Code_OK, a, createKind("/e", pb.NodeKind_EPHEMERAL))
	c.want(pb.Code_OK, b, acquire("/e", exclusive, 0))
	c.want(pb.Code_OK, a, acquire("/l", exclusive, 0))
	c.expire(a)
	c.wantStory("/l lost by 1/4 HOLDER_EXPIRED", "/l ghost-ended by 1/4", "/e lost by 2/3 NODE_DELETED", "event LOST",
		"-/e SESSION_EXPIRED", "closed", "-/l CONTAINER_IDLE")
	c.want(pb.Code_OK, d, createKind("/e2", pb.NodeKind_EPHEMERAL))
	c.want(pb.Code_OK, d, closeSession(true))
	c.wantStory("-/e2 SESSION_CLOSED", "closed")
	c.want(pb.Code_OK, b, put("/p", ""))
	c.want(pb.Code_OK, b, del("/p"))
	c.wantStory("-/p DELETED")
	c.want(pb.Code_OK, b, put("/p", ""))
	c.want(pb.Code_OK, b, multi(
		&pb.MultiOp{Op: &pb.MultiOp_Delete{Delete: &pb.Delete{Path: "/p", Force: true}}},
		&pb.MultiOp{Op: &pb.MultiOp_Create{Create: &pb.Create{Path: "/p"}}},
		&pb.MultiOp{Op: &pb.MultiOp_Put{Put: &pb.Put{Path: "/p"}}}))
	c.wantStory("-/p FORCED", "+/p", "=/p")
	if !slices.IsSortedFunc(c.last, func(a, b Change) int { return int(a.Revision - b.Revision) }) {
		t.Fatal("not one revision")
	}
}
