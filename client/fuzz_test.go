package client

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// FuzzServerStream: bytes that a service, or what is taken for one, sends. Each
// message that is read is one that stands there, and what is made of it for the
// caller does not fail.
func FuzzServerStream(f *testing.F) {
	stream := func(ms ...*pb.ServerMessage) []byte {
		b := []byte(wire.Preface)
		for _, m := range ms {
			payload, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
			b = append(append(b, wire.KindServer, 1, 0, 0), payload...)
		}
		return b
	}
	fuzzing.Seed(f, "hello", stream(&pb.ServerMessage{Body: &pb.ServerMessage_Hello{Hello: &pb.HelloReply{Version: 1, Cell: "c", Master: true}}}), uint8(0))
	fuzzing.Seed(f, "status", stream(&pb.ServerMessage{Body: &pb.ServerMessage_Read{Read: &pb.ReadReply{Result: &pb.ReadReply_Status{
		Status: &pb.StatusResult{Cell: "c", Replica: "n1", Peers: []*pb.PeerStatus{{Name: "n2"}}}}}}}), uint8(3))
	fuzzing.Seed(f, "refusal", stream(&pb.ServerMessage{Body: &pb.ServerMessage_Reply{Reply: &pb.Reply{Session: 1, Result: &storepb.Result{
		Code: storepb.Code_HELD, Number: 3, Blockers: []*storepb.Blocker{{Session: 9, Ghost: true}, {}}}}}}), uint8(1))
	fuzzing.Seed(f, "http", []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, piece uint8) {
		fuzzing.Bounded(t, 512*uint64(len(in))+2<<20, func() {
			conn := wire.NewConn(&fuzzing.Conn{In: in, Piece: int(piece)}, wire.Options{MaxFrame: linkMaxFrame})
			defer conn.Close()
			if conn.Handshake(t.Context()) != nil {
				return
			}
			rest := len(in) - len(wire.Preface)
			for {
				msg, err := readMessage(conn)
				if err != nil {
					return
				}
				if rest -= 8; msg != nil && rest < 0 { // each has a header at least
					t.Fatalf("%d bytes more than there are", -rest)
				}
				show(t, msg)
			}
		})
	})
}

// show makes of a message what callers see of it.
func show(t *testing.T, m *pb.ServerMessage) {
	r := m.GetRead()
	if st := r.GetStatus(); st != nil {
		if got := replicaStatus(st); got.Replica != st.GetReplica() || len(got.Peers) != len(st.GetPeers()) {
			t.Fatalf("%v becomes %+v", st, got)
		}
	}
	if r != nil && codeError(r.GetCode()) != nil {
		if err := readError("get", "/a", r); err == nil || strings.TrimSpace(err.Error()) == "" {
			t.Fatalf("the refusal %v becomes the error %v", r, err)
		}
	}
	if res := m.GetReply().GetResult(); res != nil {
		ok := codeError(res.GetCode()) == nil
		if err := resultError("put", "/a", res); (err == nil) != ok {
			t.Fatalf("%v becomes the error %v", res, err)
		}
	}
}
