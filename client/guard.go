package client

import (
	"math"
	"sync"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/clock"
)

// guardTick is the longest sleep of the guard while locks are held. Timers
// stand still while the machine is suspended; so where there is no alarm, a lock
// whose deadline has passed meanwhile is noticed so much later at most.
const guardTick = 250 * time.Millisecond

// alarm wakes the guard at an instant of the clock, also right after the machine
// was suspended: a clock.Alarm.
type alarm interface {
	Set(at time.Duration) error
	Rung() <-chan struct{}
	Close()
}

func newAlarm() (alarm, error) { return clock.NewAlarm() }

// guard ends the contexts of locks whose deadline has passed, on a goroutine
// of its own: so that nothing that holds up the session can hold up that.
type guard struct {
	mu    sync.Mutex
	locks map[machine.CallID]*Lock
	armed time.Duration // when it looks again
	idle  bool          // it held no lock when it last looked
	wake  chan struct{} // room for one

	tick     time.Duration // guardTick
	newAlarm func() (alarm, error)
}

func newGuard() *guard {
	return &guard{locks: make(map[machine.CallID]*Lock), wake: make(chan struct{}, 1), tick: guardTick, newAlarm: newAlarm}
}

// remove forgets a lock that is released or lost.
func (g *guard) remove(l *Lock) {
	g.mu.Lock()
	delete(g.locks, l.id)
	g.mu.Unlock()
}

// apply takes new locks, moves deadlines, and ends the locks that the machine
// has lost. A new lock gets its deadline in the same call. It returns the locks
// that the machine has kept although the application knows them as lost: their
// deadline passed, and was seen to have, while the machine moved it.
func (g *guard) apply(fresh []*Lock, deadlines []machine.Deadline, lost []machine.Lost) (late []machine.CallID) {
	if len(fresh) == 0 && len(deadlines) == 0 && len(lost) == 0 {
		return nil
	}
	g.mu.Lock()
	for _, l := range fresh {
		g.locks[l.id] = l
	}
	// Nor may it be late: its timer stood still while the machine was suspended.
	soon := len(deadlines) > 0 && clock.Now() >= g.armed
	for _, d := range deadlines {
		if l := g.locks[d.Lock]; l != nil {
			if l.move(d.At) {
				late = append(late, d.Lock)
			}
			soon = soon || d.At < g.armed
		}
	}
	ended := make([]*Lock, len(lost))
	for i, x := range lost {
		ended[i] = g.locks[x.Lock]
		delete(g.locks, x.Lock)
	}
	g.mu.Unlock()
	// Ending a context runs others' code (context.AfterFunc starts goroutines,
	// a parent's children are cancelled): not under the mutex.
	for i, l := range ended {
		if l != nil {
			l.lose(lost[i].Reason)
		}
	}
	if !soon {
		return late // it looks in time
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
	return late
}

// run watches the deadlines until stop is closed.
func (g *guard) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var a alarm // nil: no lock was held yet, or there is none to be had
	var rung <-chan struct{}
	tried := false
	defer func() {
		if a != nil {
			a.Close()
		}
	}()
	for {
		sleep, soonest := g.check(clock.Now())
		if soonest > 0 && !tried {
			tried = true
			if made, err := g.newAlarm(); err == nil {
				a, rung = made, made.Rung()
			}
		}
		if a != nil && a.Set(soonest) != nil {
			rung = nil // the tick must do
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case _, ok := <-rung:
			if !ok {
				rung = nil // the tick must do
			}
		case <-g.wake:
		case <-stop:
			return
		}
	}
}

// check ends what is due and returns how long the guard may sleep and the
// soonest deadline, 0 without locks. While locks are held, and once after, it
// sleeps for tick at most, so that a lock that is taken again and again does not
// wake it each time.
//
// Invariant: no deadline lies before armed, unless wake is filled.
func (g *guard) check(now time.Duration) (sleep, soonest time.Duration) {
	g.mu.Lock()
	g.armed = math.MaxInt64 // until the sleep is known, any new deadline must wake the guard
	all := make([]*Lock, 0, len(g.locks))
	for _, l := range g.locks {
		all = append(all, l)
	}
	g.mu.Unlock()
	sleep = g.tick
	for _, l := range all {
		at := l.checkDeadline(now)
		if at == 0 {
			continue // who releases it, or tells it lost, removes it
		}
		sleep = min(sleep, at-now)
		if soonest == 0 || at < soonest {
			soonest = at
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if idle := len(all) == 0 && len(g.locks) == 0; idle && g.idle {
		sleep = time.Hour
	} else {
		g.idle = idle
	}
	sleep = max(sleep, 0)
	g.armed = now + sleep
	return sleep, soonest
}
