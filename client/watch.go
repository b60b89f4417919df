package client

import (
	"context"
	"iter"

	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// EventKind says what a WatchEvent tells.
type EventKind uint8

// The kinds of event of a watch.
const (
	// EventPresent: the node exists; part of the state that was found first.
	EventPresent EventKind = iota + 1
	// EventReady: the state found first has been told; changes follow. Comes
	// once, and without a path.
	EventReady
	// EventChanged: the node was created or its content written.
	EventChanged
	// EventDeleted: the node was deleted. Reason says why.
	EventDeleted
	// EventHeld: the node's lock is held (Holder.Ghost: was lost, and is not free
	// yet); part of the state that was found first. Only with WatchLocks, as are
	// those that follow.
	EventHeld
	// EventAcquired: Holder got the lock.
	EventAcquired
	// EventReleased: Holder gave the lock up.
	EventReleased
	// EventLost: Holder lost the lock without giving it up; Reason says why. The
	// lock is not free before EventGhostEnded.
	EventLost
	// EventGhostEnded: the time for which the lock of a lost holder is kept is
	// over, or its client has said that the guarded work has ended.
	EventGhostEnded
)

var eventNames = [...]string{EventPresent: "present", EventReady: "ready", EventChanged: "changed", EventDeleted: "deleted",
	EventHeld: "held", EventAcquired: "acquired", EventReleased: "released", EventLost: "lost", EventGhostEnded: "ghost-ended"}

// String names the kind.
func (k EventKind) String() string {
	if int(k) < len(eventNames) && k != 0 {
		return eventNames[k]
	}
	return "unknown"
}

// Reason says why a node was deleted, or a lock lost.
type Reason uint8

// The reasons. ReasonUnknown: it happened while the watch was away (Missed), or
// there is none to tell.
const (
	ReasonUnknown        Reason = iota
	ReasonDeleted               // node: by a Delete
	ReasonForced                // node: by a Delete that took what was below it and its lock too
	ReasonSessionExpired        // the session that owned the node, or held the lock, expired
	ReasonSessionClosed         // ... was closed; a lock: while its work went on
	ReasonContainerIdle         // node: a container, and nothing was left on it
	ReasonBroken                // lock: taken away by an operator
	ReasonNodeDeleted           // lock: its node was deleted
	ReasonForfeited             // lock: its client had lost it by its own clock
)

var reasonNames = [...]string{ReasonUnknown: "", ReasonDeleted: "deleted", ReasonForced: "forced", ReasonSessionExpired: "session-expired",
	ReasonSessionClosed: "session-closed", ReasonContainerIdle: "container-idle", ReasonBroken: "broken",
	ReasonNodeDeleted: "node-deleted", ReasonForfeited: "forfeited"}

// String names the reason; "" if it is not known.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

func deleteReason(r storepb.DeleteReason) Reason {
	switch r {
	case storepb.DeleteReason_DELETED:
		return ReasonDeleted
	case storepb.DeleteReason_FORCED:
		return ReasonForced
	case storepb.DeleteReason_SESSION_EXPIRED:
		return ReasonSessionExpired
	case storepb.DeleteReason_SESSION_CLOSED:
		return ReasonSessionClosed
	case storepb.DeleteReason_CONTAINER_IDLE:
		return ReasonContainerIdle
	default:
		return ReasonUnknown
	}
}

func lossReason(r storepb.LossReason) Reason {
	switch r {
	case storepb.LossReason_BROKEN:
		return ReasonBroken
	case storepb.LossReason_NODE_DELETED:
		return ReasonNodeDeleted
	case storepb.LossReason_HOLDER_EXPIRED:
		return ReasonSessionExpired
	case storepb.LossReason_HOLDER_CLOSED:
		return ReasonSessionClosed
	case storepb.LossReason_FORFEITED:
		return ReasonForfeited
	default:
		return ReasonUnknown
	}
}

// WatchEvent is one thing that a watch tells.
type WatchEvent struct {
	Kind     EventKind
	Path     string
	Data     []byte // content; nil if null, deleted, or with WithoutData
	Stat     Stat   // zero if deleted, and in events of locks
	Revision uint64 // of the change; of what was found first: of that state
	Reason   Reason // EventDeleted, EventLost: why
	// Holder is whom an event of a lock concerns. Of one that is marked as Missed
	// and tells an end, only the session may be known.
	Holder Holder
	// Missed: changes before this one were not told, since the watch was away or
	// its loop too slow. After an event that has it every change is told again.
	Missed bool
}

// WatchOption sets something of Watch. None may be given twice.
type WatchOption func(*watchOptions)

type watchOptions struct {
	given
	watch pb.Watch
}

// Children watches the node and its direct children.
func Children() WatchOption {
	return func(o *watchOptions) { o.once(optChildren); o.watch.Scope = pb.WatchScope_CHILDREN }
}

// Subtree watches the node and everything below it.
func Subtree() WatchOption {
	return func(o *watchOptions) { o.once(optSubtree); o.watch.Scope = pb.WatchScope_SUBTREE }
}

// WithoutData leaves the contents out.
func WithoutData() WatchOption {
	return func(o *watchOptions) { o.once(optWithoutData); o.watch.NoData = true }
}

// WatchLocks tells who gets and loses the locks of the nodes in scope, too.
func WatchLocks() WatchOption {
	return func(o *watchOptions) { o.once(optWatchLocks); o.watch.Locks = true }
}

// Watch yields what exists in its scope (by default the node alone, which need
// not exist), in the order of paths, then an EventReady, then every creation,
// change of content, and deletion in the order in which they happened, until
// ctx ends or the loop is left. What one transaction does to one node is one
// change.
//
// After a reconnect, or when the loop was so slow that changes had to be left
// out, each node that differs is told once: deletions first, then the others in
// the order of their last changes. These events are marked as Missed (if all that
// was missed has come and gone, the next change is). So a loop that keeps what it
// was told is always brought up to date, and one that counts knows when it
// cannot.
//
// The last thing yielded is the error that ended the watch: it wraps that of
// ctx, ErrExpired, ErrClosed, ErrUnavailable (of a Reader) or another. The loop
// body may take its time and may use the session.
func (r *Reader) Watch(ctx context.Context, path string, options ...WatchOption) iter.Seq2[WatchEvent, error] {
	return func(yield func(WatchEvent, error) bool) {
		path, err := r.d.path("watch", path)
		if err != nil {
			yield(WatchEvent{}, err)
			return
		}
		w := &watchOptions{watch: pb.Watch{Path: path}}
		for _, o := range options {
			o(w)
		}
		if err := w.err("watch", path); err != nil {
			yield(WatchEvent{}, err)
			return
		}
		q, err := r.d.watch(ctx, &w.watch)
		if err != nil {
			yield(WatchEvent{}, opError("watch", path, err))
			return
		}
		defer r.d.unwatch(q)
		for {
			updates, err := q.next(ctx)
			for _, u := range updates {
				if !yieldUpdate(u, yield) {
					return
				}
			}
			if err != nil {
				yield(WatchEvent{}, opError("watch", path, err))
				return
			}
		}
	}
}

// yieldUpdate yields what an update tells; false ends the watch.
func yieldUpdate(u *pb.WatchUpdate, yield func(WatchEvent, error) bool) bool {
	for _, it := range u.GetItems() {
		if !yield(watchEvent(u, it), nil) {
			return false
		}
	}
	if u.GetState() && u.GetEnd() {
		return yield(WatchEvent{Kind: EventReady, Revision: u.GetRevision()}, nil)
	}
	return true
}

// watchEvent is what an item of an update tells.
func watchEvent(u *pb.WatchUpdate, it *pb.WatchItem) WatchEvent {
	e := WatchEvent{Kind: EventChanged, Path: it.GetPath(), Revision: it.GetRevision(), Missed: it.GetMissed()}
	if e.Revision == 0 {
		e.Revision = u.GetRevision()
	}
	switch {
	case it.GetLock() != nil:
		e.Kind = lockEvent(it.GetLock().GetEvent())
		if u.GetState() {
			e.Kind = EventHeld
		}
		e.Holder = holderOf(it.GetLock().GetHolder(), serviceTime{})
		e.Reason = lossReason(it.GetLock().GetLoss())
		return e
	case it.GetDeleted():
		e.Kind, e.Reason = EventDeleted, deleteReason(it.GetReason())
		return e
	case u.GetState():
		e.Kind = EventPresent
	}
	e.Stat = statOf(it.GetStat())
	if it.GetMissed() {
		e.Revision = max(it.GetRevision(), e.Stat.ModifyRevision)
	}
	if !it.GetDataLeftOut() {
		e.Data = content(it.GetData(), it.GetHasData())
	}
	return e
}

func lockEvent(e pb.LockEvent) EventKind {
	switch e {
	case pb.LockEvent_LOCK_ACQUIRED:
		return EventAcquired
	case pb.LockEvent_LOCK_RELEASED:
		return EventReleased
	case pb.LockEvent_LOCK_LOST:
		return EventLost
	case pb.LockEvent_LOCK_GHOST_ENDED:
		return EventGhostEnded
	default:
		return 0
	}
}
