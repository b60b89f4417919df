package master

import (
	"fmt"
	"slices"
	"strings"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
)

// Watches. A watch first gets the state of its scope (watch_state.go), then every
// change from the change log (watch_log.go), of which each watch has a cursor
// (watch_tell.go).

// watch is a client's wish to be told of changes.
type watch struct {
	conn  *conn
	id    uint64
	key   topicKey
	since uint64 // its client has everything up to this revision; 0: nothing

	live     bool   // is in the list of its topic
	dead     bool   // dropped
	fallen   bool   // fell out of the change log: is sent its state anew
	blocked  bool   // its connection had no room for its changes
	large    bool   // its state is more than is usually sent at once
	next     uint64 // cursor: number of the next change in its topic
	revision uint64 // of the last complete update: where the client can resume
}

// topicKey is what a watch wants; all watches that want the same share a topic.
type topicKey struct {
	path   string
	scope  wirepb.WatchScope
	noData bool
	locks  bool
}

// watches is the registry. A change finds its topics by its path and those
// above it, so it costs its depth and its topics, not the number of watches.
type watches struct {
	byPath map[string][]*topic
	count  int
	log    changeLog
	teller
	pacer
}

func (ws *watches) forget() {
	ws.closeBatch()
	ws.teller.forget()
	*ws = watches{byPath: make(map[string][]*topic), teller: ws.teller}
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
	w := &watch{conn: c, id: id, since: r.GetSince(),
		key: topicKey{path: r.GetPath(), scope: r.GetScope(), noData: r.GetNoData(), locks: r.GetLocks()}}
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
	c.watches, c.blocked = nil, nil
}

func (ws *watches) remove(w *watch) {
	if w.dead {
		return
	}
	w.dead = true
	ws.count--
	if w.blocked || w.fallen {
		ws.behind--
	}
	if !w.live {
		return
	}
	t := ws.topic(w.key)
	if t == nil {
		return
	}
	t.dead++
	switch {
	case t.dead == len(t.watches):
		ws.removeTopic(t)
	case t.dead > len(t.watches)/2:
		t.sweep()
		fallthrough
	default:
		ws.ready(t) // it may have been the last that needed the oldest changes
	}
}

// topic returns the topic of a key, nil if no watch has it.
func (ws *watches) topic(key topicKey) *topic {
	for _, t := range ws.byPath[key.path] {
		if t.key == key {
			return t
		}
	}
	return nil
}

// join adds a watch to its topic; the next change is its first.
func (ws *watches) join(w *watch) {
	t := ws.topic(w.key)
	if t == nil {
		t = &topic{key: w.key, first: 1}
		ws.byPath[w.key.path] = append(ws.byPath[w.key.path], t)
	}
	w.next = t.end()
	if !w.live {
		w.live = true
		t.watches = append(t.watches, w)
	}
}

// removeTopic forgets a topic without watches.
func (ws *watches) removeTopic(t *topic) {
	for len(t.changes) > 0 {
		ws.log.dropFirst(t)
	}
	t.watches, t.dead = nil, 0
	list := slices.DeleteFunc(ws.byPath[t.key.path], func(o *topic) bool { return o == t })
	if len(list) == 0 {
		delete(ws.byPath, t.key.path)
	} else {
		ws.byPath[t.key.path] = list
	}
}

// match calls f for every topic whose scope path is in: those of the path, of the
// path above it for children, of all paths above it for subtrees.
func (ws *watches) match(path string, f func(*topic)) {
	for at, depth := path, 0; ; depth++ {
		for _, t := range ws.byPath[at] {
			if depth == 0 || t.key.scope == wirepb.WatchScope_SUBTREE || (depth == 1 && t.key.scope == wirepb.WatchScope_CHILDREN) {
				f(t)
			}
		}
		if at == "/" || at == "" {
			return
		}
		at = parentOf(at)
	}
}

// parentOf returns the path above one; that of the root is the root.
func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}
