package machine_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// What FuzzServerMessages does with the bytes: an operation, and for fromServer
// a length of two bytes and a message.
const (
	passTime = iota // the next byte says how long, in units of 50 ms
	connectIt
	cutIt
	callIt
	acquireIt
	readIt
	watchIt
	releaseIt
	cancelIt
	fromServer
	operations
)

// FuzzServerMessages gives a session with work under way whatever a service may
// send. It never fails, sends only what can be encoded, answers every call once,
// and can always be closed.
func FuzzServerMessages(f *testing.F) {
	from := func(ms ...*pb.ServerMessage) (all []byte) {
		for _, m := range ms {
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			all = append(binary.BigEndian.AppendUint16(append(all, fromServer), uint16(len(b))), b...)
		}
		return all
	}
	work := []byte{callIt, acquireIt, readIt, watchIt}
	huge := uint64(1<<64 - 1)
	fuzzing.Seed(f, "answers", append(work, from(reply(1, &storepb.Result{}), granted(2),
		&pb.ServerMessage{Body: &pb.ServerMessage_Read{Read: &pb.ReadReply{Id: 3}}},
		&pb.ServerMessage{Body: &pb.ServerMessage_Watch{Watch: &pb.WatchUpdate{Id: 4}}},
		event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_LOST, Ticket: 2}))...))
	fuzzing.Seed(f, "strange", append(work, from(reply(huge, &storepb.Result{}), granted(huge), event(&storepb.SessionEvent{Number: huge}),
		event(nil), &pb.ServerMessage{}, &pb.ServerMessage{Body: &pb.ServerMessage_Kept{}},
		&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{Session: huge, LeaseMs: huge}}},
		&pb.ServerMessage{Body: &pb.ServerMessage_Kept{Kept: &pb.KeepAliveReply{Id: 1, HeldNs: -1 << 63, Leases: []*pb.SessionLease{{Session: session, LeaseMs: huge}}}}})...))
	for name, c := range map[string]pb.ErrorCode{"overloaded": pb.ErrorCode_OVERLOADED, "not-master": pb.ErrorCode_NOT_MASTER, "stopping": pb.ErrorCode_SHUTTING_DOWN} {
		fuzzing.Seed(f, name, append(append(work, from(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
			Code: c, Id: 1, Session: session, RetryAfterMs: 1 << 31, Text: "no", Fatal: c == pb.ErrorCode_SHUTTING_DOWN}}})...), passTime, 9, connectIt, passTime, 9))
	}
	fuzzing.Seed(f, "reconnects", append(append(work, cutIt, passTime, 20, connectIt), from(hello(true, ""),
		&pb.ServerMessage{Body: &pb.ServerMessage_Attached{Attached: &pb.AttachReply{Session: session}}})...))
	fuzzing.Seed(f, "hints", append(append([]byte{cutIt, passTime, 20, connectIt}, from(hello(false, "d:1"))...), passTime, 1, connectIt, passTime, 255, passTime, 255))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := newRig(t, machine.Options{})
		r.open()
		id := machine.CallID(0)
		var locks, answers []machine.CallID
		next := func() byte {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return b
		}
		for n := 0; len(in) > 0 && n < 256 && r.m.Err() == nil; n++ {
			switch next() % operations {
			case passTime:
				r.pass(50 * ms * time.Duration(1+int(next())))
			case connectIt:
				if r.dial != "" && !r.linked {
					r.linked = true
					r.step(machine.Connected{})
				}
			case cutIt:
				r.linked = false
				r.step(machine.Disconnected{})
			case callIt:
				id++
				answers = append(answers, id)
				r.call(id)
			case acquireIt:
				id++
				locks, answers = append(locks, id), append(answers, id)
				r.acquire(id, sec)
			case readIt:
				id++
				answers = append(answers, id)
				r.step(machine.Read{ID: id, Read: &pb.Read{Op: &pb.Read_Node{Node: &pb.ReadNode{Path: "/x"}}}})
			case watchIt:
				id++
				r.step(machine.Watch{ID: id, Watch: &pb.Watch{Path: "/x", Scope: pb.WatchScope(id % 3)}})
			case releaseIt:
				if len(locks) > 0 {
					lock := locks[0]
					locks = locks[1:]
					if d, ok := r.done[lock]; ok && d.Result.GetCode() == storepb.Code_GRANTED {
						id++
						answers = append(answers, id)
						r.step(machine.Release{ID: id, Lock: lock})
					}
				}
			case cancelIt:
				r.step(machine.Cancel{ID: 1 + machine.CallID(next())%(id+1)})
			case fromServer:
				size := min(int(next())<<8|int(next()), len(in))
				m := new(pb.ServerMessage)
				err := proto.Unmarshal(in[:size], m)
				if in = in[size:]; err == nil && r.linked {
					r.receive(m)
				}
			}
			for _, m := range r.sent {
				if _, err := proto.Marshal(m); err != nil {
					t.Fatalf("%v cannot be encoded: %v", m, err)
				}
			}
			r.sent = nil
		}
		r.step(machine.Close{})
		r.pass(3600 * sec)
		if r.m.Err() == nil {
			t.Fatal("it does not end")
		}
		for _, a := range answers {
			if _, ok := r.done[a]; !ok {
				t.Fatalf("call %d of %d was never answered", a, id)
			}
		}
	})
}
