package client_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"

	"github.com/seed70370324/lockd/client"
)

// events reads a watch step by step.
type events struct {
	t    *testing.T
	next func() (client.WatchEvent, error, bool)
}

func watch(t *testing.T, seq iter.Seq2[client.WatchEvent, error]) *events {
	t.Helper()
	next, stop := iter.Pull2(seq)
	t.Cleanup(stop)
	return &events{t, next}
}

func (e *events) want(kind client.EventKind, path, data string) client.WatchEvent {
	e.t.Helper()
	ev, err, ok := e.next()
	if err != nil || !ok || ev.Kind != kind || ev.Path != path || string(ev.Data) != data {
		e.t.Fatalf("told %v %q %q, %v; expected %v %q %q", ev.Kind, ev.Path, ev.Data, err, kind, path, data)
	}
	return ev
}

func TestWatch(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option())
	other := c.dial()
	ctx := within(t)
	must(s.Put(ctx, "/a", []byte("1")))(t)
	must(s.Put(ctx, "/a/b", []byte("2")))(t)
	must(s.Put(ctx, "/a/b/c", []byte("3")))(t)

	node := watch(t, s.Watch(ctx, "/a"))
	node.want(client.EventPresent, "/a", "1")
	node.want(client.EventReady, "", "")
	children := watch(t, s.Watch(ctx, "/a", client.Children(), client.WithoutData()))
	children.want(client.EventPresent, "/a", "")
	if ev := children.want(client.EventPresent, "/a/b", ""); ev.Stat.Size != 1 || ev.Revision == 0 {
		t.Fatalf("event %+v", ev)
	}
	children.want(client.EventReady, "", "")
	all := watch(t, s.Watch(ctx, "/a", client.Subtree()))
	all.want(client.EventPresent, "/a", "1")
	all.want(client.EventPresent, "/a/b", "2")
	all.want(client.EventPresent, "/a/b/c", "3")
	all.want(client.EventReady, "", "")
	none := watch(t, s.Watch(ctx, "/none"))
	none.want(client.EventReady, "", "")

	must(other.Put(ctx, "/a/b/c", []byte("4")))(t)
	all.want(client.EventChanged, "/a/b/c", "4")
	must(other.Create(ctx, "/a/d", nil))(t)
	all.want(client.EventChanged, "/a/d", "")
	children.want(client.EventChanged, "/a/d", "")
	must(other.Put(ctx, "/none", nil))(t)
	none.want(client.EventChanged, "/none", "")

	// What happens while the connection is down is told once, and marked.
	n.set(false)
	for i := range 3 {
		must(other.Put(ctx, "/a", fmt.Append(nil, "x", i)))(t)
	}
	must(other.Create(ctx, "/a/passing", nil))(t)
	for _, path := range []string{"/a/passing", "/a/d", "/a/b/c"} {
		if err := other.Delete(ctx, path); err != nil {
			t.Fatal(err)
		}
	}
	n.set(true)
	missed := func(e *events, kind client.EventKind, path, data string) {
		t.Helper()
		if ev := e.want(kind, path, data); !ev.Missed {
			t.Errorf("%v %s is not marked", kind, path)
		}
	}
	missed(node, client.EventChanged, "/a", "x2")
	missed(all, client.EventDeleted, "/a/d", "")
	missed(all, client.EventDeleted, "/a/b/c", "")
	missed(all, client.EventChanged, "/a", "x2")
	must(other.Put(ctx, "/a/end", nil))(t)
	if ev := all.want(client.EventChanged, "/a/end", ""); ev.Missed {
		t.Error("a change behind those that were missed is marked")
	}
	missed(children, client.EventDeleted, "/a/d", "")
	missed(children, client.EventChanged, "/a", "")

	// What came and went has left nothing to tell: the next change is marked.
	n.set(false)
	must(other.Create(ctx, "/a/short", nil))(t)
	if err := other.Delete(ctx, "/a/short"); err != nil {
		t.Fatal(err)
	}
	n.set(true)
	must(s.Get(ctx, "/a"))(t) // it is connected again
	must(other.Put(ctx, "/a/b", []byte("5")))(t)
	missed(all, client.EventChanged, "/a/b", "5")
}

// A watch whose loop keeps up is told every change, in order, whatever is written at
// the same time.
func TestWatchTellsEveryChange(t *testing.T) {
	c := newCell(t)
	s, other := c.dial(), c.dial()
	ctx := within(t)
	must(s.Put(ctx, "/n", nil))(t)
	w := watch(t, s.Watch(ctx, "/n"))
	w.want(client.EventPresent, "/n", "")
	w.want(client.EventReady, "", "")
	const writers, writes = 4, 300
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range writes {
				if _, err := other.Put(ctx, "/n", []byte("x")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	last := uint64(0)
	for i := range uint64(writers * writes) {
		ev := w.want(client.EventChanged, "/n", "x")
		if ev.Missed || ev.Stat.ContentGeneration != i+2 || ev.Revision != ev.Stat.ModifyRevision || ev.Revision <= last {
			t.Fatalf("change %d is told as %+v behind revision %d", i, ev, last)
		}
		last = ev.Revision
	}
}

// A loop that does not take its events costs bounded memory, holds up nothing,
// and is brought up to date when it goes on.
func TestSlowWatch(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	other := c.dial()
	ctx := within(t)
	w := watch(t, s.Watch(ctx, "/", client.Subtree()))
	w.want(client.EventPresent, "/", "")
	w.want(client.EventReady, "", "")
	const writes = 40
	big := make([]byte, 1<<20)
	for i := range writes {
		copy(big, fmt.Sprint(i, "."))
		must(other.Put(ctx, "/big", big))(t)
		if i%10 == 0 {
			must(s.Get(ctx, "/big"))(t) // the session's loop goes on
		}
	}
	must(other.Put(ctx, "/end", nil))(t)
	seen, marked := 0, 0
	for {
		ev, err, ok := w.next()
		if err != nil || !ok {
			t.Fatalf("watch ended: %v", err)
		}
		seen++
		if ev.Missed {
			marked++
		}
		if ev.Path == "/end" {
			break
		}
		if ev.Stat.ContentGeneration == writes && string(ev.Data[:3]) != "39." {
			t.Fatalf("last content is %q", ev.Data[:3])
		}
	}
	if seen > writes || marked == 0 {
		t.Fatalf("%d events for %d changes, %d of them marked", seen, writes+1, marked)
	}
	t.Logf("%d events for %d changes", seen, writes+1)
}

func TestWatchEnds(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	last := errors.New("none")
	for ev, err := range s.Watch(ctx, "/") {
		if ev.Kind == client.EventReady {
			cancel()
		}
		last = err
	}
	wantErr(t, last, context.Canceled)
	for _, err := range s.Watch(within(t), "nonsense") {
		wantErr(t, err, client.ErrBadPath)
	}
	// Leaving the loop ends the watch; the session goes on.
	for range s.Watch(within(t), "/") {
		break
	}
	must(s.Put(within(t), "/a", nil))(t)
}
