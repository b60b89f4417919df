package peer

import (
	"errors"
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/peer/lane"
)

// The sending half of a link: package lane decides what leaves when, here it is
// done.

// outbox is what is on its way to a peer. link.out guards it, and the change of
// the connections in use.
type outbox struct {
	sender *lane.Sender
	// beat is a heartbeat that waits: the socket takes nothing at the moment, and
	// not all that has left is acknowledged yet. A newer heartbeat replaces it: the older one
	// tells the peer nothing more.
	beat *pb.PeerMessage
	room []byte // of parts
}

// IsBulk reports whether a message carries values, or a piece of a snapshot.
func IsBulk(m *pb.PeerMessage) bool {
	switch body := m.Body.(type) {
	case *pb.PeerMessage_Paxos:
		return paxos.MessageKind(body.Paxos.Kind).Bulk()
	case *pb.PeerMessage_SnapshotChunk:
		return true
	}
	return false
}

// AcceptRank returns the ballot of an accept: a replica that speaks in a higher
// one has no use for votes in it.
func AcceptRank(m *pb.PeerMessage) lane.Rank {
	if p := m.GetPaxos(); p.GetKind() == uint32(paxos.MsgAccept) {
		return rank(p.Ballot)
	}
	return lane.Rank{}
}

// SpokenRank is the ballot that this replica has reached when it says m: its own
// as proposer, else the one that it has promised.
func SpokenRank(m *pb.PeerMessage) lane.Rank {
	p := m.GetPaxos()
	switch paxos.MessageKind(p.GetKind()) {
	case paxos.MsgPrepare, paxos.MsgAccept, paxos.MsgHeartbeat:
		return rank(p.Ballot)
	}
	return rank(p.GetPromised())
}

func rank(b *pb.Ballot) lane.Rank { return lane.Rank{Round: b.GetRound(), Replica: b.GetReplica()} }

// speaks drops accepts of older ballots that wait for a link, when this replica
// begins to speak in a higher one.
func (p *Peers) speaks(m *pb.PeerMessage) {
	now := SpokenRank(m)
	if old := p.spoken.Load(); old != nil && !old.Less(now) || old == nil && now == (lane.Rank{}) {
		return
	}
	p.speaking.Lock()
	defer p.speaking.Unlock()
	if old := p.spoken.Load(); old != nil && !old.Less(now) {
		return
	}
	p.spoken.Store(&now)
	for _, l := range p.links {
		l.out.Lock()
		p.superseded.Add(uint64(l.box.sender.Supersede(now)))
		l.report()
		l.out.Unlock()
	}
}

// send queues a message on its lane, or drops it. What goes by the main lane
// leaves with the next flush, at the latest.
func (l *link) send(s replog.Send) {
	id, m := lane.Main, sealed{s.Message}
	if s.Bulk {
		id = lane.Bulk
	}
	n, bulk := m.SizeVT(), IsBulk(s.Message)
	l.out.Lock()
	defer l.out.Unlock()
	c := l.lane(id).Load()
	switch {
	case c == nil:
		l.peers.dropped.Add(1)
	case l.box.sender.Whole(id, n, bulk):
		if p := s.Message.GetPaxos(); p.GetKind() == uint32(paxos.MsgHeartbeat) && l.box.sender.Waits(id) && c.Queued() > 0 {
			l.box.beat = s.Message
			return
		}
		err := c.Hold(wire.KindPeer, m)
		if err == nil {
			l.box.sender.Sent(id, n)
		}
		l.sent(err, id)
	default:
		b := make([]byte, n)
		if _, err := m.MarshalToSizedBufferVT(b); err != nil {
			l.sent(err, id)
			return
		}
		l.put(id, lane.Message{Payload: b, Bulk: bulk, Rank: AcceptRank(s.Message)})
	}
}

// sendEncoded is send for the main lane and a message that is encoded and sealed
// already. It returns the copy that it took of it, or was given: several links
// share one.
func (l *link) sendEncoded(message, shared []byte, bulk bool, r lane.Rank) []byte {
	l.out.Lock()
	defer l.out.Unlock()
	c := l.main.Load()
	switch {
	case c == nil:
		l.peers.dropped.Add(1)
	case l.box.sender.Whole(lane.Main, len(message), bulk):
		err := c.HoldBytes(wire.KindPeer, message)
		if err == nil {
			l.box.sender.Sent(lane.Main, len(message))
		}
		l.sent(err, lane.Main)
	default:
		if shared == nil {
			shared = slices.Clone(message)
		}
		l.put(lane.Main, lane.Message{Payload: shared, Bulk: bulk, Rank: r})
	}
	return shared
}

// put queues a message that goes in parts; out is held.
func (l *link) put(id lane.ID, m lane.Message) {
	switch {
	case len(m.Payload) > peerMaxMessage:
		l.sent(&wire.FrameTooLargeError{Kind: wire.KindPeer, Size: uint32(min(len(m.Payload), 1<<32-1)), Limit: peerMaxMessage}, id)
	case l.box.sender.Put(id, m):
		l.pump()
		l.report()
	default:
		l.sent(wire.ErrQueueFull, id)
	}
}

// pump lets parts go as far as the window allows; out is held. The next flush
// takes them along.
func (l *link) pump() {
	now := l.peers.now()
	for {
		id, part := l.box.sender.Next(now, l.box.room[:0])
		if part == nil {
			return
		}
		l.box.room = part
		if c := l.lane(id).Load(); c != nil {
			// An error means that the connection has ended, and with it the lane, or
			// that small messages have filled its queue. The part counts as sent and
			// would never be acknowledged: its reader ends the connection at once.
			if err := c.HoldBytes(wire.KindPeerPart, part); err != nil {
				l.sent(err, id)
				c.SetReadTimeout(time.Nanosecond)
			}
		}
	}
}

// acked takes an acknowledgement that came on a connection.
func (l *link) acked(c *wire.Conn, id lane.ID, payload []byte) error {
	upTo, err := lane.ParseAck(payload)
	if err != nil {
		return err
	}
	l.out.Lock()
	if l.lane(id).Load() != c {
		l.out.Unlock()
		return errReplaced
	}
	err = l.box.sender.Acked(l.peers.now(), id, upTo)
	if beat := l.box.beat; beat != nil {
		l.box.beat = nil
		if main := l.main.Load(); main != nil {
			m := sealed{beat}
			held := main.Hold(wire.KindPeer, m)
			if held == nil {
				l.box.sender.Sent(lane.Main, m.SizeVT())
			}
			l.sent(held, lane.Main)
		}
	}
	l.pump()
	l.report()
	l.out.Unlock()
	l.flush()
	return err
}

// report tells the node how much is queued, if that is news; out is held.
func (l *link) report() {
	if queued, again := l.box.sender.Report(l.peers.now()); again {
		l.peers.deliver(replog.PeerSent{Peer: l.member.ID, Queued: queued}, 0)
	}
}

// flush lets what is queued on both lanes go, from the calling goroutine if
// the socket takes it.
func (l *link) flush() {
	for _, id := range [...]lane.ID{lane.Main, lane.Bulk} {
		if c := l.lane(id).Load(); c != nil {
			c.Flush()
		}
	}
}

// sent counts and reports what could not be queued.
func (l *link) sent(err error, id lane.ID) {
	if err == nil {
		return
	}
	l.peers.dropped.Add(1)
	if !errors.Is(err, wire.ErrClosed) && l.peers.quiet.again("send "+l.member.Name) {
		l.peers.o.Logger.Warn("messages for a replica are dropped", "peer", l.member.Name, "bulk", id == lane.Bulk, "reason", err)
	}
}

// use makes c the connection in use of a lane, nil: none, and returns the one
// that was.
func (l *link) use(id lane.ID, c *wire.Conn) (old *wire.Conn) {
	l.out.Lock()
	defer l.out.Unlock()
	old = l.lane(id).Swap(c)
	l.began(id, c)
	return old
}

// unuse takes c out of use; false: another has taken its place.
func (l *link) unuse(id lane.ID, c *wire.Conn) bool {
	l.out.Lock()
	defer l.out.Unlock()
	if !l.lane(id).CompareAndSwap(c, nil) {
		return false
	}
	l.began(id, nil)
	return true
}

// began begins a lane anew: what was queued or on its way is lost.
func (l *link) began(id lane.ID, c *wire.Conn) {
	l.box.sender.Disconnected(id)
	if c != nil {
		l.box.sender.Connected(id)
	}
	if id == lane.Main {
		l.box.beat = nil
	}
	l.pump() // the other lane may have waited for this one
	l.report()
}

// LinkStatus tells how the messages for a peer get on.
type LinkStatus struct {
	Peer      string        // its name
	Queued    int           // bytes of messages in parts that it has not acknowledged
	Window    int           // bytes of these that may be on their way at once
	RoundTrip time.Duration // the shortest of a part and its acknowledgement, 0: not measured
}

// Links tells it of all peers.
func (p *Peers) Links() []LinkStatus {
	out := make([]LinkStatus, len(p.links))
	for i, l := range p.links {
		l.out.Lock()
		s := l.box.sender
		out[i] = LinkStatus{Peer: l.member.Name, Queued: s.Queued(), Window: s.Window(), RoundTrip: s.RoundTrip()}
		l.out.Unlock()
	}
	return out
}
