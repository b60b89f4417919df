package sim

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
)

// These tests show that the parts of the simulator do what the runs rely on,
// and that each checker can fail.

func TestQueueKeepsOrder(t *testing.T) {
	var q queue
	s := newStream(1, 1)
	for i := 0; i < 2000; i++ {
		q.push(s.below(50), func() {})
	}
	last := happening{at: -1}
	for i := 0; i < 2000; i++ {
		h, ok := q.pop()
		if !ok || !last.before(&h) {
			t.Fatalf("%v came after %v", h, last)
		}
		last = h
	}
	if _, ok := q.pop(); ok {
		t.Fatal("more came out than was put in")
	}
}

func TestClockHasItsInverse(t *testing.T) {
	s := newStream(2, 1)
	for i := 0; i < 5000; i++ {
		c := clock{offset: s.below(1000 * second), ppm: s.between(-driftPPM, driftPPM)}
		at := s.below(200 * second)
		local := c.read(at)
		got := c.when(local)
		if c.read(got) < local || (got > 0 && c.read(got-1) >= local) {
			t.Fatalf("clock %+v shows %v first at %d, not at %d", c, local, at, got)
		}
	}
}

// TestClocksKeepTheBound: the fastest and the slowest clock differ by less
// than the product allows for.
func TestClocksKeepTheBound(t *testing.T) {
	fast, slow := clock{ppm: driftPPM}, clock{ppm: -driftPPM}
	f, s := fast.read(100*second), slow.read(100*second)
	if f-s > s/100 {
		t.Fatalf("clocks differ by %v in %v", f-s, s)
	}
}

func TestStreamsAreApart(t *testing.T) {
	a, b, again := newStream(7, 1), newStream(7, 2), newStream(7, 1)
	same := 0
	for i := 0; i < 100; i++ {
		x, y := a.uint64(), b.uint64()
		if x == y {
			same++
		}
		if z := again.uint64(); z != x {
			t.Fatal("one seed gives two streams")
		}
	}
	if same > 1 {
		t.Fatal("two streams give the same numbers")
	}
}

// failing makes a world, lets f do what a correct cell would not, and demands
// that the named check notices.
func failing(t *testing.T, check string, f func(w *World)) {
	t.Helper()
	w := newWorld(drawPlan(3))
	w.now = 5 * second
	f(w)
	if w.failure == nil || w.failure.Check != check {
		t.Errorf("the check %q did not notice: %v", check, w.failure)
	}
}

func TestCheckersNotice(t *testing.T) {
	grant := func(fence uint64, mode storepb.LockMode) *storepb.Grant {
		return &storepb.Grant{Path: "/l/a", Mode: mode, Fence: fence}
	}
	event := func(session, ticket, fence uint64) []store.Change {
		return []store.Change{{Kind: store.ChangeSessionEvent, Session: session, Event: &storepb.SessionEvent{
			Code: storepb.Code_GRANTED, Ticket: ticket, Path: "/l/a", Grant: grant(fence, storepb.LockMode_EXCLUSIVE)}}}
	}
	failing(t, "exclusion", func(w *World) {
		a, b := w.clients[0], w.clients[1]
		w.held["/l/a"] = []*hold{{c: a, path: "/l/a", fence: 4}}
		w.checkExclusion(&hold{c: b, path: "/l/a", fence: 5})
	})
	failing(t, "fences", func(w *World) {
		a, b := w.clients[0], w.clients[1]
		a.pauses = 1
		w.held["/l/a"] = []*hold{{c: a, path: "/l/a", fence: 5}}
		w.checkExclusion(&hold{c: b, path: "/l/a", fence: 5})
	})
	failing(t, "fences", func(w *World) {
		q := w.history.queue("/l/a")
		w.history.fenced(q, grant(5, storepb.LockMode_SHARED))
		w.history.fenced(q, grant(5, storepb.LockMode_SHARED))
		w.history.fenced(q, grant(5, storepb.LockMode_EXCLUSIVE))
	})
	failing(t, "fairness", func(w *World) {
		q := w.history.queue("/l/a")
		q.waiting = []request{{1, 1}, {2, 1}}
		w.history.takeLocks(&storepb.Command{}, &storepb.Result{}, event(2, 1, 9), true)
	})
	failing(t, "exclusion", func(w *World) {
		h := &hold{c: w.clients[0], path: "/l/a", fence: 4}
		w.guards["/l/a"] = &guard{highest: 5}
		w.guarded(h)
	})
	failing(t, "exactly-once", func(w *World) {
		m := &storepb.Command{Session: 1, Number: 1}
		w.history.takeRequest(m, &storepb.Result{Revision: 5}, true)
		w.history.takeRequest(m, &storepb.Result{Revision: 5}, true)
	})
	failing(t, "answers", func(w *World) {
		w.history.nodes["/r/0"] = []version{{revision: 3, token: 7, generation: 1, exists: true}}
		w.history.revision = 4
		w.history.answer(&call{c: w.clients[0], kind: opGet, path: "/r/0", read: &wirepb.ReadReply{Code: storepb.Code_NOT_FOUND, Revision: 4}})
	})
	failing(t, "linearizability", func(w *World) {
		w.history.revision = 4
		w.history.answer(&call{c: w.clients[0], kind: opGet, path: "/r/0", floor: 4, read: &wirepb.ReadReply{Code: storepb.Code_NOT_FOUND, Revision: 3}})
	})
	failing(t, "durability", func(w *World) {
		w.history.answer(&call{c: w.clients[0], kind: opPut, path: "/r/0", result: &storepb.Result{Number: 3, Revision: 3}})
	})
}

// TestRegistersAreChecked: porcupine is asked the right question.
func TestRegistersAreChecked(t *testing.T) {
	put := func(token uint64, start, end int64) *call {
		return &call{kind: opPut, path: "/r/0", token: token, start: start, end: end, result: &storepb.Result{}}
	}
	get := func(token, generation uint64, start, end int64) *call {
		return &call{kind: opGet, path: "/r/0", start: start, end: end, read: &wirepb.ReadReply{Result: &wirepb.ReadReply_Node{
			Node: &wirepb.NodeResult{Data: []byte{0, 0, 0, 0, 0, 0, 0, byte(token)}, Stat: &storepb.Stat{ContentGeneration: generation}}}}}
	}
	good := newWorld(drawPlan(3))
	good.history.calls = []*call{put(1, 1, 2), put(2, 3, 9), get(1, 1, 4, 5), get(2, 2, 6, 7)}
	good.history.checkLinearizable(time.Second)
	if good.failure != nil {
		t.Errorf("a good history is refused: %v", good.failure)
	}
	failing(t, "linearizability", func(w *World) {
		w.history.calls = []*call{put(1, 1, 2), put(2, 3, 9), get(2, 2, 4, 5), get(1, 1, 6, 7)}
		w.history.checkLinearizable(time.Second)
	})
}
