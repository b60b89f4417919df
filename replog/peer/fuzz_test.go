package peer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// FuzzPeerMessage: a message that can be decoded is the same after it has been
// encoded again.
func FuzzPeerMessage(f *testing.F) {
	for kind := paxos.MsgNone; kind <= paxos.MsgValues; kind++ {
		m := paxos.Message{Kind: kind, Ballot: paxos.Ballot{Round: 3, Replica: 1}, Promised: paxos.Ballot{Round: 2, Replica: 3},
			Slot: 9, Chosen: 8, First: 2, Sequence: 77, OK: kind%2 == 0, Limit: 1 << 20,
			Entries: []paxos.Entry{{Slot: 1}, {Slot: 9, Chosen: true, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{[]byte("x")}}}}}
		b, err := proto.Marshal(codec.EncodeMessage(&m))
		if err != nil {
			f.Fatal(err)
		}
		fuzzing.Seed(f, fmt.Sprint("kind-", kind), b)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var m paxos.Message
		var err error
		fuzzing.Bounded(t, 512*uint64(len(payload))+1<<20, func() {
			p := &pb.PaxosMessage{}
			if err = proto.Unmarshal(payload, p); err == nil {
				m, err = codec.DecodeMessage(p, 1, 2)
			}
		})
		if err != nil {
			return
		}
		b, err := proto.Marshal(codec.EncodeMessage(&m))
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		p := &pb.PaxosMessage{}
		if err := proto.Unmarshal(b, p); err != nil {
			t.Fatal(err)
		}
		if again, err := codec.DecodeMessage(p, 1, 2); err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v comes back as %+v, %v", m, again, err)
		}
	})
}

// peerFrames is what a peer sends: the preface and messages.
func peerFrames(ms ...*pb.PeerMessage) []byte {
	b := []byte(wire.Preface)
	for _, m := range ms {
		payload := make([]byte, sealed{m}.SizeVT())
		if _, err := (sealed{m}).MarshalToSizedBufferVT(payload); err != nil {
			panic(err) // the seeds of this file
		}
		b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
		b = append(append(b, wire.KindPeer, 1, 0, 0), payload...)
	}
	return b
}

// reseal gives each whole frame of a stream the right checksum: else hardly
// anything that is made up would be looked at.
func reseal(in []byte) []byte {
	out := append([]byte(nil), in...)
	for rest := out[min(len(wire.Preface), len(out)):]; len(rest) >= 8; {
		n := int(binary.BigEndian.Uint32(rest))
		if n > len(rest)-8 {
			break
		}
		if end := 8 + n - sealBytes; end >= 8 {
			binary.BigEndian.PutUint32(rest[end:], crc32.Checksum(rest[8:end], castagnoli))
		}
		rest = rest[8+n:]
	}
	return out
}

// FuzzPeerStream: bytes at the peer port. Only who has said a good hello is
// delivered; what is delivered of it comes between its connection and its end.
func FuzzPeerStream(f *testing.F) {
	hello := func(lane string) *pb.PeerMessage {
		return helloMessage(&pb.PeerHello{Cell: "test", Name: "n1", Replica: 1, Incarnation: 101, Version: replog.PeerVersion}, lane, "n2")
	}
	message := &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: codec.EncodeMessage(&paxos.Message{Kind: paxos.MsgHeartbeat, Sequence: 5})}}
	chunk := &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: &pb.SnapshotChunk{Slot: 3, Size: 9, Data: []byte("piece")}}}
	fuzzing.Seed(f, "main", peerFrames(hello(laneMain), message, message), uint8(0))
	fuzzing.Seed(f, "bulk", peerFrames(hello(laneBulk), chunk), uint8(3))
	fuzzing.Seed(f, "no-hello", peerFrames(message), uint8(0))
	fuzzing.Seed(f, "no-lane", peerFrames(hello("third")), uint8(0))
	fuzzing.Seed(f, "http", []byte("GET /metrics HTTP/1.1\r\n\r\n"), uint8(0))
	fuzzing.Seed(f, "nothing", []byte{}, uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, piece uint8) {
		if piece < 0x80 {
			in = reseal(in)
		}
		var events []replog.Event
		bytes := 0
		members := []paxos.Member{{ID: 1, Name: "n1"}, {ID: 2, Name: "n2"}, {ID: 3, Name: "n3"}}
		p := New(Options{Self: 2, Members: members, ReadTimeout: time.Hour,
			Hello: &pb.PeerHello{Cell: "test", Name: "n2", Replica: 2, Incarnation: 102, Version: replog.PeerVersion}},
			func(ev replog.Event, n int) { events, bytes = append(events, ev), bytes+n })
		defer p.cancel()
		fuzzing.Bounded(t, 512*uint64(len(in))+4<<20, func() {
			p.greeting <- struct{}{}
			p.wg.Add(1)
			p.accepted(&fuzzing.Conn{In: in, Piece: int(piece)})
			p.wg.Wait()
		})
		if bytes > len(in) {
			t.Fatalf("%d bytes of messages in %d", bytes, len(in))
		}
		connected := false
		for i, ev := range events {
			switch ev := ev.(type) {
			case replog.PeerConnected:
				if i != 0 || ev.Hello.GetName() != "n1" && ev.Hello.GetName() != "n3" {
					t.Fatalf("event %d: connected %v", i, ev.Hello)
				}
				connected = true
			case replog.PeerDisconnected:
				if i != len(events)-1 || !connected {
					t.Fatalf("event %d of %d: the end of what has not begun", i, len(events))
				}
				connected = false
			case replog.PeerReceived:
				if ev.Message.GetBody() == nil {
					t.Fatal("an empty message is delivered")
				}
			}
		}
		if connected {
			t.Fatal("its end is not told")
		}
		for _, l := range p.links {
			if l.main.Load() != nil || l.bulk.Load() != nil {
				t.Fatal("a connection that has ended is in use")
			}
		}
	})
}
