package sim

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// What a client of either kind sends reaches the replica as it was sent: lists are
// neither doubled nor lost.
func TestMessagesArriveAsSent(t *testing.T) {
	held := &storepb.Condition{Demand: &storepb.Condition_Exists{Exists: true}}
	multi := &storepb.Multi{Ops: []*storepb.MultiOp{
		{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: "/x", Conditions: []*storepb.Condition{held}}}},
		{Op: &storepb.MultiOp_Delete{Delete: &storepb.Delete{Path: "/x/a"}}},
	}}
	messages := []*pb.ClientMessage{
		{Body: &pb.ClientMessage_Hello{Hello: &pb.Hello{VersionMin: 2, VersionMax: 2, Features: []string{"a", "b"}}}},
		{Body: &pb.ClientMessage_KeepAlive{KeepAlive: &pb.KeepAlive{Id: 7, Sessions: []uint64{1, 2, 3}}}},
		{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: &storepb.Command{Session: 1, Number: 2, Op: &storepb.Command_Multi{Multi: multi}}}}},
	}
	for _, r := range []*raw{nil, {}} {
		for _, m := range messages {
			data, err := m.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			n := &conn{w: &World{}, c: &client{name: "x1", raw: r}}
			if got := n.decodeUp(data); !proto.Equal(got, m) {
				t.Errorf("raw %v: %v arrives as %v", r != nil, m, got)
			}
		}
	}
}
