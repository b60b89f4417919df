package machine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// read is a read under way. It changes nothing, so it is simply sent again
// until it is answered.
type read struct {
	id        CallID
	wire      uint64
	msg       *pb.Read
	sent      bool
	notBefore time.Duration
	// What is sent, with msg in it: each time the same, for it never changes.
	message pb.ClientMessage
	body    pb.ClientMessage_Read
}

type reads struct {
	all    map[uint64]*read // by id on the wire
	unsent []*read          // in order
	sent   int
}

func (q *reads) init() { q.all = make(map[uint64]*read) }

func (m *Machine) startRead(e Read) {
	if m.refuse(e.ID) {
		return
	}
	if len(m.reads.all) >= callsMax {
		m.done(Done{ID: e.ID, Err: fmt.Errorf("%w: %d reads wait in this client", ErrLimit, len(m.reads.all))})
		return
	}
	r := &read{id: e.ID, wire: m.nextID(), msg: e.Read}
	r.msg.Id = r.wire
	r.body.Read = r.msg
	r.message.Body = &r.body
	m.calls[e.ID] = call{read: r}
	m.reads.all[r.wire] = r
	m.reads.unsent = append(m.reads.unsent, r)
}

func (m *Machine) flushReads() {
	q := &m.reads
	if len(q.unsent) == 0 {
		return
	}
	kept := q.unsent[:0]
	for _, r := range q.unsent {
		switch {
		case q.all[r.wire] != r || r.sent:
		case m.now < r.notBefore:
			kept = append(kept, r)
		default:
			m.expect()
			r.sent = true
			q.sent++
			m.send(&r.message)
		}
	}
	clear(q.unsent[len(kept):])
	q.unsent = kept
}

func (m *Machine) readsUnsent() {
	q := &m.reads
	q.sent = 0
	q.unsent = q.unsent[:0]
	for _, id := range slices.Sorted(maps.Keys(q.all)) {
		r := q.all[id]
		r.sent = false
		q.unsent = append(q.unsent, r)
	}
}

func (m *Machine) readReply(p *pb.ReadReply) {
	if r := m.reads.all[p.GetId()]; r != nil {
		m.readDone(r, Done{ID: r.id, Read: p})
	}
}

func (m *Machine) readDone(r *read, d Done) {
	delete(m.reads.all, r.wire)
	if r.sent {
		m.reads.sent--
	}
	m.done(d)
}

func (m *Machine) cancelRead(r *read) {
	m.readDone(r, Done{ID: r.id, Err: ErrCanceled})
}

func (m *Machine) failReads(err error) {
	for _, id := range slices.Sorted(maps.Keys(m.reads.all)) {
		r := m.reads.all[id]
		m.readDone(r, Done{ID: r.id, Err: err})
	}
	m.reads.unsent = nil
}

// checkReads ends the calls of a Machine without a session that has found no
// master for the grace period; with a session, the session's end does that.
func (m *Machine) checkReads() {
	if w := m.outageEnd(); w == 0 || m.now < w {
		return
	}
	err := fmt.Errorf("%w: no master was reached for %v: %s", ErrUnavailable, m.o.Grace, m.Attempts())
	m.failReads(err)
	m.failWatches(err)
	m.link.outage = m.now
}

func (m *Machine) outageEnd() time.Duration {
	if !m.o.NoSession || m.state != Live || m.link.phase == linkReady {
		return 0
	}
	return span.Add(m.link.outage, m.o.Grace)
}

func (m *Machine) readWake() time.Duration {
	w := m.outageEnd()
	if m.link.phase == linkReady && m.state == Live {
		for _, r := range m.reads.unsent {
			if w == 0 || r.notBefore < w {
				w = r.notBefore
			}
		}
	}
	return w
}

// refused takes an Error of the service: about a request, a read, a watch, the
// opening, or the connection.
func (m *Machine) refused(e *pb.Error) {
	wait := span.Millis(e.GetRetryAfterMs())
	err := serviceError(e)
	switch e.GetCode() {
	case pb.ErrorCode_NOT_MASTER, pb.ErrorCode_NO_MASTER, pb.ErrorCode_SHUTTING_DOWN, pb.ErrorCode_TOO_SLOW:
		m.lostLink(err, e.GetMasterAddress(), wait)
		return
	case pb.ErrorCode_UNKNOWN_SESSION:
		// It may only be attached to another connection, by an Attach of ours
		// that was long on its way. The answer to a new Attach tells for certain.
		if m.link.phase >= linkAttaching {
			m.lostLink(err, "", wait)
			return
		}
	case pb.ErrorCode_WRONG_CELL, pb.ErrorCode_BAD_VERSION:
		if m.state == Connecting {
			if m.skip(m.link.address, err); !m.ended() {
				m.lostLink(err, "", 0)
			}
			return
		}
	}
	overloaded := e.GetCode() == pb.ErrorCode_OVERLOADED
	if r := m.reqs.numbered.get(e.GetNumber()); e.GetNumber() != 0 && e.GetSession() == m.lease.session {
		switch {
		case r == nil:
		case overloaded:
			m.delayRequest(r, wait)
		default:
			m.refuseRequest(r, err)
		}
	} else if e.GetId() != 0 {
		m.refusedID(e, err, wait)
	} else if m.link.phase < linkReady || e.GetFatal() {
		m.lostLink(err, e.GetMasterAddress(), wait)
		return
	}
	if e.GetFatal() && !m.ended() && m.link.phase != linkDown {
		m.lostLink(err, e.GetMasterAddress(), wait)
	}
}

// refusedID takes an error that names a read, a watch or the opening.
func (m *Machine) refusedID(e *pb.Error, err error, wait time.Duration) {
	overloaded := e.GetCode() == pb.ErrorCode_OVERLOADED
	if m.link.phase == linkOpening && e.GetId() == m.link.openID {
		if overloaded {
			m.lostLink(err, "", wait)
		} else {
			m.end(Closed, err)
		}
		return
	}
	if r := m.reads.all[e.GetId()]; r != nil {
		switch {
		case overloaded:
			if r.sent {
				r.sent = false
				m.reads.sent--
			}
			r.notBefore = span.Add(m.now, max(wait, retryMin))
			m.reads.unsent = append(m.reads.unsent, r)
		case e.GetCode() == pb.ErrorCode_READ_NOT_FOUND:
			m.readDone(r, Done{ID: r.id, Read: &pb.ReadReply{Id: r.wire, Code: storepb.Code_NOT_FOUND, Detail: e.GetText()}})
		default:
			m.readDone(r, Done{ID: r.id, Err: err})
		}
		return
	}
	m.refusedWatch(e.GetId(), err, overloaded, wait)
}

// serviceError is a refusal of the service as an error for errors.Is.
func serviceError(e *pb.Error) error {
	base := ErrUnavailable
	switch e.GetCode() {
	case pb.ErrorCode_WRONG_CELL:
		base = ErrWrongCell
	case pb.ErrorCode_BAD_VERSION, pb.ErrorCode_BAD_MESSAGE, pb.ErrorCode_INVALID_ARGUMENT:
		base = ErrInvalid
	case pb.ErrorCode_FRAME_TOO_LARGE:
		base = ErrTooLarge
	case pb.ErrorCode_TOO_MANY:
		return &LimitError{Limit: e.GetLimit(), Text: "the service says: " + e.GetText()}
	}
	text := e.GetText()
	if text == "" {
		text = e.GetCode().String()
	}
	return fmt.Errorf("%w: the service says: %s", base, text)
}
