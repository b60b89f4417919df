package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// soakPlan is how long and how hard.
type soakPlan struct {
	run     time.Duration
	clients int
	every   time.Duration // a kill, and a line of the table
	down    time.Duration // before it is started again
	sample  time.Duration
	watches int
	lease   time.Duration
}

// planSoak reads LOCKD_SOAK: how long the long run is to last. Without it the
// run is short, and too short to judge memory by; its leases are long, so that
// no stall of a busy machine ends a session.
func planSoak(t *testing.T) soakPlan {
	t.Helper()
	if soakFor == "" {
		return soakPlan{run: 20 * time.Second, clients: 32, every: 10 * time.Second, down: 2 * time.Second, sample: 2 * time.Second, watches: 4, lease: time.Minute}
	}
	run, err := time.ParseDuration(soakFor)
	if err != nil || run < 30*time.Second {
		t.Fatalf("LOCKD_SOAK=%s: want a duration of 30s or more, like 10m", soakFor)
	}
	return soakPlan{run: run, clients: 256, every: 30 * time.Second, down: 2 * time.Second, sample: 5 * time.Second, watches: 8, lease: 12 * time.Second}
}

// TestSoak puts a cell of three real processes under full load from many
// sessions while its master is killed with -9 over and over: no acknowledged
// write is lost and none done twice, no session is lost, locks exclude, fences
// grow, watches miss nothing, all replicas end in the same state, memory stays
// flat, and nothing that ran for a client is left when it has gone. It is short
// unless LOCKD_SOAK says otherwise; `make soak` runs it for ten minutes.
func TestSoak(t *testing.T) {
	p := planSoak(t)
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // runs last: the cell has been stopped
	c := startCell(t, 3)
	m := newSoakMeter(c)
	idle := m.idle()

	l := newSoakLoad(c, p.clients, p.lease, p.run+5*time.Minute)
	var watches []*soakWatch
	for i := range p.watches {
		watches = append(watches, l.watch(i))
	}
	began := time.Now()
	m.begin(began)
	l.begin()
	table := &soakTable{load: l, meter: m}
	kills := soakRun(t, p, l, m, table)
	table.row(t.Context(), time.Since(began))
	m.end()
	l.end()
	out := &strings.Builder{}
	fmt.Fprintf(out, "%d clients for %v, the master killed %d times\n", p.clients, p.run, len(kills))
	table.print(out)
	printKills(out, kills)
	l.printTotals(out)
	t.Log("\n" + out.String())

	l.check()
	c.sameState()
	for _, w := range watches {
		w.settled(t)
	}
	l.verify()
	for _, w := range watches {
		if err := w.end(); err != nil {
			t.Error(err)
		}
	}
	l.close()
	m.rest(idle)

	compared, grown := flat(m.samples(), p.run)
	if len(compared)+len(grown) == 0 {
		t.Logf("memory is judged in runs of %v or longer", soakJudged)
	}
	for _, s := range compared {
		t.Log("flat: " + s)
	}
	for _, s := range grown {
		t.Error("has grown: " + s)
	}
	for _, s := range m.samples() {
		if s.expired > 0 {
			t.Errorf("%s had expired %v sessions after %v", s.who, s.expired, s.at.Round(time.Second))
		}
	}
	if len(kills) == 0 {
		t.Error("no master was killed")
	}
}

// soakRun lets the load run, kills masters in the middle of each interval and
// keeps the books. All replicas run when it returns.
func soakRun(t *testing.T, p soakPlan, l *soakLoad, m *soakMeter, table *soakTable) []*soakKill {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-l.stop // something has failed
		cancel()
	}()
	began := m.began
	next := func(at time.Duration) bool { return soakSleep(ctx, time.Until(began.Add(at))) }
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		for at := p.sample; at < p.run && next(at); at += p.sample {
			m.sample(ctx, false)
		}
	}()
	defer func() { <-sampled }()
	defer cancel()
	var kills []*soakKill
	for at := p.every; at <= p.run; at += p.every {
		if !next(at - p.every/2) {
			return kills
		}
		victim := l.c.master()
		k := &soakKill{victim: victim.name, at: time.Now()}
		k.window = k.at.Sub(began)
		l.kill.Store(k)
		l.c.kill(victim)
		kills = append(kills, k)
		goesOn := next(k.window + p.down)
		l.c.start(victim)
		m.reborn(victim.name)
		if !goesOn {
			return kills
		}
		started := time.Now()
		for !m.ready(ctx, victim.name) && time.Since(began) < at && soakSleep(ctx, 20*time.Millisecond) {
		}
		if time.Since(began) < at {
			k.ready = time.Since(started)
		}
		if !next(at) {
			return kills
		}
		if at < p.run {
			table.row(ctx, at)
		}
	}
	return kills
}

// soakSleep waits for d; false if ctx ended before.
func soakSleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// begin sets the time from which the load is counted.
func (m *soakMeter) begin(at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.began, m.all, m.loaded = at, nil, true
}

// end tells that the load ends.
func (m *soakMeter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.loaded = false
}
