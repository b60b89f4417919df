package replog

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
)

// errReplaced ends a connection in whose place the peer has made another.
var errReplaced = errors.New("another connection took its place")

// link is what there is to one peer.
type link struct {
	peers  *Peers
	member paxos.Member

	main, bulk atomic.Pointer[wire.Conn] // the connections in use, nil: none

	// mu orders what is delivered about the peer: a connection that was replaced
	// delivers nothing any more, neither a message nor its end.
	mu      sync.Mutex
	process uint64 // to which the newest connection leads; 0: none, or not told
}

func (l *link) lane(name string) *atomic.Pointer[wire.Conn] {
	if name == laneBulk {
		return &l.bulk
	}
	return &l.main
}

// send queues a message on its lane, or drops it. What goes by the main lane
// leaves with the next flush, at the latest.
func (l *link) send(s Send) {
	lane, how := &l.main, (*wire.Conn).Hold
	if s.Bulk {
		lane, how = &l.bulk, (*wire.Conn).Queue
	}
	if c := lane.Load(); c != nil {
		l.sent(how(c, wire.KindPeer, sealed{s.Message}), s.Bulk)
		return
	}
	l.peers.dropped.Add(1)
}

// sendEncoded is send for the main lane and a message that is encoded and sealed
// already.
func (l *link) sendEncoded(message []byte) {
	if c := l.main.Load(); c != nil {
		l.sent(c.HoldBytes(wire.KindPeer, message), false)
		return
	}
	l.peers.dropped.Add(1)
}

// flush lets what is queued on the main lane go, from the calling goroutine if
// the socket takes it.
func (l *link) flush() {
	if c := l.main.Load(); c != nil {
		c.Flush()
	}
}

// sent counts and reports what could not be queued.
func (l *link) sent(err error, bulk bool) {
	if err == nil {
		return
	}
	l.peers.dropped.Add(1)
	if !errors.Is(err, wire.ErrClosed) && l.peers.quiet.again("send "+l.member.Name) {
		l.peers.o.Logger.Warn("messages for a replica are dropped", "peer", l.member.Name, "bulk", bulk, "reason", err)
	}
}

// serve uses a connection that has begun until it ends, and says why it did.
// ours is the hello that was sent.
func (l *link) serve(c *wire.Conn, lane *atomic.Pointer[wire.Conn], ours *pb.PeerHello) error {
	defer l.end(c, lane)
	if now := l.peers.hello.Load(); now != ours && lane == &l.main {
		// It changed before UpdateHello could find this connection.
		l.send(Send{To: l.member.ID, Message: helloMessage(now, laneMain, l.member.Name)})
		l.flush()
	}
	c.SetReadTimeout(l.peers.o.ReadTimeout)
	for {
		kind, payload, err := c.Read()
		if err != nil {
			if lane.Load() != c {
				return errReplaced
			}
			return l.why(c, err)
		}
		if kind != wire.KindPeer || len(payload) == 0 {
			continue // a ping, or something newer than we are
		}
		body, err := unseal(payload)
		if err != nil {
			return err
		}
		m := new(pb.PeerMessage)
		if err := m.Decode(body); err != nil {
			return fmt.Errorf("it sent what is no message: %w", err)
		}
		if m.Body == nil {
			continue
		}
		if !l.received(c, lane, m, len(payload)) {
			return errReplaced
		}
	}
}

// begin puts the connection in use as the lane of the other side's hello; one
// that was in use ends. But of two processes that run with the same data and
// dial this replica the one that was there first stays.
func (l *link) begin(c *wire.Conn, h *pb.PeerHello) (*atomic.Pointer[wire.Conn], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	process := h.GetProcess()
	inUse := l.main.Load() != nil || l.bulk.Load() != nil
	if inUse && l.member.ID < l.peers.o.Self && process != 0 && l.process != 0 && process != l.process {
		return nil, fmt.Errorf("another process is connected as replica %s: if it has not just been restarted, "+
			"two run with the same data: stop one at once, it is not safe", l.member.Name)
	}
	l.process = process
	lane := l.lane(h.GetLane())
	old := lane.Swap(c)
	if old != nil {
		// Its reader notices at once, closes it and is not listened to any more.
		old.SetReadTimeout(time.Nanosecond)
	}
	if lane == &l.main {
		l.peers.deliver(PeerConnected{Hello: h}, 0)
	}
	return lane, nil
}

func (l *link) end(c *wire.Conn, lane *atomic.Pointer[wire.Conn]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane.CompareAndSwap(c, nil) && lane == &l.main {
		l.peers.deliver(PeerDisconnected{Peer: l.member.ID}, 0)
	}
}

// received delivers a message; false: the connection is not in use any more.
func (l *link) received(c *wire.Conn, lane *atomic.Pointer[wire.Conn], m *pb.PeerMessage, bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lane.Load() != c {
		return false
	}
	l.peers.deliver(PeerReceived{Peer: l.member.ID, Message: m}, bytes)
	return true
}

// why puts the end of a connection into words.
func (l *link) why(c *wire.Conn, err error) error {
	if cause := c.Err(); cause != nil {
		err = cause // the writer saw it first
	}
	switch {
	case l.peers.ctx.Err() != nil:
		return l.peers.ctx.Err()
	case errors.Is(err, io.EOF):
		return errors.New("it closed the connection")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("nothing could be exchanged for %v: %w", l.peers.o.ReadTimeout, err)
	}
	return err
}

// newConn frames a connection between replicas.
func (p *Peers) newConn(nc net.Conn, accepted bool) *wire.Conn {
	return wire.NewConn(nc, wire.Options{
		Accepted:       accepted,
		MaxFrame:       peerMaxFrame,
		MaxSend:        peerMaxFrame,
		QueueBytes:     peerQueueBytes,
		WriteTimeout:   p.o.ReadTimeout,
		ReadTimeout:    p.o.HelloTimeout,
		PrefaceTimeout: p.o.HelloTimeout,
	})
}

// errClient says that a client has come to the port for replicas.
var errClient = errors.New("it is a client, and not a replica")

// readHello reads the other side's first frame.
func readHello(c *wire.Conn) (*pb.PeerHello, error) {
	kind, payload, err := c.Read()
	if err != nil {
		return nil, err
	}
	if kind == wire.KindClient {
		return nil, errClient
	}
	m := new(pb.PeerMessage)
	body, sealErr := unseal(payload)
	if sealErr != nil || kind != wire.KindPeer || m.Decode(body) != nil || m.GetHello() == nil {
		return nil, errors.New("it did not begin with a hello of a replica: is this a replica's peer port, and of this release?")
	}
	return m.GetHello(), nil
}
