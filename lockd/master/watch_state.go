package master

import (
	"fmt"
	"slices"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// The states of watches can be large, and a client may begin many watches at
// once. They are sent no faster than the client reads: a state goes out when
// there is room for it in what waits for its connection, else its watch waits in
// a queue that is looked through with each tick. So no client is taken for a
// slow reader because of what it was sent at once.

// pacer is the part of the registry that paces states.
type pacer struct {
	fresh    []*watch // not looked at yet: the batch had done enough
	waiting  []*watch // for room, in order
	promised []*conn  // have been promised room in this batch
	deep     bool     // a large one has been sent in this batch
	scanned  int      // bytes of states that were looked at in this batch
}

const (
	// statesPerTick is how many of the watches that wait for room are looked at
	// with a tick.
	statesPerTick = 256
	// maxScanned is from how many bytes on no other state is looked at in a batch:
	// the loop does nothing else meanwhile.
	maxScanned = 8 << 20
	// nodeScanned is what looking at a node counts, also if it is left out.
	nodeScanned = 64
)

// roomFor returns how many bytes of state may be sent for a watch now; less than
// an item needs: it must wait.
func (ws *watches) roomFor(m *Master, w *watch) int {
	if w.large && ws.deep {
		return 0 // one large state a batch: the room of the next is not known yet
	}
	n := m.o.Room(w.conn.id, w.large) - w.conn.promised
	if w.large && n < maxWatchState {
		return 0 // whatever a watch may have must find room, or it never begins
	}
	return n
}

// promise notes what is sent, until the batch is closed.
func (p *pacer) promise(c *conn, bytes int) {
	if c.promised == 0 {
		p.promised = append(p.promised, c)
	}
	c.promised += bytes
}

// closeBatch begins another batch: what was promised is queued now, and counted
// by Room.
func (ws *watches) closeBatch() {
	for i, c := range ws.promised {
		c.promised = 0
		ws.promised[i] = nil
	}
	ws.promised, ws.deep, ws.scanned = ws.promised[:0], false, 0
	ws.batch++
	ws.updates, ws.sent = 0, 0
}

// await puts a watch at the end of those that wait for room. Dropped ones are
// swept when they are most of them.
func (ws *watches) await(w *watch) {
	if len(ws.waiting) >= 2*ws.count+statesPerTick {
		ws.waiting = slices.DeleteFunc(ws.waiting, func(w *watch) bool { return w.dead })
	}
	ws.waiting = append(ws.waiting, w)
}

// startWaiting looks again at states that had no room.
func (ws *watches) startWaiting(m *Master) {
	for n := min(len(ws.waiting), statesPerTick); n > 0 && len(ws.waiting) > 0 && ws.scanned < maxScanned; n-- {
		w := ws.waiting[0]
		ws.waiting[0] = nil
		ws.waiting = ws.waiting[1:]
		ws.start(m, w) // waits again, at the end, if there is none
	}
	if len(ws.waiting) == 0 {
		ws.waiting = nil
	}
}

// startFresh looks at states that came when the batch had done enough.
func (ws *watches) startFresh(m *Master) {
	for len(ws.fresh) > 0 && ws.scanned < maxScanned {
		w := ws.fresh[0]
		ws.fresh[0] = nil
		ws.fresh = ws.fresh[1:]
		ws.start(m, w)
	}
	if len(ws.fresh) == 0 {
		ws.fresh = nil
	}
}

// start sends a watch its state and puts it at the end of the change log: one
// step, so nothing is missed in between and nothing comes twice.
func (ws *watches) start(m *Master, w *watch) {
	if w.dead {
		return
	}
	if ws.scanned >= maxScanned {
		ws.fresh = append(ws.fresh, w)
		return
	}
	room := ws.roomFor(m, w)
	if room < statBytes {
		ws.await(w)
		return
	}
	now := m.st.Revision()
	// A client that has seen more than there is comes from elsewhere: give all.
	if w.since > now {
		w.since = 0
	}
	p := statePages{m: m, w: w, whole: m.budget(w.conn), most: min(room, maxWatchState)}
	m.scan(w, &p)
	ws.scanned += p.scanned
	if p.total > maxWatchState || (w.large && p.total > p.most) {
		ws.drop(w.conn, w.id)
		m.limited(w.conn, LimitWatchState, &wirepb.Error{Code: wirepb.ErrorCode_TOO_MANY, Id: w.id, Text: fmt.Sprintf(
			"the state below %s has more than %d bytes, the limit of a watch: watch without data, or a smaller scope", w.key.path, maxWatchState)})
		return
	}
	if p.total > p.most {
		w.large = w.conn.promised == 0 // else the next batch may do
		ws.await(w)
		return
	}
	ws.promise(w.conn, p.total)
	ws.deep = ws.deep || w.large
	p.send(now)
	w.revision = now
	if w.fallen {
		w.fallen = false
		ws.behind--
	}
	ws.join(w)
}

// statePages gathers the state of a watch in pages, each small enough for its
// client.
//
// A client resumes from the revision of the last update it took. So only the last
// page carries the revision of the state; those before it carry the one that the
// client has completely.
type statePages struct {
	m       *Master
	w       *watch
	whole   int // most bytes of a page
	most    int // most bytes of all
	total   int
	scanned int
	page    int // bytes of the last page
	pages   [][]*wirepb.WatchItem
}

// add appends an item; false: the state is larger than it may be.
func (p *statePages) add(it *wirepb.WatchItem) bool {
	size := itemBytes(it)
	if size > p.whole {
		it = withoutData(it) // the client cannot take it in any frame
		size = itemBytes(it)
	}
	p.total += size
	p.scanned += size
	if p.total > p.most {
		return false
	}
	if len(p.pages) == 0 || p.page+size > p.whole {
		p.pages, p.page = append(p.pages, nil), 0
	}
	last := len(p.pages) - 1
	p.pages[last] = append(p.pages[last], it)
	p.page += size
	return true
}

func (p *statePages) send(now uint64) {
	if len(p.pages) == 0 {
		p.pages = append(p.pages, nil)
	}
	for i, items := range p.pages {
		u := &wirepb.WatchUpdate{Id: p.w.id, Revision: p.w.since, State: true, Items: items}
		if i == len(p.pages)-1 {
			u.Revision, u.End = now, true
		}
		p.m.send(p.w.conn, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Watch{Watch: u}})
	}
}

// scan adds the state of a watch's scope, in the order of paths, as far as it is
// newer than since: what a client knows and finds neither itself nor below a
// node whose children are all there has not changed (see Watch in the protocol).
func (m *Master) scan(w *watch, p *statePages) {
	// Whether all children of the nodes above the present one are listed, by depth.
	var listed []bool
	top := depthOf(w.key.path)
	look := func(n store.NodeView) bool {
		p.scanned += nodeScanned
		since := w.since
		depth := depthOf(n.Path) - top
		all := since == 0 || n.Stat.GetInstance() > since || n.Stat.GetChildRevision() > since
		listed = append(listed[:depth], all)
		if depth > 0 && !all && !listed[depth-1] && n.Stat.GetModifyRevision() <= since {
			return true
		}
		return p.add(item(n, w.key.noData || since != 0 && n.Stat.GetModifyRevision() <= since))
	}
	if w.key.scope == wirepb.WatchScope_SUBTREE {
		m.st.Subtree(w.key.path, look)
	} else if n, ok := m.st.Node(w.key.path); ok && look(n) && w.key.scope == wirepb.WatchScope_CHILDREN {
		m.st.Children(w.key.path, "", func(_ string, n store.NodeView) bool { return look(n) })
	}
	if w.key.locks {
		m.scanLocks(w, p)
	}
}

// scanLocks adds the holders of the locks in a watch's scope, ghosts among them;
// the lock of a node that was deleted may have some, too.
func (m *Master) scanLocks(w *watch, p *statePages) {
	look := func(l store.LockView) bool {
		for _, b := range l.Holders {
			event := wirepb.LockEvent_LOCK_ACQUIRED
			if b.GetGhost() {
				event = wirepb.LockEvent_LOCK_LOST
			}
			if !p.add(&wirepb.WatchItem{Path: l.Path, Lock: &wirepb.WatchLock{
				Event: event, Holder: b, Fence: b.GetFence(), LockGeneration: l.Generation}}) {
				return false
			}
		}
		return true
	}
	if w.key.scope == wirepb.WatchScope_NODE {
		if l, ok := m.st.Lock(w.key.path); ok {
			p.scanned += lockScanned(&l)
			look(l)
		}
		return
	}
	m.st.Locks(w.key.path, "", func(l store.LockView) bool {
		p.scanned += lockScanned(&l)
		if w.key.scope == wirepb.WatchScope_CHILDREN && l.Path != w.key.path && parentOf(l.Path) != w.key.path {
			return true
		}
		return look(l)
	})
}

// lockScanned is what looking at a lock counts: each in its queue is listed.
func lockScanned(l *store.LockView) int {
	return nodeScanned * (1 + len(l.Holders) + len(l.Waiters))
}

// depthOf returns how many nodes are above a path.
func depthOf(path string) int {
	if path == "/" {
		return 0
	}
	n := 0
	for i := range len(path) {
		if path[i] == '/' {
			n++
		}
	}
	return n
}

// item describes a node as it is.
func item(n store.NodeView, leaveOut bool) *wirepb.WatchItem {
	it := &wirepb.WatchItem{Path: n.Path, Stat: n.Stat, HasData: n.HasData, DataLeftOut: leaveOut}
	if !leaveOut {
		it.Data = n.Data
	}
	return it
}

// withoutData returns a copy of an item without its content.
func withoutData(it *wirepb.WatchItem) *wirepb.WatchItem {
	return &wirepb.WatchItem{Path: it.Path, Stat: it.Stat, HasData: it.HasData, DataLeftOut: true, Revision: it.Revision}
}

// itemBytes is the size of an item in a message, at most.
func itemBytes(it *wirepb.WatchItem) int {
	return len(it.Path) + len(it.Data) + statBytes + clientBytes(it.GetLock().GetHolder())
}

// clientBytes is the size of what is variable of a holder.
func clientBytes(b *storepb.Blocker) int {
	return len(b.GetClient().GetName()) + len(b.GetClient().GetHost())
}
