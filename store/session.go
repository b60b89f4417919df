package store

import (
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// session is the record of a session; its number is the revision of its
// opening. Whoever writes it gets it from ownSession.
type session struct {
	made       uint64 // see Store.generation
	nonce      string
	client     *pb.ClientInfo
	leaseMS    uint64
	last       uint64 // highest request number executed or voided
	lowest     uint64 // results below it are dropped; at most last + 1
	nextEvent  uint64 // number of the next event, from 1
	acked      uint64 // events up to it are dropped; less than nextEvent
	lastChange uint64 // moves with what concerns its life, so not with requests
	openedMS   int64
	leaseEnd   int64 // cell time; 0: not noted
	hash       uint64
	who        uint64 // hash of what never changes: number, nonce, client
	caches     bool

	// Counts of what the session has in other tables; not part of the hash.
	locks      int // live holdings
	ghosts     int // holdings that were lost
	waiting    int
	ephemerals int

	// Bytes, as Size counts them; not part of the hash either.
	eventBytes  int // of its events
	reserved    int // of the events that its holdings and waiters may yet cause
	resultBytes int // of its results

	results keptResults // lowest to last; each has a hash of its own
}

func (x *session) pendingEvents() int { return int(x.nextEvent - 1 - x.acked) }

type sessionItem struct {
	id uint64
	*session
}

func lessSession(a, b sessionItem) bool { return a.id < b.id }

type nonceItem struct {
	nonce string
	id    uint64
}

func lessNonce(a, b nonceItem) bool { return a.nonce < b.nonce }

type eventItem struct {
	session, number uint64
	hash            uint64
	*pb.SessionEvent
}

func lessEvent(a, b eventItem) bool {
	if a.session != b.session {
		return a.session < b.session
	}
	return a.number < b.number
}

func (s *Store) session(id uint64) (*session, bool) {
	if s.recent.id == id && s.recent.session != nil {
		return s.recent.session, true
	}
	item, ok := s.sessions.Get(sessionItem{id: id})
	if ok {
		s.recent = item
	}
	return item.session, ok
}

// ownSession is session for those who write the record.
func (s *Store) ownSession(id uint64) (*session, bool) {
	x, ok := s.session(id)
	if !ok || x.made == s.generation {
		return x, ok
	}
	own := *x // a clone may have it
	own.made = s.generation
	own.results = x.results.clone()
	s.recent = sessionItem{id, &own}
	s.sessions.ReplaceOrInsert(s.recent)
	return &own, true
}

// rehashSession ends the writing of a record that ownSession has given.
func (s *Store) rehashSession(id uint64, x *session) {
	hash := x.computeHash(id)
	s.sum += hash - x.hash
	x.hash = hash
}

// addSession puts a new record in the table.
func (s *Store) addSession(id uint64, x *session) {
	x.made = s.generation
	s.recent = sessionItem{id, x}
	s.sessions.ReplaceOrInsert(s.recent)
	s.bytes += x.size()
	s.rehashSession(id, x)
}

// countClaim counts a claim in the record of its session, if that exists; the
// hash leaves counts out.
func (s *Store) countClaim(c *claim, by int) {
	x, ok := s.ownSession(c.session)
	if !ok {
		return
	}
	x.reserved += by * c.reserve()
	switch c.state {
	case waiting:
		x.waiting += by
	case held:
		x.locks += by
	case ghost:
		x.ghosts += by
	}
}

func (s *Store) countEphemeral(owner uint64, by int) {
	if x, ok := s.ownSession(owner); ok {
		x.ephemerals += by
	}
}

// open executes an OpenSession.
func (s *Store) open(o *pb.OpenSession) *pb.Result {
	if n := len(o.Nonce); n < NonceMin || n > NonceMax {
		invariant.Unreachable("a master logs no nonce of another length")
		return refuse(pb.Code_BAD_COMMAND, "the nonce is %d bytes long, it must be %d to %d", n, NonceMin, NonceMax)
	}
	client := o.GetClient()
	if len(client.GetName()) > TextMax || len(client.GetHost()) > TextMax {
		invariant.Unreachable("a master logs no longer texts")
		return met(LimitText, refuse(pb.Code_BAD_COMMAND, "the client's name has %d bytes and its host %d, the limit is %d",
			len(client.GetName()), len(client.GetHost()), TextMax))
	}
	nonce := string(o.Nonce)
	if was, ok := s.nonces.Get(nonceItem{nonce: nonce}); ok {
		x, _ := s.session(was.id)
		return &pb.Result{Session: was.id, LastChange: x.lastChange, LeaseMs: x.leaseMS}
	}
	id := s.now
	x := &session{
		nonce: nonce, client: client, caches: o.Caches,
		leaseMS: min(max(o.LeaseMs, LeaseMinMillis), LeaseMaxMillis),
		lowest:  1, nextEvent: 1, lastChange: id, openedMS: s.wallMS,
	}
	s.addSession(id, x)
	s.nonces.ReplaceOrInsert(nonceItem{nonce, id})
	s.note(ChangeSessionOpened, "", id)
	return &pb.Result{Session: id, LastChange: id, LeaseMs: x.leaseMS}
}

// expire executes an ExpireSession; its epoch has been checked. It is void if
// anything that concerns the session's life has changed since the master
// looked. A request is no such thing: a client that sends requests but has no
// lease must end like any other.
func (s *Store) expire(e *pb.ExpireSession) *pb.Result {
	x, ok := s.session(e.Session)
	if !ok {
		return refuse(pb.Code_UNKNOWN_SESSION, "there is no session %d", e.Session)
	}
	if x.lastChange != e.LastChange {
		r := refuse(pb.Code_STALE_EPOCH, "session %d has changed since", e.Session)
		r.Session, r.LastChange = e.Session, x.lastChange
		return r
	}
	s.endSession(e.Session, expired)
	return &pb.Result{Session: e.Session}
}

// sessionEnd is how a session ends.
type sessionEnd uint8

const (
	expired   sessionEnd = iota // its lease is over
	closed                      // by its client, whose guarded work may go on
	workEnded                   // by its client, whose guarded work has ended
)

// endSession ends a session and frees everything that it owned, all in this
// one command: its waiters leave, its locks are freed or, unless the guarded
// work has ended, haunted, its ephemeral nodes go, and its record with results
// and events goes.
func (s *Store) endSession(id uint64, how sessionEnd) {
	for _, c := range s.claimsOf(id) {
		switch {
		case c.state == held && invariant.Planted(invariant.DeadSessionKeepLock):
			// The bug: nobody is left who could ever release it.
		case c.state == waiting:
			s.end(c, LockEventNone)
		case how == workEnded && c.state == ghost:
			s.end(c, LockGhostEnded)
		case how == workEnded:
			s.end(c, LockReleased)
		case how == expired:
			s.expireClaim(c)
		case c.state == held:
			// Work that began to stop with the close may take as long as if the
			// client had not been heard of any more.
			s.leave(c, pb.LossReason_HOLDER_CLOSED)
		}
	}
	var paths []string
	s.ephemerals.AscendGreaterOrEqual(ephemeralItem{owner: id}, func(e ephemeralItem) bool {
		if e.owner == id || invariant.Planted(invariant.EphemeralOfNext) {
			paths = append(paths, e.path)
		}
		return e.owner == id
	})
	why := pb.DeleteReason_SESSION_CLOSED
	if how == expired {
		why = pb.DeleteReason_SESSION_EXPIRED
	}
	for _, path := range paths {
		s.deleteNode(path, why)
	}
	x, _ := s.ownSession(id)
	s.dropEvents(id, x, 1<<64-1)
	s.dropResults(x, 1<<64-1)
	s.nonces.Delete(nonceItem{nonce: x.nonce})
	s.noted.Delete(id)
	s.sessions.Delete(sessionItem{id: id})
	s.recent = sessionItem{}
	s.sum -= x.hash
	s.bytes -= x.size()
	s.note(ChangeSessionClosed, "", id)
}

func (s *Store) claimsOf(id uint64) (list []*claim) {
	s.claims.AscendGreaterOrEqual(claimItem{session: id}, func(i claimItem) bool {
		if i.session == id {
			list = append(list, i.claim)
		}
		return i.session == id
	})
	return list
}

// addEvent puts an event into a session's record, where it stays until it is
// acknowledged. There is none for a session that has ended.
func (s *Store) addEvent(id uint64, e *pb.SessionEvent) {
	x, ok := s.ownSession(id)
	if !ok {
		return
	}
	e.Number = x.nextEvent
	x.nextEvent++
	s.rehashSession(id, x)
	e.Revision = s.now
	h := hashOfEvent(id, e)
	s.events.ReplaceOrInsert(eventItem{id, e.Number, h, e})
	s.sum += h
	s.countEvent(x, e, +1)
	s.changed = true
	s.changes = append(s.changes, Change{Kind: ChangeSessionEvent, Session: id, Event: e, Revision: s.now})
}

// dropEvents drops a session's events up to and with the given number.
func (s *Store) dropEvents(id uint64, x *session, upTo uint64) {
	for n := x.acked + 1; n <= upTo && n < x.nextEvent; n++ {
		if e, was := s.events.Delete(eventItem{session: id, number: n}); was {
			s.sum -= e.hash
			s.countEvent(x, e.SessionEvent, -1)
		}
	}
}

func (s *Store) countEvent(x *session, e *pb.SessionEvent, by int) {
	size := by * eventSize(e)
	x.eventBytes += size
	s.bytes += int64(size)
}

// acknowledge takes what a command of the session says about what its client
// has got: events up to acked, answers below lowest. The caller has to call
// rehashSession, for what it does to the record itself too.
//
// Invariants: acked < nextEvent; lowest <= last + 1; both only grow.
func (s *Store) acknowledge(id, acked, lowest uint64) *session {
	x, _ := s.ownSession(id)
	if acked = min(acked, x.nextEvent-1); acked > x.acked {
		s.dropEvents(id, x, acked)
		x.acked = acked
	}
	if lowest = min(lowest, x.last+1); lowest > x.lowest {
		s.dropResults(x, lowest)
		x.lowest = lowest
	}
	return x
}

// Session returns what the master needs of a session.
func (s *Store) Session(id uint64) (SessionView, bool) {
	x, ok := s.session(id)
	if !ok {
		return SessionView{}, false
	}
	return x.view(id), true
}

// SessionOf returns the session that an OpenSession with this nonce finds.
func (s *Store) SessionOf(nonce []byte) (id uint64, ok bool) {
	item, ok := s.nonces.Get(nonceItem{nonce: string(nonce)})
	return item.id, ok
}

func (x *session) view(id uint64) SessionView {
	return SessionView{
		ID: id, Nonce: []byte(x.nonce), LeaseMS: x.leaseMS, Client: x.client,
		LastNumber: x.last, LastChange: x.lastChange, OpenedMS: x.openedMS,
		Locks: x.locks, Lost: x.ghosts, Waiting: x.waiting, Ephemerals: x.ephemerals,
		LeaseEndCell: x.leaseEnd,
	}
}

// Sessions calls f for the sessions with numbers above after, in the order of
// their numbers, until f returns false.
func (s *Store) Sessions(after uint64, f func(SessionView) bool) {
	s.sessions.AscendGreaterOrEqual(sessionItem{id: after}, func(i sessionItem) bool {
		return i.id == after || f(i.view(i.id))
	})
}

// Events calls f for the events of a session that are not acknowledged, with
// numbers above after, in order, until f returns false.
func (s *Store) Events(session, after uint64, f func(*pb.SessionEvent) bool) {
	s.events.AscendGreaterOrEqual(eventItem{session: session, number: after}, func(i eventItem) bool {
		if i.session != session {
			return false
		}
		return i.number == after || f(i.SessionEvent)
	})
}
