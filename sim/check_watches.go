package sim

import (
	"strings"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// watchedChange is something that a watch must tell: what one command made of one
// path, or one hand that a lock went through. Those of one command are told in any
// order.
type watchedChange struct {
	revision   uint64
	path       string
	deleted    bool
	reason     storepb.DeleteReason
	instance   uint64
	generation uint64
	lock       store.LockEvent // 0: of a node
	holder     request
	loss       storepb.LossReason
}

// watchOrder is how far a watch has told the log.
type watchOrder struct {
	locks bool
	at    int          // all before it in history.watched have been told
	told  map[int]bool // at or behind it, of the same command
}

// takeWatched takes down what a command has done to registers and locks.
func (h *history) takeWatched(changes []store.Change, s *store.Store) {
	done := map[string]bool{}
	for i := range changes {
		c := &changes[i]
		if !strings.HasPrefix(c.Path, "/r") && !strings.HasPrefix(c.Path, "/l") {
			continue
		}
		switch c.Kind {
		case store.ChangeCreated, store.ChangeContent, store.ChangeDeleted:
			if !done[c.Path] {
				done[c.Path] = true
				h.takeWatchedNode(changes[i:], s)
			}
		case store.ChangeLock:
			h.takeWatchedLock(c)
		}
	}
}

// takeWatchedNode takes down what became of the path of the first of the changes.
func (h *history) takeWatchedNode(changes []store.Change, s *store.Store) {
	first := &changes[0]
	x := watchedChange{revision: first.Revision, path: first.Path}
	if n, ok := s.Node(first.Path); ok {
		x.instance, x.generation = n.Stat.GetInstance(), n.Stat.GetContentGeneration()
	} else if x.deleted = true; first.Kind == store.ChangeCreated {
		return // it was there for nobody
	}
	for i := range changes {
		if c := &changes[i]; x.deleted && c.Kind == store.ChangeDeleted && c.Path == x.path {
			x.reason = c.Reason
		}
	}
	h.watched = append(h.watched, x)
}

func (h *history) takeWatchedLock(c *store.Change) {
	if c.Lock.Event == store.LockEventNone {
		return
	}
	x := watchedChange{revision: c.Revision, path: c.Path, lock: c.Lock.Event, loss: c.Lock.Loss,
		holder: request{c.Lock.Session, c.Lock.Ticket}}
	h.watched = append(h.watched, x)
}

// covers reports whether a change is in a watch's scope.
func (a *watch) covers(x *watchedChange) bool {
	if x.lock != 0 && !a.order.locks {
		return false
	}
	below, ok := strings.CutPrefix(x.path, a.path+"/")
	switch {
	case x.path == a.path:
		return true
	case !ok || a.scope == wirepb.WatchScope_NODE:
		return false
	}
	return a.scope == wirepb.WatchScope_SUBTREE || !strings.Contains(below, "/")
}

// passOver notes that a watch knows everything up to a revision.
func (h *history) passOver(a *watch, revision uint64) {
	o := &a.order
	for o.at < len(h.watched) && h.watched[o.at].revision <= revision {
		o.at++
	}
	o.told = nil
}

// next returns the first change in a watch's scope that it was not told.
func (h *history) next(a *watch) int {
	o := &a.order
	for o.at < len(h.watched) && (o.told[o.at] || !a.covers(&h.watched[o.at])) {
		delete(o.told, o.at)
		o.at++
	}
	return o.at
}

// checkOrder demands that a watch tells each change of the log, in its order. Only
// an item that is marked may leave out what is before it.
func (h *history) checkOrder(a *watch, u *wirepb.WatchUpdate, it *wirepb.WatchItem) {
	h.w.counts.watched++
	if it.GetMissed() {
		h.w.counts.missed++
		if it.GetRevision() == 0 { // found by comparing states: all up to that of the update
			h.passOver(a, u.GetRevision())
			return
		}
		h.passOver(a, it.GetRevision()-1)
	}
	i := h.next(a)
	if i == len(h.watched) || h.watched[i].revision < it.GetRevision() {
		what := "nothing"
		if i < len(h.watched) {
			what = h.watched[i].path + " of revision " + short(h.watched[i].revision)
		}
		h.w.fail("watches", "%s: watch %d of %s tells %s of revision %s, next in the log is %s",
			a.c.name, a.id, a.path, it.GetPath(), short(it.GetRevision()), what)
		return
	}
	for j := i; j < len(h.watched) && h.watched[j].revision == it.GetRevision(); j++ {
		if a.covers(&h.watched[j]) && !a.order.told[j] && h.watched[j].is(it) {
			if a.order.told == nil {
				a.order.told = map[int]bool{}
			}
			a.order.told[j] = true
			return
		}
	}
	h.w.fail("watches", "%s: watch %d of %s tells of %s in revision %s what the log does not say, or a second time: %s",
		a.c.name, a.id, a.path, it.GetPath(), short(it.GetRevision()), tellItems(u))
}

// is reports whether an item tells just this change.
func (x *watchedChange) is(it *wirepb.WatchItem) bool {
	if it.GetPath() != x.path || it.GetDeleted() != x.deleted || it.GetReason() != x.reason || (it.GetLock() != nil) != (x.lock != 0) {
		return false
	}
	if l := it.GetLock(); l != nil {
		return store.LockEvent(l.GetEvent()) == x.lock && l.GetLoss() == x.loss &&
			request{l.GetHolder().GetSession(), l.GetHolder().GetTicket()} == x.holder
	}
	return x.deleted || it.GetStat().GetInstance() == x.instance && it.GetStat().GetContentGeneration() == x.generation
}
