package peer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/replog/pb"
)

// steady is how long a connection must have stood for the next dial to come
// without a growing pause.
const steady = time.Second

// wrongAddressError says that a peer's address leads to another replica.
type wrongAddressError struct{ address, name, cell string }

func (e *wrongAddressError) Error() string {
	return fmt.Sprintf("%s is the address of replica %s of cell %q: check the peer addresses in --initial-cluster", e.address, e.name, e.cell)
}

// dialLoop keeps a lane to a peer connected until the end.
func (l *link) dialLoop(lane string) {
	p := l.peers
	defer p.wg.Done()
	var pauses retries
	for p.ctx.Err() == nil {
		start := time.Now()
		connected, err := l.dial(lane)
		if p.ctx.Err() != nil {
			return
		}
		if connected && time.Since(start) >= steady {
			pauses = retries{}
		}
		// One lane's lines are enough.
		key := "dial " + l.member.Name
		if wrong := (*wrongAddressError)(nil); errors.As(err, &wrong) {
			key = "address of " + l.member.Name
		}
		if lane == laneMain && (connected || p.quiet.again(key)) {
			text := "cannot reach a replica; trying on"
			if connected {
				text = "the connection with a replica broke; dialing again"
				p.quiet.forget(key)
			}
			p.o.Logger.Warn(text, "peer", l.member.Name, "address", l.member.PeerAddress, "reason", err)
		}
		if !p.pause(pauses.delay(&p.o)) {
			return
		}
	}
}

// dial connects a lane once and serves it until it ends.
func (l *link) dial(lane string) (connected bool, err error) {
	p := l.peers
	ctx, cancel := context.WithTimeout(p.ctx, p.o.DialTimeout)
	nc, err := p.o.Dial(ctx, l.member.PeerAddress)
	cancel()
	if err != nil {
		return false, err
	}
	c := p.newConn(nc, false)
	stop := context.AfterFunc(p.ctx, func() { _ = c.Close() })
	defer func() { stop(); _ = c.Close() }()
	ours := p.hello.Load()
	h, err := l.greet(c, ours, lane)
	if err != nil {
		return false, err
	}
	use, err := l.begin(c, h)
	if err != nil {
		return false, err
	}
	if lane == laneMain {
		p.quiet.forget("dial " + l.member.Name)
		p.o.Logger.Info("connected with a replica", "peer", l.member.Name, "address", l.member.PeerAddress)
	}
	return true, l.serve(c, use, ours)
}

// greet exchanges hellos, ours first, and checks that the address leads to the
// peer that is meant.
func (l *link) greet(c *wire.Conn, ours *pb.PeerHello, lane string) (*pb.PeerHello, error) {
	p := l.peers
	if err := c.Handshake(p.ctx); err != nil {
		return nil, err
	}
	if err := c.Queue(wire.KindPeer, sealed{helloMessage(ours, lane, l.member.Name)}); err != nil {
		return nil, err
	}
	h, err := readHello(c)
	if err != nil {
		return nil, err
	}
	if h.GetName() != l.member.Name {
		return nil, &wrongAddressError{address: l.member.PeerAddress, name: h.GetName(), cell: h.GetCell()}
	}
	h.Lane = lane
	return h, nil
}
