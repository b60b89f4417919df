package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/internal/nodepath"
)

const (
	benchSessionsMax = 100_000
	// benchAtOnce is how many sessions are opened at the same time.
	benchAtOnce = 32
	// benchFiles is how many open files the program needs besides its
	// connections.
	benchFiles = 32
)

// benchWorkloads in the order in which help names them.
var benchWorkloads = []string{"write", "read", "lock", "handoff", "sessions"}

type benchFlags struct {
	clients  int
	sessions int
	size     int
	duration time.Duration
	path     string
}

func (a *app) benchCmd() *cobra.Command {
	fl := benchFlags{}
	names := strings.Join(benchWorkloads, ", ")
	c := &cobra.Command{
		Use:   "bench {" + strings.Join(benchWorkloads, "|") + "}...",
		Short: "Measure the cell",
		Long: `Runs each workload in turn and prints operations per second and latencies.
Each client has a session and a connection of its own and one operation under
way. All nodes are below a new node of this run, --path/run-N, which is deleted
afterwards; what else is at --path stays as it is.

  write     put of --size bytes to a node of the client's own
  read      linearizable get of a node
  lock      acquire and release of an existing, uncontended lock, one a client
  handoff   all clients queue for one lock; who gets it releases it at once and
            queues again. The times are those from a holder's release to the
            next one's grant
  sessions  open --sessions sessions, 32 at a time; the times are those of one
            open. Keep them alive for --duration, then close them`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("what to measure? Give one or more of %s", names)
			}
			for _, w := range args {
				if !slices.Contains(benchWorkloads, w) {
					return fmt.Errorf("%q is none of %s", w, names)
				}
			}
			return nil
		},
		ValidArgs: benchWorkloads,
		RunE: func(cmd *cobra.Command, args []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			if err := fl.check(args); err != nil {
				return err
			}
			return a.bench(cmd.Context(), fl, args, js)
		},
	}
	f := c.Flags()
	f.IntVar(&fl.clients, "clients", 16, "clients at once (all workloads but sessions)")
	f.IntVar(&fl.sessions, "sessions", 1000, "how many sessions the workload sessions opens")
	f.IntVar(&fl.size, "size", 256, "bytes of a value")
	f.DurationVar(&fl.duration, "duration", 10*time.Second, "how long each workload runs")
	f.StringVar(&fl.path, "path", "/lockctl-bench", "parent of the benchmark's nodes; created if missing")
	return c
}

// check finds what is wrong before anything is connected.
func (fl *benchFlags) check(workloads []string) error {
	switch {
	case fl.clients < 1 || fl.clients > 10_000:
		return usagef("--clients %d: must be between 1 and 10000", fl.clients)
	case fl.sessions < 1 || fl.sessions > benchSessionsMax:
		return usagef("--sessions %d: must be between 1 and %d", fl.sessions, benchSessionsMax)
	case fl.size < 0 || fl.size > client.DataMax:
		return usagef("--size %d: must be between 0 and %d", fl.size, client.DataMax)
	case fl.duration <= 0:
		return usagef("--duration %v: must be positive", fl.duration)
	case nodepath.Check(fl.path) != nil:
		return usagef("--path %q: malformed path: %w", fl.path, nodepath.Check(fl.path))
	}
	flag, need := "--clients", 0
	for _, w := range workloads {
		switch {
		case w == "sessions" && fl.sessions > need:
			flag, need = "--sessions", fl.sessions
		case w != "sessions" && fl.clients > need:
			flag, need = "--clients", fl.clients
		}
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && uint64(need+benchFiles) > files.Cur {
		return usagef("%s %d: this process may have %d files open, and each connection is one: "+
			"raise the limit (ulimit -n %d) or ask for fewer", flag, need, files.Cur, need+benchFiles)
	}
	return nil
}

func (a *app) bench(ctx context.Context, fl benchFlags, workloads []string, js bool) (err error) {
	var results []benchResult
	var clients *benchClients
	defer func() {
		if clients != nil {
			err = errors.Join(err, clients.close(a))
		}
	}()
	for _, w := range workloads {
		r, merr := a.measure(ctx, fl, w, &clients)
		if merr != nil {
			err = merr
			break // what was measured before is printed all the same
		}
		results = append(results, r)
		if ctx.Err() != nil {
			break // interrupted
		}
	}
	switch {
	case js:
		err = errors.Join(err, printJSON(orEmpty(results)))
	case len(results) > 0:
		err = errors.Join(err, printBench(results))
	}
	for _, r := range results {
		if r.Errors > 0 {
			return errors.Join(err, fmt.Errorf("%s: %d operations failed, the first with: %w", r.Workload, r.Errors, r.firstErr))
		}
	}
	return err
}

// measure runs one workload; the clients are opened when they are first needed.
func (a *app) measure(ctx context.Context, fl benchFlags, workload string, clients **benchClients) (benchResult, error) {
	if workload == "sessions" {
		return a.runSessions(ctx, fl)
	}
	if *clients == nil {
		b, err := a.openBench(ctx, fl)
		if err != nil {
			return benchResult{}, err
		}
		*clients = b
	}
	return (*clients).run(ctx, workload), nil
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
	// Of the workload sessions alone.
	Sessions *sessionsResult `json:"sessions,omitempty"`
	firstErr error
}

// latencies sorts took and sets the operations and their times.
func (r *benchResult) latencies(took []time.Duration, elapsed time.Duration) {
	slices.Sort(took)
	r.Seconds = elapsed.Seconds()
	r.Ops = len(took)
	r.PerSec = float64(r.Ops) / elapsed.Seconds()
	at := func(q float64) float64 {
		if len(took) == 0 {
			return 0
		}
		return float64(took[min(len(took)-1, int(q*float64(len(took))))].Microseconds()) / 1000
	}
	r.P50, r.P90, r.P99, r.Max = at(0.5), at(0.9), at(0.99), at(1)
}

// printBench prints a table of operations, then one of sessions.
func printBench(results []benchResult) error {
	ops := newTable("WORKLOAD", "CLIENTS", "BYTES", "OPS/S", "P50", "P90", "P99", "MAX", "ERRORS")
	sessions := newTable("SESSIONS", "OPENS/S", "P50", "P90", "P99", "MAX", "KEEPALIVES/S", "BYTES/SESSION", "CLOSES/S", "ERRORS")
	var haveOps, haveSessions bool
	for _, r := range results {
		perSec := fmt.Sprintf("%.0f", r.PerSec)
		if s := r.Sessions; s != nil {
			haveSessions = true
			sessions.row(r.Clients, perSec, ms(r.P50), ms(r.P90), ms(r.P99), ms(r.Max),
				fmt.Sprintf("%.1f", s.KeepAlives), s.Bytes, fmt.Sprintf("%.0f", s.Closes), r.Errors)
			continue
		}
		haveOps = true
		ops.row(r.Workload, r.Clients, r.Size, perSec, ms(r.P50), ms(r.P90), ms(r.P99), ms(r.Max), r.Errors)
	}
	var err error
	if haveOps {
		err = ops.print()
	}
	if haveSessions {
		err = errors.Join(err, sessions.print())
	}
	return err
}

func ms(v float64) string { return fmt.Sprintf("%.2fms", v) }

// benchErrors gathers what goes wrong.
type benchErrors struct {
	mu    sync.Mutex
	n     int
	first error
}

func (e *benchErrors) add(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.n++; e.first == nil {
		e.first = err
	}
}

func (e *benchErrors) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.n
}

// dialMany opens n sessions, some at a time, and returns those that could be
// opened with how long each took. It gives up after many errors.
func (a *app) dialMany(ctx context.Context, n int, errs *benchErrors, options ...client.Option) ([]*client.Session, []time.Duration, error) {
	addresses, err := a.addresses()
	if err != nil {
		return nil, nil, err
	}
	options = append(a.options("lockctl bench"), options...)
	var mu sync.Mutex
	sessions := make([]*client.Session, 0, n)
	took := make([]time.Duration, 0, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, benchAtOnce)
	for range n {
		slots <- struct{}{}
		if ctx.Err() != nil || errs.count() >= benchErrorsMax {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			s, err := client.Dial(ctx, addresses, options...)
			d := time.Since(began)
			if err != nil {
				errs.add(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			sessions = append(sessions, s)
			took = append(took, d)
		})
	}
	wg.Wait()
	return sessions, took, ctx.Err()
}

// closeMany closes all sessions at once: closing is one write a session, and
// together they batch.
func closeMany(sessions []*client.Session, errs *benchErrors) {
	var wg sync.WaitGroup
	for _, s := range sessions {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				errs.add(fmt.Errorf("close: %w", err))
			}
		})
	}
	wg.Wait()
}
