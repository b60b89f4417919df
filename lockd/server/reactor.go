package server

import (
	"runtime"
	"sync"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/lockd/replica"
)

// framesAtOnce is how many messages of one connection a reactor reads at a time.
// A connection that has more is read by its own goroutine for a while.
const framesAtOnce = 32

// roundBytes is how much a reactor reads, from all connections together, before
// it puts it into the mailbox.
const roundBytes = 256 << 10

// reactor reads many clients' connections from one goroutine, in the place of
// theirs, as long as nothing about them is out of the ordinary: whole messages
// arrive, and there is room for them. What has arrived on all of them goes into
// the mailbox at once. For all else (a frame in part, whose time is limited; a
// client that must wait; the end) the connection goes back to its goroutine,
// which parks it here again when that is over.
//
// A connection is read by one at a time: by the reactor while it is in conns, by
// its goroutine else. It changes hands under mu.
type reactor struct {
	door   *door
	poller *wire.Poller
	// roundBytes is a small part of what may wait in the mailbox.
	roundBytes int

	mu      sync.Mutex
	conns   map[replica.ConnID]*clientConn // parked here
	letters []letter                       // read and not put
	size    int                            // of these, as they count in the mailbox, in bytes
	read    []*clientConn                  // in this round
}

// startReactors makes reactors and sets them going: one for two processors, since
// the rest of the service needs some too. Where there can be none, each
// connection's goroutine reads on.
func (d *door) startReactors() {
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		p, err := wire.NewPoller()
		if err != nil {
			d.log.Debug("each connection is read by its own goroutine", "error", err)
			return
		}
		r := &reactor{door: d, poller: p, roundBytes: roundBytes, conns: map[replica.ConnID]*clientConn{}}
		if d.box.most > 0 {
			r.roundBytes = min(roundBytes, d.box.most/64)
		}
		d.reactors = append(d.reactors, r)
		d.reactorsDone.Go(func() {
			if err := p.Run(r.arrived); err != nil {
				d.log.Error("connections are read by their own goroutines from now on", "error", err)
				r.giveUp()
			}
		})
	}
}

// stopReactors ends the reactors. Every connection's goroutine must have ended.
func (d *door) stopReactors() {
	for _, r := range d.reactors {
		r.mu.Lock()
		invariant.Assert(len(r.conns) == 0, "a connection is parked and its goroutine has ended")
		r.mu.Unlock()
		_ = r.poller.Close() // of a descriptor that nothing is written to
	}
	d.reactorsDone.Wait()
}

// park lets a reactor read the connection until it is for its goroutine to do so.
// It returns at once if no reactor can.
func (d *door) park(c *clientConn) {
	if len(d.reactors) == 0 || c.wire.Buffered() {
		return
	}
	r := d.reactors[uint64(c.id)%uint64(len(d.reactors))]
	if !r.take(c) {
		return
	}
	select {
	case <-c.mine:
		return
	case <-c.gone:
	case <-c.wire.Ended():
	case <-d.ctx.Done():
	}
	r.leave(c)
}

// unpark sees to it that no reactor reads a connection any more that is being
// ended: gone is closed.
func (d *door) unpark(c *clientConn) {
	if len(d.reactors) == 0 {
		return
	}
	r := d.reactors[uint64(c.id)%uint64(len(d.reactors))]
	r.mu.Lock()
	defer r.mu.Unlock()
	r.giveBack(c)
}

// take takes a connection in; false: it cannot be watched.
func (r *reactor) take(c *clientConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns == nil {
		return false
	}
	select {
	case <-c.gone:
		return false
	default:
	}
	if err := r.poller.Add(c.wire, uint64(c.id)); err != nil {
		// It is closed, which its goroutine will see; or the system is out of
		// something, and the goroutine does without.
		r.door.log.Debug("a connection is read by its own goroutine", "error", err)
		return false
	}
	r.conns[c.id] = c
	return true
}

// leave is called by a connection's goroutine that does not wait any longer.
func (r *reactor) leave(c *clientConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.giveBack(c)
	<-c.mine
}

// giveBack lets the goroutine of a connection read it, if it does not already;
// mu is held.
func (r *reactor) giveBack(c *clientConn) {
	if r.conns[c.id] != c {
		return
	}
	delete(r.conns, c.id)
	r.poller.Remove(c.wire)
	c.mine <- struct{}{} // has room: it was emptied before the connection was taken in
}

// giveUp gives all connections back, and takes none any more.
func (r *reactor) giveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		r.giveBack(c)
	}
	r.conns = nil
}

// arrived reads what has arrived, on several connections, and puts it into the
// mailbox. The loop's turn may be taken here. mu is held all the time, so that
// no goroutine has a connection back before what was read from it is put.
func (r *reactor) arrived(ready []wire.Arrival) {
	r.mu.Lock()
	defer r.mu.Unlock()
	back := 0 // the first of r.read go back
	for _, a := range ready {
		c := r.conns[replica.ConnID(a.Key)]
		if c == nil {
			continue // given back meanwhile
		}
		r.read = append(r.read, c)
		if a.Ended || !r.door.mayRead(c) || !r.readFrom(c) {
			last := len(r.read) - 1
			r.read[back], r.read[last] = r.read[last], r.read[back]
			back++
		}
	}
	r.put()
	for i, c := range r.read {
		if i < back || !r.door.mayRead(c) {
			r.giveBack(c)
		}
	}
	clear(r.read)
	r.read = r.read[:0]
}

// put puts into the mailbox what was read. If the loop has ended nobody reads it;
// the connections' goroutines will see that.
func (r *reactor) put() {
	if len(r.letters) > 0 {
		r.door.box.putAll(r.letters)
		r.letters, r.size = recycle(r.letters), 0
	}
}

// readFrom reads what has arrived on a connection; false: it is to go back to its
// goroutine. What is wrong with it, reading it there will tell.
func (r *reactor) readFrom(c *clientConn) bool {
	c.wire.Arrived()
	for range framesAtOnce {
		kind, payload, ok, err := c.wire.ReadArrived()
		if err != nil {
			return false
		}
		if !ok {
			return !c.wire.Buffered()
		}
		l, last := r.door.letterOf(c, kind, payload, false)
		if last != nil {
			c.last = last
			return false
		}
		if l.event != nil {
			r.letters = append(r.letters, l)
			if r.size += l.size; r.size >= r.roundBytes {
				r.put()
			}
		}
		if !r.door.mayRead(c) {
			return false
		}
	}
	return false
}
