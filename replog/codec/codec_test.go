package codec

import (
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
)

func drawBallot(t *rapid.T) paxos.Ballot {
	return paxos.Ballot{Round: rapid.Uint64().Draw(t, "round"), Replica: paxos.ReplicaID(rapid.Uint64().Draw(t, "replica"))}
}

func drawConfiguration(t *rapid.T) *paxos.Configuration {
	c := &paxos.Configuration{
		Cell:          rapid.String().Draw(t, "cell"),
		CellIdentity:  rapid.Uint64().Draw(t, "identity"),
		RevisionFloor: rapid.Uint64().Draw(t, "floor"),
	}
	id := paxos.ReplicaID(0)
	for range rapid.IntRange(0, 5).Draw(t, "members") {
		id += 1 + paxos.ReplicaID(rapid.Uint32().Draw(t, "step"))
		c.Members = append(c.Members, paxos.Member{
			ID: id, Name: rapid.String().Draw(t, "name"), Incarnation: rapid.Uint64().Draw(t, "incarnation"),
			PeerAddress: rapid.String().Draw(t, "peer"), ClientAddress: rapid.String().Draw(t, "client"),
			Voter: rapid.Bool().Draw(t, "voter"),
		})
	}
	return c
}

// drawEntries draws entries with their values, or some that are only named.
func drawEntries(t *rapid.T, named bool) []paxos.Entry {
	var out []paxos.Entry
	for range rapid.IntRange(0, 4).Draw(t, "entries") {
		e := paxos.Entry{
			Slot:   paxos.Slot(rapid.Uint64Range(1, 1<<63).Draw(t, "slot")),
			Ballot: drawBallot(t),
			Chosen: rapid.Bool().Draw(t, "chosen"),
		}
		if named && rapid.Bool().Draw(t, "named") {
			e.Named = true
			out = append(out, e)
			continue
		}
		switch e.Value.Kind = paxos.ValueKind(rapid.IntRange(0, 3).Draw(t, "kind")); e.Value.Kind {
		case paxos.Batch:
			e.Value.Commands = rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 1, 20), 1, 4).Draw(t, "commands")
		case paxos.Lead:
			e.Value.Leader = drawBallot(t)
			e.Value.WallSeconds, e.Value.CellTime = rapid.Int64().Draw(t, "wall"), rapid.Int64().Draw(t, "cell time")
		case paxos.Config:
			e.Value.Config = drawConfiguration(t)
		}
		out = append(out, e)
	}
	return out
}

func overTheWire[M proto.Message](t *rapid.T, m, empty M) M {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(b, empty); err != nil {
		t.Fatal(err)
	}
	return empty
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &paxos.Record{Promised: drawBallot(t), Chosen: paxos.Slot(rapid.Uint64().Draw(t, "chosen")), Entries: drawEntries(t, false)}
		got, err := DecodeRecord(overTheWire(t, EncodeRecord(r), &pb.LogRecord{}))
		if err != nil || !reflect.DeepEqual(r, got) {
			t.Fatalf("%+v became %+v, %v", r, got, err)
		}
	})
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := func(what string) uint64 { return rapid.Uint64().Draw(t, what) }
		m := paxos.Message{
			Kind: paxos.MessageKind(rapid.IntRange(1, int(paxos.MsgValues)).Draw(t, "kind")), From: 1, To: 2,
			Ballot: drawBallot(t), Promised: drawBallot(t), Slot: paxos.Slot(n("slot")), Chosen: paxos.Slot(n("chosen")),
			First: paxos.Slot(n("first")), Sequence: n("sequence"), OK: rapid.Bool().Draw(t, "ok"), Limit: n("limit"),
			Entries: drawEntries(t, true), WallSeconds: rapid.Int64().Draw(t, "wall"),
			RoundTrip: time.Duration(rapid.Int64().Draw(t, "round trip")),
		}
		got, err := DecodeMessage(overTheWire(t, EncodeMessage(&m), &pb.PaxosMessage{}), 1, 2)
		if err != nil || !reflect.DeepEqual(m, got) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}

func TestCodecRefusesWhatItDoesNotKnow(t *testing.T) {
	value := func(v *pb.Value) *pb.PaxosMessage {
		return &pb.PaxosMessage{Kind: uint32(paxos.MsgAccept), Entries: []*pb.Entry{{Slot: 1, Value: v}}}
	}
	for what, p := range map[string]*pb.PaxosMessage{
		"nothing":               nil,
		"no kind":               {},
		"a kind to come":        {Kind: uint32(paxos.MsgValues) + 1},
		"a huge kind":           {Kind: 1<<32 - 1},
		"a kind beyond a byte":  {Kind: 256 + uint32(paxos.MsgAccept)},
		"a value in a name":     {Kind: uint32(paxos.MsgPromise), Entries: []*pb.Entry{{Slot: 1, Named: true, Value: &pb.Value{}}}},
		"an entry without slot": {Kind: uint32(paxos.MsgAccept), Entries: []*pb.Entry{{Value: &pb.Value{}}}},
		"no entry":              {Kind: uint32(paxos.MsgAccept), Entries: []*pb.Entry{nil}},
		"no value":              value(nil),
		"a value kind to come":  value(&pb.Value{Kind: 4}),
		"lead without ballot":   value(&pb.Value{Kind: pb.ValueKind_LEAD}),
		"config without config": value(&pb.Value{Kind: pb.ValueKind_CONFIG}),
		"members out of order":  value(&pb.Value{Kind: pb.ValueKind_CONFIG, Config: &pb.Config{Members: []*pb.Member{{Replica: 2}, {Replica: 1}}}}),
		"a member without ID":   value(&pb.Value{Kind: pb.ValueKind_CONFIG, Config: &pb.Config{Members: []*pb.Member{{}}}}),
	} {
		if _, err := DecodeMessage(p, 1, 2); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if _, err := DecodeRecord(&pb.LogRecord{Entries: []*pb.Entry{{Slot: 1, Named: true}}}); err == nil {
		t.Error("a record was accepted that names a value and does not have it")
	}
}
