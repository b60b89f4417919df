package master

import (
	"fmt"
	"strings"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
)

// watch is a client's wish to be told of changes.
type watch struct {
	conn   *conn
	id     uint64
	path   string
	scope  wirepb.WatchScope
	since  uint64
	noData bool

	live     bool   // has its first state
	dead     bool   // dropped
	revision uint64 // of the last complete update: where the client can resume

	items []*wirepb.WatchItem // of the batch being flushed
	large bool                // its state is more than is usually sent at once
}

// watches is the registry. A change finds its watches by its path and those
// above it, so it costs its depth and its watches, not all watches.
type watches struct {
	byPath map[string]*watchSet
	count  int

	dirty []string // paths changed since the last flush, in order, once each
	seen  map[string]struct{}

	room // see room.go
}

// watchSet are the watches of one path in order of registration. Dropped ones
// are swept when they are half of it, so that dropping many costs little.
type watchSet struct {
	list []*watch
	dead int
}

func (w *watches) forget() {
	w.closeBatch()
	*w = watches{byPath: make(map[string]*watchSet), seen: make(map[string]struct{})}
}

// watch takes a Watch; it begins under the next proof of leadership.
func (m *Master) watch(c *conn, r *wirepb.Watch) {
	id := r.GetId()
	if m.notMaster(c, &wirepb.Error{Id: id}) {
		return
	}
	refuse := func(code wirepb.ErrorCode, text string) {
		m.count.Refused++
		m.sendError(c, &wirepb.Error{Code: code, Id: id, Text: text})
	}
	limited := func(limit string, code wirepb.ErrorCode, text string) {
		m.limited(c, limit, &wirepb.Error{Code: code, Id: id, Text: text})
	}
	if err := store.CheckPath(r.GetPath()); err != nil {
		if limit := store.PathLimit(r.GetPath()); limit != "" {
			limited(limit, wirepb.ErrorCode_INVALID_ARGUMENT, pathError(err))
			return
		}
		refuse(wirepb.ErrorCode_INVALID_ARGUMENT, pathError(err))
		return
	}
	if s := r.GetScope(); s < wirepb.WatchScope_NODE || s > wirepb.WatchScope_SUBTREE {
		refuse(wirepb.ErrorCode_INVALID_ARGUMENT, fmt.Sprintf("watch scope %d is not known to this replica", s))
		return
	}
	if c.watches[id] != nil {
		refuse(wirepb.ErrorCode_INVALID_ARGUMENT, fmt.Sprintf("this connection has a watch %d already; unwatch it first", id))
		return
	}
	if len(c.watches) >= m.o.MaxWatchesPerConn {
		limited(LimitConnWatches, wirepb.ErrorCode_TOO_MANY, fmt.Sprintf(
			"this connection has %d watches, the limit is %d: watch a subtree instead, or use more connections", len(c.watches), m.o.MaxWatchesPerConn))
		return
	}
	if m.watches.count >= maxWatches {
		limited(LimitWatches, wirepb.ErrorCode_TOO_MANY, fmt.Sprintf(
			"the service has %d watches, the limit is %d: watch subtrees instead", m.watches.count, maxWatches))
		return
	}
	if m.rounds.reads >= m.o.MaxPending {
		limited(LimitReads, wirepb.ErrorCode_OVERLOADED, fmt.Sprintf("%d reads wait, the limit is %d: try again soon", m.rounds.reads, m.o.MaxPending))
		return
	}
	if !m.mayWait(c, &wirepb.Error{Id: id}) {
		return
	}
	w := &watch{conn: c, id: id, path: r.GetPath(), scope: r.GetScope(), since: r.GetSince(), noData: r.GetNoData()}
	if c.watches == nil {
		c.watches = make(map[uint64]*watch)
	}
	c.watches[id] = w
	m.watches.count++
	m.wait(waiter{conn: c, arrival: m.now, watch: w})
}

// drop ends a watch.
func (ws *watches) drop(c *conn, id uint64) {
	if w := c.watches[id]; w != nil {
		delete(c.watches, id)
		ws.remove(w)
	}
}

// dropConn ends all watches of a connection.
func (ws *watches) dropConn(c *conn) {
	for _, w := range c.watches {
		ws.remove(w)
	}
	c.watches = nil
}

func (ws *watches) remove(w *watch) {
	if w.dead {
		return
	}
	w.dead = true
	ws.count--
	if !w.live {
		return
	}
	set := ws.byPath[w.path]
	if set == nil {
		return
	}
	set.dead++
	switch {
	case set.dead == len(set.list):
		delete(ws.byPath, w.path)
	case set.dead > len(set.list)/2:
		kept := make([]*watch, 0, len(set.list)-set.dead)
		for _, o := range set.list {
			if !o.dead {
				kept = append(kept, o)
			}
		}
		set.list, set.dead = kept, 0
	}
}

// touch remembers that a path has changed.
func (ws *watches) touch(path string) {
	if len(ws.byPath) == 0 {
		return
	}
	if _, ok := ws.seen[path]; ok {
		return
	}
	ws.seen[path] = struct{}{}
	ws.dirty = append(ws.dirty, path)
}

// start registers a watch and sends its first state: one step, so nothing is
// missed in between and nothing comes twice. If there is no room for the state
// yet it waits.
func (ws *watches) start(m *Master, w *watch) {
	if w.dead {
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
	p := pager{m: m, w: w, left: m.budget(w.conn), state: true, most: min(room, maxWatchState), through: now}
	w.revision = w.since
	m.scan(w, func(n store.NodeView) bool { return p.add(item(n, w.noData, w.since)) })
	if p.total > maxWatchState || (w.large && p.total > p.most) {
		ws.drop(w.conn, w.id)
		m.limited(w.conn, LimitWatchState, &wirepb.Error{Code: wirepb.ErrorCode_TOO_MANY, Id: w.id, Text: fmt.Sprintf(
			"the state below %s has more than %d bytes, the limit of a watch: watch without data, or a smaller scope", w.path, maxWatchState)})
		return
	}
	if p.total > p.most {
		w.large = w.conn.promised == 0 // else the next batch may do
		ws.vain += p.total
		ws.await(w)
		return
	}
	ws.promise(w, p.total)
	p.end()
	for _, msg := range p.pages {
		m.send(w.conn, msg)
	}
	w.live = true
	set := ws.byPath[w.path]
	if set == nil {
		set = &watchSet{}
		ws.byPath[w.path] = set
	}
	set.list = append(set.list, w)
}

// scan calls f for every node in a watch's scope, in path order, until it
// returns false.
func (m *Master) scan(w *watch, f func(store.NodeView) bool) {
	if w.scope == wirepb.WatchScope_SUBTREE {
		m.st.Subtree(w.path, f)
		return
	}
	n, ok := m.st.Node(w.path)
	if !ok || !f(n) {
		return
	}
	if w.scope == wirepb.WatchScope_CHILDREN {
		m.st.Children(w.path, "", func(_ string, n store.NodeView) bool { return f(n) })
	}
}

// item describes a node as it is. Content that is not newer than since is left
// out.
func item(n store.NodeView, noData bool, since uint64) *wirepb.WatchItem {
	it := &wirepb.WatchItem{Path: n.Path, Stat: n.Stat, HasData: n.HasData}
	if noData || (since != 0 && n.Stat.GetModifyRevision() <= since) {
		it.DataLeftOut = true
	} else {
		it.Data = n.Data
	}
	return it
}

// flush sends what has changed since the last flush: for each watch one update
// with the final state of each path, in the order of their first change.
func (ws *watches) flush(m *Master) {
	if len(ws.dirty) == 0 {
		return
	}
	var touched []*watch
	for _, path := range ws.dirty {
		var full, bare *wirepb.WatchItem // made once, shared by all watches
		hit := func(w *watch) {
			if full == nil {
				full, bare = m.change(path)
			}
			if len(w.items) == 0 {
				touched = append(touched, w)
			}
			if w.noData {
				w.items = append(w.items, bare)
			} else {
				w.items = append(w.items, full)
			}
		}
		ws.match(path, hit)
	}
	ws.dirty = ws.dirty[:0]
	clear(ws.seen)
	now := m.st.Revision()
	for _, w := range touched {
		p := pager{m: m, w: w, left: m.budget(w.conn), through: now}
		for _, it := range w.items {
			p.add(it)
		}
		w.items = nil
		p.end()
		for _, msg := range p.pages {
			m.send(w.conn, msg)
		}
	}
}

// change describes the present state of a changed path, with content and
// without.
func (m *Master) change(path string) (full, bare *wirepb.WatchItem) {
	n, ok := m.st.Node(path)
	if !ok {
		full = &wirepb.WatchItem{Path: path, Deleted: true}
		return full, full
	}
	return item(n, false, 0), item(n, true, 0)
}

// match calls f for every live watch whose scope path is in: those of the path,
// of the path above it for children, of all paths above it for subtrees.
func (ws *watches) match(path string, f func(*watch)) {
	for at, depth := path, 0; ; depth++ {
		if set := ws.byPath[at]; set != nil {
			for _, w := range set.list {
				if !w.dead && (depth == 0 || w.scope == wirepb.WatchScope_SUBTREE ||
					(depth == 1 && w.scope == wirepb.WatchScope_CHILDREN)) {
					f(w)
				}
			}
		}
		if at == "/" || at == "" {
			return
		}
		if i := strings.LastIndexByte(at, '/'); i > 0 {
			at = at[:i]
		} else {
			at = "/"
		}
	}
}

// pager makes the updates of one watch, each small enough for its client.
//
// A client resumes from the revision of the last update it took. So only the
// last page carries the revision of what it shows; those before it carry the
// one that the client has completely.
type pager struct {
	m       *Master
	w       *watch
	left    int
	state   bool
	most    int // bytes of a state
	through uint64
	total   int // bytes, of all pages
	items   []*wirepb.WatchItem
	pages   []*wirepb.ServerMessage
}

// add appends an item; false: the state is larger than it may be.
func (p *pager) add(it *wirepb.WatchItem) bool {
	size := len(it.Path) + len(it.Data) + statBytes
	whole := p.m.budget(p.w.conn)
	if size > whole {
		// The client cannot take it in any frame. Items are shared: copy.
		it = &wirepb.WatchItem{Path: it.Path, Stat: it.Stat, HasData: it.HasData, DataLeftOut: true}
		size = len(it.Path) + statBytes
	}
	if p.total += size; p.state && p.total > p.most {
		return false
	}
	if size > p.left && len(p.items) > 0 {
		p.page(p.w.revision, false)
		p.left = whole
	}
	p.left -= size
	p.items = append(p.items, it)
	return true
}

func (p *pager) end() {
	p.page(p.through, p.state)
	p.w.revision = p.through
}

func (p *pager) page(revision uint64, end bool) {
	p.pages = append(p.pages, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Watch{Watch: &wirepb.WatchUpdate{
		Id: p.w.id, Revision: revision, State: p.state, End: end, Items: p.items}}})
	p.items = nil
}
