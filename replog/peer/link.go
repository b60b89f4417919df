package peer

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
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/peer/lane"
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

	// out guards what is on its way to the peer, and changes of the connections in
	// use. It is taken while mu is held, never the other way round.
	out sync.Mutex
	box outbox
}

func newLink(p *Peers, m paxos.Member) *link {
	return &link{peers: p, member: m, box: outbox{sender: lane.NewSender(peerQueueBytes)}}
}

// lane is the connection in use of a lane.
func (l *link) lane(id lane.ID) *atomic.Pointer[wire.Conn] {
	if id == lane.Bulk {
		return &l.bulk
	}
	return &l.main
}

// laneID reads the name of a lane in a hello.
func laneID(name string) lane.ID {
	if name == laneBulk {
		return lane.Bulk
	}
	return lane.Main
}

// serve uses a connection that has begun until it ends, and says why it did.
// ours is the hello that was sent.
func (l *link) serve(c *wire.Conn, id lane.ID, ours *pb.PeerHello) error {
	defer l.end(c, id)
	if now := l.peers.hello.Load(); now != ours && id == lane.Main {
		// It changed before UpdateHello could find this connection.
		l.send(replog.Send{To: l.member.ID, Message: helloMessage(now, laneMain, l.member.Name)})
		l.flush()
	}
	c.SetReadTimeout(l.peers.o.ReadTimeout)
	in := inbox{link: l, conn: c, id: id, receiver: lane.NewReceiver(peerMaxMessage)}
	for {
		kind, payload, err := c.Read()
		if err != nil {
			if l.lane(id).Load() != c {
				return errReplaced
			}
			return l.why(c, err)
		}
		if err := in.take(kind, payload); err != nil {
			return err
		}
	}
}

// begin puts the connection in use as the lane of the other side's hello; one
// that was in use ends. But of two processes that run with the same data and
// dial this replica the one that was there first stays.
func (l *link) begin(c *wire.Conn, h *pb.PeerHello) (lane.ID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	process := h.GetProcess()
	inUse := l.main.Load() != nil || l.bulk.Load() != nil
	if inUse && l.member.ID < l.peers.o.Self && process != 0 && l.process != 0 && process != l.process {
		return 0, fmt.Errorf("another process is connected as replica %s: if it has not just been restarted, "+
			"two run with the same data: stop one at once, it is not safe", l.member.Name)
	}
	l.process = process
	id := laneID(h.GetLane())
	if old := l.use(id, c); old != nil {
		// Its reader notices at once, closes it and is not listened to any more.
		old.SetReadTimeout(time.Nanosecond)
	}
	if id == lane.Main {
		l.peers.deliver(replog.PeerConnected{Hello: h}, 0)
	}
	return id, nil
}

func (l *link) end(c *wire.Conn, id lane.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unuse(id, c) && id == lane.Main {
		l.peers.deliver(replog.PeerDisconnected{Peer: l.member.ID}, 0)
	}
}

// received delivers an event of a connection; false: that is not in use any more.
func (l *link) received(c *wire.Conn, id lane.ID, ev replog.Event, bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lane(id).Load() != c {
		return false
	}
	l.peers.deliver(ev, bytes)
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
