package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed70370324/lockd/client"
)

// good is how many well-behaved clients there are.
const good = 10

// measure runs the attacks in turn, each against a fresh cell, and prints a line
// for each.
func measure(ctx context.Context, o options) error {
	list, err := chooseAttacks(o.only)
	if err != nil {
		return err
	}
	fmt.Printf("%-18s %-7s %8s %9s %9s %7s %5s %8s %7s  %s\n",
		"ATTACK", "PHASE", "OPS/S", "P50", "MAX", "ERRORS", "LOST", "MASTERS", "MEMORY", "ATTACKERS SAY")
	for _, a := range list {
		if err := measureOne(ctx, o, a); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	return nil
}

func measureOne(ctx context.Context, o options, a attack) (err error) {
	var stderr func(string) (*os.File, error)
	if a.muteStderr {
		p := &pipes{}
		defer p.close()
		stderr = p.open
	}
	c, err := startCell(ctx, o, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	g, err := startGood(ctx, c)
	if err != nil {
		return err
	}
	defer g.stop()

	quiet := 3 * time.Second
	g.phase(ctx, c, quiet).print(a.name, "before", "")

	attacking, stop := context.WithTimeout(ctx, o.time+30*time.Second)
	defer stop()
	cmd, err := attackers(attacking, a.name, c, o.time)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() { // phase waits for it
		_ = cmd.Wait() // what it says tells enough
		close(ended)
	}()
	if a.killMaster {
		kill := time.AfterFunc(o.time/2, func() {
			if s := c.look(ctx); s.master >= 0 {
				_ = c.kill(s.master) // a failure shows among the dead
			}
		})
		defer kill.Stop()
	}
	during := g.phaseUntil(ctx, c, ended)
	during.print(a.name, "during", strings.ReplaceAll(strings.TrimSpace(said.String()), "\n", "; "))
	g.phase(ctx, c, quiet).print(a.name, "after", "")
	if dead := c.dead(); len(dead) > 0 {
		fmt.Printf("%-18s replicas that have ended: %s\n", a.name, strings.Join(dead, ", "))
	}
	return nil
}

// pipes are the standard errors of replicas that are read by no process.
type pipes struct{ ends []*os.File }

func (p *pipes) open(string) (*os.File, error) {
	r, w, err := os.Pipe()
	if err == nil {
		p.ends = append(p.ends, r)
	}
	return w, err
}

func (p *pipes) close() {
	for _, f := range p.ends {
		_ = f.Close()
	}
}

// goodClients write, read and lock, each in a loop.
type goodClients struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	took   []time.Duration
	errors int
	lost   int // sessions that expired
}

func startGood(ctx context.Context, c *cell) (*goodClients, error) {
	g := &goodClients{}
	ctx, g.cancel = context.WithCancel(ctx)
	sessions := make([]*client.Session, good)
	for i := range sessions {
		s, err := client.Dial(ctx, c.clients())
		if err != nil {
			g.cancel()
			return nil, err
		}
		sessions[i] = s
	}
	for i, s := range sessions {
		g.wg.Go(func() { g.work(ctx, c, i, s) })
	}
	return g, nil
}

// pause is between two rounds of a well-behaved client: it is no load test.
const pause = 20 * time.Millisecond

func (g *goodClients) work(ctx context.Context, c *cell, i int, s *client.Session) {
	defer func() { _ = s.Close() }() // the cell is stopped next
	path := fmt.Sprintf("/good/%d", i)
	again := time.NewTicker(pause)
	defer again.Stop()
	for ctx.Err() == nil {
		if s.Err() != nil {
			g.count(func() { g.lost++ })
			next, err := client.Dial(ctx, c.clients())
			if err != nil {
				g.count(func() { g.errors++ })
				continue
			}
			s = next
		}
		for _, op := range []func(context.Context) error{
			func(ctx context.Context) error {
				_, err := s.Put(ctx, path, []byte("x"), client.WithParents())
				return err
			},
			func(ctx context.Context) error { _, err := s.Get(ctx, path); return err },
			func(ctx context.Context) error {
				l, err := s.Lock(ctx, path, client.LockDelay(0))
				if err != nil {
					return err
				}
				return l.Release(ctx)
			},
		} {
			began := time.Now()
			limited, cancel := context.WithTimeout(ctx, 10*time.Second)
			err := op(limited)
			cancel()
			d := time.Since(began)
			g.count(func() {
				switch {
				case ctx.Err() != nil:
				case err != nil:
					g.errors++
				default:
					g.took = append(g.took, d)
				}
			})
		}
		select {
		case <-ctx.Done():
		case <-again.C:
		}
	}
}

func (g *goodClients) count(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *goodClients) stop() {
	g.cancel()
	g.wg.Wait()
}

// report is what one phase did to the well-behaved clients.
type report struct {
	perSec       float64
	p50, longest time.Duration
	errors, lost int
	masters      uint64 // changes of master
	memory       int    // MiB, the most of a replica so far
}

func (g *goodClients) phase(ctx context.Context, c *cell, d time.Duration) report {
	over := make(chan struct{})
	t := time.AfterFunc(d, func() { close(over) })
	defer t.Stop()
	return g.phaseUntil(ctx, c, over)
}

func (g *goodClients) phaseUntil(ctx context.Context, c *cell, over <-chan struct{}) report {
	before := c.look(ctx)
	g.count(func() { g.took, g.errors, g.lost = nil, 0, 0 })
	began := time.Now()
	select {
	case <-over:
	case <-ctx.Done():
	}
	r := report{memory: c.memory()}
	seconds := time.Since(began).Seconds()
	g.count(func() {
		slices.Sort(g.took)
		r.errors, r.lost, r.perSec = g.errors, g.lost, float64(len(g.took))/seconds
		if n := len(g.took); n > 0 {
			r.p50, r.longest = g.took[n/2], g.took[n-1]
		}
	})
	if s := c.look(ctx); s.epoch > before.epoch {
		r.masters = s.epoch - before.epoch
	}
	return r
}

func (r report) print(name, phase, said string) {
	fmt.Printf("%-18s %-7s %8.0f %9s %9s %7d %5d %8d %4d MiB  %s\n", name, phase, r.perSec,
		r.p50.Round(10*time.Microsecond), r.longest.Round(time.Millisecond), r.errors, r.lost, r.masters, r.memory, said)
}
