package client_test

import (
	"context"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// A program that takes its lock anew when it has lost it, and never releases the
// lost one, gets it: its session lives, and does not wait for itself.
func TestLostLockIsTakenAgain(t *testing.T) {
	c := newCell(t)
	s := c.dial(client.WithLease(time.Second), client.WithGrace(time.Hour))
	ctx := within(t)
	l := must(s.Lock(ctx, "/leader", client.LockDelay(0)))(t)
	c.stop()
	<-l.Context().Done()
	wantErr(t, context.Cause(l.Context()), client.ErrLost)
	c.start()
	again, err := s.Lock(ctx, "/leader", client.LockDelay(0))
	if err != nil {
		t.Fatalf("the session, which is %v, waits for itself: %v", s.State(), err)
	}
	if again.Fence() <= l.Fence() {
		t.Fatalf("fence %d after %d", again.Fence(), l.Fence())
	}
	// What the first holding guarded is not done any more.
	_, err = s.Put(ctx, "/data", nil, client.WhileHeld(l.Hold()))
	wantErr(t, err, client.ErrConflict)
	must(again.Txn().Put("/data", nil).Commit(ctx))(t)
	if err := s.Check(ctx, l.Sequencer()); err == nil {
		t.Error("the sequencer of the lost lock is valid")
	}
}
