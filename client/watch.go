package client

import (
	"context"
	"iter"

	"github.com/seed70370324/lockd/internal/wire/pb"
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
	// EventDeleted: the node was deleted.
	EventDeleted
)

// String names the kind.
func (k EventKind) String() string {
	switch k {
	case EventPresent:
		return "present"
	case EventReady:
		return "ready"
	case EventChanged:
		return "changed"
	case EventDeleted:
		return "deleted"
	default:
		return "unknown"
	}
}

// WatchEvent is one thing that a watch tells.
type WatchEvent struct {
	Kind     EventKind
	Path     string
	Data     []byte // content; nil if null, deleted, or with WithoutData
	Stat     Stat   // zero if deleted
	Revision uint64 // of the state in which it was so
}

// WatchOption sets something of Watch.
type WatchOption func(*pb.Watch)

// Children watches the node and its direct children.
func Children() WatchOption { return func(w *pb.Watch) { w.Scope = pb.WatchScope_CHILDREN } }

// Subtree watches the node and everything below it.
func Subtree() WatchOption { return func(w *pb.Watch) { w.Scope = pb.WatchScope_SUBTREE } }

// WithoutData leaves the contents out.
func WithoutData() WatchOption { return func(w *pb.Watch) { w.NoData = true } }

// Watch yields what exists in its scope (by default the node alone, which need
// not exist), in the order of paths, then an EventReady, then every creation,
// change of content, and deletion in the order in which they happened, until
// ctx ends or the loop is left.
//
// After a reconnect, or when the loop was so slow that events had to be left
// out, what has changed meanwhile is told once: of several changes of one node
// the last. So a loop that keeps what it was told is always brought up to date.
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
		w := &pb.Watch{Path: path}
		for _, o := range options {
			o(w)
		}
		q, err := r.d.watch(ctx, w)
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
		e := WatchEvent{Kind: EventChanged, Path: it.GetPath(), Revision: u.GetRevision()}
		switch {
		case it.GetDeleted():
			e.Kind = EventDeleted
		case u.GetState():
			e.Kind = EventPresent
		}
		if !it.GetDeleted() {
			e.Stat = statOf(it.GetStat())
			if !it.GetDataLeftOut() {
				e.Data = content(it.GetData(), it.GetHasData())
			}
		}
		if !yield(e, nil) {
			return false
		}
	}
	if u.GetState() && u.GetEnd() {
		return yield(WatchEvent{Kind: EventReady, Revision: u.GetRevision()}, nil)
	}
	return true
}
