package store

import (
	"strings"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// The design follows the Chubby paper (Burrows, OSDI 2006, sections 2.3 to
// 2.5): advisory locks on nodes, exclusive or shared, with a generation,
// sequencers, and a lock-delay that keeps a lost lock from being granted. What
// goes beyond it: an attempt to lock is a record of its own, called a claim,
// that is kept in the state while it waits, holds, or is a ghost.

type claimState uint8

const (
	waiting claimState = 1 + iota
	held
	ghost // left without release; keeps the lock in its mode until its end
)

// claim is one attempt of a session to lock a path, named by the session and
// its ticket, the number of its Acquire. It is written between take and file.
type claim struct {
	made      uint64 // see Store.generation
	session   uint64
	ticket    uint64
	path      string
	client    *pb.ClientInfo
	revision  uint64 // of the Acquire: the order of the queue; unique in the cell
	fence     uint64 // held, ghost
	sinceWall int64
	sinceCell int64
	until     int64 // waiting: deadline, 0 never; ghost: its end, 0 unstarted; cell time
	delayMS   uint64
	leaseMS   uint64
	hash      uint64
	mode      pb.LockMode
	state     claimState
}

// lock is the lock of a path while anybody holds it, haunts it or waits for
// it. Otherwise its generation and fence are kept in the node; without a node,
// nowhere. Whoever writes it gets it from ownLock.
type lock struct {
	made       uint64 // see Store.generation
	generation uint64 // of the present or last period
	fence      uint64 // likewise
	hash       uint64
	mode       pb.LockMode // of all holders and ghosts, while there are any
	holders    int         // ghosts among them
	ghosts     int
	waiters    int
}

func (l *lock) live() int { return l.holders - l.ghosts }

// admits says whether a grant in this mode can join those who hold the lock.
func (l *lock) admits(mode pb.LockMode) bool {
	return l.holders == 0 || (l.mode == pb.LockMode_SHARED && mode == pb.LockMode_SHARED)
}

// free says whether a new request in this mode is granted at once.
//
// Invariant: nobody overtakes. While anybody waits, a new request waits.
func (l *lock) free(mode pb.LockMode) bool { return l.waiters == 0 && l.admits(mode) }

type lockItem struct {
	path string
	*lock
}

func lessLock(a, b lockItem) bool { return comparePaths(a.path, b.path) < 0 }

type claimItem struct {
	session, ticket uint64
	*claim
}

func lessClaim(a, b claimItem) bool {
	if a.session != b.session {
		return a.session < b.session
	}
	return a.ticket < b.ticket
}

// queueItem is a place among the holders or waiters of a path.
type queueItem struct {
	path     string
	revision uint64
	*claim
}

func lessQueue(a, b queueItem) bool {
	if c := strings.Compare(a.path, b.path); c != 0 {
		return c < 0
	}
	return a.revision < b.revision
}

func (s *Store) lock(path string) (*lock, bool) {
	if s.recentLock.lock != nil && s.recentLock.path == path {
		return s.recentLock.lock, true
	}
	item, ok := s.locks.Get(lockItem{path: path})
	if ok {
		s.recentLock = item
	}
	return item.lock, ok
}

// ownLock is lock for those who write the record, which exists. The hash leaves
// its mode and counts out; for the rest, rehashLock ends the writing.
func (s *Store) ownLock(path string) *lock {
	l, _ := s.lock(path)
	if l.made == s.generation {
		return l
	}
	own := *l // a clone may have it
	own.made = s.generation
	s.recentLock = lockItem{s.recentLock.path, &own}
	s.locks.ReplaceOrInsert(s.recentLock)
	return &own
}

func (s *Store) rehashLock(path string, l *lock) {
	hash := l.computeHash(path)
	s.sum += hash - l.hash
	l.hash = hash
}

// addLock puts a new record in the table.
func (s *Store) addLock(path string, l *lock) {
	l.made = s.generation
	l.hash = l.computeHash(path)
	s.recentLock = lockItem{path, l}
	if old, was := s.locks.ReplaceOrInsert(s.recentLock); was {
		s.sum -= old.hash
		s.bytes -= old.size()
	}
	s.sum += l.hash
	s.bytes += s.recentLock.size()
	s.changed = true
}

func (s *Store) claim(session, ticket uint64) (*claim, bool) {
	item, ok := s.claims.Get(claimItem{session: session, ticket: ticket})
	return item.claim, ok
}

// openLock makes the record of a lock that nobody uses yet: generation and
// fence move there from the node.
func (s *Store) openLock(path string) {
	l := &lock{}
	s.editNode(path, func(n *node) {
		l.generation, l.fence = n.lockGen, n.fence
		n.lockGen, n.fence, n.locked = 0, 0, true
	})
	s.addLock(path, l)
}

// closeLock drops the record of a lock that nobody uses any more: generation
// and fence move back to the node, if there is one.
func (s *Store) closeLock(path string) {
	old, was := s.locks.Delete(lockItem{path: path})
	if !was {
		return
	}
	s.recentLock = lockItem{}
	s.sum -= old.hash
	s.bytes -= old.size()
	s.changed = true
	if _, ok := s.node(path); ok {
		s.editNode(path, func(n *node) {
			n.lockGen, n.fence, n.locked = old.generation, old.fence, false
		})
	}
}

// addClaim puts a new claim in the tables. The lock's record must exist.
func (s *Store) addClaim(c *claim) {
	c.made = s.generation
	s.claims.ReplaceOrInsert(claimItem{c.session, c.ticket, c})
	s.bytes += c.size()
	s.file(c)
}

// file puts a claim in its queue and its timer among the timers, and counts it,
// as its state says.
func (s *Store) file(c *claim) {
	c.hash = c.computeHash()
	s.sum += c.hash
	s.queue(c).ReplaceOrInsert(queueItem{c.path, c.revision, c})
	if c.timed() {
		s.timers.ReplaceOrInsert(timerItem{c.until, c.session, c.ticket})
	}
	s.countClaim(c, +1)
	l := s.ownLock(c.path)
	l.count(c, +1)
	if c.state != waiting && l.holders == 1 {
		l.mode = c.mode
	}
	s.changed = true
}

// unfile undoes file.
func (s *Store) unfile(c *claim) {
	s.sum -= c.hash
	s.queue(c).Delete(queueItem{path: c.path, revision: c.revision})
	if c.timed() {
		s.timers.Delete(timerItem{c.until, c.session, c.ticket})
	}
	s.countClaim(c, -1)
	s.ownLock(c.path).count(c, -1)
	s.changed = true
}

// take unfiles a claim and returns it to be written and filed again.
func (s *Store) take(c *claim) *claim {
	s.unfile(c)
	if c.made == s.generation {
		return c
	}
	own := *c // a clone may have it
	own.made = s.generation
	s.claims.ReplaceOrInsert(claimItem{own.session, own.ticket, &own})
	return &own
}

// removeClaim takes a claim out of the tables.
func (s *Store) removeClaim(c *claim) {
	s.unfile(c)
	s.bytes -= c.size()
	s.claims.Delete(claimItem{session: c.session, ticket: c.ticket})
}

func (l *lock) count(c *claim, by int) {
	switch c.state {
	case waiting:
		l.waiters += by
	case ghost:
		l.ghosts += by
		l.holders += by
	default:
		l.holders += by
	}
}

// acquire executes an Acquire: it grants at once, refuses a try, or queues.
func (s *Store) acquire(session uint64, ticket uint64, a *pb.Acquire) *pb.Result {
	if bad := s.badAcquire(session, ticket, a); bad != nil {
		return bad
	}
	n, exists := s.node(a.Path)
	if !exists && !a.Create {
		return refuse(pb.Code_NOT_FOUND, "%s does not exist", a.Path)
	}
	var l *lock
	used := false
	if !exists || n.locked { // else there is none
		l, used = s.lock(a.Path)
	}
	free := !used || l.free(a.Mode)
	if !free && a.WaitMs == 0 && !a.NoDeadline {
		r := refuse(pb.Code_HELD, "%s is held", a.Path)
		r.Path, r.Blockers = a.Path, s.blockers(a.Path, BlockersMax)
		return r
	}
	if used && l.holders+l.waiters >= WaitersMax {
		return limited(LimitWaiters, "%s has %d holders and %d waiters, the limit of a lock is %d together: try again when some have left",
			a.Path, l.holders, l.waiters, WaitersMax)
	}
	if !exists {
		if bad := s.roomFor(a.Path, true); bad != nil {
			return bad
		}
		s.makeParents(parent(a.Path))
		n = s.makeImplied(a.Path)
	}
	if n.kind == pb.NodeKind_CONTAINER && !n.used {
		s.editNode(a.Path, func(n *node) { n.used = true })
	}
	if !used {
		s.openLock(a.Path)
	}
	x, _ := s.session(session)
	c := &claim{
		session: session, ticket: ticket, path: a.Path, client: x.client, revision: s.now,
		sinceWall: s.wallMS, sinceCell: s.cellTime, delayMS: a.LockDelayMs, leaseMS: x.leaseMS,
		mode: a.Mode, state: waiting,
	}
	if !free {
		return s.enqueue(c, a)
	}
	both := new(struct {
		result pb.Result
		grant  pb.Grant
	})
	s.admit(c)
	s.addClaim(c)
	s.noteLock(c, LockAcquired, 0)
	s.fillGrant(&both.grant, c)
	both.result.Path, both.result.Grant = a.Path, &both.grant
	return &both.result
}

func (s *Store) badAcquire(session, ticket uint64, a *pb.Acquire) *pb.Result {
	if reason := badPath(a.Path); reason != "" {
		return refusePath(a.Path, reason)
	}
	if a.Mode != pb.LockMode_EXCLUSIVE && a.Mode != pb.LockMode_SHARED {
		return refuse(pb.Code_BAD_COMMAND, "unknown lock mode %d", int32(a.Mode))
	}
	if a.LockDelayMs > LockDelayMaxMillis {
		return met(LimitLockDelay, refuse(pb.Code_BAD_COMMAND, "a lock-delay of %d ms is over the limit of %d ms", a.LockDelayMs, LockDelayMaxMillis))
	}
	x, _ := s.session(session)
	if x.locks+x.ghosts+x.waiting > 0 {
		if _, taken := s.claim(session, ticket); taken {
			invariant.Unreachable("each number is executed once")
			return refuse(pb.Code_BAD_COMMAND, "ticket %d is in use", ticket)
		}
	}
	if x.locks+x.ghosts+x.waiting >= LocksMax {
		return limited(LimitLocks, "the session holds %d locks, has lost %d that it has not released, and waits for %d, the limit is %d: release some, or use another session",
			x.locks, x.ghosts, x.waiting, LocksMax)
	}
	// A waiter gets at most two events (granted, lost), a holder one: this keeps
	// the session's record bounded whatever comes.
	if x.pendingEvents()+x.locks+2*x.waiting+2 > EventsMax {
		return limited(LimitEvents, "the session has %d events that are not acknowledged, %d locks and %d waiting requests, the limit is %d: acknowledge the events",
			x.pendingEvents(), x.locks, x.waiting, EventsMax)
	}
	if most := x.eventBytes + x.reserved + 2*eventReserve(a.Path); most > EventBytesMax {
		return limited(LimitEventBytes, "the session's events that are not acknowledged, and those that its locks and waiting requests may cause, would be %d bytes, the limit is %d: acknowledge the events",
			most, EventBytesMax)
	}
	return nil
}

// admit makes c, which is in no queue, a holder; the caller files it.
//
// Invariants: an exclusive holder, ghosts included, is alone. Every exclusive
// grant and the first grant of a shared period has a fence higher than all
// before it at that path. Only a live session is granted anything.
func (s *Store) admit(c *claim) {
	l := s.ownLock(c.path)
	s.assertAdmits(c, l)
	if l.holders == 0 {
		l.generation++
		l.fence = s.now
		s.rehashLock(c.path, l)
	}
	c.state, c.fence, c.until = held, l.fence, 0
	c.sinceWall, c.sinceCell = s.wallMS, s.cellTime
}

// assertAdmits asserts what admit keeps. It asks first, since the values for an
// assertion's text are allocated.
func (s *Store) assertAdmits(c *claim, l *lock) {
	if _, alive := s.session(c.session); !alive {
		invariant.Assert(false, "%s granted to session %d, which does not exist", c.path, c.session)
	}
	if !l.admits(c.mode) {
		invariant.Assert(false, "%s granted in mode %d beside %d holders in mode %d", c.path, c.mode, l.holders, l.mode)
	}
	if l.holders == 0 && s.now <= l.fence {
		invariant.Assert(false, "%s granted with fence %d after %d", c.path, s.now, l.fence)
	}
}

func (s *Store) fillGrant(g *pb.Grant, c *claim) {
	g.Path, g.Mode, g.Fence, g.Ticket, g.LockDelayMs = c.path, c.mode, c.fence, c.ticket, c.delayMS
	if l, ok := s.lock(c.path); ok {
		g.LockGeneration = l.generation
	}
	if n, ok := s.node(c.path); ok {
		g.Instance = n.instance
	}
}

// release executes a Release: whatever the ticket is, it is over.
func (s *Store) release(session uint64, r *pb.Release) *pb.Result {
	c, ok := s.claim(session, r.Ticket)
	if !ok {
		return refuse(pb.Code_NOT_HELD, "ticket %d neither holds nor waits for a lock", r.Ticket)
	}
	if r.Path != "" && r.Path != c.path {
		return refuse(pb.Code_BAD_COMMAND, "ticket %d is for %s, not for the path given", r.Ticket, c.path)
	}
	result := &pb.Result{Path: c.path}
	event := LockReleased
	switch c.state {
	case waiting:
		result.Code, event = pb.Code_WITHDRAWN, LockEventNone
	case ghost:
		result.Detail, event = "the lock had been lost; its guarded work is on record as ended", LockGhostEnded
	}
	s.end(c, event)
	return result
}

// end takes a claim away.
func (s *Store) end(c *claim, event LockEvent) {
	s.removeClaim(c)
	s.noteLock(c, event, 0)
	s.touch(c.path)
}

// heldUnder says whether a live holder has the lock of path under this fence. All
// who hold a lock, ghosts among them, have the lock's: none need be looked at, of
// which a transaction could ask for thousands a thousand times.
func (s *Store) heldUnder(path string, fence uint64) bool {
	l, used := s.lock(path)
	return used && l.live() > 0 && l.fence == fence
}

// later adds milliseconds to a cell time; it stops at the largest.
func later(cellTime int64, ms uint64) int64 {
	const most = 1<<63 - 1
	if ms > uint64(most-cellTime)/1_000_000 {
		return most
	}
	return cellTime + int64(ms)*1_000_000
}
