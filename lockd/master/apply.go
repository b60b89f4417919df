package master

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// Command tells that a command was applied to the store, with what came of it.
// A replica that does not lead has nobody to tell.
func (m *Master) Command(now time.Duration, command []byte, r *storepb.Result, changes []store.Change) {
	m.now = now
	m.timers.known = false
	if !m.role.active {
		return
	}
	h := parseHeader(command)
	if h.epoch != m.role.epoch {
		// Void: an earlier master proposed it. What this one has proposed of the same
		// number has its own outcome.
		invariant.Assert(r.GetCode() == storepb.Code_STALE_EPOCH && len(changes) == 0,
			"a command of epoch %d has an effect in epoch %d", h.epoch, m.role.epoch)
		return
	}
	s := m.sessions[h.session]
	// The answer goes ahead of the events that the command caused, for the
	// session that asked.
	if s != nil && h.number != 0 {
		s.settled(h.number, r)
		if m.done(s, h.number) {
			if h.op == opAcquire && r.GetGrant() != nil {
				m.count.Granted++
			}
			if r.GetLimit() != "" {
				m.met(r.GetLimit())
			}
			m.reply(s, r)
		}
	}
	m.changes(&h, changes)
	switch h.op {
	case opOpen:
		_, nonce := field(h.body, openNonce)
		if o := m.opening[string(nonce)]; o != nil && o.applied == nil {
			o.applied = r
			m.growing = m.growing.minus(o.grows)
			m.opened(o)
		}
	case opExpire:
		id, _ := field(h.body, expireSession)
		// Still there: the expiry was void.
		if s := m.sessions[id]; s != nil {
			m.expireVoid(s)
		}
	case opTimers:
		m.timers.pending = false
	case opNote:
		m.noted(h.body, true)
	case opBreak:
		if r.GetCode() == storepb.Code_OK {
			m.noteBroken(h.session, h.body)
		}
	}
	if s != nil {
		m.settle(s)
	}
}

// changes turns what a command did into events and watches' work.
func (m *Master) changes(h *header, changes []store.Change) {
	if !m.role.active {
		return
	}
	m.watches.record(m, changes)
	for i := range changes {
		c := &changes[i]
		switch c.Kind {
		case store.ChangeSessionOpened:
			if v, ok := m.st.Session(c.Session); ok && m.sessions[c.Session] == nil {
				m.adopt(v)
				m.note("debug", "session opened", "session", c.Session, "lease_ms", v.LeaseMS,
					"client", v.Client.GetName(), "host", v.Client.GetHost(), "pid", v.Client.GetPid())
			}
		case store.ChangeSessionClosed:
			if h != nil && h.op == opExpire {
				m.count.Expired++
				m.noteExpired(c.Session)
			} else {
				m.note("debug", "session closed", "session", c.Session)
			}
			m.ended(c.Session)
		case store.ChangeSessionEvent:
			if c.Event.GetCode() == storepb.Code_GRANTED {
				m.count.Granted++
			}
			s := m.sessions[c.Session]
			if s == nil || s.ended {
				continue
			}
			s.news = max(s.news, c.Event.GetNumber())
			if !s.attaching && s.conn != nil {
				m.sendEvent(s, c.Event)
			}
		}
	}
}

// noteExpired tells the operator's log whose session has expired.
func (m *Master) noteExpired(id uint64) {
	var who *storepb.ClientInfo
	if s := m.sessions[id]; s != nil {
		who = s.client
	}
	m.note("info", "session expired", "session", id, "client", who.GetName(), "host", who.GetHost(), "pid", who.GetPid())
}

// noteBroken tells the operator's log who broke which lock.
func (m *Master) noteBroken(by uint64, body []byte) {
	var b storepb.Break
	if err := proto.Unmarshal(body, &b); err != nil {
		invariant.Unreachable("a Break that was executed was decoded for it")
		return
	}
	v, _ := m.st.Session(by)
	m.note("warn", "lock broken", "path", b.GetPath(), "fence", b.GetFence(), "session", by,
		"client", v.Client.GetName(), "host", v.Client.GetHost())
}

// Entry tells that the entry of a slot is applied, with all its commands.
func (m *Master) Entry(now time.Duration, slot paxos.Slot) {
	m.now = now
	m.applied = slot
	m.serveProven()
}

// Dropped tells that commands were not proposed: nothing has come of them.
func (m *Master) Dropped(now time.Duration, commands [][]byte) {
	m.now = now
	for _, c := range commands {
		h := parseHeader(c)
		if !m.role.active || h.epoch != m.role.epoch {
			continue // its asker was sent away
		}
		switch h.op {
		case opOpen:
			_, nonce := field(h.body, openNonce)
			if o := m.opening[string(nonce)]; o != nil && o.applied == nil {
				m.removeOpening(o)
				m.growing = m.growing.minus(o.grows)
				m.sendError(o.conn, &wirepb.Error{Code: wirepb.ErrorCode_OVERLOADED, Id: o.id, RetryAfterMs: retryOverloaded,
					Text: "the log did not take it; try again soon"})
			}
			continue
		case opExpire:
			id, _ := field(h.body, expireSession)
			if s := m.sessions[id]; s != nil {
				m.expireVoid(s)
			}
			continue
		case opTimers:
			m.timers.pending = false
			continue
		case opNote:
			m.noted(h.body, false)
			continue
		}
		s := m.sessions[h.session]
		if s == nil {
			continue
		}
		if h.number == 0 { // acknowledgements
			s.logged = 0
			continue
		}
		if m.done(s, h.number) {
			m.count.Refused++
			m.sendError(s.conn, &wirepb.Error{Code: wirepb.ErrorCode_OVERLOADED, Session: s.id, Number: h.number,
				RetryAfterMs: retryOverloaded, Text: "the log did not take it; repeat it soon"})
			m.settle(s)
		}
	}
}
