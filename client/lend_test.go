package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// never is longer than any test.
const never = time.Hour

// lendTo makes so many calls that the session's connection is lent. On a slow
// machine no call is quick, so the sessions here take all for quick.
func lendTo(t *testing.T, s *client.Session) {
	t.Helper()
	ctx := within(t)
	for range 20 {
		must(s.Put(ctx, "/lent", nil))(t)
	}
	eventually(t, "the connection is lent", func() error {
		if !s.Lent() {
			// The one before may have been answered before it was seen to be over.
			must(s.Put(ctx, "/lent", nil))(t)
			return errors.New("it is not")
		}
		return nil
	})
}

// Who calls once an answer is there reads the next one himself.
func TestCallersReadTheirAnswers(t *testing.T) {
	c := newCell(t)
	s := c.dial(client.WithLending(never, never))
	lendTo(t, s)
	ctx := within(t)
	before := s.ReadByCallers()
	for range 100 {
		must(s.Put(ctx, "/a", nil))(t)
		must(s.Get(ctx, "/a"))(t)
		l := must(s.Lock(ctx, "/l"))(t)
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.ReadByCallers() - before; n != 400 {
		t.Errorf("%d of 400 answers were read by callers", n)
	}
}

// Slow calls, and calls with long times between them, are read for by the link's
// goroutine; a lent connection that is not used goes back to it.
func TestNothingIsLentWithoutNeed(t *testing.T) {
	c := newCell(t)
	ctx := within(t)
	slow := c.dial(client.WithLending(0, never))
	for range 100 {
		must(slow.Put(ctx, "/a", nil))(t)
	}
	if slow.Lent() {
		t.Error("the connection is lent, and each call took longer than a quick one")
	}
	idle := c.dial(client.WithLending(never, 200*time.Millisecond))
	lendTo(t, idle)
	eventually(t, "the connection goes back", func() error {
		if idle.Lent() {
			return errors.New("it is still lent")
		}
		return nil
	})
}

// What nobody reads for is read by the link's goroutine, which is told so: a
// watch, a request that waits in a queue, the end of the session.
func TestLentConnectionIsRecalled(t *testing.T) {
	c := newCell(t)
	ctx := within(t)
	other := c.dial()
	held := must(other.Lock(ctx, "/held"))(t)

	s := c.dial(client.WithLending(never, never))
	lendTo(t, s)
	events := watch(t, s.Watch(ctx, "/lent"))
	events.want(client.EventPresent, "/lent", "")
	events.want(client.EventReady, "", "")
	must(other.Put(ctx, "/lent", []byte("new")))(t)
	events.want(client.EventChanged, "/lent", "new")
	if s.Lent() {
		t.Error("the connection is lent while a watch waits for changes")
	}

	s = c.dial(client.WithLending(never, never))
	lendTo(t, s)
	got := make(chan error, 1)
	go func() {
		l, err := s.Lock(ctx, "/held")
		if err == nil {
			err = l.Release(ctx)
		}
		got <- err
	}()
	waiters(t, other, "/held", 1)
	if err := held.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}

	s = c.dial(client.WithLending(never, never))
	lendTo(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Calls of several goroutines at once are all answered, whoever reads.
func TestManyCallersOfALentConnection(t *testing.T) {
	c := newCell(t)
	for _, tick := range []time.Duration{time.Millisecond, never} {
		s := c.dial(client.WithLending(never, tick))
		ctx := within(t)
		for round := range 20 {
			for range 20 { // then it is lent, for a millisecond at least
				must(s.Put(ctx, "/lent", nil))(t)
			}
			var wg sync.WaitGroup
			for i := range 1 + rand.IntN(6) {
				wg.Go(func() {
					path := fmt.Sprintf("/%d", i)
					for j := range 1 + rand.IntN(10) {
						want := fmt.Sprintf("%d of %d", j, round)
						if _, err := s.Put(ctx, path, []byte(want)); err != nil {
							t.Error(err)
						}
						if n, err := s.Get(ctx, path); err != nil || string(n.Data) != want {
							t.Errorf("%s has %q, %v; expected %q", path, n.Data, err, want)
						}
						l, err := s.Lock(ctx, "/l")
						if err == nil {
							err = l.Release(ctx)
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		}
	}
}

// A call that reads for itself and gets no answer ends with its context, and the
// answer that comes late disturbs nobody.
func TestCallThatReadsEndsWithItsContext(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option(), client.WithLending(never, 10*time.Millisecond))
	ctx := within(t)
	for range 3 {
		lendTo(t, s)
		n.silent.Store(true)
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		_, err := s.Put(short, "/a", nil)
		cancel()
		wantErr(t, err, context.DeadlineExceeded)
		short, cancel = context.WithCancel(ctx)
		go cancel()
		_, err = s.Lock(short, "/l")
		wantErr(t, err, context.Canceled)
		n.silent.Store(false)
		n.cut() // what was sent has vanished
		must(s.Put(ctx, "/a", nil))(t)
	}
}

// When the connection ends while a caller reads it, the link's goroutine makes a
// new one, and the call is answered.
func TestLentConnectionBreaks(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option(), client.WithLending(never, never))
	ctx := within(t)
	for range 5 {
		lendTo(t, s)
		dials := n.dials.Load()
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for last := uint64(0); ; {
				st, err := s.Put(ctx, "/a", nil)
				if err != nil || st.ContentGeneration != last+1 && last > 0 {
					t.Errorf("generation %d after %d, %v", st.ContentGeneration, last, err)
					return
				}
				last = st.ContentGeneration
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		n.cut()
		eventually(t, "a new connection", func() error {
			if n.dials.Load() == dials {
				return errors.New("none")
			}
			return nil
		})
		close(stop)
		<-ended
	}
}

// A lock that is lost while nobody calls is told of all the same.
func TestLossOverALentConnection(t *testing.T) {
	c := newCell(t)
	s, other := c.dial(client.WithLending(never, 10*time.Millisecond)), c.dial()
	ctx := within(t)
	l := must(s.Lock(ctx, "/l"))(t)
	lendTo(t, s)
	if err := other.Break(ctx, "/l", l.Fence()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-l.Context().Done():
	case <-ctx.Done():
		t.Fatal("the lock's context has not ended")
	}
	if err := l.Release(ctx); !errors.Is(err, client.ErrLost) {
		t.Errorf("release: %v", err)
	}
}
