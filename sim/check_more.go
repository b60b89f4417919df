package sim

import (
	"fmt"
	"strings"

	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// holders follows who holds a lock through the log, so that the answer to a
// sequencer check can be judged as of the revision that it names.
type holders struct {
	live     map[request]uint64 // fences, by session and ticket
	versions []lockVersion
}

// lockVersion is the fence of the live holders from a revision on, 0 for none,
// and the instance of the node, which goes with them when it is deleted.
type lockVersion struct{ revision, fence, instance uint64 }

// takeHolders follows the holders of all locks.
func (h *history) takeHolders(changes []store.Change, s *store.Store) {
	for i := range changes {
		c := &changes[i]
		if c.Kind != store.ChangeLock || c.Lock.Event == store.LockEventNone || c.Lock.Event == store.LockGhostEnded {
			continue
		}
		l := h.holders[c.Path]
		if l == nil {
			l = &holders{live: map[request]uint64{}}
			h.holders[c.Path] = l
		}
		r := request{c.Lock.Session, c.Lock.Ticket}
		if c.Lock.Event == store.LockAcquired {
			l.live[r] = c.Lock.Fence
		} else {
			delete(l.live, r)
		}
		l.note(c.Path, s)
	}
}

func (l *holders) note(path string, s *store.Store) {
	fence, instance, revision := uint64(0), uint64(0), s.Revision()
	if n, ok := s.Node(path); ok {
		instance = n.Stat.GetInstance()
	}
	for _, f := range l.live {
		fence = max(fence, f) // all live holders of one shared period have the same
	}
	if n := len(l.versions); n > 0 && l.versions[n-1].revision == revision {
		l.versions = l.versions[:n-1]
	}
	l.versions = append(l.versions, lockVersion{revision, fence, instance})
}

// heldAt returns the fence of the live holders of a lock behind a revision, 0
// for none, and the instance of its node.
func (h *history) heldAt(path string, revision uint64) lockVersion {
	l := h.holders[path]
	if l == nil {
		return lockVersion{}
	}
	for i := len(l.versions) - 1; i >= 0; i-- {
		if l.versions[i].revision <= revision {
			return l.versions[i]
		}
	}
	return lockVersion{}
}

// judgeSequencer holds every answer about a sequencer against the log: it is valid
// exactly while the log has a live holder of its fence.
func (h *history) judgeSequencer(k *call) {
	check := k.read.GetCheck()
	if check == nil {
		return
	}
	revision := k.read.GetRevision()
	now := h.heldAt(k.path, revision)
	if valid := now.fence == k.lock.fence && now.instance == k.lock.instance; check.GetValid() != valid {
		h.w.fail("sequencers", "%s was told that %s is valid: %v (%s); at revision %s the live holders of %s have fence %s",
			k.c.name, k.lock.sequence, check.GetValid(), check.GetReason(), short(revision), k.path, short(now.fence))
	}
}

// takeBreak: a break takes the lock away from the holders of its fence and from
// nobody else.
func (h *history) takeBreak(m *storepb.Command, changes []store.Change) {
	op := m.GetBreakLock()
	if op == nil {
		return
	}
	lost := 0
	for i := range changes {
		c := &changes[i]
		if c.Kind != store.ChangeLock || c.Lock.Event != store.LockLost {
			continue
		}
		lost++
		if c.Path != op.GetPath() || c.Lock.Fence != op.GetFence() {
			h.w.fail("locks", "a break of fence %s of %s has taken %s with fence %s from session %s",
				short(op.GetFence()), op.GetPath(), c.Path, short(c.Lock.Fence), short(c.Lock.Session))
			return
		}
	}
	if lost == 0 {
		h.w.happened(FaultWrongBreak)
	}
}

// checkVanished: an ephemeral node goes when its session ends or when a command
// deletes it, and not otherwise.
func (h *history) checkVanished(m *storepb.Command, path string) {
	owner := h.owners[path]
	if owner == 0 {
		return
	}
	switch op := m.Op.(type) {
	case *storepb.Command_ExpireSession:
		if op.ExpireSession.GetSession() == owner {
			return
		}
	case *storepb.Command_CloseSession:
		if m.GetSession() == owner {
			return
		}
	case *storepb.Command_Delete:
		if path == op.Delete.GetPath() || strings.HasPrefix(path, op.Delete.GetPath()+"/") {
			return
		}
	case *storepb.Command_Multi:
		for _, o := range op.Multi.GetOps() {
			if d := o.GetDelete(); d != nil && (path == d.GetPath() || strings.HasPrefix(path, d.GetPath()+"/")) {
				return
			}
		}
	}
	h.w.fail("sessions", "the ephemeral node %s of session %s, which lives, was deleted by: %s", path, short(owner), tellCommand(m))
}

// checkMulti: a Multi is done as a whole or not at all.
func (h *history) checkMulti(m *storepb.Command, result *storepb.Result, changed bool) {
	op := m.GetMulti()
	if op == nil {
		return
	}
	if result.GetCode() != storepb.Code_OK {
		switch result.GetCode() {
		case storepb.Code_RETRY, storepb.Code_UNKNOWN_SESSION, storepb.Code_FORGOTTEN:
		default:
			h.w.happened(FaultMultiFailed)
		}
		if changed {
			h.w.fail("multi", "a Multi was answered %s and has changed something: %s", tellResult(result), tellCommand(m))
		}
		return
	}
	if len(result.GetResults()) != len(op.GetOps()) {
		h.w.fail("multi", "a Multi of %d operations was answered with %d results", len(op.GetOps()), len(result.GetResults()))
		return
	}
	for _, r := range result.GetResults() {
		if r.GetCode() != storepb.Code_OK {
			h.w.fail("multi", "a Multi was done although one operation was answered %s", tellResult(r))
			return
		}
	}
}

// checkPair: the two registers that only Multis write always have one content.
func (h *history) checkPair() {
	if a, b := h.versionAt("/m/a", ^uint64(0)), h.versionAt("/m/b", ^uint64(0)); a.token != b.token || a.exists != b.exists {
		h.w.fail("multi", "/m/a has token %d and /m/b token %d, and both are only written together", a.token, b.token)
	}
}

// checkWaited: a waiter that is told that its time is over has waited for so
// long, and one without a deadline is never told so.
func (h *history) checkWaited(k *call) {
	if k.result.GetCode() != storepb.Code_TIMED_OUT {
		return
	}
	waited := h.w.now - k.start
	if k.wait < 0 || waited < k.wait-k.wait/100 {
		h.w.fail("locks", "call %d of %s has waited for %s, and is told that its time of %s is over (negative: it has no end)",
			k.id, k.c.name, tellTime(waited), nanos(k.wait))
	}
}

// checkRefused reports a try that was refused although no session holds the lock,
// waits for it, or has left a ghost.
func (h *history) checkRefused(op *storepb.Acquire, result *storepb.Result, s *store.Store) {
	if result.GetCode() != storepb.Code_HELD {
		return
	}
	if v, ok := s.Lock(op.GetPath()); !ok || len(v.Holders)+len(v.Waiters) == 0 {
		h.w.fail("locks", "%s is refused as held, and it is free", op.GetPath())
	}
}

// deed names what programs do that leaves no mark of its own: how often it was
// done is all that can be compared.
type deed struct {
	session uint64
	kind    opKind
	path    string
}

func (h *history) takeDeed(m *storepb.Command, result *storepb.Result) {
	if result.GetCode() != storepb.Code_OK || h.ofRaw(m.GetSession()) {
		return
	}
	d := deed{session: m.GetSession()}
	switch op := m.Op.(type) {
	case *storepb.Command_Delete:
		d.kind, d.path = opDelete, op.Delete.GetPath()
		if op.Delete.GetForce() {
			d.kind = opForce
		}
	case *storepb.Command_Put:
		if d.kind, d.path = opCount, op.Put.GetPath(); d.path != counterPath {
			return
		}
	default:
		return
	}
	h.deeds[d]++
}

// checkDeeds: deletes and counts were done as often as clients were told that
// they were, and at most once more for each call whose outcome they do not know.
func (h *history) checkDeeds() {
	told, open := map[deed]int{}, map[deed]int{}
	for _, k := range h.calls {
		if k.kind != opDelete && k.kind != opForce && (k.kind != opCount || k.token == 0) {
			continue
		}
		d := deed{k.session, k.kind, k.path}
		switch {
		case k.result.GetCode() == storepb.Code_OK && k.result != nil:
			told[d]++
		case k.result == nil && mayHaveHappened(k), k.result.GetCode() == storepb.Code_FORGOTTEN, k.result.GetCode() == storepb.Code_UNKNOWN_SESSION:
			open[d]++
		}
	}
	why := ""
	say := func(text string) {
		if why == "" || text < why {
			why = text // the same one in every run
		}
	}
	for d, n := range h.deeds {
		if n > told[d]+open[d] {
			say(fmt.Sprintf("session %s has done %v %s %d times, and was told of %d (the outcome of %d more is not known)",
				short(d.session), d.kind, d.path, n, told[d], open[d]))
		}
	}
	for d, n := range told {
		if h.deeds[d] < n {
			say(fmt.Sprintf("session %s was told %d times that %v %s was done, and it was %d times", short(d.session), n, d.kind, d.path, h.deeds[d]))
		}
	}
	if why != "" {
		h.w.fail("exactly-once", "%s", why)
	}
}
