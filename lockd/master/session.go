package master

import (
	"crypto/subtle"
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// session is what the master keeps of a session beside its record in the state.
type session struct {
	id    uint64
	conn  *conn // attached to, nil when to none
	place int   // index in conn.sessions

	client *storepb.ClientInfo // for people; not to be changed

	lease    time.Duration
	renewed  time.Duration // the instant that the present lease runs from
	deadline time.Duration // its end, in lease time
	expiring bool          // its expiry is proposed and undecided: no lease
	ended    bool          // it has ended; here until its last request is answered

	// attaching is set from the arrival of an Attach to its answer, which goes
	// ahead of the events.
	attaching bool
	hand      *hand         // the last KeepAlive that named it
	heard     time.Duration // of, by anything else, in lease time
	answered  time.Duration // the last Attach, in lease time

	noted    bool     // a note of its silence is proposed or in the state: no lease
	clearing bool     // and the command that clears it is proposed
	opening  *opening // is answered when it is cleared

	news uint64 // highest event that is known here
	told uint64 // the same as sent to conn

	requests []request // proposed and not applied, by number
	last     uint64    // a number up to which all are executed or void; may lag

	acked   uint64 // highest event acknowledged by the client
	logged  uint64 // the same as proposed to the log
	ackWait bool   // is in Master.acks
}

// opening is an OpenSession on its way.
type opening struct {
	nonce   string
	id      uint64 // the client's
	conn    *conn
	arrival time.Duration
	grows   size // the state, until it is applied
	// Both are needed for the answer.
	applied *storepb.Result
	proven  bool
	since   time.Duration
}

// bind attaches a session to a connection; an older one loses it.
func (m *Master) bind(s *session, c *conn) {
	if s.conn == c {
		return
	}
	m.unbind(s)
	s.told = 0
	s.conn, s.place = c, len(c.sessions)
	c.sessions = append(c.sessions, s)
}

func (m *Master) unbind(s *session) {
	c := s.conn
	if c == nil {
		return
	}
	last := len(c.sessions) - 1
	c.sessions[s.place] = c.sessions[last]
	c.sessions[s.place].place = s.place
	c.sessions[last] = nil
	c.sessions = c.sessions[:last]
	s.conn = nil
	m.heard(s)
}

// open proposes a new session, and asks for a proof of leadership beside it.
func (m *Master) open(c *conn, o *wirepb.OpenSession) {
	id := o.GetId()
	if m.notMaster(c, &wirepb.Error{Id: id}) {
		return
	}
	refuse := func(limit string, code wirepb.ErrorCode, text string) {
		m.limited(c, limit, &wirepb.Error{Code: code, Text: text, Id: id})
	}
	if n := len(o.GetNonce()); n < store.NonceMin || n > store.NonceMax {
		m.count.Refused++
		m.sendError(c, &wirepb.Error{Code: wirepb.ErrorCode_INVALID_ARGUMENT, Id: id,
			Text: fmt.Sprintf("a session's nonce has %d to %d random bytes, not %d", store.NonceMin, store.NonceMax, n)})
		return
	}
	if !m.mayWait(c, &wirepb.Error{Id: id}) {
		return
	}
	if name, host := len(o.GetClient().GetName()), len(o.GetClient().GetHost()); name > store.TextMax || host > store.TextMax {
		m.limited(c, store.LimitText, &wirepb.Error{Code: wirepb.ErrorCode_INVALID_ARGUMENT, Id: id,
			Text: fmt.Sprintf("the client's name has %d bytes and its host %d, the limit is %d", name, host, store.TextMax)})
		return
	}
	nonce := string(o.GetNonce())
	if again := m.opening[nonce]; again != nil {
		if again.conn != c && m.noRoom(c) {
			m.tooManySessions(c, &wirepb.Error{Id: id})
			return
		}
		// A repeat before the first was answered: the answer goes to the later.
		again.conn.opening--
		c.opening++
		again.id, again.conn, again.arrival = id, c, m.now
		again.proven = false
		m.wait(waiter{conn: c, arrival: m.now, open: again})
		return
	}
	// A repeat whose first answer was lost makes no session, so no limit concerns it.
	was, repeat := m.st.SessionOf(o.GetNonce())
	if n, _ := m.st.Counts(); n+len(m.opening) >= m.o.MaxSessions && !repeat {
		refuse(LimitSessions, wirepb.ErrorCode_TOO_MANY, fmt.Sprintf("the cell has %d sessions, the limit is %d: end some first (lockctl sessions lists them)", n, m.o.MaxSessions))
		return
	}
	if s := m.sessions[was]; m.noRoom(c) && (!repeat || s == nil || s.conn != c) {
		m.tooManySessions(c, &wirepb.Error{Id: id})
		return
	}
	if n := m.pending + len(m.opening); n >= m.o.MaxPending {
		refuse(LimitCalls, wirepb.ErrorCode_OVERLOADED, fmt.Sprintf("the service has %d requests under way, the limit is %d: try again soon", n, m.o.MaxPending))
		return
	}
	command := &storepb.Command{Op: &storepb.Command_OpenSession{OpenSession: &storepb.OpenSession{
		Nonce: o.GetNonce(), LeaseMs: o.GetLeaseMs(), Client: o.GetClient()}}}
	grows := growthMax(command)
	if e := m.full(command, grows); e != nil && !repeat {
		e.Id = id
		m.limited(c, e.Limit, e)
		return
	}
	lease := &command.GetOpenSession().LeaseMs
	if *lease == 0 {
		*lease = uint64(defaultLease / time.Millisecond)
	} // the store keeps it within its bounds, the answer says what it is
	open := &opening{nonce: nonce, id: id, conn: c, arrival: m.now, grows: grows}
	m.addOpening(open)
	m.growing = m.growing.plus(grows)
	m.propose(command)
	m.wait(waiter{conn: c, arrival: m.now, open: open})
}

func (m *Master) addOpening(o *opening) {
	m.opening[o.nonce] = o
	o.conn.opening++
}

func (m *Master) removeOpening(o *opening) {
	delete(m.opening, o.nonce)
	o.conn.opening--
}

// opened answers an OpenSession once it is applied and leadership is proven.
func (m *Master) opened(o *opening) {
	// A connection that has gone needs no proof, its opening only to be forgotten.
	if m.opening[o.nonce] != o || o.applied == nil || (!o.proven && !o.conn.closing) {
		return
	}
	m.removeOpening(o)
	r := o.applied
	if r.GetCode() != storepb.Code_OK {
		invariant.Unreachable("open refuses what the state would refuse, and no limit of the state concerns sessions")
		m.sendError(o.conn, &wirepb.Error{Code: wirepb.ErrorCode_INVALID_ARGUMENT, Id: o.id,
			Text: fmt.Sprintf("the session could not be opened: %v %s", r.GetCode(), r.GetDetail())})
		return
	}
	if o.conn.closing {
		return // unbound, it lives until its lease ends
	}
	s := m.sessions[r.GetSession()]
	if s != nil && s.noted && !s.ended && !s.expiring {
		// The repeat of an opening, late: its client is heard of.
		s.opening = o
		m.addOpening(o)
		m.unnote(s)
		m.clearNotes()
		return
	}
	if s == nil || s.ended || s.expiring {
		m.sendError(o.conn, &wirepb.Error{Code: wirepb.ErrorCode_UNKNOWN_SESSION, Id: o.id,
			Text: "the session that this nonce opened has ended or is ending; open another with a new nonce"})
		return
	}
	m.bind(s, o.conn)
	// A repeat may come late, when the session has events already.
	s.attaching = false
	s.answered = m.leaseTime(m.now) // its lease counts from o.since, which may be long ago
	m.sendEvents(s)
	lease, ok := m.grant(s, o.since)
	invariant.Assert(ok, "session %d gets a lease with its opening", s.id)
	m.send(o.conn, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Opened{Opened: &wirepb.OpenSessionReply{
		Id: o.id, Session: s.id, LeaseMs: lease, HeldNs: int64(o.since - o.arrival), Epoch: m.role.epoch}}})
}

// attach binds a session to another connection. The binding is at once, so that
// requests behind the Attach are taken; the answer needs a proof of leadership,
// because "it has ended" must be true.
func (m *Master) attach(c *conn, a *wirepb.Attach) {
	if m.notMaster(c, &wirepb.Error{Session: a.GetSession()}) {
		return
	}
	if s := m.known(a); s != nil {
		if s.conn != c && m.noRoom(c) {
			m.tooManySessions(c, &wirepb.Error{Session: s.id})
			return
		}
		if s.conn != c { // else all its events have been sent there
			m.bind(s, c)
			s.attaching = true
		}
		m.heard(s)
		m.unnote(s)
		m.clearNotes()
		m.remember(s, a.GetAckedEvent())
	}
	m.wait(waiter{conn: c, arrival: m.now, attach: a})
}

// known returns the live session that an Attach means, if its secret is right.
func (m *Master) known(a *wirepb.Attach) *session {
	s := m.sessions[a.GetSession()]
	if s == nil || s.ended {
		return nil
	}
	v, ok := m.st.Session(s.id)
	if !ok || subtle.ConstantTimeCompare(v.Nonce, a.GetNonce()) != 1 {
		return nil
	}
	return s
}

// attached answers an Attach: the reply, then every event that the client has
// not acknowledged, in order.
func (m *Master) attached(w *waiter) {
	a := w.attach
	r := &wirepb.AttachReply{Session: a.GetSession(), Epoch: m.role.epoch}
	msg := &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Attached{Attached: r}}
	s := m.known(a)
	if s == nil {
		r.Code = storepb.Code_UNKNOWN_SESSION
		m.send(w.conn, msg)
		return
	}
	if s.conn != w.conn {
		return // attached anew elsewhere meanwhile: that one is answered
	}
	if v, ok := m.st.Session(s.id); ok {
		r.LastNumber = v.LastNumber
	}
	s.attaching = false
	s.answered = m.leaseTime(m.now)
	m.send(w.conn, msg)
	m.sendEvents(s)
}

// sendEvents delivers every event that the client has not acknowledged, in order.
func (m *Master) sendEvents(s *session) {
	m.st.Events(s.id, s.acked, func(e *storepb.SessionEvent) bool {
		m.sendEvent(s, e)
		return true
	})
	s.told = s.news
}

// sendEvent delivers a session event; it is repeated with each attach until it
// is acknowledged.
func (m *Master) sendEvent(s *session, e *storepb.SessionEvent) {
	m.count.Events++
	s.news = max(s.news, e.GetNumber())
	s.told = s.news
	m.send(s.conn, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Event{Event: &wirepb.Event{Session: s.id, Event: e}}})
}

// ended forgets a session that the log has ended.
func (m *Master) ended(id uint64) {
	s := m.sessions[id]
	if s == nil || s.ended {
		return
	}
	s.ended = true
	if s.expiring {
		s.expiring = false
		m.expiring--
	}
	m.letGo(s) // tells that it is gone
	if o := s.opening; o != nil {
		s.opening = nil
		m.opened(o)
	}
	m.settle(s)
}

// settle drops an ended session once its last request is answered.
func (m *Master) settle(s *session) {
	if s.ended && len(s.requests) == 0 {
		m.unbind(s)
		delete(m.sessions, s.id)
	}
}

// ack takes the acknowledgement of events.
func (m *Master) ack(c *conn, a *wirepb.AckEvents) {
	if !m.serving() {
		return // the client repeats it in its Attach at the master
	}
	if s := m.sessions[a.GetSession()]; s != nil && s.conn == c {
		m.remember(s, a.GetNumber())
	}
}

// remember keeps an acknowledgement until a command carries it into the log.
func (m *Master) remember(s *session, number uint64) {
	if number <= s.acked {
		return
	}
	s.acked = number
	if !s.ackWait {
		s.ackWait = true
		m.acks = append(m.acks, ackDue{id: s.id, at: m.now + ackPatience})
	}
}
