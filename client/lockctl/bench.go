package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/client"
)

type benchFlags struct {
	clients  int
	size     int
	duration time.Duration
	path     string
}

// benchResult is what one workload measured.
type benchResult struct {
	Workload string  `json:"workload"`
	Clients  int     `json:"clients"`
	Size     int     `json:"value_bytes"`
	Seconds  float64 `json:"seconds"`
	Ops      int     `json:"operations"`
	Errors   int     `json:"errors"`
	PerSec   float64 `json:"operations_per_second"`
	P50      float64 `json:"p50_ms"`
	P90      float64 `json:"p90_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	firstErr error
}

func (a *app) benchCmd() *cobra.Command {
	fl := benchFlags{}
	c := &cobra.Command{
		Use:   "bench {write|read|lock}...",
		Short: "Measure the cell",
		Long: `Runs each workload in turn and prints operations per second and latencies.
Each client has a session and a connection of its own and one operation under
way. All nodes are below --path and are deleted afterwards.

  write  put of --size bytes to a node of the client's own
  read   linearizable get of a node
  lock   acquire and release of an existing, uncontended lock, one a client`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("what to measure? Give one or more of write, read, lock")
			}
			for _, w := range args {
				if w != "write" && w != "read" && w != "lock" {
					return fmt.Errorf("%q is none of write, read, lock", w)
				}
			}
			return nil
		},
		ValidArgs: []string{"write", "read", "lock"},
		RunE: func(cmd *cobra.Command, args []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			switch {
			case fl.clients < 1 || fl.clients > 10_000:
				return usagef("--clients %d: must be between 1 and 10000", fl.clients)
			case fl.size < 0 || fl.size > client.DataMax:
				return usagef("--size %d: must be between 0 and %d", fl.size, client.DataMax)
			case fl.duration <= 0:
				return usagef("--duration %v: must be positive", fl.duration)
			}
			return a.bench(cmd.Context(), fl, args, js)
		},
	}
	f := c.Flags()
	f.IntVar(&fl.clients, "clients", 16, "clients at once")
	f.IntVar(&fl.size, "size", 256, "bytes of a value")
	f.DurationVar(&fl.duration, "duration", 10*time.Second, "how long each workload runs")
	f.StringVar(&fl.path, "path", "/lockctl-bench", "where its nodes are")
	return c
}

func (a *app) bench(ctx context.Context, fl benchFlags, workloads []string, js bool) (err error) {
	sessions, err := a.benchSessions(ctx, fl.clients)
	defer func() {
		// Closing is one write a session; together they batch.
		var wg sync.WaitGroup
		for _, s := range sessions {
			wg.Go(func() { _ = s.Close() })
		}
		wg.Wait()
	}()
	if err != nil {
		return err
	}
	if err := prepareBench(ctx, sessions, fl); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.Background(), a.timeout)
		defer cancel()
		if derr := sessions[0].Delete(clean, fl.path, client.Recursive(), client.Force()); derr != nil && !errors.Is(derr, client.ErrNotFound) {
			err = errors.Join(err, fmt.Errorf("clean up: %w", derr))
		}
	}()
	var results []benchResult
	t := newTable("WORKLOAD", "CLIENTS", "BYTES", "OPS/S", "P50", "P90", "P99", "MAX", "ERRORS")
	for _, w := range workloads {
		r := runBench(ctx, sessions, fl, w)
		results = append(results, r)
		t.row(r.Workload, r.Clients, r.Size, fmt.Sprintf("%.0f", r.PerSec), ms(r.P50), ms(r.P90), ms(r.P99), ms(r.Max), r.Errors)
	}
	if js {
		err = printJSON(results)
	} else {
		err = t.print()
	}
	for _, r := range results {
		if r.Errors > 0 {
			return errors.Join(err, fmt.Errorf("%s: %d operations failed, the first with: %w", r.Workload, r.Errors, r.firstErr))
		}
	}
	return err
}

func ms(v float64) string { return fmt.Sprintf("%.2fms", v) }

// benchSessions opens n sessions, some at a time.
func (a *app) benchSessions(ctx context.Context, n int) ([]*client.Session, error) {
	addresses, err := a.addresses()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var out []*client.Session
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			s, err := client.Dial(ctx, addresses, append(a.options("lockctl bench"), client.WithLease(30*time.Second))...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
				return
			}
			out = append(out, s)
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return out, fmt.Errorf("%d of %d sessions could not be opened: %w", len(errs), n, errs[0])
	}
	return out, nil
}

func benchNode(fl benchFlags, i int) string { return fmt.Sprintf("%s/%06d", fl.path, i) }

func prepareBench(ctx context.Context, sessions []*client.Session, fl benchFlags) error {
	if _, err := sessions[0].Put(ctx, fl.path, nil, client.WithParents()); err != nil {
		return err
	}
	value := make([]byte, fl.size)
	var mu sync.Mutex
	var first error
	var wg sync.WaitGroup
	for i, s := range sessions {
		wg.Go(func() {
			if _, err := s.Put(ctx, benchNode(fl, i), value); err != nil {
				mu.Lock()
				first = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return first
}

// runBench runs one workload on all sessions at once.
func runBench(ctx context.Context, sessions []*client.Session, fl benchFlags, workload string) benchResult {
	ctx, cancel := context.WithTimeout(ctx, fl.duration)
	defer cancel()
	value := make([]byte, fl.size)
	type part struct {
		took []time.Duration
		errs int
		err  error
	}
	parts := make([]part, len(sessions))
	start := time.Now()
	var wg sync.WaitGroup
	for i, s := range sessions {
		wg.Go(func() {
			p, path := &parts[i], benchNode(fl, i)
			for ctx.Err() == nil {
				began := time.Now()
				if err := benchOp(ctx, s, workload, path, value); err != nil {
					if ctx.Err() != nil {
						return // cut off by the end of the time, not a failure
					}
					p.errs++
					p.err = err
					if p.errs > 100 {
						return
					}
					continue
				}
				p.took = append(p.took, time.Since(began))
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	r := benchResult{Workload: workload, Clients: len(sessions), Size: fl.size, Seconds: elapsed.Seconds()}
	var all []time.Duration
	for _, p := range parts {
		all = append(all, p.took...)
		r.Errors += p.errs
		if p.err != nil {
			r.firstErr = p.err
		}
	}
	slices.Sort(all)
	r.Ops = len(all)
	r.PerSec = float64(r.Ops) / elapsed.Seconds()
	at := func(q float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return float64(all[min(len(all)-1, int(q*float64(len(all))))].Microseconds()) / 1000
	}
	r.P50, r.P90, r.P99, r.Max = at(0.5), at(0.9), at(0.99), at(1)
	return r
}

func benchOp(ctx context.Context, s *client.Session, workload, path string, value []byte) error {
	switch workload {
	case "write":
		_, err := s.Put(ctx, path, value)
		return err
	case "read":
		_, err := s.Get(ctx, path)
		return err
	default:
		l, err := s.Lock(ctx, path, client.MustExist(), client.LockDelay(0))
		if err != nil {
			return err
		}
		// The release is part of the cycle; it is carried out even when the
		// time is over, so that nothing stays held.
		done, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return l.Release(done)
	}
}
