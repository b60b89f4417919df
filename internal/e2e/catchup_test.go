package e2e

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// TestReplicaFarBehindCatchesUp stops a replica, writes 100,000 times, and
// starts it again: it catches up while the cell serves, from the others' logs
// and, where these have been cut meanwhile, from a snapshot.
func TestReplicaFarBehindCatchesUp(t *testing.T) {
	for _, tc := range []struct {
		name     string
		flags    []string
		snapshot bool
	}{
		{"from the log", []string{"--snapshot-slots", "10000000", "--snapshot-bytes", "10000000000"}, false},
		{"from a snapshot", []string{"--snapshot-slots", "500", "--trail-slots", "100", "--segment-bytes", "8388608"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startCell(t, 3, tc.flags...)
			down := c.follower()
			c.kill(down)
			const writes, clients = 100_000, 64
			began := time.Now()
			sessions := make([]*client.Session, clients)
			for i := range sessions {
				sessions[i] = c.dial()
			}
			var left atomic.Int64
			left.Store(writes)
			var failed atomic.Pointer[error]
			var wg sync.WaitGroup
			for i, s := range sessions {
				// Several at a time on each session: the service pipelines them.
				for j := range 4 {
					wg.Go(func() {
						value := make([]byte, 256)
						for left.Add(-1) >= 0 {
							if _, err := s.Put(t.Context(), fmt.Sprintf("/n-%d-%d", i, j), value); err != nil {
								failed.Store(&err)
								return
							}
						}
					})
				}
			}
			wg.Wait()
			if err := failed.Load(); err != nil {
				t.Fatal(*err)
			}
			t.Logf("%d writes without %s in %v", writes, down.name, time.Since(began).Round(time.Millisecond))

			began = time.Now()
			c.start(down)
			// The cell serves meanwhile.
			served := 0
			eventually(t, "the replica has caught up", func() bool {
				if _, err := sessions[0].Put(t.Context(), "/meanwhile", []byte("x")); err != nil {
					t.Fatalf("write during the catch-up: %v", err)
				}
				served++
				m, err := ask(t, c.address(c.master()))
				if err != nil {
					return false
				}
				st, err := ask(t, c.address(down))
				return err == nil && st.Applied+100 >= m.Applied && st.Revision > 0
			})
			t.Logf("caught up in %v, %d writes served meanwhile", time.Since(began).Round(time.Millisecond), served)
			c.sameState()
			st, err := ask(t, c.address(down))
			if err != nil {
				t.Fatal(err)
			}
			if got := st.FirstSlot > 1; got != tc.snapshot {
				t.Errorf("%s has its log from slot %d on: by a snapshot %v, want %v", down.name, st.FirstSlot, got, tc.snapshot)
			}
		})
	}
}

func (c *cell) address(r *replica) string {
	for i := range c.replicas {
		if c.replicas[i] == r {
			return c.ports[i]
		}
	}
	return ""
}
