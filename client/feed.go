package client

import (
	"context"
	"sync"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
)

// feed runs functions of the user (state handler, log handler) in order on a
// goroutine of its own, which lasts until the last one has run. A nil feed runs
// nothing.
type feed struct {
	ch chan func()
}

// feedSize is how many may wait for a slow one.
const feedSize = 64

func newFeed() *feed {
	f := &feed{ch: make(chan func(), feedSize)}
	go func() {
		for run := range f.ch {
			run()
		}
	}()
	return f
}

// add never blocks: if the user is far behind, the oldest one is left out. It
// is called under the driver's mutex.
func (f *feed) add(run func()) {
	for f != nil {
		select {
		case f.ch <- run:
			return
		default:
		}
		select {
		case <-f.ch:
		default:
		}
	}
}

func (f *feed) close() {
	if f != nil {
		close(f.ch)
	}
}

// A watch's queue is full, and the watch is paused, from so many bytes on; it goes
// on when all of it has been taken. One batch may come on top. watchItemBytes is
// what an item costs besides its bytes.
const (
	watchBytesMax  = 16 << 20
	watchItemBytes = 256
)

// watchQueue is what a watch has to tell and its user has not taken yet.
type watchQueue struct {
	id machine.CallID
	d  *driver

	mu      sync.Mutex
	updates []*pb.WatchUpdate
	bytes   int
	paused  bool
	err     error
	ready   chan struct{} // room for one: there is something
}

// watch begins a watch.
func (d *driver) watch(ctx context.Context, w *pb.Watch) (*watchQueue, error) {
	q := &watchQueue{id: d.newID(), d: d, ready: make(chan struct{}, 1)}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !d.post(machine.Watch{ID: q.id, Watch: w}, origin{watch: q}) {
		return nil, d.err
	}
	return q, nil
}

// unwatch ends a watch, if it has not ended already.
func (d *driver) unwatch(q *watchQueue) {
	d.post(machine.Cancel{ID: q.id}, origin{})
}

// add queues an update; true: pause the watch. Called under the driver's mutex.
func (q *watchQueue) add(u machine.Update) (pause bool) {
	q.mu.Lock()
	if u.Err != nil {
		q.err = u.Err
	} else {
		q.updates = append(q.updates, u.Update)
		q.bytes += u.Update.SizeVT() + watchItemBytes*(1+len(u.Update.GetItems()))
		pause = !q.paused && q.bytes >= watchBytesMax
		q.paused = q.paused || pause
	}
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return pause
}

// next waits for updates. With an error nothing comes any more.
func (q *watchQueue) next(ctx context.Context) ([]*pb.WatchUpdate, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		q.mu.Lock()
		updates, err := q.updates, q.err
		q.updates, q.bytes = nil, 0
		resume := q.paused && len(updates) == 0
		q.paused = q.paused && !resume
		q.mu.Unlock()
		if len(updates) > 0 || err != nil {
			return updates, err
		}
		if resume {
			q.d.post(machine.Resume{ID: q.id}, origin{})
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-q.d.stopped:
			q.mu.Lock()
			defer q.mu.Unlock()
			if q.err == nil {
				q.err = q.d.err // came too late to be begun
			}
			return q.updates, q.err
		}
	}
}
