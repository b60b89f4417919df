package store

import (
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// session is the record of a session; its number is the revision of its
// opening. Never written once it is in the table.
type session struct {
	nonce      string
	client     *pb.ClientInfo
	leaseMS    uint64
	last       uint64 // highest request number executed or voided
	lowest     uint64 // results below it are dropped; at most last + 1
	nextEvent  uint64 // number of the next event, from 1
	acked      uint64 // events up to it are dropped; less than nextEvent
	lastChange uint64 // moves with what concerns its life, so not with requests
	openedMS   int64
	hash       uint64
	who        uint64 // hash of what never changes: number, nonce, client
	caches     bool

	// Counts of what the session has in other tables; not part of the hash.
	locks      int // live holdings
	ghosts     int // holdings that were lost
	waiting    int
	ephemerals int
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

type resultItem struct {
	session, number uint64
	hash            uint64
	*pb.Result
}

func lessResult(a, b resultItem) bool {
	if a.session != b.session {
		return a.session < b.session
	}
	return a.number < b.number
}

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

// replaceSession puts a record in the table, and returns the one before.
func (s *Store) replaceSession(id uint64, x *session) (old sessionItem, was bool) {
	s.recent = sessionItem{id, x}
	return s.sessions.ReplaceOrInsert(s.recent)
}

func (s *Store) putSession(id uint64, x *session) {
	x.hash = x.computeHash(id)
	if old, was := s.replaceSession(id, x); was {
		s.sum -= old.hash
	}
	s.sum += x.hash
}

// editSession replaces the record of a session, if there is one, by a copy
// that f has edited.
func (s *Store) editSession(id uint64, f func(*session)) {
	old, ok := s.session(id)
	if !ok {
		return
	}
	edited := *old
	f(&edited)
	s.putSession(id, &edited)
}

// recount is editSession for the counts, which the hash leaves out.
func (s *Store) recount(id uint64, f func(*session)) {
	old, ok := s.session(id)
	if !ok {
		return
	}
	edited := *old
	f(&edited)
	s.replaceSession(id, &edited)
}

func (s *Store) countClaim(c *claim, by int) {
	switch c.state {
	case waiting:
		s.recount(c.session, func(x *session) { x.waiting += by })
	case held:
		s.recount(c.session, func(x *session) { x.locks += by })
	case ghost:
		s.recount(c.session, func(x *session) { x.ghosts += by })
	}
}

func (s *Store) countEphemeral(owner uint64, by int) {
	s.recount(owner, func(x *session) { x.ephemerals += by })
}

// open executes an OpenSession.
func (s *Store) open(o *pb.OpenSession) *pb.Result {
	if n := len(o.Nonce); n < NonceMin || n > NonceMax {
		return refuse(pb.Code_BAD_COMMAND, "the nonce is %d bytes long, it must be %d to %d", n, NonceMin, NonceMax)
	}
	client := o.GetClient()
	if len(client.GetName()) > TextMax || len(client.GetHost()) > TextMax {
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
	s.putSession(id, x)
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
		case c.state == waiting || how == workEnded:
			s.end(c)
		case how == closed:
			// Work that began to stop with the close may take as long as if the
			// client had not been heard of any more.
			s.haunt(c, later(s.cellTime, c.leaseMS+c.delayMS))
		default:
			// The lease is over, so the lock-delay alone is left, for what was
			// lost before too.
			s.haunt(c, later(s.cellTime, c.delayMS))
		}
	}
	var paths []string
	s.ephemerals.AscendGreaterOrEqual(ephemeralItem{owner: id}, func(e ephemeralItem) bool {
		if e.owner == id {
			paths = append(paths, e.path)
		}
		return e.owner == id
	})
	for _, path := range paths {
		s.deleteNode(path)
	}
	s.dropEvents(id, 1<<64-1)
	s.dropResults(id, 1<<64-1)
	x, _ := s.session(id)
	s.nonces.Delete(nonceItem{nonce: x.nonce})
	s.sessions.Delete(sessionItem{id: id})
	s.recent = sessionItem{}
	s.sum -= x.hash
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
	if _, ok := s.session(id); !ok {
		return
	}
	s.editSession(id, func(x *session) {
		e.Number = x.nextEvent
		x.nextEvent++
	})
	e.Revision = s.now
	h := hashOfEvent(id, e)
	s.events.ReplaceOrInsert(eventItem{id, e.Number, h, e})
	s.sum += h
	s.changed = true
	s.changes = append(s.changes, Change{Kind: ChangeSessionEvent, Session: id, Event: e, Revision: s.now})
}

// dropEvents drops a session's events up to and with the given number.
func (s *Store) dropEvents(id, upTo uint64) {
	for {
		first, found := eventItem{}, false
		s.events.AscendGreaterOrEqual(eventItem{session: id}, func(e eventItem) bool {
			first, found = e, e.session == id && e.number <= upTo
			return false
		})
		if !found {
			return
		}
		s.events.Delete(first)
		s.sum -= first.hash
	}
}

// dropResults drops a session's results below the given number.
func (s *Store) dropResults(id, below uint64) {
	for {
		first, found := resultItem{}, false
		s.results.AscendGreaterOrEqual(resultItem{session: id}, func(r resultItem) bool {
			first, found = r, r.session == id && r.number < below
			return false
		})
		if !found {
			return
		}
		s.results.Delete(first)
		s.sum -= first.hash
	}
}

// acknowledge takes what a command of the session says about what its client
// has got: events up to acked, answers below lowest.
//
// Invariants: acked < nextEvent; lowest <= last + 1; both only grow.
func (s *Store) acknowledge(id uint64, acked, lowest uint64) {
	x, _ := s.session(id)
	acked = max(min(acked, x.nextEvent-1), x.acked)
	lowest = max(min(lowest, x.last+1), x.lowest)
	if acked == x.acked && lowest == x.lowest {
		return
	}
	if acked > x.acked {
		s.dropEvents(id, acked)
	}
	if lowest > x.lowest {
		s.dropResults(id, lowest)
	}
	s.editSession(id, func(x *session) { x.acked, x.lowest = acked, lowest })
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
