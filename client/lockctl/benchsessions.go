package main

import (
	"context"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/client"
)

// sessionsResult is what the workload sessions measures besides the opens.
type sessionsResult struct {
	KeepAlives float64 `json:"keepalives_per_second"`
	Bytes      int     `json:"client_bytes_per_session"`
	Closes     float64 `json:"closes_per_second"`
}

// runSessions opens sessions with the default lease, keeps them alive without
// using them, and closes them.
func (a *app) runSessions(ctx context.Context, fl benchFlags) (benchResult, error) {
	r := benchResult{Workload: "sessions", Sessions: &sessionsResult{}}
	errs := &benchErrors{}
	writes := &atomic.Int64{}
	before := memoryInUse()
	start := time.Now()
	sessions, took, err := a.dialMany(ctx, fl.sessions, errs, client.WithDialer(countingDialer(writes)))
	elapsed := time.Since(start)
	if err != nil {
		closeMany(sessions, errs)
		return r, err
	}
	r.Clients = len(sessions)
	r.latencies(took, elapsed)
	if n := len(sessions); n > 0 {
		r.Sessions.Bytes = max(0, memoryInUse()-before) / n
		r.Sessions.KeepAlives = keepSessions(ctx, fl.duration, writes)
		for _, s := range sessions {
			if err := s.Err(); err != nil {
				errs.add(err)
			}
		}
		start = time.Now()
		closeMany(sessions, errs)
		r.Sessions.Closes = float64(n) / time.Since(start).Seconds()
	}
	r.Errors, r.firstErr = errs.n, errs.first
	return r, nil
}

// keepSessions waits, and returns how many KeepAlives a second were sent.
func keepSessions(ctx context.Context, d time.Duration, writes *atomic.Int64) float64 {
	end := time.NewTimer(d)
	defer end.Stop()
	start, from := time.Now(), writes.Load()
	select {
	case <-end.C:
	case <-ctx.Done():
	}
	return float64(writes.Load()-from) / time.Since(start).Seconds()
}

// memoryInUse is what this process has in use, heap and stacks, in bytes.
func memoryInUse() int {
	// What a pool holds goes with the second collection.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// countingDialer makes connections that count their writes. A session that is
// open and not used sends nothing but KeepAlives, each in a write of its own.
func countingDialer(writes *atomic.Int64) func(context.Context, string) (net.Conn, error) {
	var d net.Dialer
	return func(ctx context.Context, address string) (net.Conn, error) {
		nc, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		return &countingConn{Conn: nc, writes: writes}, nil
	}
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c *countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}
