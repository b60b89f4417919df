package master

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
)

// conn is a client's connection.
type conn struct {
	id       ConnID
	remote   string
	hello    bool // its Hello was taken
	closing  bool // ConnClose is owed or given: nothing more is read or sent
	gone     bool // ConnClosed
	maxFrame int  // what the client takes

	out   []*wirepb.ServerMessage
	dirty bool

	sessions []*session // bound to it; session.place is the index
	opening  int        // sessions that are being opened for it
	watches  map[uint64]*watch
	keep     *wirepb.KeepAlive // held
	keepHand *hand
	keepAt   time.Duration // when it arrived
	keepDue  time.Duration
	waiting  int // messages of this connection that wait for a proof of leadership
	// waitingBytes is what these take besides their waiters.
	waitingBytes int

	// Of its watches, see watch_tell.go.
	promised  int // bytes sent in this batch
	room      int // for more of them, as asked in batch roomBatch-1
	roomBatch uint64
	blocked   []*watch // wait for room, in order
	stuck     bool     // is among those that are looked at with each tick
}

// Opened tells of a new connection.
func (m *Master) Opened(now time.Duration, id ConnID, remote string) {
	m.passTime(now)
	if m.conns[id] != nil {
		invariant.Unreachable("a connection's number is never used twice")
		return
	}
	c := &conn{id: id, remote: remote, maxFrame: defaultFrame}
	m.conns[id] = c
	if len(m.conns) > m.o.MaxConnections {
		m.cutOff(c, LimitConnections, wirepb.ErrorCode_TOO_MANY, fmt.Sprintf(
			"this replica has its %d connections, the limit: close some, or try another replica", m.o.MaxConnections))
	}
}

// Closed tells that a connection is gone. Its sessions live on until their
// leases end.
func (m *Master) Closed(now time.Duration, id ConnID) {
	m.passTime(now)
	c := m.conns[id]
	if c == nil {
		return
	}
	delete(m.conns, id)
	c.gone, c.closing = true, true
	m.release(c)
}

// release takes everything from a connection that is bound to it.
func (m *Master) release(c *conn) {
	for _, s := range c.sessions {
		s.conn = nil
		m.heard(s)
	}
	c.sessions = nil
	m.dropHeld(c)
	m.watches.dropConn(c)
	c.out = nil
}

// send queues a message.
func (m *Master) send(c *conn, msg *wirepb.ServerMessage) {
	if c == nil || c.closing {
		return
	}
	c.out = append(c.out, msg)
	if !c.dirty {
		c.dirty = true
		m.dirty = append(m.dirty, c)
	}
}

// sendError answers with an error.
func (m *Master) sendError(c *conn, e *wirepb.Error) {
	m.send(c, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Error{Error: e}})
}

// fatal answers with an error and closes the connection.
func (m *Master) fatal(c *conn, code wirepb.ErrorCode, text string) {
	m.sendError(c, &wirepb.Error{Code: code, Text: text, Fatal: true})
	m.close(c, text)
}

// close ends a connection behind what is queued for it.
func (m *Master) close(c *conn, reason string) {
	if c.closing {
		return
	}
	m.closes = append(m.closes, ConnClose{Conn: c.id, Reason: reason})
	c.closing = true
	out := c.out
	m.release(c)
	c.out = out // still to be sent
}

// Received takes a client's message. Nothing in it can do more than end the
// connection.
func (m *Master) Received(now time.Duration, id ConnID, msg *wirepb.ClientMessage) {
	m.passTime(now)
	c := m.conns[id]
	if c == nil || c.closing {
		return
	}
	if h, ok := msg.GetBody().(*wirepb.ClientMessage_Hello); ok {
		m.hello(c, h.Hello)
		return
	}
	if !c.hello {
		m.fatal(c, wirepb.ErrorCode_BAD_MESSAGE, "the first message must be a Hello")
		return
	}
	switch b := msg.GetBody().(type) {
	case *wirepb.ClientMessage_Open:
		m.open(c, b.Open)
	case *wirepb.ClientMessage_Attach:
		m.attach(c, b.Attach)
	case *wirepb.ClientMessage_KeepAlive:
		m.keepAlive(c, b.KeepAlive)
	case *wirepb.ClientMessage_Request:
		m.request(c, b.Request)
	case *wirepb.ClientMessage_Read:
		m.read(c, b.Read)
	case *wirepb.ClientMessage_Watch:
		m.watch(c, b.Watch)
	case *wirepb.ClientMessage_Unwatch:
		m.watches.drop(c, b.Unwatch.GetId())
	case *wirepb.ClientMessage_Ack:
		m.ack(c, b.Ack)
	default:
		// A kind of message from a later version: skipped, by the protocol.
	}
}

// hello greets a client and tells it who is master.
func (m *Master) hello(c *conn, h *wirepb.Hello) {
	if c.hello {
		m.fatal(c, wirepb.ErrorCode_BAD_MESSAGE, "a second Hello on the same connection")
		return
	}
	if cell := h.GetCell(); cell != "" && cell != "local" && cell != m.o.Cell {
		m.fatal(c, wirepb.ErrorCode_WRONG_CELL, fmt.Sprintf(
			"this replica belongs to cell %q, the client means %q; check the addresses or the cell's name", m.o.Cell, clip(cell)))
		return
	}
	lo, hi := h.GetVersionMin(), h.GetVersionMax()
	if lo > protocolVersion || hi < protocolVersion {
		m.fatal(c, wirepb.ErrorCode_BAD_VERSION, fmt.Sprintf(
			"this replica speaks version %d of the protocol, the client %d to %d", protocolVersion, lo, hi))
		return
	}
	if f := h.GetMaxFrame(); f != 0 {
		if f < minClientFrame {
			m.cutOff(c, LimitClientFrame, wirepb.ErrorCode_INVALID_ARGUMENT, fmt.Sprintf(
				"the client takes frames of %d bytes; it must take at least %d", f, minClientFrame))
			return
		}
		c.maxFrame = int(min(f, 1<<30))
	}
	c.hello = true
	_, identity := m.st.Cell()
	master := m.role.known
	if master.Self && !m.serving() {
		// Elected and not serving yet, or leaving: the client had better look
		// around than dial this replica again at once.
		master = Role{}
	}
	m.send(c, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Hello{Hello: &wirepb.HelloReply{
		Version:       protocolVersion,
		Cell:          m.o.Cell,
		Replica:       m.o.Replica,
		Master:        m.serving(),
		MasterAddress: master.MasterAddress,
		MasterName:    master.MasterName,
		MaxFrame:      uint32(m.o.MaxFrame),
		MaxData:       store.DataMax,
		Epoch:         m.role.epoch,
		CellIdentity:  identity,
	}}})
}

// budget is how many bytes a paged answer to a connection may have.
func (m *Master) budget(c *conn) int { return min(c.maxFrame, m.o.MaxFrame) - frameReserve }

// clip shortens a client's text for a message.
func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

// notMaster answers what only a master may, when this replica is none. It
// reports whether it did.
func (m *Master) notMaster(c *conn, e *wirepb.Error) bool {
	if m.serving() {
		return false
	}
	if k := m.role.known; k.MasterAddress != "" && !k.Self {
		e.Code, e.MasterAddress = wirepb.ErrorCode_NOT_MASTER, k.MasterAddress
		e.Text = "this replica is not the master; ask " + k.MasterName + " at " + k.MasterAddress
	} else {
		e.Code, e.RetryAfterMs = wirepb.ErrorCode_NO_MASTER, retryNoMaster
		e.Text = "there is no master at the moment; try again soon, here or at another replica"
		if _, identity := m.st.Cell(); identity == 0 {
			e.Text = "the cell is not founded yet: its members are not all there; try again soon"
		}
	}
	m.sendError(c, e)
	return true
}
