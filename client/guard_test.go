package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/internal/nodepath"
	"github.com/seed70370324/lockd/store"
	"pgregory.net/rapid"
)

func testLock(id machine.CallID) *Lock {
	return &Lock{id: id, path: "/l", from: context.Background()}
}

// The guard ends a lock at its deadline although the loop does nothing.
func TestGuardNeedsNoLoop(t *testing.T) {
	g := newGuard()
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() { g.run(stop); close(ended) }()
	defer func() { close(stop); <-ended }()
	now := clock.Now()
	soon, late := testLock(1), testLock(2)
	g.apply([]*Lock{soon, late}, []machine.Deadline{{Lock: 1, At: now + 50*time.Millisecond}, {Lock: 2, At: now + time.Hour}}, nil)
	<-soon.Context().Done()
	if clock.Now() < now+50*time.Millisecond {
		t.Fatal("ended before its deadline")
	}
	if !errors.Is(context.Cause(soon.Context()), ErrLost) || !errors.Is(soon.Err(), ErrLost) {
		t.Fatalf("cause %v", context.Cause(soon.Context()))
	}
	// A renewal that comes now does not bring it back.
	g.apply(nil, []machine.Deadline{{Lock: 1, At: now + time.Hour}}, nil)
	if !errors.Is(soon.Err(), ErrLost) {
		t.Fatal("a lost lock came back")
	}
	if late.Err() != nil {
		t.Fatal(late.Err())
	}
	g.apply(nil, nil, []machine.Lost{{Lock: 2, Reason: "why"}})
	if err := context.Cause(late.Context()); !errors.Is(err, ErrLost) || err.Error() != "hold /l: lock is lost: why" {
		t.Fatalf("cause %v", err)
	}
}

// fakeAlarm rings when the test says.
type fakeAlarm struct {
	set  chan time.Duration
	rung chan struct{}
}

func (a *fakeAlarm) Set(at time.Duration) error { a.set <- at; return nil }
func (a *fakeAlarm) Rung() <-chan struct{}      { return a.rung }
func (a *fakeAlarm) Close()                     {}

// After a suspension, in which timers stood still, the alarm ends a lock whose
// deadline has passed meanwhile.
func TestGuardWakesAfterASuspension(t *testing.T) {
	g := newGuard()
	a := &fakeAlarm{set: make(chan time.Duration, 8), rung: make(chan struct{}, 1)}
	g.newAlarm = func() (alarm, error) { return a, nil }
	g.tick = 24 * time.Hour
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { g.run(stop); close(ended) }()
	defer func() { close(stop); <-ended }()
	l := testLock(1)
	at := clock.Now() + time.Hour
	g.apply([]*Lock{l}, []machine.Deadline{{Lock: 1, At: at}}, nil)
	for set := range a.set {
		if set == at {
			break
		}
	}
	l.move(clock.Now()) // as if the hour had passed, and no timer had noticed
	a.rung <- struct{}{}
	<-l.Context().Done()
	if !errors.Is(context.Cause(l.Context()), ErrLost) {
		t.Fatalf("cause %v", context.Cause(l.Context()))
	}
}

// A context of a lock looks at the clock, although no goroutine has ended it yet.
func TestContextLooksAtTheClock(t *testing.T) {
	l := testLock(1)
	l.move(clock.Now() + time.Hour)
	ctx := l.Context()
	if ctx.Err() != nil || l.Err() != nil {
		t.Fatalf("held, and %v", ctx.Err())
	}
	l.move(clock.Now())
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrLost) || !errors.Is(l.Err(), ErrLost) {
		t.Fatalf("behind the deadline: %v, cause %v, %v", ctx.Err(), context.Cause(ctx), l.Err())
	}
	<-ctx.Done()
}

// While the machine is suspended the timer of a guard without locks stands
// still, and the clock does not: so when it should have looked long ago, whoever
// comes wakes it.
func TestGuardSleepsThroughASuspension(t *testing.T) {
	g := newGuard()
	now := clock.Now()
	g.check(now)
	if sleep, _ := g.check(now); sleep != time.Hour {
		t.Fatalf("sleeps %v without locks", sleep)
	}
	woken := func() bool {
		select {
		case <-g.wake:
			return true
		default:
			return false
		}
	}
	late := []machine.Deadline{{Lock: 1, At: now + 2*time.Hour}}
	if g.apply([]*Lock{testLock(1)}, late, nil); woken() {
		t.Error("woken for a deadline behind its next look")
	}
	g.armed = now - time.Hour // two hours pass
	if g.apply(nil, late, nil); !woken() {
		t.Error("not woken although it sleeps too long")
	}
}

// Err looks at the clock, so that it is right even where nothing else has run
// since the deadline.
func TestErrLooksAtTheClock(t *testing.T) {
	l := testLock(1)
	l.move(clock.Now())
	if err := l.Err(); !errors.Is(err, ErrLost) {
		t.Fatalf("error %v", err)
	}
}

// The client refuses exactly the paths that the service refuses.
func TestPathRulesAreTheServices(t *testing.T) {
	part := rapid.SampledFrom([]string{"", "a", ".", "..", "x.y", "\x00", "\u0080", "\xff", "ü", "\x7f", " ",
		"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"})
	rapid.Check(t, func(t *rapid.T) {
		path := ""
		for range rapid.IntRange(0, 15).Draw(t, "parts") {
			path += rapid.SampledFrom([]string{"/", "/", "/", ""}).Draw(t, "slash") + part.Draw(t, "part")
		}
		ours, theirs := nodepath.Check(path), store.CheckPath(path)
		if (ours == nil) != (theirs == nil) {
			t.Fatalf("%q: client %v, service %v", path, ours, theirs)
		}
	})
}
