package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// settle is how long the clients work before it counts.
const settle = 500 * time.Millisecond

// test is an operation and how many clients do it at once, each one after the
// other.
type test struct {
	name    string // for -only
	title   string
	clients int
	op      op
}

type op int

const (
	opWrite op = iota
	opLock
	opHandoff
)

var allTests = []test{
	{"write1", "writes, 1 client", 1, opWrite},
	{"write64", "writes, 64 clients", 64, opWrite},
	{"write256", "writes, 256 clients", 256, opWrite},
	{"lock1", "lock cycles, 1 client", 1, opLock},
	{"lock64", "lock cycles, 64 clients", 64, opLock},
	{"handoff64", "handoffs, 64 waiters", 64, opHandoff},
}

func testNames() []string {
	var out []string
	for _, t := range allTests {
		out = append(out, t.name)
	}
	return out
}

// chooseTests takes -only; "" is all of them.
func chooseTests(only string) ([]test, error) {
	if only == "" {
		return allTests, nil
	}
	var out []test
	for _, name := range strings.Split(only, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(allTests, func(t test) bool { return t.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-only: %q is none of %s", name, strings.Join(testNames(), ", "))
		}
		out = append(out, allTests[i])
	}
	return out, nil
}

// result of a measurement. The times of handoffs are those between a holder's
// release and the next one's grant, all others those of one operation.
type result struct {
	PerSec float64 `json:"per_second"`
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
}

// measure connects the clients of a test, lets them work for settle and d, and
// closes them. What ended within d counts.
func measure(ctx context.Context, s system, t test, where string, d time.Duration) (r result, err error) {
	// The connections outlive the clients' work, which ends at a moment of their
	// own: so no operation is cut off.
	f, err := s.connect(ctx, t.clients, where)
	if err != nil {
		return r, err
	}
	defer f.close()
	w := &work{fleet: f, start: time.Now(), value: randomValue()}
	w.from = settle
	w.end = settle + d
	parts := make([][]time.Duration, t.clients)
	errs := make([]error, t.clients)
	// An interrupted run does not wait for locks that nobody gives back.
	stop := context.AfterFunc(ctx, f.close)
	defer stop()
	var wg sync.WaitGroup
	for i := range t.clients {
		wg.Go(func() {
			parts[i], errs[i] = w.client(ctx, t.op, i)
			if errs[i] != nil {
				f.close() // others may wait for what this one holds
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("%s: %s: %w", s.name(), t.title, err)
	}
	return summarize(slices.Concat(parts...), d), nil
}

// randomValue is what is written: it cannot be compressed.
func randomValue() []byte {
	b := make([]byte, valueBytes)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// work is one measurement under way.
type work struct {
	fleet     fleet
	value     []byte
	start     time.Time
	from, end time.Duration // since start; what ends between them counts
	released  atomic.Int64  // opHandoff: when the last release began, ns since start; 0: there was none
}

// client does operations until the time is over, and returns how long those
// took that count.
func (w *work) client(ctx context.Context, o op, i int) ([]time.Duration, error) {
	var took []time.Duration
	for {
		began := time.Since(w.start)
		if began >= w.end || ctx.Err() != nil {
			return took, nil
		}
		var err error
		var d time.Duration
		done := began
		switch o {
		case opWrite:
			err = w.fleet.write(i, w.value)
			done = time.Since(w.start)
			d = done - began
		case opLock:
			err = w.fleet.lock(i)
			done = time.Since(w.start)
			d = done - began
		case opHandoff:
			done, d, err = w.handoff(i)
		}
		if err != nil {
			return took, err
		}
		if done >= w.from && done < w.end {
			took = append(took, d)
		}
	}
}

// handoff takes the shared lock and gives it back. It returns when it was
// granted, and how long after the release before.
func (w *work) handoff(i int) (granted, between time.Duration, err error) {
	release, err := w.fleet.acquire(i)
	if err != nil {
		return 0, 0, err
	}
	// Only the holder is here, so that nobody else changes released meanwhile.
	granted = time.Since(w.start)
	between = granted - time.Duration(w.released.Load())
	w.released.Store(int64(time.Since(w.start)))
	return granted, between, release()
}

// summarize sorts took.
func summarize(took []time.Duration, d time.Duration) result {
	slices.Sort(took)
	return result{
		PerSec: float64(len(took)) / d.Seconds(),
		P50:    milliseconds(quantile(took, 0.5)),
		P99:    milliseconds(quantile(took, 0.99)),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile of what is sorted; 0 of nothing.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// median of some numbers, which stay as they are.
func median(of []float64) float64 {
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	default:
		return (s[n/2-1] + s[n/2]) / 2
	}
}
