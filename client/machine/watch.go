package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// syncMax bounds the watches that read their state at the same time, so that a
// reconnect with many of them does not flood the connection.
const syncMax = 64

// watch is a watch of the application. It knows what it has told, so that after
// a time in which it heard nothing it can tell the difference.
//
// Invariant: between two events that are not marked as missed the application is
// told every change that the service has made in the scope.
type watch struct {
	id        CallID
	spec      *pb.Watch
	wire      uint64 // id on this connection, 0: not registered
	since     uint64 // all content up to this revision has been told
	told      bool   // the first state has been told to the end
	known     map[string]version
	holds     map[hold]bool // of locks, as told; true: a ghost
	sync      *stateSync    // the state is being read
	missed    bool          // changes were missed, and no event has said so yet
	again     bool          // the state lacked content that is not known: read it anew
	paused    bool
	notBefore time.Duration
}

// hold names a holder of a lock.
type hold struct {
	path            string
	session, ticket uint64
}

func holdOf(it *pb.WatchItem) hold {
	return hold{it.GetPath(), it.GetLock().GetHolder().GetSession(), it.GetLock().GetHolder().GetTicket()}
}

// stateSync is a state that is being read.
type stateSync struct {
	seen    map[string]bool // nodes; true: all children are in the state too
	holds   map[hold]bool   // in the state
	changed bool            // the state shows that something has changed since
	nodes   []*pb.WatchItem // that differ from what was told
	ended   []*pb.WatchItem // holds that have ended or become ghosts
	begun   []*pb.WatchItem // new holds
}

// version says which content of a path was told.
type version struct {
	instance   uint64
	generation uint64
}

func versionOf(it *pb.WatchItem) version {
	return version{it.GetStat().GetInstance(), it.GetStat().GetContentGeneration()}
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
	w := &watch{id: e.ID, spec: e.Watch, known: make(map[string]version), holds: make(map[hold]bool)}
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
	w.again = false
	m.beginSync(w)
	m.watch.byWire[w.wire] = w
	m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Watch{Watch: &pb.Watch{
		Id: w.wire, Path: w.spec.GetPath(), Scope: w.spec.GetScope(), Since: w.since, NoData: w.spec.GetNoData(), Locks: w.spec.GetLocks()}}})
}

func (m *Machine) beginSync(w *watch) {
	w.sync = &stateSync{seen: make(map[string]bool), holds: make(map[hold]bool)}
	m.watch.syncing++
}

// unregister forgets the registration; tell the service if it still has it.
func (m *Machine) unregister(w *watch, tell bool) {
	if w.wire == 0 {
		return
	}
	if tell && m.link.phase == linkReady && !invariant.Planted(invariant.UnwatchNotSaid) {
		m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Unwatch{Unwatch: &pb.Unwatch{Id: w.wire}}})
	}
	m.synced(w)
	delete(m.watch.byWire, w.wire)
	w.wire = 0
}

func (m *Machine) synced(w *watch) {
	if w.sync != nil {
		w.sync = nil
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

// watchUpdate takes a page of the state, or changes.
func (m *Machine) watchUpdate(u *pb.WatchUpdate) {
	w := m.watch.byWire[u.GetId()]
	switch {
	case w == nil:
	case u.GetState():
		m.watchState(w, u)
	default:
		m.watchChanges(w, u)
	}
}

func (m *Machine) watchChanges(w *watch, u *pb.WatchUpdate) {
	out := &pb.WatchUpdate{Revision: u.GetRevision()}
	for _, it := range u.GetItems() {
		if !w.take(it) {
			continue
		}
		if w.missed && w.told {
			it, w.missed = missed(it), false
		}
		out.Items = append(out.Items, it)
	}
	if w.told && w.sync == nil {
		w.since = max(w.since, u.GetRevision())
	}
	if len(out.Items) > 0 {
		m.tell(w, out)
	}
}

// missed returns a copy of an item (items are shared) with the mark.
func missed(it *pb.WatchItem) *pb.WatchItem {
	return &pb.WatchItem{Path: it.Path, Deleted: it.Deleted, Stat: it.Stat, Data: it.Data, HasData: it.HasData,
		DataLeftOut: it.DataLeftOut, Reason: it.Reason, Lock: it.Lock, Revision: it.Revision,
		Missed: !invariant.Planted(invariant.WatchMarksNothing)}
}

// watchState takes a page of the state. The service also begins a state on its
// own, when it no longer has the changes that follow the last update.
//
// What is found before the first state was told to its end is told as part of it,
// page by page. Later on the differences are told at the end of the state, marked,
// each path at its last change: in the order of these. A state that breaks off
// tells nothing.
func (m *Machine) watchState(w *watch, u *pb.WatchUpdate) {
	if w.sync == nil {
		m.beginSync(w)
	}
	out := &pb.WatchUpdate{Revision: u.GetRevision(), State: !w.told}
	for _, it := range u.GetItems() {
		w.see(it)
		switch {
		case !w.news(it):
		case !w.told:
			w.learn(it)
			out.Items = append(out.Items, it)
		case it.GetLock() == nil:
			w.sync.nodes = append(w.sync.nodes, it)
		case it.GetLock().GetEvent() == pb.LockEvent_LOCK_LOST:
			w.sync.ended = append(w.sync.ended, it)
		default:
			w.sync.begun = append(w.sync.begun, it)
		}
	}
	if u.GetEnd() {
		m.stateEnd(w, u, out)
	} else if len(out.Items) > 0 {
		m.tell(w, out)
	}
}

// see notes what an item of a state shows.
func (w *watch) see(it *pb.WatchItem) {
	if it.GetLock() != nil {
		w.sync.holds[holdOf(it)] = true
		return
	}
	s := it.GetStat()
	all := w.since == 0 || s.GetInstance() > w.since || s.GetChildRevision() > w.since
	w.sync.seen[it.GetPath()] = all
	w.sync.changed = w.sync.changed || all || s.GetModifyRevision() > w.since
}

// take notes what an item tells and reports whether it is news.
func (w *watch) take(it *pb.WatchItem) bool {
	news := w.news(it)
	if news {
		w.learn(it)
	}
	return news
}

// news reports whether an item tells something that is not known.
func (w *watch) news(it *pb.WatchItem) bool {
	if it.GetLock() != nil {
		ghost, had := w.holds[holdOf(it)]
		switch it.GetLock().GetEvent() {
		case pb.LockEvent_LOCK_ACQUIRED:
			return !had
		case pb.LockEvent_LOCK_LOST:
			return !ghost
		case pb.LockEvent_LOCK_RELEASED, pb.LockEvent_LOCK_GHOST_ENDED:
			return had
		default:
			invariant.Unreachable("the service tells of no other events of a lock")
			return false // of a later version
		}
	}
	before, had := w.known[it.GetPath()]
	if it.GetDeleted() {
		return had
	}
	if had && !before.olderThan(versionOf(it)) {
		return false
	}
	if it.GetDataLeftOut() && !w.spec.GetNoData() && w.sync != nil && w.since > 0 {
		w.again = true // it should have come; without since it will
		return false
	}
	return true
}

// learn notes what the service has told.
func (w *watch) learn(it *pb.WatchItem) {
	switch {
	case it.GetLock() != nil:
		switch it.GetLock().GetEvent() {
		case pb.LockEvent_LOCK_ACQUIRED, pb.LockEvent_LOCK_LOST:
			w.holds[holdOf(it)] = it.GetLock().GetEvent() == pb.LockEvent_LOCK_LOST
		default:
			delete(w.holds, holdOf(it))
		}
	case it.GetDeleted():
		delete(w.known, it.GetPath())
	default:
		w.known[it.GetPath()] = versionOf(it)
	}
}

// stateEnd takes the last page of a state: what was known and is not there has
// ended meanwhile.
func (m *Machine) stateEnd(w *watch, u, out *pb.WatchUpdate) {
	s := w.sync
	later := u.GetRevision() > w.since
	gone := w.deleted(later)
	s.changed = s.changed || later && w.spec.GetLocks() // a lock may have come and gone
	s.ended = append(s.ended, w.endedHolds()...)
	m.synced(w)
	var late []*pb.WatchItem
	for _, list := range [][]*pb.WatchItem{s.ended, gone, byRevision(s.nodes), s.begun} {
		for _, it := range list {
			w.learn(it)
			late = append(late, missed(it))
		}
	}
	if len(late) > 0 {
		m.tell(w, &pb.WatchUpdate{Revision: u.GetRevision(), Items: late})
		w.missed = false
	} else if w.told && s.changed {
		// What was created and deleted meanwhile has left no difference.
		w.missed = true
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

// deleted finds the nodes that the state shows to be gone, those below others
// first. A node that is not in the state is gone if the node above it is, or if
// all children of that one are in the state; else it is unchanged. later tells that
// the state is not the one that is known.
func (w *watch) deleted(later bool) []*pb.WatchItem {
	var gone []*pb.WatchItem
	top := w.spec.GetPath()
	if _, there := w.sync.seen[top]; !there {
		w.sync.changed = w.sync.changed || later // it may have been there meanwhile
	}
	if len(w.known) == 0 || invariant.Planted(invariant.WatchKeepsDeleted) {
		return nil
	}
	deleted := make(map[string]bool)
	for _, path := range slices.Sorted(maps.Keys(w.known)) { // a node comes behind the one above it
		if _, there := w.sync.seen[path]; there {
			continue
		}
		above := parentOf(path)
		if path != top && !deleted[above] && !w.sync.seen[above] {
			continue
		}
		deleted[path] = true
		gone = append(gone, &pb.WatchItem{Path: path, Deleted: true})
	}
	slices.Reverse(gone)
	return gone
}

// endedHolds finds the holds that are not in the state any more.
func (w *watch) endedHolds() []*pb.WatchItem {
	var gone []hold
	for h := range w.holds {
		if !w.sync.holds[h] {
			gone = append(gone, h)
		}
	}
	slices.SortFunc(gone, hold.compare)
	ended := make([]*pb.WatchItem, len(gone))
	for i, h := range gone {
		event := pb.LockEvent_LOCK_RELEASED
		if w.holds[h] {
			event = pb.LockEvent_LOCK_GHOST_ENDED
		}
		ended[i] = &pb.WatchItem{Path: h.path, Lock: &pb.WatchLock{Event: event,
			Holder: &storepb.Blocker{Session: h.session, Ticket: h.ticket}}}
	}
	return ended
}

func (h hold) compare(o hold) int {
	return cmp.Or(cmp.Compare(h.path, o.path), cmp.Compare(h.session, o.session), cmp.Compare(h.ticket, o.ticket))
}

// byRevision sorts nodes by their last change.
func byRevision(items []*pb.WatchItem) []*pb.WatchItem {
	slices.SortStableFunc(items, func(a, b *pb.WatchItem) int {
		return cmp.Compare(a.GetStat().GetModifyRevision(), b.GetStat().GetModifyRevision())
	})
	return items
}

// parentOf returns the path above one.
func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
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
		w.notBefore = span.Add(m.now, max(wait, retryMin))
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
