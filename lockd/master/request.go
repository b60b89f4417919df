package master

import (
	"fmt"
	"slices"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// request is a logged request that is proposed and not applied.
type request struct {
	number uint64
	bytes  int
	grows  size
}

// allowed says what a client may ask the log for, and whether a limit may
// refuse it: what makes the service smaller always goes through.
func allowed(c *storepb.Command) (ok, exempt bool) {
	switch c.GetOp().(type) {
	case *storepb.Command_Create, *storepb.Command_Put, *storepb.Command_Delete,
		*storepb.Command_Acquire, *storepb.Command_Multi, *storepb.Command_BreakLock:
		return true, false
	case *storepb.Command_CloseSession, *storepb.Command_VoidRequest, *storepb.Command_Release, *storepb.Command_Forfeit:
		return true, true
	}
	return false, false
}

// request takes a logged request of a session.
func (m *Master) request(c *conn, r *wirepb.Request) {
	cmd := r.GetCommand()
	id, number := cmd.GetSession(), cmd.GetNumber()
	refuse := func(e *wirepb.Error) {
		m.count.Refused++
		e.Session, e.Number = id, number
		m.sendError(c, e)
	}
	if m.notMaster(c, &wirepb.Error{Session: id, Number: number}) {
		return
	}
	ok, exempt := allowed(cmd)
	if !ok {
		refuse(&wirepb.Error{Code: wirepb.ErrorCode_BAD_MESSAGE, Text: "a Request must hold one of the commands that a client may send"})
		return
	}
	if number == 0 {
		refuse(&wirepb.Error{Code: wirepb.ErrorCode_INVALID_ARGUMENT, Text: "requests of a session are numbered from 1"})
		return
	}
	s := m.sessions[id]
	if s == nil || s.conn != c {
		refuse(&wirepb.Error{Code: wirepb.ErrorCode_UNKNOWN_SESSION,
			Text: fmt.Sprintf("session %d is not attached to this connection: attach it first", id)})
		return
	}
	i, pending := s.find(number)
	if pending {
		return // a repeat: the answer goes to the connection that s is attached to now
	}
	// Only what can be executed in order goes into the log; the client repeats
	// the rest behind what it left out.
	if next, ok := m.mayPropose(s, number); !ok {
		m.reply(s, &storepb.Result{Code: storepb.Code_RETRY, Number: number, Revision: m.st.Revision(),
			Detail: fmt.Sprintf("the next number of the session is %d", next)})
		return
	}
	if limit, text := m.overloaded(s); limit != "" && !exempt {
		m.limited(c, limit, &wirepb.Error{Code: wirepb.ErrorCode_OVERLOADED, Session: id, Number: number, Text: text})
		return
	}
	grows := growthMax(cmd)
	if e := m.full(cmd, grows); e != nil {
		e.Session, e.Number = id, number
		m.limited(c, e.Limit, e)
		return
	}
	if m.endless(s) {
		m.cutOff(c, LimitSessionCalls, wirepb.ErrorCode_TOO_MANY, fmt.Sprintf(
			"%d requests of session %d have no answer yet, the limit is %d; wait for some", len(s.requests), id, m.o.MaxPendingSession))
		return
	}
	m.count.Requests++
	// Only the client's fields are taken over; the rest is the master's.
	acked := max(cmd.GetAckedEvent(), s.acked)
	s.acked, s.logged = acked, acked
	p := &m.proposal
	p.Session, p.Number = id, number
	p.LowestUnanswered, p.AckedEvent = cmd.GetLowestUnanswered(), acked
	p.Op = cmd.GetOp()
	size := m.propose(p)
	p.Op = nil // the client's message is not kept
	s.requests = slices.Insert(s.requests, i, request{number, size, grows})
	m.pending++
	m.bytes += size
	m.growing = m.growing.plus(grows)
}

// find returns where number stands among the session's requests.
func (s *session) find(number uint64) (int, bool) {
	n := len(s.requests)
	if n == 0 || s.requests[n-1].number < number { // nearly always
		return n, false
	}
	return slices.BinarySearchFunc(s.requests, number, func(r request, number uint64) int {
		switch {
		case r.number < number:
			return -1
		case r.number > number:
			return 1
		}
		return 0
	})
}

// settled notes that a request was executed or settled as void, as far as its
// result tells; where it leaves a doubt, mayPropose asks the state.
func (s *session) settled(number uint64, r *storepb.Result) {
	switch r.GetCode() {
	case storepb.Code_RETRY, storepb.Code_LIMIT, storepb.Code_BAD_COMMAND, storepb.Code_UNKNOWN_SESSION:
		return
	}
	s.last = max(s.last, number)
}

// mayPropose reports whether number can be executed behind what is executed and
// proposed; if not, next is the highest that can.
func (m *Master) mayPropose(s *session, number uint64) (next uint64, ok bool) {
	last := s.last
	if n := len(s.requests); n > 0 {
		last = max(last, s.requests[n-1].number)
	}
	if number <= last+1 {
		return number, true
	}
	if v, found := m.st.Session(s.id); found {
		s.last = max(s.last, v.LastNumber)
		last = max(last, s.last)
	}
	return last + 1, number <= last+1
}

// overloaded says which limit of what is under way is reached, "" none.
func (m *Master) overloaded(s *session) (limit, text string) {
	switch {
	case len(s.requests) >= m.o.MaxPendingSession:
		return LimitSessionCalls, fmt.Sprintf("the session has %d requests under way, the limit is %d: repeat this one when some are answered",
			len(s.requests), m.o.MaxPendingSession)
	case m.pending >= m.o.MaxPending:
		return LimitCalls, fmt.Sprintf("the service has %d requests under way, the limit is %d: repeat this one soon", m.pending, m.o.MaxPending)
	case m.bytes >= maxPendingBytes:
		return LimitCallBytes, fmt.Sprintf("the service has %d bytes of requests under way, the limit is %d: repeat this one soon", m.bytes, maxPendingBytes)
	}
	return "", ""
}

// done takes a request out of those under way and reports whether it was.
func (m *Master) done(s *session, number uint64) bool {
	i, ok := s.find(number)
	if !ok {
		return false
	}
	m.pending--
	m.growing = m.growing.minus(s.requests[i].grows)
	if !invariant.Planted(invariant.DroppedKeepsItsBytes) {
		m.bytes -= s.requests[i].bytes
	}
	if i == 0 {
		s.requests = s.requests[1:]
	} else {
		s.requests = slices.Delete(s.requests, i, i+1)
	}
	if len(s.requests) == 0 {
		s.requests = nil
	}
	return true
}

// reply sends a result to where the session is attached.
func (m *Master) reply(s *session, r *storepb.Result) {
	a := &struct { // in one piece, as there is one for each request
		message wirepb.ServerMessage
		body    wirepb.ServerMessage_Reply
		reply   wirepb.Reply
	}{}
	a.reply.Session, a.reply.Result = s.id, r
	a.body.Reply = &a.reply
	a.message.Body = &a.body
	m.send(s.conn, &a.message)
}

// encode encodes a command, once for log, disk and peers.
func encode(c *storepb.Command) []byte {
	b, err := c.MarshalVT()
	if err != nil {
		invariant.Unreachable("a command is of parts that were decoded, so it can be encoded")
		// The store answers an empty
		// command BAD_COMMAND; a made-up one here would be worse.
		b, _ = proto.Marshal(&storepb.Command{Session: c.GetSession(), Number: c.GetNumber(),
			CellTime: c.GetCellTime(), WallMs: c.GetWallMs(), Epoch: c.GetEpoch()})
	}
	return b
}

// header is what the master must know of an encoded command to find whom its
// result is for, read without decoding the rest.
type header struct {
	session, number, epoch uint64
	op                     protowire.Number // field of the op, 0 none
	body                   []byte           // of the op
}

// The fields of store.Command.
const (
	fieldSession  protowire.Number = 1
	fieldNumber   protowire.Number = 2
	fieldEpoch    protowire.Number = 7
	opOpen        protowire.Number = 10
	opExpire      protowire.Number = 12
	opAcquire     protowire.Number = 17
	opTimers      protowire.Number = 20
	opBreak       protowire.Number = 23
	opNote        protowire.Number = 25
	firstOp       protowire.Number = 10
	lastOp        protowire.Number = 63
	expireSession protowire.Number = 1
	openNonce     protowire.Number = 1
)

// parseHeader reads the header of a command that a master encoded.
func parseHeader(b []byte) header {
	var h header
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			invariant.Unreachable("a master has encoded the command")
			return h
		}
		b = b[n:]
		switch typ {
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				invariant.Unreachable("a master has encoded the command")
				return h
			}
			b = b[n:]
			switch num {
			case fieldSession:
				h.session = v
			case fieldNumber:
				h.number = v
			case fieldEpoch:
				h.epoch = v
			}
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				invariant.Unreachable("a master has encoded the command")
				return h
			}
			b = b[n:]
			if num >= firstOp && num <= lastOp {
				h.op, h.body = num, v
			}
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				invariant.Unreachable("a master has encoded the command")
				return h
			}
			b = b[n:]
		}
	}
	return h
}

// field returns a field of a message: the varint or the bytes.
func field(b []byte, want protowire.Number) (uint64, []byte) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			invariant.Unreachable("a master has encoded the command")
			return 0, nil
		}
		b = b[n:]
		if num == want {
			switch typ {
			case protowire.VarintType:
				v, _ := protowire.ConsumeVarint(b)
				return v, nil
			case protowire.BytesType:
				v, _ := protowire.ConsumeBytes(b)
				return 0, v
			}
		}
		n = protowire.ConsumeFieldValue(num, typ, b)
		if n < 0 {
			invariant.Unreachable("a master has encoded the command")
			return 0, nil
		}
		b = b[n:]
	}
	return 0, nil
}
