package master

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// Leases live in the master's memory (Burrows, OSDI 2006, section 2.8): a
// renewal costs no log entry. A session's lease runs at the master from an
// instant S at which this replica was proven to lead; the client counts from
// when it sent its message, for S - arrival + L. The message took some time to
// arrive, so the client's lease ends first, drift allowed for at the client.
//
// Deadlines are kept in lease time: the clock of this loop less the time in
// which the loop did not run or was behind, or its lead was not proven. A master
// that was frozen has not read what its clients sent meanwhile, and one whose
// lead is not proven could not answer them: such time must not count against
// them, and adding it to the clock's correction moves every deadline at once.

const (
	// behindGap is the longest time between two events in which the loop counts as
	// running; a tick comes every 20 ms.
	behindGap = 100 * time.Millisecond
	// frozenGap is from when on the operator is told of it.
	frozenGap = 500 * time.Millisecond
	// unprovenGap is how long a proof of leadership may take before the lead counts
	// as not proven.
	unprovenGap = time.Second
)

// Bounds of what one tick proposes.
const (
	expireBatch    = 256  // expiries a tick
	expireInFlight = 1024 // expiries proposed and undecided
)

// undecided is how long a session lives on at least when its expiry turned out
// void, or when its client was answered, so that the client can renew.
const undecided = time.Second

// NoteExpiring is the text of the note that tells of a proposed expiry.
const NoteExpiring = "session is to expire: its lease has ended, and nothing was heard of its client"

// deadline is an entry of the tree of deadlines. Each live session that is not
// being expired has exactly one; it may be earlier than the session's deadline
// (renewals only move the session's), and later only while a KeepAlive is in hand
// or its answer has just left.
type deadline struct {
	at time.Duration // lease time
	id uint64
}

func (d deadline) less(o deadline) bool {
	if d.at != o.at {
		return d.at < o.at
	}
	return d.id < o.id
}

// heldUntil is an entry of the tree of held KeepAlives.
type heldUntil struct {
	at   time.Duration
	conn ConnID
}

func (h heldUntil) less(o heldUntil) bool {
	if h.at != o.at {
		return h.at < o.at
	}
	return h.conn < o.conn
}

// leaseTime converts an instant of the loop's clock.
func (m *Master) leaseTime(t time.Duration) time.Duration { return t - m.frozen }

// passTime takes the time that an event comes with, and accounts for what has
// passed since the last one if that does not count against sessions.
func (m *Master) passTime(now time.Duration) {
	m.now = now
	gap := now - m.lastRun
	m.lastRun = now
	if gap > behindGap && !invariant.Planted(invariant.FrozenTimeCounts) {
		m.frozen += gap
	}
	if gap > frozenGap && m.role.active {
		m.note("warn", "the replica did not run for a while; all leases are longer by that",
			"gap", gap.Round(time.Millisecond).String())
	}
	// Lease time stands still at the beginning of the oldest round that is not
	// proven. It may go back to there: that only lengthens leases.
	if f := m.rounds.flying; len(f) > 0 && now-f[0].begun > unprovenGap {
		m.frozen = max(m.frozen, now-f[0].lease)
	}
}

// grant gives a session its lease as of the instant s and returns its length in
// milliseconds; false: it gets none now.
func (m *Master) grant(s *session, since time.Duration) (uint64, bool) {
	if s.expiring || s.ended || (s.noted && !invariant.Planted(invariant.NotedGetsLease)) {
		return 0, false
	}
	// The news goes ahead of every renewal: a client that learns from here that its
	// session lives on has been sent each event of it on this connection.
	if s.attaching || s.told < s.news {
		invariant.Assert(false, "a lease goes to session %d ahead of its events: attaching %v, told %d of %d", s.id, s.attaching, s.told, s.news)
	}
	invariant.Assert(m.role.active && since >= m.role.since && since <= m.now,
		"a lease runs from a proven instant that is not to come: as of %v, now %v", since, m.now)
	s.renewed = max(s.renewed, since)
	// A lease that was promised is never taken back: the deadline only grows.
	s.deadline = max(s.deadline, m.leaseTime(since)+s.lease)
	return uint64(s.lease / time.Millisecond), true
}

// left returns what is left of a session's lease in milliseconds.
func (m *Master) left(id uint64) int64 {
	s := m.sessions[id]
	if s == nil || s.ended {
		return -1
	}
	return max(0, int64((s.deadline-m.leaseTime(m.now))/time.Millisecond))
}

// keepAlive takes a KeepAlive: it is held until a third of the shortest lease
// is used, four seconds at most. A connection has one held; another lets it go, to be answered ahead.
func (m *Master) keepAlive(c *conn, k *wirepb.KeepAlive) {
	if m.notMaster(c, &wirepb.Error{Id: k.GetId()}) {
		return
	}
	if len(k.GetSessions()) > maxKeepAlive {
		m.limited(c, LimitKeepAlive, &wirepb.Error{Code: wirepb.ErrorCode_TOO_MANY, Id: k.GetId(),
			Text: fmt.Sprintf("%d sessions in one KeepAlive, more than a connection can have, which is %d: name each once", len(k.GetSessions()), maxKeepAlive)})
		return
	}
	m.count.KeepAlives++
	if c.keep != nil {
		m.answerKeep(c)
		if c.closing {
			return
		}
	}
	h := &hand{conn: c, open: true}
	due := m.keepDue(h, k)
	m.clearNotes()
	c.keep, c.keepHand, c.keepAt, c.keepDue = k, h, m.now, due
	if due <= m.now {
		m.answerKeep(c)
		return
	}
	m.held.ReplaceOrInsert(heldUntil{due, c.id})
}

// keepDue notes that the sessions of a KeepAlive are heard of, and returns until
// when it is held.
func (m *Master) keepDue(h *hand, k *wirepb.KeepAlive) time.Duration {
	due, some := m.now+defaultLease/3, false
	for _, id := range k.GetSessions() {
		s := m.sessions[id]
		if s == nil || s.ended {
			due, some = m.now, true // there is something to tell
			continue
		}
		if s.conn == h.conn {
			s.hand = h
			m.unnote(s)
		}
		if s.conn == h.conn && (s.expiring || (s.noted && !invariant.Planted(invariant.NotedGetsLease))) {
			// It gets no lease now: once that is decided its KeepAlive is let go.
			due = min(due, m.now+s.lease/3)
			continue
		}
		some = true
		due = min(due, s.renewed+s.lease/3)
	}
	if k.GetNow() && some {
		return m.now
	}
	return due
}

// hand is a KeepAlive from its arrival to its answer. It is shared by the
// sessions that it names.
type hand struct {
	conn *conn
	open bool
	end  time.Duration // of it, in lease time
}

// drop ends it: it was answered, or never will be.
func (h *hand) drop(m *Master) { h.open, h.end = false, m.leaseTime(m.now) }

// inHand reports whether the session's client has been heard and waits for the
// answer: to a KeepAlive, to an Attach, or to the repeat of its opening.
func (s *session) inHand() bool {
	return s.opening != nil || s.conn != nil && (s.attaching || (s.hand != nil && s.hand.open && s.hand.conn == s.conn))
}

// answeredLast returns when the last KeepAlive, Attach or opening was answered, in lease time.
func (s *session) answeredLast() time.Duration {
	if s.hand != nil && !s.hand.open {
		return max(s.answered, s.hand.end)
	}
	return s.answered
}

// dropHeld forgets a connection's held KeepAlive.
func (m *Master) dropHeld(c *conn) {
	if c.keep != nil {
		m.unhold(c).drop(m)
	}
}

// unhold takes the KeepAlive that a connection has held.
func (m *Master) unhold(c *conn) *hand {
	m.held.Delete(heldUntil{c.keepDue, c.id})
	h := c.keepHand
	c.keep, c.keepHand = nil, nil
	return h
}

// answerKeep lets the held KeepAlive go: it is answered with the next proof of
// leadership, begun from now on.
func (m *Master) answerKeep(c *conn) {
	k, at := c.keep, c.keepAt
	m.wait(waiter{conn: c, arrival: at, keep: k, hand: m.unhold(c)})
}

// letGo lets the KeepAlive go that is held where a session is attached, because
// there is something to tell.
func (m *Master) letGo(s *session) {
	if s.conn != nil && s.conn.keep != nil {
		m.answerKeep(s.conn)
	}
}

// answerHeld lets go the KeepAlives whose time has come.
func (m *Master) answerHeld() {
	for {
		h, ok := m.held.Min()
		if !ok || h.at > m.now {
			return
		}
		c := m.conns[h.conn]
		invariant.Assert(c != nil && c.keep != nil, "a held KeepAlive belongs to an open connection: %d", h.conn)
		m.answerKeep(c)
	}
}

// kept answers a KeepAlive as of the proven instant since.
func (m *Master) kept(w *waiter, since time.Duration) {
	w.hand.drop(m)
	r := &wirepb.KeepAliveReply{Id: w.keep.GetId(), HeldNs: int64(since - w.arrival), Epoch: m.role.epoch}
	ids := w.keep.GetSessions()
	r.Leases = make([]*wirepb.SessionLease, 0, len(ids))
	for _, id := range ids {
		s := m.sessions[id]
		if s == nil || s.ended {
			r.Gone = append(r.Gone, id)
			continue
		}
		// A session that is attached elsewhere is kept alive there. One whose Attach
		// is not answered has not been sent its events on this connection.
		if s.conn != w.conn || (s.attaching && !invariant.Planted(invariant.LeaseAheadOfNews)) {
			continue
		}
		if lease, ok := m.grant(s, since); ok {
			r.Leases = append(r.Leases, &wirepb.SessionLease{Session: id, LeaseMs: lease})
		}
	}
	m.send(w.conn, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Kept{Kept: r}})
}

// expire proposes the end of sessions whose lease has run out. From here until
// the outcome they get no lease: the command may already be chosen.
func (m *Master) expire() {
	now := m.leaseTime(m.now)
	for n := 0; n < expireBatch && m.expiring < expireInFlight; {
		d, ok := m.deadlines.Min()
		if !ok || d.at > now {
			return
		}
		m.deadlines.DeleteMin()
		s := m.sessions[d.id]
		if s == nil || s.ended {
			continue
		}
		if s.deadline > now {
			m.deadlines.ReplaceOrInsert(deadline{s.deadline, s.id})
			continue
		}
		if s.inHand() && !invariant.Planted(invariant.ExpiresInHand) {
			// Its client was heard in time and waits for a proof of leadership.
			m.deadlines.ReplaceOrInsert(deadline{now + behindGap, s.id})
			continue
		}
		if until := s.answeredLast() + undecided; s.conn != nil && until > now && !invariant.Planted(invariant.AnsweredIsSilent) {
			// Its client was answered, without a lease, and has had no time to ask for one.
			m.deadlines.ReplaceOrInsert(deadline{until, s.id})
			continue
		}
		v, ok := m.st.Session(s.id)
		if !ok {
			continue
		}
		s.expiring = true
		m.expiring++
		n++
		m.note("debug", NoteExpiring, "session", s.id)
		m.propose(&storepb.Command{Op: &storepb.Command_ExpireSession{
			ExpireSession: &storepb.ExpireSession{Session: s.id, LastChange: v.LastChange}}})
	}
}

// expireVoid resumes the renewals of a session whose expiry did not happen.
func (m *Master) expireVoid(s *session) {
	if !s.expiring {
		return
	}
	s.expiring = false
	m.expiring--
	if s.ended {
		return
	}
	s.deadline = max(s.deadline, m.leaseTime(m.now)+undecided)
	m.deadlines.ReplaceOrInsert(deadline{s.deadline, s.id})
	switch {
	case s.noted && s.inHand():
		m.unnote(s)
	case !s.noted:
		m.listen(s, m.leaseTime(m.now))
		m.letGo(s)
	}
}

// adopt takes a session of the state into the master's memory, with a full
// lease from now or, if it is noted, what is left of its lease.
func (m *Master) adopt(v store.SessionView) *session {
	lease := time.Duration(v.LeaseMS) * time.Millisecond
	s := &session{id: v.ID, client: v.Client, last: v.LastNumber, lease: lease, renewed: m.now}
	m.heard(s)
	if s.noted = v.LeaseEndCell != 0; s.noted {
		lease = m.noteLeft(lease, v.LeaseEndCell)
	} else {
		m.listen(s, s.heard)
	}
	s.deadline = m.leaseTime(m.now) + lease
	m.sessions[v.ID] = s
	m.deadlines.ReplaceOrInsert(deadline{s.deadline, s.id})
	return s
}
