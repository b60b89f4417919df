package sim

import (
	"fmt"

	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// strangerKind is what is at an address that a client was given although no replica
// of the cell is there.
type strangerKind int

const (
	strangeForeign   strangerKind = iota // a replica of another cell
	strangeMaster                        // and its master
	strangeNewer                         // speaks another version only
	strangeName                          // a replica of a cell of another name
	strangeSilent                        // takes connections and says nothing
	strangeUnfounded                     // a replica of a cell that is not founded
	strangeOld                           // the master of a service that names no identity
	strangeBabbler                       // says anything but who it is
	strangeClone                         // says that it is a replica of this cell, and knows nothing
	strangeUsurper                       // says that it is this cell's master, and never serves
	strangeKinds
)

// stranger is a machine that clients take for a replica by mistake. It never says
// what would be a lie about the state of the cell or the end of a session: what it
// says may cost time, and nothing else.
type stranger struct {
	w        *World
	kind     strangerKind
	p        *process // only what a connection needs of it
	random   *stream
	identity uint64 // that it names
}

// newStrangers makes them behind the clients, as machines on the network.
func (w *World) newStrangers(first int) {
	for i := range w.plan.load.kinds.strangers {
		s := &stranger{w: w, random: newStream(w.seed, 1<<45|uint64(i))}
		s.kind = strangerKind(s.random.below(int64(strangeKinds)))
		s.identity = 1<<50 + uint64(s.random.below(2))
		s.p = &process{w: w, index: first + i, name: fmt.Sprintf("s%d", i+1), up: true,
			conns: map[replica.ConnID]*conn{}, alien: s.happened}
		w.strangers = append(w.strangers, s)
	}
}

// removeStrangers lets nobody be at their addresses any more.
func (w *World) removeStrangers() {
	for _, s := range w.strangers {
		s.p.up = false
		for _, n := range s.p.connOrder {
			n.serverDied()
		}
		s.p.conns, s.p.connOrder = nil, nil
	}
}

// happened takes what comes on a connection.
func (s *stranger) happened(ev replica.Event) {
	e, ok := ev.(replica.ConnReceived)
	n := s.p.conns[e.Conn]
	if !ok || n == nil || s.kind == strangeSilent {
		return
	}
	switch b := e.Message.GetBody().(type) {
	case *pb.ClientMessage_Hello:
		s.greet(n)
	case *pb.ClientMessage_Open:
		s.opens(n, b.Open)
	case *pb.ClientMessage_Attach:
		s.attaches(n, b.Attach)
	case *pb.ClientMessage_Read:
		s.reads(n, b.Read)
	case *pb.ClientMessage_Watch:
		s.refuse(n, &pb.Error{Id: b.Watch.GetId()})
	}
}

func (s *stranger) greet(n *conn) {
	h := &pb.HelloReply{Version: 2, Cell: cellName, Replica: s.p.name, MaxFrame: 2 << 20, CellIdentity: s.w.knownIdentity()}
	switch s.kind {
	case strangeNewer:
		s.fatal(n, pb.ErrorCode_BAD_VERSION, "this replica speaks version 3 of the protocol, the client 2 to 2")
		return
	case strangeName:
		s.fatal(n, pb.ErrorCode_WRONG_CELL, `this replica belongs to cell "other"`)
		return
	case strangeBabbler:
		s.babble(n)
		return
	case strangeForeign:
		h.CellIdentity = s.identity
	case strangeMaster:
		h.CellIdentity, h.Master = s.identity, true
	case strangeUnfounded:
		h.CellIdentity = 0
	case strangeOld:
		h.CellIdentity, h.Master = 0, true
	case strangeUsurper:
		h.Master = true
	}
	if !h.Master && s.random.chance(500_000) {
		h.MasterAddress = s.anyAddress()
	}
	s.hello(n, h)
	if h.Master && s.random.chance(300_000) {
		s.hello(n, h)
	}
}

func (s *stranger) hello(n *conn, h *pb.HelloReply) {
	n.sendDown(&pb.ServerMessage{Body: &pb.ServerMessage_Hello{Hello: h}})
}

// anyAddress is where a master might be, for all it knows.
func (s *stranger) anyAddress() string {
	i := s.random.below(int64(len(s.w.replicas) + len(s.w.strangers)))
	if i < int64(len(s.w.replicas)) {
		return s.w.replicas[i].address()
	}
	return s.w.strangers[i-int64(len(s.w.replicas))].p.address()
}

func (s *stranger) fatal(n *conn, code pb.ErrorCode, text string) {
	n.sendDown(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Code: code, Text: text, Fatal: true}}})
	n.finishDown(text)
}

// refuse sends an error about something, or says nothing.
func (s *stranger) refuse(n *conn, e *pb.Error) {
	if s.random.chance(400_000) {
		return
	}
	e.Code = pick(s.random, []pb.ErrorCode{pb.ErrorCode_NOT_MASTER, pb.ErrorCode_NO_MASTER, pb.ErrorCode_SHUTTING_DOWN,
		pb.ErrorCode_TOO_SLOW, pb.ErrorCode_OVERLOADED, pb.ErrorCode_INVALID_ARGUMENT, pb.ErrorCode_TOO_MANY,
		pb.ErrorCode_BAD_MESSAGE, pb.ErrorCode_FRAME_TOO_LARGE, pb.ErrorCode_UNKNOWN_SESSION})
	if s.random.chance(500_000) {
		e.Text, e.Limit = "a stranger says no", "strangers"
	}
	e.RetryAfterMs = uint64(s.random.below(300))
	e.Fatal = s.random.chance(200_000)
	n.sendDown(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: e}})
}

func (s *stranger) opens(n *conn, o *pb.OpenSession) {
	switch s.random.below(4) {
	case 0:
		n.sendDown(&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{Id: o.GetId()}}})
	case 1:
		n.sendDown(&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{Id: o.GetId() + 9, Session: 77, LeaseMs: 5000}}})
	default:
		s.refuse(n, &pb.Error{Id: o.GetId()})
	}
}

func (s *stranger) attaches(n *conn, a *pb.Attach) {
	switch s.random.below(4) {
	case 0:
		n.sendDown(&pb.ServerMessage{Body: &pb.ServerMessage_Attached{Attached: &pb.AttachReply{Session: a.GetSession() + 5}}})
	case 1:
		s.babble(n)
	default:
		s.refuse(n, &pb.Error{Session: a.GetSession()})
	}
}

// reads refuses. Only a stale read can be answered: a node that was never there was
// not there once.
func (s *stranger) reads(n *conn, r *pb.Read) {
	switch {
	case r.GetLevel() == pb.ReadLevel_STALE && r.GetNode() != nil && s.random.chance(500_000):
		n.sendDown(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Code: pb.ErrorCode_READ_NOT_FOUND, Id: r.GetId()}}})
	case s.random.chance(300_000):
		s.babble(n)
	default:
		s.refuse(n, &pb.Error{Id: r.GetId()})
	}
}

// babble sends messages that belong to nothing that was asked.
func (s *stranger) babble(n *conn) {
	session := n.c.session
	for m := s.random.between(1, 5); m > 0; m-- {
		msg := &pb.ServerMessage{}
		switch s.random.below(9) {
		case 0:
			msg.Body = &pb.ServerMessage_Kept{Kept: &pb.KeepAliveReply{Id: 1 << 40,
				Leases: []*pb.SessionLease{{Session: session, LeaseMs: 600_000}}}}
		case 1:
			msg.Body = &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{Id: 1 << 40, Session: 9, LeaseMs: 600_000}}
		case 2:
			msg.Body = &pb.ServerMessage_Attached{Attached: &pb.AttachReply{Session: session + 1}}
		case 3:
			msg.Body = &pb.ServerMessage_Reply{Reply: &pb.Reply{Session: session, Result: &storepb.Result{Number: 1 << 40}}}
		case 4:
			msg.Body = &pb.ServerMessage_Read{Read: &pb.ReadReply{Id: 1 << 40}}
		case 5:
			msg.Body = &pb.ServerMessage_Watch{Watch: &pb.WatchUpdate{Id: 1 << 40, State: true}}
		case 6:
			msg.Body = &pb.ServerMessage_Event{Event: &pb.Event{Session: session, Event: &storepb.SessionEvent{
				Number: uint64(s.random.below(3)), Code: storepb.Code_LOST, Ticket: 1}}}
		case 7:
			msg.Body = &pb.ServerMessage_Error{Error: &pb.Error{Code: pb.ErrorCode_TOO_MANY, Session: session, Number: 1 << 40, Text: "nobody asked"}}
		default:
			// A kind of a later version: it has nothing that this one knows.
		}
		n.sendDown(msg)
	}
	if s.random.chance(300_000) {
		s.fatal(n, pb.ErrorCode_BAD_MESSAGE, "this is no such service")
	}
}
