package client

import (
	"bytes"
	"context"
	"iter"
	"slices"
)

// Held tells who holds a node's lock, and what it says there.
type Held struct {
	// Held: a live holder has the lock. A ghost, whose lock is kept although it was
	// lost, does not count.
	Held   bool
	Holder Holder // of several that share it the first; zero if not Held
	// Data is the node's content if it was written since Holder got the lock, such
	// as the holder's address. Else it is nil: what an earlier holder has left says
	// nothing.
	Data     []byte
	Revision uint64
}

// WatchHolder yields who holds the lock of a node, at first and then with every
// change of the holder or of what it has written into the node, until ctx ends or
// the loop is left. What happened while the connection was down is not told, but
// how it is now. The last thing yielded is the error that ended it, as with Watch.
func (r *Reader) WatchHolder(ctx context.Context, path string) iter.Seq2[Held, error] {
	return func(yield func(Held, error) bool) {
		var h holderView
		ready, told := false, Held{}
		for e, err := range r.Watch(ctx, path, WatchLocks()) {
			if err != nil {
				yield(Held{}, err)
				return
			}
			h.take(e)
			now := h.held()
			now.Revision = e.Revision
			first := e.Kind == EventReady
			ready = ready || first
			if !ready || !first && now.same(told) {
				continue
			}
			told = now
			if !yield(now, nil) {
				return
			}
		}
	}
}

func (h Held) same(o Held) bool {
	return h.Held == o.Held && h.Holder.Session == o.Holder.Session && h.Holder.Fence == o.Holder.Fence &&
		(h.Data == nil) == (o.Data == nil) && bytes.Equal(h.Data, o.Data)
}

// holderView is what the events of a watch show of a node.
type holderView struct {
	holders []Holder // that are no ghosts, in the order in which they got the lock
	data    []byte
	written uint64 // revision of data
}

func (v *holderView) take(e WatchEvent) {
	switch e.Kind {
	case EventPresent, EventChanged:
		v.data, v.written = e.Data, e.Stat.ModifyRevision
	case EventDeleted:
		v.data, v.written = nil, 0
	case EventHeld, EventAcquired:
		if !e.Holder.Ghost {
			v.holders = append(v.holders, e.Holder)
		}
	case EventReleased, EventLost, EventGhostEnded:
		v.holders = slices.DeleteFunc(v.holders, func(h Holder) bool {
			return h.Session == e.Holder.Session && h.ticket == e.Holder.ticket
		})
	case EventReady:
	}
}

func (v *holderView) held() Held {
	if len(v.holders) == 0 {
		return Held{}
	}
	h := Held{Held: true, Holder: v.holders[0]}
	if v.written > h.Holder.Fence {
		h.Data = v.data
	}
	return h
}
