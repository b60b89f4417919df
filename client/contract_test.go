package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// A lock that the program has been told is lost, by a look at the clock while the
// renewal that saves it was under way, is lost for the service too.
func TestLossByTheClockIsToldToTheService(t *testing.T) {
	c := newCell(t)
	s, other := c.dial(client.WithLease(time.Second)), c.dial()
	ctx := within(t)
	l := must(s.Lock(ctx, "/l", client.LockDelay(0), client.StopGrace(0)))(t)
	l.LoseByClock()
	wantErr(t, l.Err(), client.ErrLost)
	eventually(t, "the service knows that the lock is lost", func() error {
		info, err := other.Why(ctx, "/l")
		if err == nil && len(info.Holders) > 0 && !info.Holders[0].Ghost {
			err = errors.New("it counts the lock as held")
		}
		return err
	})
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
}

// A transaction that does not demand the lock may release it also when it is
// lost. Then Do must not hide the loss.
func TestTxnReleasesALostLock(t *testing.T) {
	c := newCell(t)
	s, other := c.dial(), c.dial()
	ctx := within(t)
	var held *client.Lock
	err := s.Do(ctx, "/do", func(work context.Context, l *client.Lock) error {
		held = l
		txn := s.Txn().Put("/data", []byte("late")).Release(l)
		if err := other.Break(ctx, "/do", l.Fence()); err != nil {
			return err
		}
		<-work.Done()
		_, err := txn.Commit(ctx)
		return err
	})
	wantErr(t, err, client.ErrLost)
	wantErr(t, held.Release(ctx), client.ErrLost)
	// One that demands it is not done.
	err = s.Do(ctx, "/do", func(work context.Context, l *client.Lock) error {
		txn := l.Txn().Put("/data", []byte("late")).Release()
		if err := other.Break(ctx, "/do", l.Fence()); err != nil {
			return err
		}
		<-work.Done()
		_, err := txn.Commit(ctx)
		return err
	})
	wantErr(t, err, client.ErrConflict, client.ErrLost)
}

// The session ends before the release is answered. Do says so, whatever has
// become of its context.
func TestDoTellsThatTheReleaseWasNotAnswered(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option(), client.WithLease(time.Second), client.WithGrace(time.Millisecond))
	ctx, cancel := context.WithCancel(within(t))
	err := s.Do(ctx, "/do", func(context.Context, *client.Lock) error {
		n.set(false)
		cancel()
		return nil
	})
	if !errors.Is(err, client.ErrExpired) {
		t.Fatalf("Do: %v, and the session has ended with %v", err, s.Err())
	}
}

// OnWait does not return: the request is withdrawn, as by every Lock that fails.
func TestOnWaitPanics(t *testing.T) {
	c := newCell(t)
	s, other := c.dial(), c.dial()
	ctx := within(t)
	l := must(other.Lock(ctx, "/l"))(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic has vanished")
			}
		}()
		_, _ = s.Lock(ctx, "/l", client.OnWait(func(*client.HeldError) { panic("of the program") }))
	}()
	must(s.Put(ctx, "/behind", nil))(t)
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	must(other.TryLock(ctx, "/l"))(t)
}
