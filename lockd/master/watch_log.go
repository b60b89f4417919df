package master

import (
	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
)

// The change log keeps each change that some watch covers until every watch that
// covers it was told, in one order for all of them: that in which the changes
// were applied. A change is kept once, however many watches wait for it, and its
// content is the store's own, which is immutable. Changes that no watch covers
// are not kept.
//
// The log is bounded in bytes, as a whole and for each topic. Beyond a bound the
// oldest change leaves it. A watch that was not told that change has fallen out
// of the log: it is sent the difference in state, see watch_state.go. So a
// client that does not read costs others nothing, and a client that lags by less
// than the log holds is told every change.
//
// Invariant: a watch is told the changes of its topic in their order, none twice,
// and none left out unless the watch fell out of the log.

// change is one change of one path. What one command did to a path is one change:
// no client can have seen the states between, and a client that acts on a change
// may rely on having seen a state that was.
type change struct {
	full, bare *wirepb.WatchItem // with content and without; not to be changed
	revision   uint64
	size       int
	topics     []*topic // that have it, or had
	left       int      // how many of them still have it

	prev, next *change // in the log
}

const (
	// changeBytes is what a change costs in memory besides path and content.
	changeBytes = 512
	// topicBytes is what it costs for each topic that has it. A path may be in some
	// thousand topics, of all the paths above it.
	topicBytes = 32
)

// changeLog holds the changes that are in some topic, oldest first.
type changeLog struct {
	oldest, newest *change
	bytes          int
}

// topic has the changes for the watches that want the same.
type topic struct {
	key     topicKey
	watches []*watch // in the order in which they began
	dead    int      // of watches: dropped ones

	changes []*change // not told to all of them yet
	first   uint64    // number of changes[0]
	bytes   int

	queued bool // in the queue of those to be told
	at     int  // index of the watch that is told next
	page   page // the last one made, see watch_tell.go
}

// end returns the number of the next change.
func (t *topic) end() uint64 { return t.first + uint64(len(t.changes)) }

// sweep drops the dropped watches, once they are half, so that dropping many
// costs little.
func (t *topic) sweep() {
	kept := make([]*watch, 0, len(t.watches)-t.dead)
	at := 0
	for i, w := range t.watches {
		if i == t.at {
			at = len(kept)
		}
		if !w.dead {
			kept = append(kept, w)
		}
	}
	if t.at >= len(t.watches) {
		at = len(kept)
	}
	t.watches, t.dead, t.at = kept, 0, at
}

// record takes what a command did into the log. The store is as the command left
// it.
func (ws *watches) record(m *Master, changes []store.Change) {
	if len(ws.byPath) == 0 {
		return
	}
	var all map[string]told
	if len(changes) > fewChanges {
		all = tellingChanges(changes)
	}
	for i := range changes {
		c := &changes[i]
		switch c.Kind {
		case store.ChangeCreated, store.ChangeContent, store.ChangeDeleted:
			if t := telling(changes, all, c.Path); t.at == i {
				ws.recordNode(m, c, t.made)
			}
		case store.ChangeLock:
			if c.Lock.Event != store.LockEventNone {
				ws.recordLock(m, changes, i)
			}
		}
	}
}

// fewChanges is up to how many changes of a command are compared one by one.
const fewChanges = 8

// told is what a command did to a path, of which watches are told one change.
type told struct {
	at   int  // index of the change at whose place that is, -1: none
	made bool // the path was there for nobody before the command: it created it first
}

// telling returns the change at whose place a path is told: the last one that
// created or deleted it, or else the last of its content. So a node is told behind
// the node above it, and its deletion behind those below it. all has the answer for
// every path, or is nil.
func telling(changes []store.Change, all map[string]told, path string) told {
	if all != nil {
		return all[path]
	}
	t, first := told{at: -1}, true
	for i := range changes {
		if changes[i].Path == path {
			t.take(changes, i, first)
			first = false
		}
	}
	return t
}

// tellingChanges is telling for every path, in one pass: what a command does to
// thousands of paths must not be looked through for each of them.
func tellingChanges(changes []store.Change) map[string]told {
	all := make(map[string]told, len(changes))
	for i := range changes {
		t, had := all[changes[i].Path]
		if !had {
			t.at = -1
		}
		t.take(changes, i, !had)
		all[changes[i].Path] = t
	}
	return all
}

// take takes the next change of the path; first: there was none before.
func (t *told) take(changes []store.Change, i int, first bool) {
	if first {
		t.made = changes[i].Kind == store.ChangeCreated
	}
	if tellsRather(changes, i, t.at) {
		t.at = i
	}
}

// tellsRather reports whether a path is told at change i rather than at the
// earlier change at, -1: none.
func tellsRather(changes []store.Change, i, at int) bool {
	switch changes[i].Kind {
	case store.ChangeCreated, store.ChangeDeleted:
		return true
	case store.ChangeContent:
		return at < 0 || changes[at].Kind == store.ChangeContent
	}
	return false
}

// recordNode records the change of a node; made: the command created it first, so
// that nobody has seen it if it is not there.
func (ws *watches) recordNode(m *Master, c *store.Change, made bool) {
	var topics []*topic
	ws.match(c.Path, func(t *topic) { topics = append(topics, t) })
	if len(topics) == 0 {
		return
	}
	n := &change{revision: c.Revision, topics: topics}
	if v, ok := m.st.Node(c.Path); ok {
		n.full, n.bare = item(v, false), item(v, true)
		n.full.Revision, n.bare.Revision = c.Revision, c.Revision
	} else {
		if made {
			return
		}
		n.full = &wirepb.WatchItem{Path: c.Path, Deleted: true, Reason: c.Reason, Revision: c.Revision}
		if invariant.Planted(invariant.WatchLosesReason) {
			n.full.Reason = 0
		}
		n.bare = n.full
	}
	ws.append(m, n)
}

// recordLock records that a lock passed.
func (ws *watches) recordLock(m *Master, changes []store.Change, i int) {
	c := &changes[i]
	n := &change{revision: c.Revision}
	ws.match(c.Path, func(t *topic) {
		if t.key.locks {
			n.topics = append(n.topics, t)
		}
	})
	if len(n.topics) == 0 {
		return
	}
	n.full = &wirepb.WatchItem{Path: c.Path, Revision: c.Revision, Lock: &wirepb.WatchLock{Event: wirepb.LockEvent(c.Lock.Event),
		Holder: c.Lock.Blocker(), Loss: c.Lock.Loss, Fence: c.Lock.Fence, LockGeneration: c.Lock.Generation}}
	n.bare = n.full
	ws.append(m, n)
}

// append adds a change to the log and to its topics, and lets the oldest changes
// go beyond the bounds.
func (ws *watches) append(m *Master, n *change) {
	l := &ws.log
	n.left = len(n.topics)
	n.size = changeBytes + topicBytes*len(n.topics) + len(n.full.GetPath()) + len(n.full.GetData()) + clientBytes(n.full.GetLock().GetHolder())
	if l.newest == nil {
		l.oldest = n
	} else {
		if l.newest.revision > n.revision {
			invariant.Assert(false, "changes are recorded in their order: revision %d after %d", n.revision, l.newest.revision)
		}
		n.prev, l.newest.next = l.newest, n
	}
	l.newest = n
	l.bytes += n.size
	for _, t := range n.topics {
		if k := len(t.changes) - 1; k >= 0 && invariant.Planted(invariant.WatchLastOfBatch) && t.changes[k].full.Path == n.full.Path {
			l.dropLast(t) // the bug: of the changes of a batch the last wins
		}
		t.changes = append(t.changes, n)
		t.bytes += n.size
		ws.ready(t)
	}
	for _, t := range n.topics {
		for t.bytes > m.o.WatchTopicBytes && len(t.changes) > 1 {
			l.dropFirst(t)
		}
	}
	for l.bytes > m.o.WatchLogBytes && l.oldest != n {
		o := l.oldest
		for _, t := range o.topics {
			if len(t.changes) > 0 && t.changes[0] == o { // the oldest of all is the oldest of its topics
				l.dropFirst(t)
			}
		}
	}
}

// dropFirst takes the oldest change out of a topic, and out of the log if no
// other topic has it.
func (l *changeLog) dropFirst(t *topic) {
	n := t.changes[0]
	t.changes[0] = nil
	t.changes = t.changes[1:]
	if len(t.changes) == 0 {
		t.changes = nil
	}
	t.first++
	l.drop(t, n)
}

// dropLast is for a planted bug.
func (l *changeLog) dropLast(t *topic) {
	k := len(t.changes) - 1
	n := t.changes[k]
	t.changes = t.changes[:k]
	l.drop(t, n)
}

// drop notes that a topic does not have a change any more.
func (l *changeLog) drop(t *topic, n *change) {
	t.bytes -= n.size
	if n.left--; n.left > 0 {
		return
	}
	l.bytes -= n.size
	if n.prev == nil {
		l.oldest = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.newest = n.prev
	} else {
		n.next.prev = n.prev
	}
	n.prev, n.next = nil, nil
}
