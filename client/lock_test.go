package client_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/internal/clock"
)

func TestLock(t *testing.T) {
	c := newCell(t)
	s := c.dial(client.WithName("first"))
	other := c.dial(client.WithName("second"))
	ctx := within(t)
	l := must(s.Lock(ctx, "/l"))(t)
	if l.Path() != "/l" || l.Mode() != client.ModeExclusive || l.Fence() == 0 || l.Err() != nil || l.Context().Err() != nil {
		t.Fatalf("lock %+v", l)
	}
	if d := time.Until(l.Deadline()); d < 12*time.Second || d > 27*time.Second {
		t.Fatalf("deadline in %v", d)
	}
	if !strings.HasPrefix(l.Sequencer(), "lockd1:X:") || !strings.HasSuffix(l.Sequencer(), ":/l") {
		t.Fatalf("sequencer %q", l.Sequencer())
	}
	if err := other.Check(ctx, l.Sequencer()); err != nil {
		t.Fatal(err)
	}

	_, err := other.TryLock(ctx, "/l")
	var held *client.HeldError
	if !errors.As(err, &held) || !errors.Is(err, client.ErrHeld) || held.Cause != nil || len(held.Holders) != 1 {
		t.Fatalf("error %v", err)
	}
	host, _ := os.Hostname()
	if h := held.Holders[0]; h.Client != (client.ClientInfo{Name: "first", Host: host, PID: os.Getpid()}) ||
		h.Fence != l.Fence() || h.Since.IsZero() || h.Mode != client.ModeExclusive || h.LockDelay != client.DefaultLockDelay {
		t.Fatalf("holder %+v", h)
	}
	if text := err.Error(); !strings.Contains(text, "held by first on "+host) {
		t.Fatalf("error %q", text)
	}

	_, err = other.Lock(ctx, "/l", client.Wait(50*time.Millisecond))
	if !errors.As(err, &held) || held.Position != 1 || held.Waited < 50*time.Millisecond || held.Cause != nil {
		t.Fatalf("error %v: %+v", err, held)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = other.Lock(short, "/l")
	wantErr(t, err, client.ErrHeld, context.DeadlineExceeded)

	// A second request of the same session waits like any other.
	if _, err := s.TryLock(ctx, "/l"); !errors.Is(err, client.ErrHeld) {
		t.Fatalf("error %v", err)
	}
	next := make(chan *client.Lock, 1)
	go func() {
		l, err := s.Lock(ctx, "/l", client.LockDelay(0))
		if err != nil {
			t.Error(err)
		}
		next <- l
	}()
	waiters(t, other, "/l", 1)
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(ctx); err != nil {
		t.Fatalf("the second time: %v", err)
	}
	wantErr(t, context.Cause(l.Context()), client.ErrReleased)
	wantErr(t, l.Err(), client.ErrReleased)
	l2 := <-next
	if l2.Fence() <= l.Fence() {
		t.Fatalf("fence %d after %d", l2.Fence(), l.Fence())
	}
	wantErr(t, other.Check(ctx, l.Sequencer()), client.ErrLost)
	if err := l2.Release(ctx); err != nil {
		t.Fatal(err)
	}
	// Nobody needs the node any more.
	_, err = s.Get(ctx, "/l")
	wantErr(t, err, client.ErrNotFound)
}

func TestSharedLocks(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	a := must(s.Lock(ctx, "/l", client.Shared()))(t)
	b := must(s.TryLock(ctx, "/l", client.Shared()))(t)
	if a.Fence() != b.Fence() || a.Mode() != client.ModeShared {
		t.Fatalf("fences %d and %d of a shared period", a.Fence(), b.Fence())
	}
	_, err := s.TryLock(ctx, "/l")
	var held *client.HeldError
	if !errors.As(err, &held) || len(held.Holders) != 2 || held.Holders[1].Mode != client.ModeShared {
		t.Fatalf("error %v", err)
	}
	for _, l := range []*client.Lock{a, b} {
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	must(s.TryLock(ctx, "/l"))(t)
}

// The work's context has ended before anybody else is granted the lock, and the
// late write of a holder that was cut off is refused by its fence.
func TestLockIsLostBeforeAnotherGetsIt(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	cutOff := c.dial(n.option(), client.WithLease(time.Second))
	other := c.dial()
	ctx := within(t)
	l := must(cutOff.Lock(ctx, "/l", client.LockDelay(500*time.Millisecond)))(t)
	next := make(chan *client.Lock, 1)
	go func() {
		l, err := other.Lock(ctx, "/l")
		if err != nil {
			t.Error(err)
		}
		next <- l
	}()
	waiters(t, other, "/l", 1)
	n.set(false)
	l2 := <-next
	select {
	case <-l.Context().Done():
	default:
		t.Fatal("another holds the lock, and the context of its first holder has not ended")
	}
	wantErr(t, l.Err(), client.ErrLost)
	if l2.Fence() <= l.Fence() {
		t.Fatalf("fence %d after %d", l2.Fence(), l.Fence())
	}
	_, err := other.Txn().Check("/l", client.HeldFence(l.Fence())).Put("/data", nil, client.WithParents()).Commit(ctx)
	if err == nil {
		t.Fatal("a write under the old fence was done")
	}
	n.set(true)
}

// A program that is told to stop gives its lock back with a context that has
// ended.
// A context that ends in the moment in which the lock is granted: either Lock
// fails and nothing stays held, or what it returns is held.
func TestCancelMeetsGrant(t *testing.T) {
	c := newCell(t)
	first, second := c.dial(), c.dial()
	ctx := within(t)
	for range 20 {
		l := must(first.Lock(ctx, "/l"))(t)
		short, cancel := context.WithCancel(ctx)
		// Lock goes on when both the grant and the end of its context are there.
		got, err := second.Lock(short, "/l", client.LockDelay(0), client.OnWait(func(*client.HeldError) {
			if err := l.Release(ctx); err != nil {
				t.Error(err)
			}
			must(second.Stat(ctx, "/l"))(t)
			cancel()
		}))
		if err != nil {
			wantErr(t, err, context.Canceled)
			eventually(t, "the lock is given back", func() error {
				l, err := first.TryLock(ctx, "/l")
				if err == nil {
					err = l.Release(ctx)
				}
				return err
			})
			continue
		}
		must(second.Put(ctx, "/behind", nil))(t) // behind whatever the call has left to be done
		if err := first.Check(ctx, got.Sequencer()); err != nil {
			t.Fatalf("Lock returned a lock that is not held: %v", err)
		}
		if err := got.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReleaseWithEndedContext(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx, cancel := context.WithCancel(within(t))
	l := must(s.Lock(ctx, "/l"))(t)
	cancel()
	if l.Context().Err() != nil {
		t.Fatal("the lock's context ends with the one that Lock was called with")
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	must(s.TryLock(within(t), "/l"))(t)
}

func TestBrokenLock(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	operator := c.dial()
	ctx := within(t)
	l := must(s.Lock(ctx, "/l"))(t)
	if err := operator.Break(ctx, "/l", l.Fence()); err != nil {
		t.Fatal(err)
	}
	<-l.Context().Done()
	wantErr(t, context.Cause(l.Context()), client.ErrLost)
	// The work may be going on, so nobody gets the lock yet.
	var held *client.HeldError
	if _, err := operator.TryLock(ctx, "/l"); !errors.As(err, &held) || !held.Holders[0].Ghost {
		t.Fatalf("error %v", err)
	}
	wantErr(t, l.Release(ctx), client.ErrLost)
	must(operator.TryLock(ctx, "/l"))(t) // the work has ended
	if s.State() != client.Live {
		t.Fatalf("session is %v", s.State())
	}
}

func TestDo(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	other := c.dial()
	ctx := within(t)

	t.Run("releases", func(t *testing.T) {
		var fence uint64
		err := s.Do(ctx, "/l", func(ctx context.Context, l *client.Lock) error {
			fence = l.Fence()
			if _, err := other.TryLock(ctx, "/l"); !errors.Is(err, client.ErrHeld) {
				t.Errorf("error %v", err)
			}
			return nil
		})
		if err != nil || fence == 0 {
			t.Fatalf("fence %d, error %v", fence, err)
		}
		l := must(other.TryLock(ctx, "/l"))(t)
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("passes the error on", func(t *testing.T) {
		failed := errors.New("failed")
		if err := s.Do(ctx, "/l", func(context.Context, *client.Lock) error { return failed }); err != failed {
			t.Fatalf("error %v", err)
		}
	})
	t.Run("waits for the work before it releases", func(t *testing.T) {
		work, cancel := context.WithCancel(ctx)
		finish := make(chan struct{})
		started, stopping := make(chan struct{}), make(chan struct{})
		result := make(chan error, 1)
		go func() {
			result <- s.Do(work, "/l", func(ctx context.Context, l *client.Lock) error {
				close(started)
				<-ctx.Done()
				close(stopping)
				<-finish
				return ctx.Err()
			})
		}()
		// Not the service's word that the lock is held: a context that ends
		// before the grant has arrived ends the wait, and no work is done.
		<-started
		cancel()
		<-stopping
		if _, err := other.TryLock(ctx, "/l"); !errors.Is(err, client.ErrHeld) {
			t.Fatalf("work still runs, and another gets the lock: %v", err)
		}
		close(finish)
		wantErr(t, <-result, context.Canceled)
		l := must(other.Lock(ctx, "/l"))(t)
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("tells that the lock was lost", func(t *testing.T) {
		err := s.Do(ctx, "/l", func(work context.Context, l *client.Lock) error {
			if err := other.Break(ctx, "/l", l.Fence()); err != nil {
				t.Error(err)
			}
			<-work.Done()
			if !errors.Is(context.Cause(work), client.ErrLost) {
				t.Errorf("cause %v", context.Cause(work))
			}
			return nil // it does not know better
		})
		wantErr(t, err, client.ErrLost)
		// The end of the work was told, so the lock is free.
		l := must(other.TryLock(ctx, "/l"))(t)
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("releases after a panic", func(t *testing.T) {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = s.Do(ctx, "/l", func(context.Context, *client.Lock) error { panic("oh") })
		}()
		l := must(other.Lock(ctx, "/l"))(t)
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("released by the work itself", func(t *testing.T) {
		if err := s.Do(ctx, "/l", func(ctx context.Context, l *client.Lock) error { return l.Release(ctx) }); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("not acquired", func(t *testing.T) {
		l := must(other.Lock(ctx, "/l"))(t)
		err := s.Do(ctx, "/l", func(context.Context, *client.Lock) error { t.Error("work ran"); return nil }, client.Wait(0))
		wantErr(t, err, client.ErrHeld)
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	})
}

// Many contend, over connections that break, and give up at random moments;
// the counter that the lock guards shows two holders at once.
func TestMutualExclusion(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	ctx := within(t)
	var holders, grants, lastFence atomic.Int64
	var work sync.WaitGroup
	for i := range 6 {
		s := c.dial(n.option())
		work.Go(func() {
			for k := range 25 {
				cctx, cancel := context.WithCancel(ctx)
				if (i+k)%4 == 0 {
					time.AfterFunc(time.Duration(k)*time.Millisecond, cancel)
				}
				l, err := s.Lock(cctx, "/l")
				cancel()
				switch {
				case err == nil:
				case errors.Is(err, context.Canceled):
					continue
				default:
					t.Error(err)
					return
				}
				if h := holders.Add(1); h != 1 {
					t.Errorf("%d holders", h)
				}
				if f := int64(l.Fence()); lastFence.Swap(f) >= f {
					t.Errorf("fence %d is not larger than the one before", f)
				}
				if grants.Add(1)%20 == 0 {
					n.cut()
				}
				holders.Add(-1)
				if err := l.Release(ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	s := c.dial()
	l := must(s.Lock(ctx, "/l"))(t) // nothing stayed held or in the queue
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	for info, err := range s.Locks(ctx, "/") {
		t.Errorf("left: %+v, %v", info, err)
	}
}

// TestBootDeadline: whoever hands the deadline on is told of each renewal, and
// of the end.
func TestBootDeadline(t *testing.T) {
	c := newCell(t)
	s := c.dial(client.WithLease(time.Second))
	ctx := within(t)
	l := must(s.Lock(ctx, "/l", client.LockDelay(time.Minute), client.StopGrace(10*time.Second)))(t)
	last, moved := l.BootDeadline()
	if in := last - clock.Now(); in < 45*time.Second || in > 51*time.Second {
		t.Fatalf("deadline in %v", in)
	}
	for range 3 {
		select {
		case <-moved:
		case <-ctx.Done():
			t.Fatal("the lease was not renewed")
		}
		var at time.Duration
		if at, moved = l.BootDeadline(); at <= last {
			t.Fatalf("the deadline moved from %v to %v", last, at)
		}
		last, _ = l.BootDeadline()
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if _, moved = l.BootDeadline(); l.Context().Err() == nil {
		t.Fatal("a released lock goes on")
	}
	select {
	case <-moved:
	default:
		t.Fatal("nobody is told of the end")
	}
}

// lateContext ends as soon as somebody waits for it, but not before ready has
// returned.
type lateContext struct {
	context.Context
	ready func()
	end   context.CancelFunc
}

func (c lateContext) Done() <-chan struct{} {
	c.ready()
	c.end()
	return c.Context.Done()
}

// A context ends when Waiting has come and nobody has taken it: it must not be
// taken for the Done, nor be left to the next user of the call.
func TestContextEndsWithWaitingUntaken(t *testing.T) {
	c := newCell(t)
	holder, s := c.dial(), c.dial()
	l := must(holder.Lock(within(t), "/l"))(t)
	for range 20 {
		ctx, cancel := context.WithCancel(within(t))
		ready := func() {
			waiters(t, holder, "/l", 1)
			_, _ = s.Get(within(t), "/l") // its answer comes behind Waiting
		}
		_, err := s.Lock(lateContext{ctx, ready, cancel}, "/l")
		var held *client.HeldError
		if !errors.Is(err, context.Canceled) && !errors.As(err, &held) {
			t.Fatal(err)
		}
		waiters(t, holder, "/l", 0)
		if _, err := s.Get(within(t), "/l"); err != nil { // the next user of the call
			t.Fatal(err)
		}
	}
	if err := l.Release(within(t)); err != nil {
		t.Fatal(err)
	}
}
