package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
)

// refusalTime is how long the text of a refusal may take to leave.
const refusalTime = time.Second

// acceptLoop accepts connections until the end.
func (p *Peers) acceptLoop() {
	defer p.wg.Done()
	var pauses retries
	for {
		nc, err := p.o.Listener.Accept()
		switch {
		case p.ctx.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return
		case err != nil:
			if p.quiet.again("accept") {
				p.o.Logger.Error("cannot accept connections of replicas; trying on", "reason", err)
			}
			if !p.pause(pauses.delay(&p.o)) {
				return
			}
			continue
		}
		pauses = retries{}
		select {
		case p.greeting <- struct{}{}:
			p.wg.Add(1)
			go p.accepted(nc)
		default:
			// Too many that do not say who they are.
			_ = nc.Close()
			if p.quiet.again("greeting") {
				p.o.Logger.Warn("too many connections at the peer port that do not say hello; new ones are closed", "remote", nc.RemoteAddr().String())
			}
		}
	}
}

// accepted serves one accepted connection until it ends.
func (p *Peers) accepted(nc net.Conn) {
	defer p.wg.Done()
	c := p.newConn(nc, true)
	stop := context.AfterFunc(p.ctx, func() { _ = c.Close() })
	defer func() { stop(); _ = c.Close() }()
	ours := p.hello.Load()
	l, h, err := p.welcome(c, ours)
	<-p.greeting
	if err != nil {
		p.strange(nc, err)
		return
	}
	id, err := l.begin(c, h)
	if err != nil {
		p.refuse(c, h, err.Error(), false)
		p.strange(nc, err)
		return
	}
	if h.GetLane() == laneMain {
		p.o.Logger.Info("a replica connected", "peer", l.member.Name, "remote", nc.RemoteAddr().String())
	}
	err = l.serve(c, id, ours)
	if p.ctx.Err() == nil && h.GetLane() == laneMain {
		p.o.Logger.Warn("the connection with a replica broke; it dials again", "peer", l.member.Name, "reason", err)
	}
}

// strange logs a connection that is no peer's, not again and again for the
// same host.
func (p *Peers) strange(nc net.Conn, err error) {
	host, _, splitErr := net.SplitHostPort(nc.RemoteAddr().String())
	if splitErr != nil {
		host = nc.RemoteAddr().String()
	}
	if p.ctx.Err() == nil && p.quiet.again("strange "+host) {
		p.o.Logger.Warn("a connection at the peer port was closed", "remote", nc.RemoteAddr().String(), "reason", err)
	}
}

// welcome exchanges hellos, theirs first.
func (p *Peers) welcome(c *wire.Conn, ours *pb.PeerHello) (*link, *pb.PeerHello, error) {
	if err := c.Handshake(p.ctx); err != nil {
		return nil, nil, err
	}
	h, err := readHello(c)
	if errors.Is(err, errClient) {
		tellClient(c, ours)
	}
	if err != nil {
		return nil, nil, err
	}
	if h.GetLane() != laneMain && h.GetLane() != laneBulk {
		return nil, nil, fmt.Errorf("replica %q asks for a lane %q, which this release does not know", h.GetName(), h.GetLane())
	}
	if err := c.Queue(wire.KindPeer, sealed{helloMessage(ours, h.GetLane(), h.GetName())}); err != nil {
		return nil, nil, err
	}
	if to := h.GetTo(); to != "" && to != ours.GetName() {
		_ = c.CloseAfterFlush(refusalTime) // the hello says who is here
		return nil, nil, fmt.Errorf("replica %q looks for replica %q at this address: its list of peer addresses is wrong", h.GetName(), to)
	}
	for _, l := range p.links {
		if l.member.Name == h.GetName() {
			return l, h, p.objection(c, l, h, ours)
		}
	}
	return nil, nil, p.unknown(c, h)
}

// objection tells one that comes in a member's name why it is not let in, if
// it is not. While the cell is not founded the node says who is.
func (p *Peers) objection(c *wire.Conn, l *link, h, ours *pb.PeerHello) error {
	config := p.config.Load()
	if config == nil {
		return nil
	}
	text, fatal := replog.Objection(h, ours.GetCell(), ours.GetName(), l.member.ID, config.Members, config)
	if text == "" && l.member.ID > p.o.Self {
		text = fmt.Sprintf("replica %s does not dial replica %s, it is dialled by it", h.GetName(), ours.GetName())
	}
	if text == "" {
		return nil
	}
	p.refuse(c, h, text, fatal)
	return fmt.Errorf("replica %q is refused: %s", h.GetName(), text)
}

// refuse tells the other side why it is not let in; nothing is owed to it.
func (p *Peers) refuse(c *wire.Conn, h *pb.PeerHello, text string, fatal bool) {
	err := c.Queue(wire.KindPeer, sealed{&pb.PeerMessage{Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{
		Text: text, Fatal: fatal, Incarnation: h.GetIncarnation()}}}})
	if err == nil {
		_ = c.CloseAfterFlush(refusalTime)
	}
}

// tellClient tells a client that it has come to the wrong port.
func tellClient(c *wire.Conn, ours *pb.PeerHello) {
	err := c.Queue(wire.KindServer, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Error{Error: &wirepb.Error{
		Code: wirepb.ErrorCode_BAD_MESSAGE, Fatal: true,
		Text: "this is the port for other replicas: clients connect to " + ours.GetClientAddress()}}})
	if err == nil {
		_ = c.CloseAfterFlush(refusalTime)
	}
}

// unknown tells a replica that is no member why it is not let in.
func (p *Peers) unknown(c *wire.Conn, h *pb.PeerHello) error {
	own := p.hello.Load()
	text := fmt.Sprintf("cell %q has no replica %q: check --name, --cell and --initial-cluster", own.GetCell(), h.GetName())
	if h.GetName() == own.GetName() {
		text = fmt.Sprintf("replica %s is this one: a peer address in --initial-cluster leads back to it, or two replicas have the same name", h.GetName())
	}
	p.refuse(c, h, text, true)
	return fmt.Errorf("replica %q of cell %q is no member of this cell", h.GetName(), h.GetCell())
}
