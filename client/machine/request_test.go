package machine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

func live(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, machine.Options{})
	r.open()
	r.keepAlive()
	return r
}

func refusal(n uint64, e *pb.Error) *pb.ServerMessage {
	e.Session, e.Number = session, n
	return &pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: e}}
}

func TestResendAfterReconnect(t *testing.T) {
	r := live(t)
	for id := machine.CallID(1); id <= 4; id++ {
		r.call(id)
		if c := r.request(uint64(id)); c.LowestUnanswered != 1 {
			t.Fatalf("lowest unanswered is %d", c.LowestUnanswered)
		}
	}
	r.receive(code(1, storepb.Code_OK))
	r.receive(code(3, storepb.Code_NOT_FOUND))
	r.reconnect()
	r.keepAlive()
	for _, n := range []uint64{2, 4} {
		if c := r.request(n); c.LowestUnanswered != 2 || c.GetPut().GetPath() != "/x" {
			t.Fatalf("repeats %v", c)
		}
	}
	r.silent()
	r.receive(code(2, storepb.Code_OK))
	r.receive(code(2, storepb.Code_CONFLICT)) // a second answer changes nothing
	r.succeeds(2, storepb.Code_OK)
	r.succeeds(3, storepb.Code_NOT_FOUND)
	r.pending(4)
	r.call(5)
	if c := r.request(5); c.LowestUnanswered != 4 {
		t.Fatalf("lowest unanswered is %d", c.LowestUnanswered)
	}
}

func TestRetryRepeatsInOrder(t *testing.T) {
	r := live(t)
	for id := machine.CallID(1); id <= 4; id++ {
		r.call(id)
	}
	r.sent = nil
	r.receive(code(3, storepb.Code_RETRY))
	for n := uint64(1); n <= 3; n++ {
		r.request(n)
	}
	r.silent()
	// If it does not help, the next repeat waits, and longer each time.
	r.receive(code(3, storepb.Code_RETRY))
	r.silent()
	r.pass(10 * ms)
	r.sent = nil
	r.receive(code(3, storepb.Code_RETRY))
	r.pass(19 * ms)
	r.silent()
	r.pass(1 * ms)
	r.request(1)
	r.call(5)
	r.request(2)
	r.request(3)
	r.request(5)
	for n := uint64(1); n <= 5; n++ {
		r.receive(code(n, storepb.Code_OK))
		r.succeeds(machine.CallID(n), storepb.Code_OK)
	}
}

func TestOverloadedIsRepeatedLater(t *testing.T) {
	r := live(t)
	for id := machine.CallID(1); id <= 3; id++ {
		r.call(id)
	}
	r.sent = nil
	r.receive(refusal(2, &pb.Error{Code: pb.ErrorCode_OVERLOADED, RetryAfterMs: 200}))
	r.receive(code(3, storepb.Code_RETRY))
	r.receive(code(1, storepb.Code_OK))
	r.call(4)
	r.silent() // nothing overtakes number 2
	r.pass(199 * ms)
	r.silent()
	r.pass(1 * ms)
	r.request(2)
	r.request(3)
	r.request(4)
}

func TestRefusedIsSettledAsVoid(t *testing.T) {
	r := live(t)
	r.call(1)
	r.call(2)
	r.sent = nil
	r.receive(refusal(1, &pb.Error{Code: pb.ErrorCode_TOO_MANY, Text: "no more"}))
	if c := r.request(1); c.GetVoidRequest() == nil {
		t.Fatalf("sent %v", c)
	}
	r.pending(1) // only the answer makes "not done" certain
	r.receive(code(1, storepb.Code_VOIDED))
	r.fails(1, machine.ErrLimit)

	// It was executed after all, by an earlier try: then that is the answer.
	r.receive(refusal(2, &pb.Error{Code: pb.ErrorCode_INVALID_ARGUMENT, Text: "no"}))
	r.pass(10 * ms)
	r.request(2)
	r.receive(code(2, storepb.Code_OK))
	r.succeeds(2, storepb.Code_OK)
}

func TestNotMasterGoesElsewhere(t *testing.T) {
	r := live(t)
	r.call(1)
	r.request(1)
	r.receive(refusal(1, &pb.Error{Code: pb.ErrorCode_NOT_MASTER, MasterAddress: "m:9"}))
	r.pass(20 * ms)
	if r.dial != "m:9" {
		t.Fatalf("dials %q", r.dial)
	}
	r.attach()
	r.keepAlive()
	r.request(1)
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Leaving{Leaving: &pb.Leaving{MasterAddress: "m:8"}}})
	r.pass(20 * ms)
	if r.dial != "m:8" {
		t.Fatalf("dials %q", r.dial)
	}
}

func TestHintsInACircleEnd(t *testing.T) {
	r := live(t)
	r.cut()
	dials := 0
	for end := r.now + sec; r.now < end; {
		if r.dial == "" {
			r.now = r.wake
			r.step(machine.Tick{})
			continue
		}
		dials++
		other := map[string]string{"m:1": "m:2"}[r.dial]
		if other == "" {
			other = "m:1"
		}
		r.linked = true
		r.step(machine.Connected{})
		r.sent = nil
		r.receive(hello(false, other))
	}
	if dials > 40 {
		t.Fatalf("%d dials in a second", dials)
	}
}

func TestCancelCall(t *testing.T) {
	t.Run("before it was sent", func(t *testing.T) {
		r := live(t)
		r.cut()
		r.call(1)
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrCanceled)
		r.call(2)
		r.attach()
		r.keepAlive()
		r.request(1) // the number was never used, so there is no gap
		r.receive(code(1, storepb.Code_OK))
		r.succeeds(2, storepb.Code_OK)
	})
	t.Run("after", func(t *testing.T) {
		r := live(t)
		r.call(1)
		r.request(1)
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrUnknownOutcome)
		r.reconnect()
		r.keepAlive()
		if c := r.request(1); c.GetVoidRequest() == nil {
			t.Fatalf("repeats %v, expected the number to be settled without executing it", c)
		}
		r.call(2)
		r.request(2)
		r.receive(code(1, storepb.Code_VOIDED))
		r.receive(code(2, storepb.Code_OK))
		r.succeeds(2, storepb.Code_OK)
	})
	t.Run("read", func(t *testing.T) {
		r := live(t)
		r.step(machine.Read{ID: 1, Read: &pb.Read{}})
		q := expect[*pb.ClientMessage_Read](r).Read
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrCanceled)
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Read{Read: &pb.ReadReply{Id: q.Id}}})
	})
}

func TestForgottenIsUnknown(t *testing.T) {
	r := live(t)
	r.call(1)
	r.receive(code(1, storepb.Code_FORGOTTEN))
	r.fails(1, machine.ErrUnknownOutcome)
}

func TestReadsAreRepeated(t *testing.T) {
	r := live(t)
	r.step(machine.Read{ID: 1, Read: &pb.Read{}})
	r.step(machine.Read{ID: 2, Read: &pb.Read{}})
	one := expect[*pb.ClientMessage_Read](r).Read
	two := expect[*pb.ClientMessage_Read](r).Read
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
		Code: pb.ErrorCode_OVERLOADED, Id: two.Id, RetryAfterMs: 50}}})
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
		Code: pb.ErrorCode_READ_NOT_FOUND, Id: one.Id, Text: "none"}}})
	if d := r.outcome(1); d.Read.GetCode() != storepb.Code_NOT_FOUND {
		t.Fatalf("read is done with %+v", d)
	}
	r.pass(49 * ms)
	r.silent()
	r.pass(1 * ms)
	if again := expect[*pb.ClientMessage_Read](r).Read; again.Id != two.Id {
		t.Fatalf("repeats %v", again)
	}
	r.reconnect()
	r.keepAlive()
	expect[*pb.ClientMessage_Read](r)
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Read{Read: &pb.ReadReply{Id: two.Id, Revision: 4}}})
	if d := r.outcome(2); d.Read.GetRevision() != 4 {
		t.Fatalf("read is done with %+v", d)
	}
}

func TestWindowIsBounded(t *testing.T) {
	r := live(t)
	const calls = 1000
	for id := machine.CallID(1); id <= calls; id++ {
		r.call(id)
	}
	if len(r.sent) != 128 {
		t.Fatalf("%d requests are out", len(r.sent))
	}
	for n := uint64(1); n <= calls; n++ {
		r.request(n)
		r.receive(code(n, storepb.Code_OK))
	}
	r.succeeds(calls, storepb.Code_OK)
	r.silent()
	// Large ones: by their bytes.
	for id := machine.CallID(2001); id <= 2020; id++ {
		c := put("/big")
		c.GetPut().Data = make([]byte, 1<<20)
		r.step(machine.Call{ID: id, Command: c})
	}
	if len(r.sent) != 3 {
		t.Fatalf("%d requests of 1 MiB are out", len(r.sent))
	}
}

func TestQueueIsBounded(t *testing.T) {
	r := live(t)
	r.acquire(1, 0)
	r.request(1)
	r.receive(granted(1))
	r.cut()
	for id := machine.CallID(2); id < 2+8192; id++ {
		r.call(id)
	}
	r.call(9000)
	r.fails(9000, machine.ErrLimit)
	r.step(machine.Release{ID: 9001, Lock: 1})
	r.pending(9001) // a release is never refused
}

func TestNoSession(t *testing.T) {
	r := newRig(t, machine.Options{NoSession: true, Grace: 20 * sec})
	r.connect()
	r.lastState(machine.Live)
	r.silent()
	r.step(machine.Read{ID: 1, Read: &pb.Read{}})
	q := expect[*pb.ClientMessage_Read](r).Read
	r.cut()
	for r.dial == "" {
		r.now = r.wake
		r.step(machine.Tick{})
	}
	r.connect()
	if again := expect[*pb.ClientMessage_Read](r).Read; again.Id != q.Id {
		t.Fatalf("repeats %v", again)
	}
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Read{Read: &pb.ReadReply{Id: q.Id}}})
	r.outcome(1)
	// A watch makes sure that its connection stands.
	r.step(machine.Watch{ID: 2, Watch: &pb.Watch{Path: "/"}})
	w := expect[*pb.ClientMessage_Watch](r).Watch
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Watch{Watch: &pb.WatchUpdate{Id: w.Id, State: true, End: true, Revision: 3}}})
	r.pass(5 * sec)
	if s := expect[*pb.ClientMessage_Read](r).Read.GetStatus(); s == nil {
		t.Fatal("no probe")
	}
	r.pass(2 * sec)
	if r.linked {
		t.Fatal("a dead connection is kept")
	}
	// No master for the grace period: calls fail, later ones get their time.
	r.step(machine.Read{ID: 3, Read: &pb.Read{}})
	r.pass(20 * sec)
	r.fails(3, machine.ErrUnavailable)
	if u := r.news[2]; len(u) != 2 || u[1].Err == nil {
		t.Fatalf("watch was told %v", u)
	}
	r.step(machine.Read{ID: 4, Read: &pb.Read{}})
	r.pass(10 * sec)
	r.pending(4)
	r.step(machine.Close{})
	r.fails(4, machine.ErrClosed)
}

// The same events give the same effects, to the byte.
func TestDeterministic(t *testing.T) {
	run := func() string {
		m := machine.New(machine.Options{Addresses: []string{"a", "b", "c", "d"}, Nonce: make([]byte, 16), Seed: 42, OpenTimeout: 100 * sec})
		out, now := "", 0*sec
		for i := range 200 {
			now += 37 * ms
			m.Step(now, machine.Tick{})
			if i%3 == 0 {
				m.Step(now, machine.ConnectFailed{})
			}
			e := m.Take(now)
			out += fmt.Sprint(e.Dial, e.Hangup, e.Wake, ";")
		}
		return out
	}
	if a, b := run(), run(); a != b {
		t.Fatalf("%s\n%s", a, b)
	}
}

// What the service asks to send again later is sent again, after the time it
// named: a request, and what stands in the way of all behind it.
func TestOverloadedIsRepeated(t *testing.T) {
	r := newRig(t, machine.Options{})
	r.open()
	r.keepAlive()
	r.call(1)
	r.request(1)
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
		Code: pb.ErrorCode_OVERLOADED, Session: session, Number: 1, RetryAfterMs: 300}}})
	r.call(2)
	r.pass(299 * ms)
	if len(r.sent) != 0 {
		t.Fatalf("sent %v before the time that the service named", r.sent)
	}
	r.pass(ms)
	if len(r.sent) == 0 {
		t.Fatal("the request is not sent again")
	}
	r.request(1)
	r.request(2)
	r.pending(1)
	r.receive(code(1, storepb.Code_OK))
	r.receive(code(2, storepb.Code_OK))
	r.succeeds(1, storepb.Code_OK)
	r.succeeds(2, storepb.Code_OK)
}

// A refusal names the limit that was met, and that of the whole state is told
// from others. Nothing was done: the number is settled first.
func TestLimitIsNamed(t *testing.T) {
	for limit, full := range map[string]bool{"state_nodes": true, "state_bytes": true, "watches": false} {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.call(1)
		r.request(1)
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
			Code: pb.ErrorCode_TOO_MANY, Session: session, Number: 1, Limit: limit, Text: "delete something"}}})
		r.pending(1)
		r.pass(sec)
		if r.request(1).GetVoidRequest() == nil {
			t.Fatal("the number is not settled")
		}
		r.receive(code(1, storepb.Code_VOIDED))
		r.fails(1, machine.ErrLimit)
		var e *machine.LimitError
		err := r.outcome(1).Err
		if !errors.As(err, &e) || e.Limit != limit || errors.Is(err, machine.ErrNoSpace) != full || !strings.Contains(err.Error(), "delete something") {
			t.Errorf("%s: %v", limit, err)
		}
	}
}

// A refusal for want of room for the result leaves the number unused: the request
// is sent again under it, with what has arrived since, and what stands behind it
// is executed after all.
func TestRefusalThatLeavesTheNumberIsRepeated(t *testing.T) {
	for _, limit := range []string{store.LimitWindow, store.LimitResultBytes} {
		r := live(t)
		for id := range machine.CallID(3) {
			r.call(id + 1)
			r.request(uint64(id + 1))
		}
		r.receive(code(1, storepb.Code_OK))
		r.receive(reply(2, &storepb.Result{Code: storepb.Code_LIMIT, Limit: limit}))
		r.receive(code(3, storepb.Code_RETRY))
		r.pending(2)
		r.pass(sec)
		if c := r.request(2); c.GetPut() == nil || c.GetLowestUnanswered() != 2 {
			t.Fatalf("%s: %v is sent again", limit, c)
		}
		r.request(3)
		r.receive(code(2, storepb.Code_OK))
		r.receive(code(3, storepb.Code_OK))
		r.succeeds(2, storepb.Code_OK)
		r.succeeds(3, storepb.Code_OK)
	}
}
