package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/client"
)

// benchErrorsMax is after how many errors a client, or the opening of
// sessions, is given up.
const benchErrorsMax = 100

// benchClients are the sessions that run the workloads, and their nodes.
type benchClients struct {
	fl       benchFlags
	sessions []*client.Session
	dir      string // of this run alone, so that it can be deleted; "": not made yet
}

// openBench opens the clients' sessions and makes their nodes.
func (a *app) openBench(ctx context.Context, fl benchFlags) (_ *benchClients, err error) {
	errs := &benchErrors{}
	sessions, _, err := a.dialMany(ctx, fl.clients, errs, client.WithLease(30*time.Second))
	if err == nil && len(sessions) < fl.clients {
		err = fmt.Errorf("%d of %d sessions could not be opened: %w", fl.clients-len(sessions), fl.clients, errs.first)
	}
	if err != nil {
		closeMany(sessions, errs)
		return nil, err
	}
	b := &benchClients{fl: fl, sessions: sessions}
	if err := b.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare: %w", err), b.close(a))
	}
	return b, nil
}

// node of client i: it is written, read, and its lock taken, by that client
// alone.
func (b *benchClients) node(i int) string { return fmt.Sprintf("%s/%06d", b.dir, i) }

// shared is the node whose lock is handed from client to client.
func (b *benchClients) shared() string { return b.dir + "/handoff" }

func (b *benchClients) prepare(ctx context.Context) error {
	run := strings.TrimSuffix(b.fl.path, "/") + "/run-"
	made, err := b.sessions[0].Create(ctx, run, nil, client.Sequential(), client.WithParents())
	if err != nil {
		return err
	}
	b.dir = made.Path
	if _, err := b.sessions[0].Put(ctx, b.shared(), nil); err != nil {
		return err
	}
	value := make([]byte, b.fl.size)
	errs := &benchErrors{}
	var wg sync.WaitGroup
	for i, s := range b.sessions {
		wg.Go(func() {
			if _, err := s.Put(ctx, b.node(i), value); err != nil {
				errs.add(err)
			}
		})
	}
	wg.Wait()
	return errs.first
}

// close deletes the nodes and closes the sessions.
func (b *benchClients) close(a *app) error {
	var err error
	if b.dir != "" {
		force := []client.DeleteOption{client.Force()}
		err = a.removeTree(context.Background(), b.sessions[0], b.dir, force, append(force, client.Recursive()), nil)
	}
	if errors.Is(err, client.ErrNotFound) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("clean up: %w", err)
	}
	// A session that could not be closed ends with its lease.
	closeMany(b.sessions, &benchErrors{})
	return err
}

// run runs one workload on all sessions at once.
func (b *benchClients) run(ctx context.Context, workload string) benchResult {
	// Releases go on when the time is over, so that nothing stays held.
	releases, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	ctx, cancel := context.WithTimeout(ctx, b.fl.duration)
	defer cancel()
	context.AfterFunc(ctx, func() { time.AfterFunc(releaseTime, giveUp) })
	hand := &handoff{path: b.shared(), start: time.Now()}
	value := make([]byte, b.fl.size)
	op := func(s *client.Session, path string) (time.Duration, error) {
		if workload == "handoff" {
			return hand.cycle(ctx, releases, s)
		}
		began := time.Now()
		var err error
		switch workload {
		case "write":
			_, err = s.Put(ctx, path, value)
		case "read":
			_, err = s.Get(ctx, path)
		case "lock":
			err = lockCycle(ctx, releases, s, path)
		}
		return time.Since(began), err
	}
	errs := &benchErrors{}
	answerTime := unansweredTime
	if workload == "handoff" {
		answerTime = b.fl.duration // each waits for all the others
	}
	parts := make([][]time.Duration, len(b.sessions))
	start := time.Now()
	var wg sync.WaitGroup
	for i, s := range b.sessions {
		path := b.node(i)
		wg.Go(func() {
			parts[i] = repeatOp(ctx, errs, answerTime, func() (time.Duration, error) { return op(s, path) })
		})
	}
	wg.Wait()
	elapsed := min(time.Since(start), b.fl.duration) // what ended later was not counted
	var all []time.Duration
	for _, took := range parts {
		all = append(all, took...)
	}
	r := benchResult{Workload: workload, Clients: len(b.sessions), Size: b.fl.size, Errors: errs.n, firstErr: errs.first}
	if workload == "lock" || workload == "handoff" {
		r.Size = 0
	}
	r.latencies(all, elapsed)
	return r
}

// unansweredTime is how long a call must have waited when it is cut off by the
// end of the time to be counted as an error: what a cell that works does not do.
const unansweredTime = time.Second

// repeatOp is one client: it calls op until ctx ends, and returns how long
// each call took, those left out that ended later or took no time. One that ctx
// has cut off is an error if it had waited for answerTime.
func repeatOp(ctx context.Context, errs *benchErrors, answerTime time.Duration, op func() (time.Duration, error)) []time.Duration {
	var out []time.Duration
	for failed := 0; ctx.Err() == nil && failed < benchErrorsMax; {
		began := time.Now()
		d, err := op()
		switch {
		case ctx.Err() != nil:
			if waited := time.Since(began); err != nil && waited >= answerTime {
				errs.add(fmt.Errorf("no answer for %v, until the end: %w", waited.Round(time.Millisecond), err))
			}
			return out
		case err != nil:
			failed++
			errs.add(err)
		case d > 0:
			out = append(out, d)
		}
	}
	return out
}

// releaseTime is how long a release may take after the end of the time.
const releaseTime = 10 * time.Second

// lockCycle acquires and releases a lock that exists and that nobody else
// wants: two writes, one after the other.
func lockCycle(ctx, releases context.Context, s *client.Session, path string) error {
	l, err := s.Lock(ctx, path, client.MustExist(), client.LockDelay(0))
	if err != nil {
		return err
	}
	return l.Release(releases)
}

// handoff measures a lock that goes from client to client. All of them are in
// this process, so one clock tells the time between two holders.
type handoff struct {
	path     string
	start    time.Time
	released atomic.Int64 // when the last holder began to release it, in ns since start; 0: there was none
}

// cycle queues for the lock, holds it for no time, and releases it. It returns
// the time from the release before to this grant; 0 for the first grant.
func (h *handoff) cycle(ctx, releases context.Context, s *client.Session) (time.Duration, error) {
	l, err := s.Lock(ctx, h.path, client.MustExist(), client.LockDelay(0))
	if err != nil {
		return 0, err
	}
	var between time.Duration
	granted := time.Since(h.start)
	if from := h.released.Load(); from != 0 {
		between = max(granted-time.Duration(from), 1)
	}
	h.released.Store(int64(time.Since(h.start)))
	return between, l.Release(releases)
}
