package machine_test

import (
	"math"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// year is long enough for whatever is not for ever.
const year = 365 * 24 * time.Hour

// The longest durations last; none wraps around into the past. Without a
// service, only the back-off wakes the machine, so the test lets a day pass at a
// time.
func TestForEver(t *testing.T) {
	jump := func(r *rig) {
		for range 10 {
			r.now += year
			r.step(machine.Tick{})
		}
	}
	t.Run("open timeout", func(t *testing.T) {
		r := newRig(t, machine.Options{OpenTimeout: span.Forever})
		jump(r)
		if err := r.m.Err(); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("grace", func(t *testing.T) {
		r := newRig(t, machine.Options{Grace: span.Forever})
		r.open()
		r.cut()
		jump(r)
		r.lastState(machine.Jeopardy)
	})
	t.Run("grace of a reader", func(t *testing.T) {
		r := newRig(t, machine.Options{Grace: span.Forever, NoSession: true})
		r.connect()
		r.cut()
		r.step(machine.Read{ID: 1, Read: &pb.Read{}})
		jump(r)
		r.pending(1)
	})
	t.Run("the service names a lease without end", func(t *testing.T) {
		r := newRig(t, machine.Options{DriftPPM: 250_000})
		r.connect()
		o := expect[*pb.ClientMessage_Open](r).Open
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{
			Id: o.Id, Session: session, LeaseMs: math.MaxUint64}}})
		r.lastState(machine.Live)
		k := r.keepAlive()
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Kept{Kept: &pb.KeepAliveReply{
			Id: k.Id, HeldNs: math.MaxInt64, Leases: []*pb.SessionLease{{Session: session, LeaseMs: math.MaxUint64}}}}})
		r.lastState(machine.Live)
		if r.wake <= r.now {
			t.Fatalf("wakes at %v, now is %v", r.wake, r.now)
		}
	})
	t.Run("the service names a lock-delay without end", func(t *testing.T) {
		r := newRig(t, machine.Options{DriftPPM: 250_000})
		r.open()
		r.keepAlive()
		r.acquire(1, 0)
		r.request(1)
		g := grant(1)
		g.LockDelayMs = math.MaxUint64
		r.receive(reply(1, &storepb.Result{Code: storepb.Code_OK, Grant: g}))
		if r.outcome(1); r.ends[1] <= r.now {
			t.Fatalf("deadline %v, now is %v", r.ends[1], r.now)
		}
	})
	t.Run("the service asks a watch to wait without end", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.step(machine.Watch{ID: 1, Watch: &pb.Watch{Path: "/"}})
		w := expect[*pb.ClientMessage_Watch](r).Watch
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
			Code: pb.ErrorCode_OVERLOADED, Id: w.Id, RetryAfterMs: math.MaxUint64}}})
		r.pass(sec)
		for _, m := range r.sent {
			if m.GetWatch() != nil {
				t.Fatalf("sent %v at once", m)
			}
		}
	})
	t.Run("the service asks to wait without end", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.call(1)
		r.request(1)
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
			Code: pb.ErrorCode_OVERLOADED, Session: session, Number: 1, RetryAfterMs: math.MaxUint64}}})
		r.pass(sec)
		for _, m := range r.sent {
			if m.GetRequest() != nil {
				t.Fatalf("sent %v at once", m)
			}
		}
	})
}
