package client

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire"
)

// A program that makes one call after the other, each of which takes less than
// quickTime, pays dearly for a goroutine that reads for it: each answer wakes
// the caller, and Go's scheduler wakes another thread to look for more work, which
// there is not. To such a caller the link's goroutine lends the connection: the
// caller reads its answer itself. The goroutine takes it back as soon as anything
// else is to be waited for, or no calls come any more.
//
// One at a time reads, who holds link.reading. While the connection is lent and
// nobody reads, nothing is outstanding but what comes unasked (the answer to a
// KeepAlive, a lost lock), and that waits for lentTick at most.
const (
	// quickCalls is after how many quick calls in a row the connection is lent:
	// each was the only one under way, took less than quickTime, and began less
	// than that after the one before had ended.
	quickCalls = 16
	quickTime  = 2 * time.Millisecond
	// lentTick is how often the link's goroutine looks whether the connection is
	// still made use of, lentReads the fewest answers in that time that say so.
	lentTick  = 10 * time.Millisecond
	lentReads = 2
)

// lending is the part of a link that says who reads it.
type lending struct {
	reading sync.Mutex    // who holds it reads
	over    bool          // nothing is to be read any more; of who holds reading
	recall  chan struct{} // one slot: the link's goroutine is to read again
	reads   atomic.Uint64 // answers that callers have read
}

// quickDone notes the end of a call; d.mu is held.
func (d *driver) quickDone(c *call, now time.Duration) {
	switch {
	case !d.nothingAwaited() || now-c.begun >= d.cfg.quickTime:
		d.quick = 0
	case c.begun-d.lastDone >= d.cfg.quickTime:
		d.quick = 1
	default:
		d.quick++
	}
	d.lastDone = now
}

// nothingAwaited reports whether no call, no watch and no Close waits for
// anything; d.mu is held.
func (d *driver) nothingAwaited() bool {
	return len(d.calls) == 0 && len(d.watches) == 0 && !d.closing
}

// mayLend reports whether the connection is better lent than read by its
// goroutine, who holds l.reading. From then on it is lent, and it is counted anew.
func (d *driver) mayLend(l *link) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.quick < quickCalls || !d.nothingAwaited() || l.over || l != d.link {
		return false
	}
	d.quick = 0
	d.startLending(l)
	return true
}

func (d *driver) startLending(l *link) {
	select {
	case <-l.recall: // of before: whoever wanted it has been read for
	default:
	}
	d.lent.Store(l)
}

// lend lets callers read the link, which is lent, until it is wanted back. The
// link's goroutine calls it, which holds l.reading before and after.
func (d *driver) lend(l *link) {
	l.reading.Unlock()
	// Somebody may have begun a call since mayLend looked, and found that he may
	// not read yet.
	d.lookAround(l)
	tick := time.NewTicker(d.cfg.lentTick)
	defer tick.Stop()
	for used, last := true, l.reads.Load(); used; {
		select {
		case <-tick.C:
			n := l.reads.Load()
			used, last = n-last >= lentReads, n
		case <-l.recall:
			used = false
		case <-l.ctx.Done():
			used = false
		}
	}
	d.lent.CompareAndSwap(l, nil)
	if !l.reading.TryLock() {
		// A caller waits, or is about to: it lets go, and waits for the answer as
		// it would have without.
		l.conn.Interrupt()
		l.reading.Lock()
	}
}

// recallLent wants the connection back, if it is lent: somebody waits for
// something, and does not read.
func (d *driver) recallLent() {
	if l := d.lent.Load(); l != nil {
		l.recallNow()
	}
}

func (l *link) recallNow() {
	select {
	case l.recall <- struct{}{}:
	default:
	}
}

// waiter is somebody who waits for an answer.
type waiter interface {
	answered() bool // it is there; who waits will not wait any longer
}

func (c *call) answered() bool { return len(c.answers) > 0 }

// closing is a channel that is closed with the answer.
type closing <-chan struct{}

func (c closing) answered() bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// readFor reads the connection, if it is lent, until w is answered. It may return
// before, and then somebody else reads. Contexts and timers are not looked at in
// here: the link's goroutine ends the wait within two ticks.
func (d *driver) readFor(w waiter) {
	if l := d.lent.Load(); l != nil {
		d.readLent(l, w)
	}
}

// readLent is readFor, of a link that was lent a moment ago.
//
// Invariant: who reads and is not the link's goroutine has seen the link lent
// while he held l.reading. So whatever takes it back comes later, finds him
// reading, and interrupts him. Who sees that it is not lent leaves it to the
// link's goroutine, which is about to read.
func (d *driver) readLent(l *link, w waiter) {
	if !l.reading.TryLock() {
		return // who reads looks afterwards whether anybody waits
	}
	read := false
	for d.lent.Load() == l && !l.over && !w.answered() && d.readNext(l) {
		read = true
	}
	l.reading.Unlock()
	if read {
		l.reads.Add(1) // not what was answered without: that is no use of the connection
	}
	d.lookAround(l)
}

// lookAround recalls the link if anybody waits for an answer. Who has unlocked
// l.reading calls it, not before: then whoever found it locked, and went away to
// wait, had his call registered before that and is seen; whoever registers his
// later finds it unlocked and reads.
func (d *driver) lookAround(l *link) {
	d.mu.Lock()
	idle := d.nothingAwaited()
	d.mu.Unlock()
	if !idle {
		l.recallNow()
	}
}

// readNext reads a message and steps the machine; false: the reader is to look
// around, for the link is over or the read was interrupted. Who calls it holds
// l.reading.
func (d *driver) readNext(l *link) bool {
	msg, err := readMessage(l.conn)
	switch {
	case errors.Is(err, wire.ErrInterrupted):
		return false
	case err != nil:
		l.over = true
		d.fromLink(l, machine.Disconnected{Err: err})
		return false
	case msg == nil:
		return true // of a kind that is not known here
	}
	// The next one is read when this one has been taken.
	l.over = !d.fromLink(l, machine.Received{Message: msg})
	return !l.over
}
