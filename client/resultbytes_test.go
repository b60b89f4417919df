package client_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// Transactions whose answers together are more than the service keeps for a
// session are executed one behind the other: a refusal that leaves their number
// unused must not leave the session without its next number.
func TestManyLargeTransactionsAtOnce(t *testing.T) {
	s := newCell(t).dial()
	ctx, cancel := context.WithTimeout(within(t), 20*time.Second)
	defer cancel()
	const together, operations = 24, 1000
	must(s.Create(ctx, "/x", nil))(t)
	var wg sync.WaitGroup
	errs := make([]error, together)
	for i := range together {
		wg.Go(func() {
			txn := s.Txn()
			for range operations {
				txn.Check("/x")
			}
			_, errs[i] = txn.Put(fmt.Sprintf("/y%d", i), nil).Commit(ctx)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("transaction %d: %v", i, err)
		}
	}
	if _, err := s.Put(ctx, "/z", nil); err != nil {
		t.Errorf("the session does nothing any more: %v", err)
	}
	l, err := s.TryLock(ctx, "/lock", client.LockDelay(0))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
}
