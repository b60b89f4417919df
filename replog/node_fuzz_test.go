package replog_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// FuzzNodePeers gives a node whatever its peers' connections can carry: hellos,
// refusals, foundings, pieces of snapshots, messages of the protocol. It goes
// on, keeps its invariants, and no peer can stop a replica that holds data, but
// by proof that two values were chosen in one slot, which one that lies can
// forge.
func FuzzNodePeers(f *testing.F) {
	frames := func(ms ...*pb.PeerMessage) (all []byte) {
		for _, m := range ms {
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			all = append(binary.BigEndian.AppendUint16(append(all, byte(len(all)%2)), uint16(len(b))), b...)
		}
		return all
	}
	paxosMessage := func(m paxos.Message) *pb.PeerMessage {
		return &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: codec.EncodeMessage(&m)}}
	}
	hello := &pb.PeerMessage{Body: &pb.PeerMessage_Hello{Hello: &pb.PeerHello{
		Cell: "demo", Name: "n2", Replica: 2, Incarnation: 5007, Version: replog.PeerVersion, Founded: true, CellIdentity: 9}}}
	refusal := &pb.PeerMessage{Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{Text: "another cell", Fatal: true, Incarnation: 1007}}}
	var all []*pb.PeerMessage
	for kind := paxos.MsgNone + 1; kind <= paxos.MsgValues; kind++ {
		all = append(all, paxosMessage(paxos.Message{Kind: kind, Ballot: paxos.Ballot{Round: 1 << 40, Replica: 2}, Slot: 5, Chosen: 3, First: 1,
			Sequence: 1, OK: true, Limit: 1 << 20, Entries: []paxos.Entry{{Slot: 4, Ballot: paxos.Ballot{Round: 1 << 40, Replica: 2}}}}))
	}
	for state := range uint8(4) {
		fuzzing.Seed(f, fmt.Sprint("paxos-", state), state, frames(all...))
		fuzzing.Seed(f, fmt.Sprint("refused-", state), state, frames(hello, refusal))
		fuzzing.Seed(f, fmt.Sprint("founding-", state), state, frames(
			&pb.PeerMessage{Body: &pb.PeerMessage_Founding{Founding: &pb.Founding{}}},
			&pb.PeerMessage{Body: &pb.PeerMessage_SnapshotRequest{SnapshotRequest: &pb.SnapshotRequest{}}},
			&pb.PeerMessage{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: &pb.SnapshotChunk{Slot: 90, Size: 5, Data: []byte("piece")}}}))
	}
	f.Fuzz(func(t *testing.T, state uint8, in []byte) {
		defer func() {
			v := recover()
			if v != nil && !strings.Contains(fmt.Sprint(v), "chosen value differs") {
				panic(v)
			}
		}()
		c := newCell(t, 1, 3, func(o *replog.NodeOptions) { o.SnapshotSlots, o.TrailSlots = 10, 2 })
		h := c.hosts[0]
		switch state % 4 {
		case 0: // alone and empty
			c.mustStart(0)
		case 1: // empty, beside another one
			c.mustStart(0, 1)
			c.step()
		default:
			c.mustStart(0, 1, 2)
			c.until("founded", founded(c))
			c.write(15)
			if state%4 == 3 {
				c.crash(0)
				c.mustStart(0)
			}
		}
		holds := state%4 > 1
		// From here on it is alone with what the fuzzer says in the others' names.
		h.c.hosts[1].node, h.c.hosts[2].node = nil, nil
		c.flying, c.history = nil, map[paxos.Slot]uint64{}
		for n := 0; len(in) >= 3 && n < 64 && h.up(); n++ {
			size := min(int(binary.BigEndian.Uint16(in[1:])), len(in)-3)
			peer := paxos.ReplicaID(2 + in[0]&1)
			m := new(pb.PeerMessage)
			err := proto.Unmarshal(in[3:3+size], m)
			connect := in[0]&2 != 0
			if in[0]&4 != 0 {
				c.now += 300 * time.Millisecond
			}
			in = in[3+size:]
			switch {
			case err != nil:
				h.node.Step(c.now, replog.PeerDisconnected{Peer: peer})
			case connect && m.GetHello() != nil:
				h.node.Step(c.now, replog.PeerConnected{Hello: m.GetHello()})
			default:
				h.node.Step(c.now, replog.PeerReceived{Peer: peer, Message: m})
			}
			if n%3 == 0 {
				c.step()
			} else {
				h.settle()
			}
		}
		if h.up() {
			c.step()
		}
		var refused *replog.RefusedError
		if h.fatal != nil && (holds || !errors.As(h.fatal, &refused)) {
			t.Fatalf("its peers have stopped it: %v", h.fatal)
		}
	})
}
