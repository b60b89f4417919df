package machine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
)

// syncMax bounds the watches that read their state at the same time, so that a
// reconnect with many of them does not flood the connection.
const syncMax = 64

// watch is a watch of the application. It knows what it has told, so that after
// a time in which it heard nothing it can tell the difference.
type watch struct {
	id        CallID
	spec      *pb.Watch
	wire      uint64 // id on this connection, 0: not registered
	since     uint64 // all content up to this revision has been told
	told      bool   // the first state has been told to the end
	known     map[string]version
	syncing   bool // the state is being read
	seen      map[string]struct{}
	again     bool // the state lacked content that is not known: read it anew
	paused    bool
	notBefore time.Duration
}

// version says which content of a path was told.
type version struct {
	instance   uint64
	generation uint64
}

func (v version) olderThan(w version) bool {
	return v.instance < w.instance || v.instance == w.instance && v.generation < w.generation
}

type watches struct {
	all     map[CallID]*watch
	byWire  map[uint64]*watch
	idle    []*watch // to be registered, in order
	syncing int
}

func (q *watches) init() {
	q.all = make(map[CallID]*watch)
	q.byWire = make(map[uint64]*watch)
}

func (m *Machine) startWatch(e Watch) {
	if err := m.refusal(); err != nil {
		m.out.Updates = append(m.out.Updates, Update{ID: e.ID, Err: err})
		return
	}
	if len(m.watch.all) >= callsMax {
		m.out.Updates = append(m.out.Updates, Update{ID: e.ID,
			Err: fmt.Errorf("%w: this client has %d watches", ErrLimit, len(m.watch.all))})
		return
	}
	w := &watch{id: e.ID, spec: e.Watch, known: make(map[string]version)}
	m.calls[e.ID] = call{watch: w}
	m.watch.all[e.ID] = w
	m.watch.idle = append(m.watch.idle, w)
}

// flushWatches registers watches with the service.
func (m *Machine) flushWatches() {
	q := &m.watch
	if len(q.idle) == 0 {
		return
	}
	kept := q.idle[:0]
	for _, w := range q.idle {
		switch {
		case q.all[w.id] != w || w.wire != 0 || w.paused:
		case q.syncing >= syncMax || m.now < w.notBefore:
			kept = append(kept, w)
		default:
			m.register(w)
		}
	}
	clear(q.idle[len(kept):])
	q.idle = kept
}

func (m *Machine) register(w *watch) {
	m.expect()
	w.wire = m.nextID()
	w.syncing = true
	w.again = false
	w.seen = nil
	if len(w.known) > 0 {
		w.seen = make(map[string]struct{}, len(w.known))
	}
	m.watch.syncing++
	m.watch.byWire[w.wire] = w
	m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Watch{Watch: &pb.Watch{
		Id: w.wire, Path: w.spec.GetPath(), Scope: w.spec.GetScope(), Since: w.since, NoData: w.spec.GetNoData()}}})
}

// unregister forgets the registration; tell the service if it still has it.
func (m *Machine) unregister(w *watch, tell bool) {
	if w.wire == 0 {
		return
	}
	if tell && m.link.phase == linkReady {
		m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Unwatch{Unwatch: &pb.Unwatch{Id: w.wire}}})
	}
	m.synced(w)
	delete(m.watch.byWire, w.wire)
	w.wire = 0
}

func (m *Machine) synced(w *watch) {
	if w.syncing {
		w.syncing = false
		w.seen = nil
		m.watch.syncing--
	}
}

func (m *Machine) watchesUnsent() {
	q := &m.watch
	q.idle = q.idle[:0]
	for _, id := range slices.Sorted(maps.Keys(q.all)) {
		m.unregister(q.all[id], false)
		q.idle = append(q.idle, q.all[id])
	}
}

// watchUpdate takes a page of the state, or a change.
func (m *Machine) watchUpdate(u *pb.WatchUpdate) {
	w := m.watch.byWire[u.GetId()]
	if w == nil {
		return
	}
	out := &pb.WatchUpdate{Revision: u.GetRevision(), State: u.GetState() && !w.told}
	for _, it := range u.GetItems() {
		if w.take(it) {
			out.Items = append(out.Items, it)
		}
	}
	switch {
	case !u.GetState():
		if w.told && !w.syncing {
			w.since = max(w.since, u.GetRevision())
		}
	case u.GetEnd():
		m.stateEnd(w, u, out)
		return
	}
	if len(out.Items) > 0 {
		m.tell(w, out)
	}
}

// take notes what an item tells and reports whether it is news.
func (w *watch) take(it *pb.WatchItem) bool {
	path := it.GetPath()
	before, had := w.known[path]
	if it.GetDeleted() {
		delete(w.known, path)
		return had
	}
	if w.seen != nil {
		w.seen[path] = struct{}{}
	}
	now := version{it.GetStat().GetInstance(), it.GetStat().GetContentGeneration()}
	if had && !before.olderThan(now) {
		return false
	}
	if it.GetDataLeftOut() && !w.spec.GetNoData() && w.syncing && w.since > 0 {
		w.again = true // it should have come; without since it will
		return false
	}
	w.known[path] = now
	return true
}

// stateEnd takes the last page of the state: what was known and is not in it
// has been deleted meanwhile.
func (m *Machine) stateEnd(w *watch, u, out *pb.WatchUpdate) {
	var gone []*pb.WatchItem
	if w.seen != nil {
		for _, path := range slices.Sorted(maps.Keys(w.known)) {
			if _, ok := w.seen[path]; !ok {
				delete(w.known, path)
				gone = append(gone, &pb.WatchItem{Path: path, Deleted: true})
			}
		}
	}
	m.synced(w)
	if len(gone) > 0 {
		m.tell(w, &pb.WatchUpdate{Revision: u.GetRevision(), Items: gone})
	}
	out.End = !w.told
	if len(out.Items) > 0 || out.End {
		m.tell(w, out)
	}
	w.told = true
	if w.again {
		w.since = 0
		m.unregister(w, true)
		m.watch.idle = append(m.watch.idle, w)
		return
	}
	w.since = max(w.since, u.GetRevision())
}

func (m *Machine) tell(w *watch, u *pb.WatchUpdate) {
	m.out.Updates = append(m.out.Updates, Update{ID: w.id, Update: u})
}

func (m *Machine) pauseWatch(id CallID) {
	if w := m.watch.all[id]; w != nil && !w.paused {
		w.paused = true
		m.unregister(w, true)
	}
}

func (m *Machine) resumeWatch(id CallID) {
	if w := m.watch.all[id]; w != nil && w.paused {
		w.paused = false
		m.watch.idle = append(m.watch.idle, w)
	}
}

// cancelWatch ends a watch: nothing more is told of it.
func (m *Machine) cancelWatch(w *watch) {
	m.unregister(w, true)
	delete(m.watch.all, w.id)
	delete(m.calls, w.id)
}

func (m *Machine) failWatch(w *watch, err error) {
	m.cancelWatch(w)
	m.out.Updates = append(m.out.Updates, Update{ID: w.id, Err: err})
}

func (m *Machine) failWatches(err error) {
	for _, id := range slices.Sorted(maps.Keys(m.watch.all)) {
		m.failWatch(m.watch.all[id], err)
	}
	m.watch.idle = nil
}

func (m *Machine) refusedWatch(wire uint64, err error, overloaded bool, wait time.Duration) {
	w := m.watch.byWire[wire]
	switch {
	case w == nil:
	case overloaded:
		m.unregister(w, false)
		w.notBefore = m.now + max(wait, retryMin)
		m.watch.idle = append(m.watch.idle, w)
	default:
		m.unregister(w, false)
		m.failWatch(w, err)
	}
}

func (m *Machine) watchWake() time.Duration {
	if m.link.phase != linkReady || m.state != Live {
		return 0
	}
	w := time.Duration(0)
	for _, x := range m.watch.idle {
		if x.notBefore > m.now && (w == 0 || x.notBefore < w) {
			w = x.notBefore
		}
	}
	return w
}
