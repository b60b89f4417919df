package peer

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/peer/lane"
)

// arrivingEvery is how often the node is told that a large message is on its way,
// at most.
const arrivingEvery = 50 * time.Millisecond

// inbox is the receiving half of a connection, used by its reader alone.
type inbox struct {
	link     *link
	conn     *wire.Conn
	id       lane.ID
	receiver *lane.Receiver
	room     [16]byte
	told     time.Time // when the node last heard that a message arrives
}

// take takes a frame; an error ends the connection.
func (in *inbox) take(kind byte, payload []byte) error {
	switch kind {
	case wire.KindPeer:
		if len(payload) == 0 {
			return nil // a ping
		}
		in.receiver.Whole(len(payload))
		if upTo, due := in.receiver.Ack(); due {
			// With the answer, or the next ping: the other side waits only for those of
			// parts.
			in.acknowledge(upTo)
		}
		return in.message(payload)
	case wire.KindPeerAck:
		return in.link.acked(in.conn, in.id, payload)
	case wire.KindPeerPart:
		message, err := in.receiver.Part(payload)
		if err != nil {
			return err
		}
		upTo, _ := in.receiver.Ack()
		in.acknowledge(upTo)
		in.conn.Flush()
		if message == nil {
			return in.arriving()
		}
		return in.message(message)
	}
	return nil // something newer than we are
}

// acknowledge tells the other side what has arrived; this leaves with the next
// flush.
func (in *inbox) acknowledge(upTo uint64) {
	// An error means that the connection has ended, or that its other end does not
	// read: the reader sees the one, the other side needs nothing from us then.
	if err := in.conn.HoldBytes(wire.KindPeerAck, lane.AppendAck(in.room[:0], upTo)); err == nil {
		in.receiver.Acked(upTo)
	}
}

// arriving tells the node that a message comes in, now and then.
func (in *inbox) arriving() error {
	now := time.Now()
	if now.Sub(in.told) < arrivingEvery {
		return nil
	}
	in.told = now
	return in.deliver(replog.PeerArriving{Peer: in.link.member.ID}, 0)
}

// message takes a message that is whole.
func (in *inbox) message(payload []byte) error {
	body, err := unseal(payload)
	if err != nil {
		return err
	}
	m := new(pb.PeerMessage)
	if err := m.Decode(body); err != nil {
		return fmt.Errorf("it sent what is no message: %w", err)
	}
	if m.Body == nil {
		return nil
	}
	return in.deliver(replog.PeerReceived{Peer: in.link.member.ID, Message: m}, len(payload))
}

func (in *inbox) deliver(ev replog.Event, bytes int) error {
	if !in.link.received(in.conn, in.id, ev, bytes) {
		return errReplaced
	}
	return nil
}
