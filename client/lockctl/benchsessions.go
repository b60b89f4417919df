package main

import (
	"context"
	"net"
	"runtime"
	"sync"
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
	sent := &sentCounter{}
	before := memoryInUse()
	start := time.Now()
	sessions, took, err := a.dialMany(ctx, fl.sessions, errs, client.WithDialer(sent.dialer()))
	elapsed := time.Since(start)
	if err != nil {
		closeMany(sessions, errs)
		return r, err
	}
	r.Clients = len(sessions)
	r.latencies(took, elapsed)
	if n := len(sessions); n > 0 {
		r.Sessions.Bytes = max(0, memoryInUse()-before) / n
		r.Sessions.KeepAlives = sent.during(ctx, fl.duration)
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

// memoryInUse is what this process has in use, heap and stacks, in bytes.
func memoryInUse() int {
	// What a pool holds goes with the second collection.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// sentCounter counts the KeepAlives of many sessions. A session that is open
// and not used sends nothing else, and each in a write of its own.
type sentCounter struct {
	mu    sync.Mutex
	start time.Time // of counting; zero: not yet
	conns []*countedConn
}

// countedConn tells its writes to c.
type countedConn struct {
	net.Conn
	c *sentCounter
	// While c counts, under its mutex.
	writes      int
	first, last time.Duration // since c.start
}

// dialer makes connections that are counted.
func (c *sentCounter) dialer() func(context.Context, string) (net.Conn, error) {
	var d net.Dialer
	return func(ctx context.Context, address string) (net.Conn, error) {
		nc, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		conn := &countedConn{Conn: nc, c: c}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conns = append(c.conns, conn)
		return conn, nil
	}
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.c.mu.Lock()
	if !c.c.start.IsZero() {
		if c.last = time.Since(c.c.start); c.writes == 0 {
			c.first = c.last
		}
		c.writes++
	}
	c.c.mu.Unlock()
	return c.Conn.Write(b)
}

// during waits for d, and returns how many KeepAlives a second all sessions
// together send. They were opened at about the same time and so send at about
// the same times: a count of d would depend on how many such times fall into
// it. So it is the sum of each session's rate, from its first to its last; 0 if
// d is too short for two.
func (c *sentCounter) during(ctx context.Context, d time.Duration) float64 {
	end := time.NewTimer(d)
	defer end.Stop()
	c.mu.Lock()
	c.start = time.Now()
	c.mu.Unlock()
	select {
	case <-end.C:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sum := 0.0
	for _, conn := range c.conns {
		if conn.writes > 1 && conn.last > conn.first {
			sum += float64(conn.writes-1) / (conn.last - conn.first).Seconds()
		}
	}
	return sum
}
