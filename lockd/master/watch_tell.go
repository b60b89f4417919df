package master

import (
	"slices"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
)

// teller is the part of the registry that tells the watches what the change log
// has for them, in slices: a batch sends at most so many updates, and what is left
// goes with the next one. Topics take turns, and so do the watches of a topic.
// A connection without room is skipped, and looked at again with each tick.
type teller struct {
	queue   []*topic // have changes that not all their watches were told
	updates int      // sent in this batch
	sent    int      // bytes of them
	batch   uint64   // number of this batch

	stuck  []*conn // have blocked watches, in order
	behind int     // watches that are blocked or have fallen
}

const (
	// sliceUpdates and sliceBytes bound what a batch sends to watches: the loop
	// does nothing else meanwhile.
	sliceUpdates = 2048
	sliceBytes   = 8 << 20
	// topicUpdates is how many of them one topic sends before others get their turn.
	topicUpdates = 256
	// pageBytes is how large an update is at most, if it has more than one item.
	pageBytes = 512 << 10
	// roomReserve is left free at a connection, for answers and events.
	roomReserve = 256 << 10
	// stuckPerTick is how many connections without room are looked at with a tick.
	stuckPerTick = 1024
	// fewBlocked is from how many blocked watches on those that have ended are swept.
	fewBlocked = 16
)

// page is an update that watches of a topic share; each gets its own id.
type page struct {
	items    []*wirepb.WatchItem
	from, to uint64 // numbers of changes
	whole    int    // the largest size that was allowed
	end      uint64 // of the topic, when it was made
	bytes    int
	revision uint64 // up to which it completes the topic; 0: it ends within a command
}

// ready puts a topic into the queue of those to be told.
func (ws *watches) ready(t *topic) {
	if t.queued || len(t.changes) == 0 {
		return
	}
	t.queued = true
	ws.queue = append(ws.queue, t)
}

// exhausted reports whether the batch has sent what it may.
func (ws *watches) exhausted() bool { return ws.updates >= sliceUpdates || ws.sent >= sliceBytes }

// backlog reports whether the next batch has something to do for watches.
func (ws *watches) backlog() bool { return len(ws.queue) > 0 || len(ws.fresh) > 0 }

// flush tells watches what has changed, as much as a batch may.
func (ws *watches) flush(m *Master) {
	for len(ws.queue) > 0 && !ws.exhausted() {
		t := ws.queue[0]
		ws.queue[0] = nil
		ws.queue = ws.queue[1:]
		t.queued = false
		if !ws.round(m, t) {
			ws.ready(t)
		}
	}
	if len(ws.queue) == 0 {
		ws.queue = nil
	}
}

// round tells the watches of a topic, from where the last round ended; false: it
// is not at the end of them.
func (ws *watches) round(m *Master, t *topic) bool {
	until := ws.updates + topicUpdates
	for ; t.at < len(t.watches); t.at++ {
		w := t.watches[t.at]
		if w.dead || w.fallen || w.blocked {
			continue
		}
		if !ws.tell(m, t, w) || ws.updates >= until && t.at+1 < len(t.watches) {
			return false
		}
	}
	t.at, t.page = 0, page{}
	ws.trim(t)
	return true
}

// trim drops the changes that all watches of a topic were told. It reports to the
// queue if changes came while the round lasted.
func (ws *watches) trim(t *topic) {
	least, again := t.end(), false
	for _, w := range t.watches {
		if w.dead || w.fallen {
			continue
		}
		least = min(least, w.next)
		again = again || w.next < t.end() && !w.blocked
	}
	for t.first < least {
		ws.log.dropFirst(t)
	}
	if again {
		ws.ready(t)
	}
}

// tell sends a watch the changes that it was not told yet; false: the batch is
// exhausted before.
func (ws *watches) tell(m *Master, t *topic, w *watch) bool {
	for w.next < t.end() {
		if w.next < t.first {
			if invariant.Planted(invariant.WatchSkips) {
				w.next = t.first
				continue
			}
			ws.fall(m, w)
			return true
		}
		if ws.exhausted() {
			return false
		}
		p := t.pageFrom(w.next, m.budget(w.conn), m.st.Revision())
		if !ws.hasRoom(m, w.conn, p.bytes+roomReserve) {
			ws.block(w)
			return true
		}
		if p.revision != 0 {
			w.revision = p.revision
		}
		w.next = p.to
		ws.promise(w.conn, p.bytes)
		ws.updates++
		ws.sent += p.bytes
		m.send(w.conn, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Watch{Watch: &wirepb.WatchUpdate{
			Id: w.id, Revision: w.revision, Items: p.items}}})
	}
	return true
}

// pageFrom returns the update that begins with a change, as large as a frame may be.
func (t *topic) pageFrom(from uint64, whole int, now uint64) *page {
	p := &t.page
	if p.from == from && p.whole == whole && p.end == t.end() && p.to > from {
		return p
	}
	*p = page{from: from, to: from, whole: whole, end: t.end()}
	for _, n := range t.changes[from-t.first:] {
		it := n.full
		if t.key.noData {
			it = n.bare
		}
		size := itemBytes(it)
		if size > whole {
			it = withoutData(it)
			size = itemBytes(it)
		}
		if len(p.items) > 0 && p.bytes+size > min(whole, pageBytes) {
			break
		}
		p.items = append(p.items, it)
		if k := len(p.items) - 1; k >= 1 && invariant.Planted(invariant.WatchExchangesOrder) {
			p.items[k-1], p.items[k] = p.items[k], p.items[k-1]
		}
		p.bytes += size
		p.to++
	}
	last := t.changes[p.to-1-t.first].revision
	switch {
	case p.to == t.end():
		p.revision = now // everything up to now has been told
	case t.changes[p.to-t.first].revision != last:
		p.revision = last
	}
	return p
}

// hasRoom reports whether a connection can be sent so many bytes without waiting
// for its client to read.
func (ws *watches) hasRoom(m *Master, c *conn, bytes int) bool {
	if c.roomBatch != ws.batch+1 {
		c.roomBatch, c.room = ws.batch+1, m.o.Room(c.id, false)
	}
	return c.room-c.promised >= bytes
}

// fall notes that a watch fell out of the change log; it is sent its state anew,
// from the last revision that its client has completely.
func (ws *watches) fall(m *Master, w *watch) {
	w.fallen = true
	w.since = w.revision
	ws.behind++
	m.count.WatchesMissed++
	ws.await(w)
}

// block leaves a watch where it is until its connection has room.
func (ws *watches) block(w *watch) {
	c := w.conn
	w.blocked = true
	ws.behind++
	if !c.stuck {
		c.stuck = true
		ws.stuck = append(ws.stuck, c)
	}
	if len(c.blocked) >= 2*len(c.watches)+fewBlocked { // most have ended
		c.blocked = slices.DeleteFunc(c.blocked, func(w *watch) bool { return w.dead })
	}
	c.blocked = append(c.blocked, w)
}

// forget leaves no connection among those that are looked at: the next mastership
// begins with none.
func (te *teller) forget() {
	for _, c := range te.stuck {
		c.stuck, c.blocked = false, nil
	}
	*te = teller{batch: te.batch}
}

// unblock looks again at connections that had no room.
func (ws *watches) unblock(m *Master) {
	for n := min(len(ws.stuck), stuckPerTick); n > 0 && !ws.exhausted(); n-- {
		c := ws.stuck[0]
		ws.stuck[0] = nil
		ws.stuck = ws.stuck[1:]
		c.stuck = false
		for len(c.blocked) > 0 && !ws.exhausted() && ws.hasRoom(m, c, 2*roomReserve) {
			w := c.blocked[0]
			c.blocked[0] = nil
			c.blocked = c.blocked[1:]
			if w.dead {
				continue
			}
			w.blocked = false
			ws.behind--
			t := ws.topic(w.key)
			ws.tell(m, t, w)
			t.page = page{}
			ws.ready(t)
			if w.blocked {
				break
			}
		}
		if len(c.blocked) > 0 && !c.stuck {
			c.stuck = true
			ws.stuck = append(ws.stuck, c)
		}
	}
	if len(ws.stuck) == 0 {
		ws.stuck = nil
	}
}
