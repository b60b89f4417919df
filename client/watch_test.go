package client_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
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

	// What happens while the connection is down is told once.
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
	node.want(client.EventChanged, "/a", "x2")
	all.want(client.EventDeleted, "/a/b/c", "")
	all.want(client.EventDeleted, "/a/d", "")
	all.want(client.EventChanged, "/a", "x2")
	must(other.Put(ctx, "/a/end", nil))(t)
	all.want(client.EventChanged, "/a/end", "")
	children.want(client.EventDeleted, "/a/d", "")
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
	const writes = 24
	big := make([]byte, 1<<20)
	for i := range writes {
		copy(big, fmt.Sprint(i, "."))
		must(other.Put(ctx, "/big", big))(t)
		if i%10 == 0 {
			must(s.Get(ctx, "/big"))(t) // the session's loop goes on
		}
	}
	must(other.Put(ctx, "/end", nil))(t)
	seen := 0
	for {
		ev, err, ok := w.next()
		if err != nil || !ok {
			t.Fatalf("watch ended: %v", err)
		}
		seen++
		if ev.Path == "/end" {
			break
		}
		if ev.Stat.ContentGeneration == writes && string(ev.Data[:3]) != "23." {
			t.Fatalf("last content is %q", ev.Data[:3])
		}
	}
	if seen > writes {
		t.Fatalf("%d events for %d changes", seen, writes+1)
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
