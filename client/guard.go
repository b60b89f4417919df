package client

import (
	"sync"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/clock"
)

// guardTick is the longest sleep of the guard while locks are held. Timers
// stand still while the machine is suspended, so after it wakes up a lock whose
// deadline has passed is noticed so much later at most.
const guardTick = 250 * time.Millisecond

// guard ends the contexts of locks whose deadline has passed, on a goroutine
// of its own: so that nothing that holds up the session can hold up that.
type guard struct {
	mu    sync.Mutex
	locks map[machine.CallID]*Lock
	wake  chan struct{} // room for one
}

func newGuard() *guard {
	return &guard{locks: make(map[machine.CallID]*Lock), wake: make(chan struct{}, 1)}
}

// remove forgets a lock that is released or lost.
func (g *guard) remove(l *Lock) {
	g.mu.Lock()
	delete(g.locks, l.id)
	g.mu.Unlock()
}

// apply takes new locks, moves deadlines, and ends the locks that the machine
// has lost. A new lock gets its deadline in the same call.
func (g *guard) apply(fresh []*Lock, deadlines []machine.Deadline, lost []machine.Lost) {
	if len(fresh) == 0 && len(deadlines) == 0 && len(lost) == 0 {
		return
	}
	g.mu.Lock()
	for _, l := range fresh {
		g.locks[l.id] = l
	}
	for _, d := range deadlines {
		if l := g.locks[d.Lock]; l != nil {
			l.move(d.At)
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
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// run watches the deadlines until stop is closed.
func (g *guard) run(stop <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		sleep := g.check(clock.Now())
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-g.wake:
		case <-stop:
			return
		}
	}
}

// check ends what is due and returns how long the guard may sleep.
func (g *guard) check(now time.Duration) time.Duration {
	g.mu.Lock()
	all := make([]*Lock, 0, len(g.locks))
	for _, l := range g.locks {
		all = append(all, l)
	}
	g.mu.Unlock()
	if len(all) == 0 {
		return time.Hour
	}
	sleep := guardTick
	for _, l := range all {
		switch at := l.checkDeadline(now); {
		case at == 0:
			g.remove(l)
		default:
			sleep = min(sleep, at-now)
		}
	}
	return max(sleep, 0)
}
