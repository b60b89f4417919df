package e2e

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/seed70370324/lockd/client"
)

// soakWatch follows the counter and the queue of one client through every
// failover, half of them with that client's own session, half with a Reader.
type soakWatch struct {
	of     *soakClient
	reader *client.Reader // nil: with the session
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	value  int64           // of the counter, as last told
	nodes  map[string]bool // of the queue
	events int
}

// watch begins to follow client i.
func (l *soakLoad) watch(i int) *soakWatch {
	t := l.c.t
	t.Helper()
	w := &soakWatch{of: l.clients[i], nodes: map[string]bool{}}
	from := &w.of.s.Reader
	if i%2 == 1 {
		r, err := client.Connect(l.hard, l.c.clients())
		if err != nil {
			t.Fatal(err)
		}
		w.reader, from = r, r
	}
	ctx, cancel := context.WithCancel(l.hard)
	w.cancel = cancel
	follow := func(path string, see func(client.WatchEvent) error, options ...client.WatchOption) {
		for e, err := range from.Watch(ctx, path, options...) {
			if err == nil {
				err = see(e)
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				l.fail("watch of %s: %w", path, err)
			}
			if err != nil {
				return
			}
		}
	}
	w.wg.Go(func() { follow(w.of.counter, w.counter) })
	w.wg.Go(func() { follow(w.of.dir, w.queue, client.Children(), client.WithoutData()) })
	t.Cleanup(func() {
		if err := w.end(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// counter sees the counter: it never goes back.
func (w *soakWatch) counter(e client.WatchEvent) error {
	if e.Kind == client.EventReady {
		return nil
	}
	n, err := soakNumber(e.Data)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events++
	if n < w.value || n > w.of.begun.Load() {
		return errors.New("the watch goes back, or tells what was never written")
	}
	w.value = n
	return nil
}

func (w *soakWatch) queue(e client.WatchEvent) error {
	if e.Kind == client.EventReady || e.Path == w.of.dir {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events++
	if e.Kind == client.EventDeleted {
		delete(w.nodes, e.Path)
	} else {
		w.nodes[e.Path] = true
	}
	return nil
}

// settled waits until the watch has told of the end: what is there now that
// the client has come to rest.
func (w *soakWatch) settled(t *testing.T) {
	t.Helper()
	eventually(t, "the watches have told what there is in the end", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.value == w.of.known.Load() && slices.Equal(slices.Sorted(maps.Keys(w.nodes)), w.of.queue)
	})
}

// end may be called more than once.
func (w *soakWatch) end() error {
	w.cancel()
	w.wg.Wait()
	if w.reader == nil {
		return nil
	}
	return w.reader.Close()
}
