package peer

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

func sealedBytes(t testing.TB, m *pb.PeerMessage) []byte {
	t.Helper()
	b := make([]byte, sealed{m}.SizeVT())
	if n, err := (sealed{m}).MarshalToSizedBufferVT(b); err != nil || n != len(b) {
		t.Fatalf("%d of %d bytes, %v", n, len(b), err)
	}
	return b
}

// A message comes out of its seal as it was, and no bit of it can change
// unnoticed.
func TestSeal(t *testing.T) {
	accept := &paxos.Message{Kind: paxos.MsgAccept, Ballot: paxos.Ballot{Round: 3, Replica: 1}, Chosen: 8,
		Entries: []paxos.Entry{{Slot: 9, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{[]byte("put /x")}}}}}
	for _, m := range []*pb.PeerMessage{
		{},
		{Body: &pb.PeerMessage_Paxos{Paxos: codec.EncodeMessage(accept)}},
		helloMessage(&pb.PeerHello{Name: "n1", Incarnation: 7}, laneMain, "n2"),
	} {
		b := sealedBytes(t, m)
		body, err := unseal(b)
		if err != nil {
			t.Fatal(err)
		}
		got := new(pb.PeerMessage)
		if err := got.Decode(body); err != nil || !proto.Equal(got, m) {
			t.Fatalf("%v comes out as %v, %v", m, got, err)
		}
		for i := range 8 * len(b) {
			b[i/8] ^= 1 << (i % 8)
			if _, err := unseal(b); err == nil {
				t.Fatalf("bit %d of %v is changed, and nobody notices", i, m)
			}
			b[i/8] ^= 1 << (i % 8)
		}
		for n := range b {
			if _, err := unseal(b[:n]); err == nil && n > 0 {
				t.Fatalf("%d of %d bytes pass", n, len(b))
			}
		}
	}
}

// A message that was changed on its way ends the connection, and neither it nor
// what stands behind it is delivered.
func TestChangedMessageIsNotDelivered(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	c := fakePeer(t, members[1].PeerAddress, laneMain)
	defer c.Close()
	b.waitConnected("n1")
	changed := sealedBytes(t, heartbeat(2, 7).Message)
	changed[len(changed)/2] ^= 4
	for _, payload := range [][]byte{changed, sealedBytes(t, heartbeat(2, 8).Message)} {
		if err := c.QueueBytes(wire.KindPeer, payload); err != nil {
			t.Fatal(err)
		}
	}
	b.wait("the end of the connection", func(ev replog.Event) bool {
		if r, ok := ev.(replog.PeerReceived); ok {
			t.Fatalf("%v is delivered", r.Message)
		}
		_, ok := ev.(replog.PeerDisconnected)
		return ok
	})
}
