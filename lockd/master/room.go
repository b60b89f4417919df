package master

import "slices"

// The first states of watches can be large, and a client may begin many at
// once. They are sent no faster than the client reads: a state goes out when
// there is room for it in what waits for its connection, else its watch waits
// in a queue that is looked through with each tick. So nobody is taken for a
// slow reader because of what he was sent at once.

// room is the part of the registry that paces first states.
type room struct {
	waiting  []*watch // for room, in order
	promised []*conn  // have been sent a state in this batch
	deep     bool     // somebody has been sent a large one in this batch
	vain     int      // bytes of states that were looked at in this batch and had no room
}

// startsPerTick is how many of the watches that wait are looked at with a tick.
const startsPerTick = 256

// maxVain is from how many bytes looked at in vain on no other state is looked
// at in a batch: the loop does nothing else meanwhile.
const maxVain = 8 << 20

// roomFor is how many bytes of first state may be sent for a watch now; less
// than an item needs: it must wait.
func (r *room) roomFor(m *Master, w *watch) int {
	if r.vain >= maxVain || w.large && r.deep {
		return 0 // one large state a batch: the room of the next is not known yet
	}
	n := m.o.Room(w.conn.id, w.large) - w.conn.promised
	if w.large && n < maxWatchState {
		return 0 // whatever a watch may have must find room, or it never begins
	}
	return n
}

// promise notes what is sent, until the batch is closed.
func (r *room) promise(w *watch, bytes int) {
	if w.conn.promised == 0 {
		r.promised = append(r.promised, w.conn)
	}
	w.conn.promised += bytes
	r.deep = r.deep || w.large
}

// closeBatch: what was promised is queued now, and counted by Room.
func (r *room) closeBatch() {
	for i, c := range r.promised {
		c.promised = 0
		r.promised[i] = nil
	}
	r.promised, r.deep, r.vain = r.promised[:0], false, 0
}

// await puts a watch at the end of those that wait. Dropped ones are swept
// when they are most of them.
func (ws *watches) await(w *watch) {
	if len(ws.waiting) >= 2*ws.count+startsPerTick {
		ws.waiting = slices.DeleteFunc(ws.waiting, func(w *watch) bool { return w.dead })
	}
	ws.waiting = append(ws.waiting, w)
}

// startWaiting starts those that there is room for now.
func (ws *watches) startWaiting(m *Master) {
	n := min(len(ws.waiting), startsPerTick)
	if n == 0 {
		return
	}
	// A watch that begins now starts from the present state: what changed
	// before it must not come behind it.
	ws.flush(m)
	for ; n > 0 && len(ws.waiting) > 0 && ws.vain < maxVain; n-- {
		w := ws.waiting[0]
		ws.waiting[0] = nil
		ws.waiting = ws.waiting[1:]
		ws.start(m, w) // waits again, at the end, if there is none
	}
	if len(ws.waiting) == 0 {
		ws.waiting = nil
	}
}
