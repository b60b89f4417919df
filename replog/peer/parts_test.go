package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/peer/lane"
)

// largeAccept is an accept of size bytes, at a ballot of a round.
func largeAccept(to paxos.ReplicaID, sequence, round uint64, size int) replog.Send {
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(i*7) + byte(sequence)
	}
	return replog.Send{To: to, Message: &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: &pb.PaxosMessage{
		Kind: uint32(paxos.MsgAccept), Sequence: sequence, Ballot: &pb.Ballot{Round: round, Replica: 1},
		Entries: []*pb.Entry{{Slot: sequence, Value: &pb.Value{Kind: pb.ValueKind_BATCH, Commands: [][]byte{value}}}},
	}}}}
}

// Large messages arrive whole and in order, on both lanes, and the node of the
// sender hears in the end that nothing is queued.
func TestLargeMessagesGoInParts(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 3)
	ends := make([]*peerEnd, 3)
	for i := range ends {
		ends[i] = startPeer(t, ls[i], members, paxos.ReplicaID(i+1), nil)
		defer ends[i].peers.Close()
	}
	for i, e := range ends[1:] {
		for _, bulk := range []bool{false, true} {
			m := heartbeat(paxos.ReplicaID(i+2), uint64(1+i))
			m.Bulk = bulk
			sendUntil(ends[0], e, m)
		}
	}
	const messages = 8
	before := ends[0].peers.Dropped() // while a lane was not up yet
	want := map[uint64]*pb.PaxosMessage{}
	for n := uint64(100); n < 100+messages; n++ {
		m := largeAccept(2, n, 5, 3<<20/int(n-99))
		want[n] = m.Message.GetPaxos()
		// The same for both followers, encoded once.
		ends[0].peers.SendAll([]replog.Send{m, {To: 3, Message: m.Message}})
		m.Bulk = true
		ends[0].peers.Send(m)
	}
	for i, e := range ends[1:] {
		var got []uint64
		arriving := 0
		for copies := messages * (2 - i); len(got) < copies; {
			ev := e.wait("a large message", func(ev replog.Event) bool {
				switch ev := ev.(type) {
				case replog.PeerArriving:
					arriving++
				case replog.PeerReceived:
					return ev.Message.GetPaxos().GetKind() == uint32(paxos.MsgAccept)
				}
				return false
			})
			m := ev.(replog.PeerReceived).Message.GetPaxos()
			if !bytes.Equal(m.Entries[0].Value.Commands[0], want[m.Sequence].Entries[0].Value.Commands[0]) {
				t.Fatalf("message %d is not what was sent", m.Sequence)
			}
			got = append(got, m.Sequence)
		}
		if i == 1 && !slices.IsSorted(got) {
			t.Errorf("they came in the order %v", got)
		}
		if arriving == 0 {
			t.Errorf("replica %d never heard that something arrives", i+2)
		}
	}
	queued := map[paxos.ReplicaID]int{2: -1, 3: -1}
	for queued[2] != 0 || queued[3] != 0 {
		ev := ends[0].wait("the end of the queue", func(ev replog.Event) bool { _, ok := ev.(replog.PeerSent); return ok })
		queued[ev.(replog.PeerSent).Peer] = ev.(replog.PeerSent).Queued
	}
	for _, l := range ends[0].peers.Links() {
		if l.Queued != 0 || l.Window <= 0 || l.RoundTrip <= 0 {
			t.Errorf("all has arrived, and of a link is told %+v", l)
		}
	}
	if n := ends[0].peers.Dropped() - before; n != 0 {
		t.Errorf("%d messages were dropped", n)
	}
}

// readFrame returns the next frame that is no ping.
func readFrame(t *testing.T, c *wire.Conn) (kind byte, payload []byte) {
	t.Helper()
	for {
		kind, payload, err := c.Read()
		if err != nil {
			t.Fatal(err)
		}
		if len(payload) > 0 {
			return kind, payload
		}
	}
}

// A peer that acknowledges nothing is sent no more than a window of a large
// message, and small messages still pass.
func TestSmallMessagesPassLargeOnes(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	c := fakePeer(t, members[1].PeerAddress, laneMain)
	defer c.Close()
	b.waitConnected("n1")
	b.peers.Send(largeAccept(1, 1, 5, 4<<20))
	b.peers.Send(largeAccept(1, 2, 5, 100)) // keeps its place behind the large one
	b.peers.Send(heartbeat(1, 3))
	parts := 0
	for {
		kind, payload := readFrame(t, c)
		if kind == wire.KindPeerPart {
			parts += len(payload)
			continue
		}
		m := new(pb.PeerMessage)
		if body, err := unseal(payload); err != nil || m.Decode(body) != nil || m.GetPaxos().GetSequence() != 3 {
			t.Fatalf("instead of the heartbeat came %v, %v", m, err)
		}
		break
	}
	if window := b.peers.Links()[0].Window; parts == 0 || parts > window {
		t.Fatalf("%d bytes of parts came before the heartbeat, the window is %d", parts, window)
	}
	queued := -1
	b.wait("the report of what is queued", func(ev replog.Event) bool {
		if s, ok := ev.(replog.PeerSent); ok {
			queued = s.Queued
		}
		return queued >= 4<<20
	})
	// The connection ends, and with it what was on its way.
	c.Close()
	b.wait("the end of the queue", func(ev replog.Event) bool { s, ok := ev.(replog.PeerSent); return ok && s.Queued == 0 })
}

// Who begins to speak in a higher ballot drops what waits of a lower one, for
// all peers.
func TestHigherBallotDropsOldAccepts(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 3)
	ls[0].Close()
	ls[1].Close()
	b := startPeer(t, ls[2], members, 3, nil)
	defer b.peers.Close()
	conns := []*wire.Conn{fakePeer(t, members[2].PeerAddress, laneMain),
		fakeHello(t, members[2].PeerAddress, &pb.PeerHello{Cell: "test", Name: "n2", Replica: 2, Version: replog.PeerVersion}, laneMain)}
	for i, c := range conns {
		defer c.Close()
		b.waitConnected(members[i].Name)
	}
	for _, to := range []paxos.ReplicaID{1, 2} {
		b.peers.Send(largeAccept(to, 1, 5, 1<<20))
	}
	// A candidate's prepare, which this replica refuses, is no word of its own; nor
	// is one of an older ballot.
	for _, ballot := range []*pb.Ballot{{Round: 5, Replica: 1}, {Round: 4, Replica: 3}} {
		b.peers.Send(replog.Send{To: 2, Message: &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: &pb.PaxosMessage{
			Kind: uint32(paxos.MsgPromise), Ballot: &pb.Ballot{Round: 9, Replica: 2}, Promised: ballot}}}})
	}
	if n := b.peers.Superseded(); n != 0 {
		t.Fatalf("%d accepts were dropped too early", n)
	}
	b.peers.Send(replog.Send{To: 2, Message: &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: &pb.PaxosMessage{
		Kind: uint32(paxos.MsgPromise), Ok: true, Ballot: &pb.Ballot{Round: 9, Replica: 2}, Promised: &pb.Ballot{Round: 9, Replica: 2}}}}})
	if n := b.peers.Superseded(); n != 2 {
		t.Fatalf("%d accepts were dropped, want 2", n)
	}
}

// A message of which a part was lost with its connection is not delivered, even
// if the rest comes by the next one; nor is what a stranger makes up.
func TestPartsOfAnotherConnection(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	m := sealed{largeAccept(2, 1, 5, 10_000).Message}
	message := make([]byte, m.SizeVT())
	if _, err := m.MarshalToSizedBufferVT(message); err != nil {
		t.Fatal(err)
	}
	part := func(offset, end int) []byte {
		p := binary.BigEndian.AppendUint32(nil, 1)
		p = binary.BigEndian.AppendUint32(p, uint32(offset))
		p = binary.BigEndian.AppendUint32(p, uint32(len(message)))
		p = append(p, message[offset:end]...)
		return binary.BigEndian.AppendUint32(p, crc32.Checksum(p, castagnoli))
	}
	connect := func() *wire.Conn {
		c := fakePeer(t, members[1].PeerAddress, laneMain)
		b.waitConnected("n1")
		return c
	}
	send := func(c *wire.Conn, kind byte, payload []byte) {
		if err := c.QueueBytes(kind, payload); err != nil {
			t.Fatal(err)
		}
	}
	half := len(message) / 2
	first := connect()
	send(first, wire.KindPeerPart, part(0, half))
	for {
		if kind, payload := readFrame(t, first); kind == wire.KindPeerAck {
			if upTo, err := lane.ParseAck(payload); err != nil || upTo != uint64(half+16) {
				t.Fatalf("%d bytes are acknowledged (%v), %d were sent", upTo, err, half+16)
			}
			break
		}
	}
	first.Close()
	b.waitGone(1)
	for name, frame := range map[string]struct {
		kind    byte
		payload []byte
	}{
		"the rest of a message": {wire.KindPeerPart, part(half, len(message))},
		"a changed part":        {wire.KindPeerPart, append(part(0, half)[:half], 1, 2, 3, 4)},
		"an ack of nothing":     {wire.KindPeerAck, lane.AppendAck(nil, 1)},
		"a changed ack":         {wire.KindPeerAck, []byte("0123456789ab")},
	} {
		c := connect()
		send(c, frame.kind, frame.payload)
		b.waitGone(1)
		if len(b.events) != 0 {
			t.Errorf("%s: %v was delivered", name, <-b.events)
		}
		c.Close()
	}
	c := connect()
	defer c.Close()
	send(c, wire.KindPeerPart, part(0, half))
	send(c, wire.KindPeerPart, part(half, len(message)))
	b.wait("the message", func(ev replog.Event) bool {
		r, ok := ev.(replog.PeerReceived)
		return ok && r.Message.GetPaxos().GetSequence() == 1
	})
}

// pipeLink is a link whose main lane is a pipe, which takes nothing that is not
// read at its remote end.
func pipeLink(t *testing.T, b *peerEnd) (*link, *wire.Conn, net.Conn) {
	local, remote := net.Pipe()
	c := b.peers.newConn(local, false)
	shaken := make(chan error, 1)
	go func() { shaken <- c.Handshake(t.Context()) }()
	preface := make([]byte, len(wire.Preface))
	if _, err := remote.Read(preface); err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Write(preface); err != nil {
		t.Fatal(err)
	}
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	l := b.peers.links[0]
	l.use(lane.Main, c)
	return l, c, remote
}

// What its reader has taken off a connection before another one took its place
// counts no more: a message may be of a process that has died since, and an
// acknowledgement is of other bytes.
func TestLateFramesOfAFormerConnection(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	l, former, remote := pipeLink(t, b)
	defer remote.Close()
	defer former.Close()
	in := inbox{link: l, conn: former, id: lane.Main, receiver: lane.NewReceiver(peerMaxMessage)}
	m := sealed{heartbeat(2, 1).Message}
	message := make([]byte, m.SizeVT())
	if _, err := m.MarshalToSizedBufferVT(message); err != nil {
		t.Fatal(err)
	}
	ack := func(upTo uint64) []byte { return lane.AppendAck(nil, upTo) }
	b.peers.Send(largeAccept(1, 1, 5, 1<<20))
	if err := in.take(wire.KindPeer, message); err != nil {
		t.Fatal(err)
	}
	b.wait("the message", func(ev replog.Event) bool { _, ok := ev.(replog.PeerReceived); return ok })
	if err := in.take(wire.KindPeerAck, ack(100)); err != nil {
		t.Fatal(err)
	}

	_, next, remote := pipeLink(t, b)
	defer remote.Close()
	defer next.Close()
	b.peers.Send(largeAccept(1, 2, 5, 1<<20))
	queued := b.peers.Links()[0].Queued
	for _, frame := range []struct {
		kind    byte
		payload []byte
	}{{wire.KindPeer, message}, {wire.KindPeerAck, ack(200)}} {
		if err := in.take(frame.kind, frame.payload); !errors.Is(err, errReplaced) {
			t.Errorf("a frame of kind %d is taken: %v", frame.kind, err)
		}
	}
	if now := b.peers.Links()[0].Queued; now != queued {
		t.Errorf("%d bytes are queued, %d were before the acknowledgement", now, queued)
	}
	for len(b.events) > 0 {
		if ev, ok := (<-b.events).(replog.PeerReceived); ok {
			t.Errorf("%v was delivered", ev)
		}
	}
}

// Heartbeats give their place to the next one also where nothing else is on the
// way, as with many reads and no writes on a slow link.
func TestHeartbeatsAloneDoNotQueueUp(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	l, c, remote := pipeLink(t, b)
	defer remote.Close()
	defer c.Close()
	const last = 20_000
	for sequence := uint64(1); sequence <= last; sequence++ {
		b.peers.Send(heartbeat(1, sequence))
	}
	if queued := c.Queued(); queued > 32<<10 {
		t.Fatalf("%d bytes wait for the socket", queued)
	}
	receiver := lane.NewReceiver(peerMaxMessage)
	for came := uint64(0); came < last; {
		header := make([]byte, 8)
		if _, err := readFull(remote, header); err != nil {
			t.Fatalf("%v, behind heartbeat %d", err, came)
		}
		payload := make([]byte, binary.BigEndian.Uint32(header))
		if _, err := readFull(remote, payload); err != nil {
			t.Fatal(err)
		}
		if len(payload) == 0 {
			continue
		}
		m := new(pb.PeerMessage)
		if body, err := unseal(payload); err != nil || m.Decode(body) != nil {
			t.Fatal(err)
		}
		came = m.GetPaxos().GetSequence()
		receiver.Whole(len(payload))
		if upTo, due := receiver.Ack(); due {
			if err := l.acked(c, lane.Main, lane.AppendAck(nil, upTo)); err != nil {
				t.Fatal(err)
			}
			receiver.Acked(upTo)
		}
	}
}

// A part for which the queue has no room ends the connection: it counts as sent,
// and would be waited for without end.
func TestPartWithoutRoomEndsTheConnection(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	_, c, remote := pipeLink(t, b)
	defer remote.Close()
	defer c.Close()
	small := replog.Send{To: 1, Message: &pb.PeerMessage{Body: &pb.PeerMessage_Founding{Founding: &pb.Founding{Name: string(make([]byte, 4000))}}}}
	for i := 0; b.peers.Dropped() == 0; i++ {
		if i > 2*peerQueueBytes/4000 {
			t.Fatal("the queue has no end")
		}
		b.peers.Send(small)
	}
	ended := make(chan error, 1)
	go func() {
		_, _, err := c.Read()
		ended <- err
	}()
	b.peers.Send(largeAccept(1, 1, 5, 1<<20))
	select {
	case <-ended:
	case <-time.After(2 * time.Second): // before nothing has been written for so long that it ends anyway
		t.Error("the connection stays, and what is counted as on its way will never arrive")
	}
}

// A heartbeat that waits for a socket that takes nothing gives its place to the
// next one.
func TestNewerHeartbeatTakesTheOldersPlace(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	l, c, remote := pipeLink(t, b)
	defer remote.Close()
	defer c.Close()
	b.peers.Send(largeAccept(1, 1, 5, 1<<20))
	for sequence := uint64(10); sequence < 1010; sequence++ {
		b.peers.Send(heartbeat(1, sequence))
	}
	if queued, window := c.Queued(), b.peers.Links()[0].Window; queued > window+4<<10 {
		t.Fatalf("%d bytes wait for the socket, the window is %d", queued, window)
	}
	if l.box.beat.GetPaxos().GetSequence() != 1009 {
		t.Fatalf("%v waits", l.box.beat)
	}
	first := true
	receiver := lane.NewReceiver(peerMaxMessage)
	for {
		header := make([]byte, 8)
		if _, err := readFull(remote, header); err != nil {
			t.Fatal(err)
		}
		payload := make([]byte, binary.BigEndian.Uint32(header))
		if _, err := readFull(remote, payload); err != nil {
			t.Fatal(err)
		}
		if header[4] == wire.KindPeer && len(payload) > 0 {
			m := new(pb.PeerMessage)
			if body, err := unseal(payload); err != nil || m.Decode(body) != nil {
				t.Fatal(err)
			}
			if n := m.GetPaxos().GetSequence(); n != 1009 {
				t.Fatalf("heartbeat %d came", n)
			}
			return
		}
		if header[4] != wire.KindPeerPart {
			continue
		}
		if _, err := receiver.Part(payload); err != nil {
			t.Fatal(err)
		}
		if first {
			first = false
			upTo, _ := receiver.Ack()
			if err := l.acked(c, lane.Main, lane.AppendAck(nil, upTo)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func readFull(nc net.Conn, b []byte) (n int, err error) {
	if err := nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	for n < len(b) {
		m, err := nc.Read(b[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
