package machine_test

import (
	"strings"
	"testing"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// putOf is a Put whose command has exactly so many bytes.
func putOf(size int) *storepb.Command {
	c := put("/x")
	c.GetPut().Data = make([]byte, size-64)
	for proto.Size(c) < size {
		c.GetPut().Data = append(c.GetPut().Data, 0)
	}
	return c
}

// Calls that are given up make no room scarce for those that wait: a program whose
// calls have a time can be without a connection for long.
func TestCallsGivenUpDoNotCount(t *testing.T) {
	const most = 8192
	r := newRig(t, machine.Options{})
	id := machine.CallID(0)
	for range 3 * most {
		id++
		r.call(id)
		r.step(machine.Cancel{ID: id})
		r.fails(id, machine.ErrCanceled)
	}
	first := id + 1
	for range most {
		id++
		r.call(id)
	}
	r.pending(first)
	r.pending(id)
	id++
	r.call(id)
	r.fails(id, machine.ErrLimit)
	r.step(machine.Cancel{ID: first}) // one less waits
	id++
	r.call(id)
	r.pending(id)
	// What waits goes out in its order.
	r.open()
	r.keepAlive()
	for n := uint64(1); n <= 3; n++ {
		if c := r.request(n); c.GetPut() == nil {
			t.Fatalf("request %d is %v", n, c)
		}
	}
}

// connectMax is rig.connect, when the machine wants to dial, to a service that
// takes frames of so many bytes.
func connectMax(r *rig, frame uint32) {
	r.t.Helper()
	for r.dial == "" {
		r.now = max(r.now, r.wake)
		r.step(machine.Tick{})
	}
	r.linked = true
	r.step(machine.Connected{})
	expect[*pb.ClientMessage_Hello](r)
	h := hello(true, "")
	h.GetHello().MaxFrame = frame
	r.receive(h)
}

// What the service would not take is refused here, and the connection stands;
// the largest that it takes is sent.
func TestFramesOverTheServicesLimit(t *testing.T) {
	const frame, most = 100_000, 100_000 - 64
	r := newRig(t, machine.Options{})
	// Before the limit is known nothing is refused, and nothing sent.
	r.step(machine.Call{ID: 1, Command: putOf(most)})
	r.step(machine.Call{ID: 2, Command: putOf(most + 1)})
	r.pending(2)
	connectMax(r, frame)
	o := expect[*pb.ClientMessage_Open](r).Open
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{
		Id: o.Id, Session: session, LeaseMs: uint64(12 * sec / ms)}}})
	r.keepAlive()
	r.fails(2, machine.ErrTooLarge)
	if text := r.outcome(2).Err.Error(); !strings.Contains(text, "99937 bytes") || !strings.Contains(text, "99936") {
		t.Errorf("it says %q", text)
	}
	if c := r.request(1); proto.Size(c.GetPut()) < most-10 {
		t.Fatalf("sent %d bytes", proto.Size(c))
	}
	r.call(3)
	if c := r.request(2); c.GetPut() == nil {
		t.Fatal("the call behind the refused one was not sent as number 2")
	}
	r.receive(code(1, storepb.Code_OK))
	r.succeeds(1, storepb.Code_OK)
	r.step(machine.Call{ID: 4, Command: putOf(most + 1)})
	r.fails(4, machine.ErrTooLarge)
	r.receive(code(2, storepb.Code_OK))
	r.succeeds(3, storepb.Code_OK)

	// What an earlier master took may have been executed: the next, which takes
	// less, is asked.
	r.step(machine.Call{ID: 5, Command: putOf(most)})
	r.request(3)
	r.step(machine.Call{ID: 6, Command: putOf(most)})
	r.request(4)
	r.cut()
	connectMax(r, frame/2)
	expect[*pb.ClientMessage_Attach](r)
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Attached{Attached: &pb.AttachReply{Session: session}}})
	r.keepAlive()
	for n := uint64(3); n <= 4; n++ {
		if c := r.request(n); c.GetVoidRequest() == nil {
			t.Fatalf("sent %T", c.GetOp())
		}
	}
	r.pending(5)
	r.receive(code(3, storepb.Code_OK))
	r.succeeds(5, storepb.Code_OK)
	r.receive(code(4, storepb.Code_VOIDED))
	r.fails(6, machine.ErrTooLarge)
}
