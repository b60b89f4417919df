package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// TestMasterKilledUnderLoad kills the master with -9 while 16 clients write:
// no acknowledged write is missing, none was executed twice, every session and
// lock lives on, and it says how long the writers waited.
func TestMasterKilledUnderLoad(t *testing.T) {
	c := startCell(t, 3)
	const writers = 16
	type writer struct {
		s     *client.Session
		lock  *client.Lock
		acked int // last counter value acknowledged
		err   error
	}
	ws := make([]*writer, writers)
	for i := range ws {
		s := c.dial(client.WithName(fmt.Sprintf("writer-%d", i)))
		l, err := s.Lock(t.Context(), fmt.Sprintf("/locks/%d", i))
		if err != nil {
			t.Fatal(err)
		}
		ws[i] = &writer{s: s, lock: l}
		if _, err := s.Put(t.Context(), fmt.Sprintf("/counter-%d", i), []byte("0")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(t.Context(), fmt.Sprintf("/queue-%d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	var total atomic.Int64
	var lastAck atomic.Int64 // Unix nanoseconds
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i, w := range ws {
		wg.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				// A compare-and-swap fails if it is executed twice, or if the one
				// before was lost; a sequential create leaves one node too many.
				if _, err := w.s.Put(context.WithoutCancel(ctx), fmt.Sprintf("/counter-%d", i), []byte(strconv.Itoa(n)), client.IfGeneration(uint64(n))); err != nil {
					w.err = fmt.Errorf("write %d: %w", n, err)
					return
				}
				w.acked = n
				total.Add(1)
				lastAck.Store(time.Now().UnixNano())
				if n%8 == 0 {
					if _, err := w.s.Create(context.WithoutCancel(ctx), fmt.Sprintf("/queue-%d/", i), nil, client.Sequential()); err != nil {
						w.err = fmt.Errorf("create %d: %w", n, err)
						return
					}
				}
			}
		})
	}
	eventually(t, "the writers are under way", func() bool { return total.Load() > 500 })
	victim := c.master()
	killed := time.Now()
	c.kill(victim)
	eventually(t, "writes are acknowledged again", func() bool {
		return time.Unix(0, lastAck.Load()).Sub(killed) > 50*time.Millisecond
	})
	t.Logf("first write acknowledged %v after kill -9 of the master %s (%d writes before)", time.Since(killed).Round(time.Millisecond), victim.name, total.Load())
	after := total.Load()
	eventually(t, "the writers go on", func() bool { return total.Load() > after+500 })
	cancel()
	wg.Wait()

	c.start(victim)
	c.sameState()
	r := ws[0].s
	for i, w := range ws {
		if w.err != nil {
			t.Fatalf("writer %d: %v", i, w.err)
		}
		n, err := r.Get(t.Context(), fmt.Sprintf("/counter-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(n.Data); got != strconv.Itoa(w.acked) || n.Stat.ContentGeneration != uint64(w.acked)+1 {
			t.Errorf("counter %d is %s at generation %d, acknowledged were %d writes", i, got, n.Stat.ContentGeneration, w.acked)
		}
		st, err := r.Stat(t.Context(), fmt.Sprintf("/queue-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if st.Children != w.acked/8 {
			t.Errorf("queue %d has %d children, acknowledged were %d creates", i, st.Children, w.acked/8)
		}
		if err := w.s.Err(); err != nil {
			t.Errorf("session %d: %v", i, err)
		}
		if err := w.lock.Err(); err != nil {
			t.Errorf("lock %d: %v", i, err)
		}
		why, err := r.Why(t.Context(), w.lock.Path())
		if err != nil {
			t.Fatal(err)
		}
		if len(why.Holders) != 1 || why.Holders[0].Session != w.s.ID() || why.Fence != w.lock.Fence() {
			t.Errorf("lock %s has changed hands: %+v", w.lock.Path(), why)
		}
	}
}
