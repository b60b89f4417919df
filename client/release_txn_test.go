package client_test

import (
	"context"
	"testing"

	"github.com/seed70370324/lockd/client"
)

// A transaction gives the lock up together with what it writes.
func TestTxnReleases(t *testing.T) {
	c := newCell(t)
	s, other := c.dial(), c.dial()
	ctx := within(t)
	l := must(s.Lock(ctx, "/l"))(t)
	// Refused: held as before.
	_, err := l.Txn().Put("/none/x", nil).Release().Commit(ctx)
	wantErr(t, err, client.ErrNotFound)
	if l.Err() != nil || l.Context().Err() != nil {
		t.Fatalf("after a transaction that was not done: %v", l.Err())
	}
	must(l.Txn().Put("/data", []byte("last")).Release().Commit(ctx))(t)
	wantErr(t, l.Err(), client.ErrReleased)
	wantErr(t, context.Cause(l.Context()), client.ErrReleased)
	must(other.TryLock(ctx, "/l"))(t)
	if err := l.Release(ctx); err != nil {
		t.Fatalf("release after the transaction: %v", err)
	}
	// Named, two at once.
	a, b := must(s.Lock(ctx, "/a"))(t), must(s.Lock(ctx, "/b"))(t)
	must(s.Txn().Release(a, b).Commit(ctx))(t)
	must(other.TryLock(ctx, "/a"))(t)
	must(other.TryLock(ctx, "/b"))(t)

	ran := false
	err = s.Do(ctx, "/do", func(work context.Context, l *client.Lock) error {
		ran = true
		_, err := l.Txn().Put("/data", []byte("by Do")).Release().Commit(work)
		if err == nil {
			<-work.Done() // the lock is released
			_, err = other.TryLock(ctx, "/do")
		}
		return err
	})
	if err != nil || !ran {
		t.Fatalf("Do: %v, ran %v", err, ran)
	}
}
