package client_test

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

type holders struct {
	t    *testing.T
	next func() (client.Held, error, bool)
}

func (h *holders) want(session uint64, data string) {
	h.t.Helper()
	got, err, ok := h.next()
	if err != nil || !ok || got.Held != (session != 0) || got.Holder.Session != session || string(got.Data) != data {
		h.t.Fatalf("told %+v, %v; expected session %d, %q", got, err, session, data)
	}
}

// A follower sees the address of the lock's holder, and none while there is none.
func TestWatchHolder(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	ctx := within(t)
	a, b := c.dial(), c.dial()
	follower := c.dial(n.option())
	next, stop := iter.Pull2(follower.WatchHolder(ctx, "/primary"))
	defer stop()
	h := &holders{t, next}
	h.want(0, "")
	must(a.Put(ctx, "/primary", []byte("nobody's")))(t)
	for i, s := range []*client.Session{a, b} {
		l := must(s.Lock(ctx, "/primary"))(t)
		h.want(s.ID(), "")
		address := fmt.Sprint("10.0.0.", i)
		must(s.Put(ctx, "/primary", []byte(address)))(t)
		h.want(s.ID(), address)
		if i == 0 {
			if err := l.Release(ctx); err != nil {
				t.Fatal(err)
			}
			h.want(0, "")
		}
	}
	// What passes while it is away: b loses the lock.
	n.set(false)
	for info, err := range a.Locks(ctx, "/primary") {
		if err == nil {
			err = a.Break(ctx, "/primary", info.Fence)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	n.set(true)
	h.want(0, "")
}

// A watch of locks tells who got and who lost them.
func TestWatchLocks(t *testing.T) {
	c := newCell(t)
	ctx := within(t)
	a, b := c.dial(client.WithName("first")), c.dial()
	must(a.Put(ctx, "/l", nil))(t)
	held := must(a.Lock(ctx, "/l", client.LockDelay(time.Second)))(t)
	w := watch(t, b.Watch(ctx, "/l", client.WatchLocks()))
	w.want(client.EventPresent, "/l", "")
	ev := w.want(client.EventHeld, "/l", "")
	if ev.Holder.Session != a.ID() || ev.Holder.Client.Name != "first" || ev.Holder.Fence != held.Fence() || ev.Holder.Ghost {
		t.Errorf("held by %+v", ev.Holder)
	}
	w.want(client.EventReady, "", "")
	if err := held.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if ev = w.want(client.EventReleased, "/l", ""); ev.Holder.Session != a.ID() || ev.Reason != client.ReasonUnknown {
		t.Errorf("released: %+v", ev)
	}
	held = must(a.Lock(ctx, "/l", client.LockDelay(time.Second)))(t)
	if ev = w.want(client.EventAcquired, "/l", ""); ev.Holder.Fence != held.Fence() || ev.Missed {
		t.Errorf("acquired: %+v", ev)
	}
	if err := b.Break(ctx, "/l", held.Fence()); err != nil {
		t.Fatal(err)
	}
	if ev = w.want(client.EventLost, "/l", ""); ev.Holder.Session != a.ID() || ev.Reason != client.ReasonBroken {
		t.Errorf("lost: %+v", ev)
	}
	<-held.Context().Done()
	wantErr(t, held.Release(ctx), client.ErrLost) // it says that the work has ended
	w.want(client.EventGhostEnded, "/l", "")
	if err := a.Delete(ctx, "/l"); err != nil {
		t.Fatal(err)
	}
	if ev = w.want(client.EventDeleted, "/l", ""); ev.Reason != client.ReasonDeleted {
		t.Errorf("deleted: %+v", ev)
	}
}

// A session that holds a shared lock twice is a holder until it has released both.
func TestWatchHolderOfTwoHoldings(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	must(s.Put(ctx, "/l", nil))(t)
	one := must(s.Lock(ctx, "/l", client.Shared()))(t)
	two := must(s.Lock(ctx, "/l", client.Shared()))(t)
	released := 0
	for h, err := range s.WatchHolder(ctx, "/l") {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case released == 0:
			if !h.Held {
				t.Fatalf("at first: %+v", h)
			}
			if err := one.Release(ctx); err != nil {
				t.Fatal(err)
			}
			// Something that is told behind the release.
			must(s.Put(ctx, "/l", []byte("x")))(t)
			released++
		case released == 1:
			if !h.Held || string(h.Data) != "x" {
				t.Fatalf("the session still holds it once: %+v", h)
			}
			if err := two.Release(ctx); err != nil {
				t.Fatal(err)
			}
			released++
		case h.Held:
			t.Fatalf("released: %+v", h)
		default:
			return
		}
	}
}
