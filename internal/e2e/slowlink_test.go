package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/internal/e2e/relay"
)

// slowLinks has the tests run that take minutes.
var slowLinks = os.Getenv("LOCKD_SLOW") != ""

// startBehind starts three replicas that reach each other through relays, one
// for each pair: a replica's list of members has its own address and, for the
// others, those of the relays. All relays are alike.
func startBehind(t *testing.T, o relay.Options, flags ...string) (*cell, []*relay.Relay) {
	t.Helper()
	const n = 3
	c := &cell{t: t, dir: t.TempDir(), ports: freeAddresses(t, 3*n)}
	var relays []*relay.Relay
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		var members []string
		for k := range n {
			address := c.ports[n+k]
			if k > i { // who comes later is dialled
				r, err := relay.Listen(address, o)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(r.Close)
				relays = append(relays, r)
				address = r.Address()
			}
			members = append(members, fmt.Sprintf("n%d=%s", k+1, address))
		}
		c.replicas = append(c.replicas, &replica{name: name, args: append([]string{
			"--name", name, "--cell", "e2e", "--data-dir", filepath.Join(c.dir, name),
			"--listen-client", c.ports[i], "--listen-peer", c.ports[n+i], "--listen-http", c.ports[2*n+i],
			"--initial-cluster", strings.Join(members, ","),
		}, flags...)})
	}
	t.Cleanup(c.stop)
	for _, r := range c.replicas {
		c.start(r)
	}
	c.master()
	return c, relays
}

// TestLargeWritesOnSlowLinks: however narrow the links between the replicas
// are, large writes are done, slowly, and the cell keeps its master.
func TestLargeWritesOnSlowLinks(t *testing.T) {
	for _, tc := range []struct {
		name    string
		link    relay.Options
		large   int // writes of 1 MiB, one after the other
		clients int // each writes 4 KiB
		within  time.Duration
		slow    bool
	}{
		{"12 Mbit", relay.Options{Rate: 12e6 / 8, Delay: 2 * time.Millisecond}, 3, 512, 2 * time.Minute, false},
		{"1 Mbit, 300 ms one way", relay.Options{Rate: 1e6 / 8, Delay: 300 * time.Millisecond}, 2, 512, 10 * time.Minute, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.slow && !slowLinks {
				t.Skip("takes minutes: make slow-link, or LOCKD_SLOW=1")
			}
			ctx, cancel := context.WithTimeout(t.Context(), tc.within)
			defer cancel()
			c, relays := startBehind(t, tc.link)
			s, err := client.Dial(ctx, c.clients(), client.WithOpenTimeout(tc.within))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if _, err := s.Put(ctx, "/first", []byte("x")); err != nil {
				t.Fatal(err)
			}
			epoch := c.epoch(c.master())

			for i := range tc.large {
				began := time.Now()
				if _, err := s.Put(ctx, "/large", make([]byte, 1<<20)); err != nil {
					t.Fatalf("write %d of 1 MiB: %v", i+1, err)
				}
				t.Logf("write %d of 1 MiB took %v", i+1, time.Since(began).Round(time.Millisecond))
			}

			began := time.Now()
			sessions := make([]*client.Session, tc.clients)
			var wg sync.WaitGroup
			for i := range sessions {
				wg.Go(func() {
					s, err := client.Dial(ctx, c.clients(), client.WithOpenTimeout(tc.within))
					if err != nil {
						t.Errorf("client %d: %v", i, err)
						return
					}
					sessions[i] = s
				})
			}
			wg.Wait()
			t.Logf("%d sessions opened in %v", tc.clients, time.Since(began).Round(time.Millisecond))
			began = time.Now()
			for i, s := range sessions {
				if s == nil {
					continue
				}
				wg.Go(func() {
					if _, err := s.Put(ctx, fmt.Sprintf("/small-%d", i), make([]byte, 4<<10)); err != nil {
						t.Errorf("write of client %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			defer closeAll(sessions)
			t.Logf("%d writes of 4 KiB took %v", tc.clients, time.Since(began).Round(time.Millisecond))

			began = time.Now()
			c.sameState()
			t.Logf("all replicas were equally far %v later", time.Since(began).Round(time.Millisecond))
			m := c.master()
			changes := c.epoch(m) - epoch
			var carried int64
			for _, r := range relays {
				there, back := r.Carried()
				carried += there + back
			}
			t.Logf("%d changes of master; the links carried %d KiB", changes, carried>>10)
			if changes > 1 {
				t.Errorf("the master changed %d times", changes)
			}
			st, err := ask(t, c.address(m))
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range st.Peers {
				if !p.Connected || p.Heard < 0 {
					t.Errorf("the master sees %+v", p)
				}
			}
			if _, err := s.Put(ctx, "/last", []byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
}

// closeAll closes sessions side by side: each end is a write.
func closeAll(sessions []*client.Session) {
	var wg sync.WaitGroup
	for _, s := range sessions {
		if s != nil {
			wg.Go(func() { _ = s.Close() })
		}
	}
	wg.Wait()
}

// epoch is the epoch of a replica's state.
func (c *cell) epoch(r *replica) uint64 {
	c.t.Helper()
	st, err := ask(c.t, c.address(r))
	if err != nil {
		c.t.Fatal(err)
	}
	return st.Epoch
}
