package machine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

func TestOpenFollowsHintToMaster(t *testing.T) {
	r := newRig(t, machine.Options{})
	r.linked = true
	r.step(machine.Connected{})
	expect[*pb.ClientMessage_Hello](r)
	r.receive(hello(false, "m:1"))
	if r.dial != "m:1" {
		t.Fatalf("dials %q, expected the master that was named, at once", r.dial)
	}
	r.open()
	r.lastState(machine.Live)
	if name, id := r.m.Cell(); name != "test" || id != 99 || r.m.Session() != session {
		t.Fatalf("cell %q %d, session %d", name, id, r.m.Session())
	}
	if k := r.keepAlive(); k.Now || len(k.Sessions) != 1 || k.Sessions[0] != session {
		t.Fatalf("KeepAlive %v", k)
	}
	r.silent()
}

func TestOpenRepeatsTheNonce(t *testing.T) {
	r := newRig(t, machine.Options{})
	r.connect()
	first := expect[*pb.ClientMessage_Open](r).Open
	r.cut()
	r.pass(sec)
	r.connect()
	second := expect[*pb.ClientMessage_Open](r).Open
	if string(first.Nonce) != string(second.Nonce) || first.Id == second.Id {
		t.Fatalf("opens with %v, then with %v", first, second)
	}
	// The answer to the first, should it come, is not taken for the second's.
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{
		Id: first.Id, Session: session, LeaseMs: 12000}}})
	if len(r.states) != 0 {
		t.Fatalf("states %v", r.states)
	}
}

func TestOpenFailsNamingEveryAddress(t *testing.T) {
	r := newRig(t, machine.Options{OpenTimeout: 3 * sec})
	for r.m.Err() == nil {
		if r.dial != "" {
			a := r.dial
			r.dial = ""
			r.step(machine.ConnectFailed{Err: errors.New("refused by " + a)})
		}
		r.now = max(r.now, r.wake)
		r.step(machine.Tick{})
	}
	if r.now != 103*sec {
		t.Fatalf("gave up after %v", r.now-100*sec)
	}
	err := r.m.Err()
	for _, want := range []string{"a:1: refused by a:1", "b:1: refused by b:1", "c:1: refused by c:1"} {
		if !errors.Is(err, machine.ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Fatalf("error %q lacks %q", err, want)
		}
	}
	r.lastState(machine.Closed)
}

// Each address is named once: with what came of it last, also while another try is
// under way.
func TestAttemptsNameEachAddressOnce(t *testing.T) {
	r := newRig(t, machine.Options{Addresses: []string{"a:1"}})
	if got, want := r.m.Attempts(), "a:1: no answer yet"; r.dial != "a:1" || got != want {
		t.Fatalf("dials %q: %q, want %q", r.dial, got, want)
	}
	r.step(machine.ConnectFailed{Err: errors.New("refused")})
	r.dial = ""
	for r.dial == "" {
		r.now = max(r.now, r.wake)
		r.step(machine.Tick{})
	}
	if got, want := r.m.Attempts(), "a:1: refused"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestOpenFailsAtOnce(t *testing.T) {
	for _, c := range []struct {
		code pb.ErrorCode
		want error
	}{
		{pb.ErrorCode_WRONG_CELL, machine.ErrWrongCell},
		{pb.ErrorCode_BAD_VERSION, machine.ErrInvalid},
	} {
		r := newRig(t, machine.Options{})
		// Every address refuses, each is asked once.
		for range 3 {
			if err := r.m.Err(); err != nil {
				t.Fatalf("%v: %v, while there are other addresses", c.code, err)
			}
			r.dialed()
			r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Code: c.code, Text: "why", Fatal: true}}})
		}
		if err := r.m.Err(); !errors.Is(err, c.want) || !strings.Contains(err.Error(), "why") {
			t.Fatalf("%v: error %v", c.code, err)
		}
	}
	for _, c := range []struct {
		code pb.ErrorCode
		want error
	}{
		{pb.ErrorCode_TOO_MANY, machine.ErrLimit},
		{pb.ErrorCode_INVALID_ARGUMENT, machine.ErrInvalid},
	} {
		r := newRig(t, machine.Options{})
		r.connect()
		o := expect[*pb.ClientMessage_Open](r).Open
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Code: c.code, Text: "why", Id: o.Id}}})
		if err := r.m.Err(); !errors.Is(err, c.want) {
			t.Fatalf("%v: error %v", c.code, err)
		}
	}
}

func TestBackOffIsBounded(t *testing.T) {
	r := newRig(t, machine.Options{OpenTimeout: 60 * sec})
	dials := 0
	for r.now < 110*sec {
		if r.dial != "" {
			dials++
			r.dial = ""
			r.step(machine.ConnectFailed{Err: errors.New("refused")})
		}
		if r.wake <= r.now && r.dial == "" && r.wake != 0 {
			t.Fatalf("spins at %v", r.now)
		}
		r.now = r.wake
		r.step(machine.Tick{})
	}
	// Early in an outage pauses are 200 to 400 ms, later 500 ms to 1 s.
	if dials < 15 || dials > 40 {
		t.Fatalf("%d dials in 10 s", dials)
	}
}

func TestAttemptsTimeOut(t *testing.T) {
	r := newRig(t, machine.Options{OpenTimeout: 60 * sec})
	first := r.dial
	r.pass(1500 * ms)
	if r.dial == first || r.dial == "" {
		t.Fatalf("still dials %q", r.dial)
	}
	r.linked = true
	r.step(machine.Connected{})
	expect[*pb.ClientMessage_Hello](r)
	at := r.now
	for r.linked {
		r.now = r.wake
		r.step(machine.Tick{})
	}
	if d := r.now - at; d != 2*sec {
		t.Fatalf("waited %v for the answer to Hello, expected twice as long as before", d)
	}
}

func TestLeaseArithmetic(t *testing.T) {
	// 1 % of drift: a span of 10 s counts 9.8 s.
	for _, c := range []struct {
		name              string
		trip, held, lease time.Duration
		want              time.Duration // after the KeepAlive was sent
	}{
		{"not held", 0, 0, 10 * sec, 9800 * ms},
		{"held", 4 * sec, 4 * sec, 10 * sec, 13720 * ms},
		{"the way back does not count", 5 * sec, 4 * sec, 10 * sec, 13720 * ms},
		{"held longer than it took is not believed", 1 * sec, 4 * sec, 10 * sec, 10780 * ms},
		{"held less than nothing is not believed", 1 * sec, -4 * sec, 10 * sec, 9800 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, machine.Options{DriftPPM: 10_000})
			r.open()
			k := r.keepAlive()
			sent := r.now
			r.now += c.trip
			r.receive(kept(k, c.held, c.lease))
			// A longer lease from the opening counts on.
			end := max(sent+c.want, sent+11760*ms)
			r.now = end - 1
			r.step(machine.Tick{})
			r.lastState(machine.Live)
			r.now = end
			r.step(machine.Tick{})
			r.lastState(machine.Jeopardy)
		})
	}
}

func TestKeepAliveFollowsTheAnswer(t *testing.T) {
	r := newRig(t, machine.Options{})
	r.open()
	for range 5 {
		k := r.keepAlive()
		r.silent()
		r.now += 4 * sec // held for a third of the lease
		r.receive(kept(k, 4*sec, 12*sec))
	}
	// A service that does not hold is not asked more often than 30 times a lease.
	sent := 0
	for end := r.now + 12*sec; r.now < end; {
		if len(r.sent) > 0 {
			sent++
			r.receive(kept(r.keepAlive(), 0, 12*sec))
			continue
		}
		r.now = r.wake
		r.step(machine.Tick{})
	}
	if sent > 31 {
		t.Fatalf("%d KeepAlives in a lease", sent)
	}
	r.lastState(machine.Live)
}

func TestSilentConnectionIsGivenUp(t *testing.T) {
	t.Run("without anything under way, at two thirds of the lease", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		for r.linked {
			r.now = r.wake
			r.step(machine.Tick{})
		}
		if d := r.now - 100*sec; d != 8*sec {
			t.Fatalf("given up after %v", d)
		}
		r.lastState(machine.Live)
	})
	t.Run("with a request under way, after a probe", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.call(1)
		r.request(1)
		r.pass(2 * sec)
		if k := r.keepAlive(); !k.Now {
			t.Fatal("the probe must be answered at once")
		}
		r.pass(2 * sec)
		if r.linked {
			t.Fatal("still connected")
		}
		r.pending(1)
	})
	t.Run("an answered probe keeps it", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		held := r.keepAlive()
		r.call(1)
		r.request(1)
		for range 10 {
			r.pass(2 * sec)
			if !r.linked {
				t.Fatalf("given up at %v", r.now)
			}
			for len(r.sent) > 0 {
				if k := r.keepAlive(); k.Now {
					r.receive(kept(k, 0, 12*sec))
				}
			}
		}
		r.receive(kept(held, 0, 12*sec)) // superseded: changes nothing
		r.receive(code(1, storepb.Code_OK))
		r.succeeds(1, storepb.Code_OK)
	})
}

func TestJeopardySafe(t *testing.T) {
	r := newRig(t, machine.Options{})
	r.open()
	r.keepAlive()
	r.cut()
	r.dial = ""
	r.now += 12 * sec
	r.step(machine.Tick{})
	r.lastState(machine.Jeopardy)
	r.call(1)
	r.step(machine.Read{ID: 2, Read: &pb.Read{}})
	r.now += 30 * sec
	r.step(machine.Tick{})
	r.pending(1)
	// The phase of the dial has timed out meanwhile; the next one succeeds.
	r.attach()
	k := r.keepAlive()
	if !k.Now {
		t.Fatal("after a reconnect the lease is wanted at once")
	}
	r.silent() // calls are held back until the session is known to live
	r.receive(kept(k, 0, 12*sec))
	r.lastState(machine.Live)
	r.request(1)
	expect[*pb.ClientMessage_Read](r)
	r.receive(code(1, storepb.Code_OK))
	r.succeeds(1, storepb.Code_OK)
}

func TestExpiry(t *testing.T) {
	// Each call is at another stage when the session ends.
	prepare := func(t *testing.T) *rig {
		r := newRig(t, machine.Options{Grace: 45 * sec})
		r.open()
		r.keepAlive()
		r.acquire(1, 0)
		r.request(1)
		r.receive(granted(1))
		r.succeeds(1, storepb.Code_GRANTED)
		r.call(2)
		r.request(2)
		r.acquire(3, 0)
		r.request(3)
		r.step(machine.Read{ID: 4, Read: &pb.Read{}})
		r.step(machine.Watch{ID: 5, Watch: &pb.Watch{Path: "/"}})
		return r
	}
	check := func(t *testing.T, r *rig) {
		t.Helper()
		r.lastState(machine.Expired)
		if !errors.Is(r.m.Err(), machine.ErrExpired) {
			t.Fatalf("error %v", r.m.Err())
		}
		r.fails(2, machine.ErrExpired, machine.ErrUnknownOutcome)
		r.fails(3, machine.ErrExpired)
		r.fails(4, machine.ErrExpired)
		if n := r.news[5]; len(n) != 1 || !errors.Is(n[0].Err, machine.ErrExpired) {
			t.Fatalf("watch was told %v", n)
		}
		if len(r.lost) != 1 || r.lost[0].Lock != 1 {
			t.Fatalf("lost %v", r.lost)
		}
		if r.linked {
			t.Fatal("still connected")
		}
		// What comes later is answered, too.
		r.call(20)
		r.fails(20, machine.ErrExpired)
		r.step(machine.Release{ID: 21, Lock: 1})
		r.fails(21, machine.ErrExpired)
		r.step(machine.Close{})
		r.pass(100 * sec)
	}
	t.Run("grace", func(t *testing.T) {
		r := prepare(t)
		r.cut()
		r.now = 100*sec + 57*sec - ms
		r.step(machine.Tick{})
		r.lastState(machine.Jeopardy)
		r.call(10)
		r.now += ms
		r.step(machine.Tick{})
		r.fails(10, machine.ErrExpired)
		if errors.Is(r.outcome(10).Err, machine.ErrUnknownOutcome) {
			t.Fatal("what was never sent was not executed")
		}
		check(t, r)
	})
	t.Run("attach", func(t *testing.T) {
		r := prepare(t)
		r.cut()
		for r.dial == "" {
			r.now = r.wake
			r.step(machine.Tick{})
		}
		r.connect()
		expect[*pb.ClientMessage_Attach](r)
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Attached{Attached: &pb.AttachReply{
			Session: session, Code: storepb.Code_UNKNOWN_SESSION}}})
		check(t, r)
	})
	t.Run("gone", func(t *testing.T) {
		r := prepare(t)
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Kept{Kept: &pb.KeepAliveReply{Gone: []uint64{session}}}})
		check(t, r)
	})
	t.Run("result", func(t *testing.T) {
		r := prepare(t)
		r.receive(code(2, storepb.Code_UNKNOWN_SESSION))
		check(t, r)
	})
}

// The time is looked at before the message that arrives with it.
func TestLateRenewalCannotReviveAnExpiredSession(t *testing.T) {
	r := newRig(t, machine.Options{Grace: 10 * sec})
	r.open()
	k := r.keepAlive()
	r.now += 22 * sec
	r.receive(kept(k, 4*sec, 60*sec))
	r.lastState(machine.Expired)
}

func TestAttachedElsewhereAttachesAnew(t *testing.T) {
	r := newRig(t, machine.Options{})
	r.open()
	r.pass(sec)
	for range 3 {
		k := r.keepAlive()
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Kept{Kept: &pb.KeepAliveReply{Id: k.Id}}})
		r.pass(500 * ms)
	}
	r.attach()
	r.lastState(machine.Live)
	// The same if a request tells it; it is not taken for the session's end.
	r.keepAlive()
	r.call(1)
	r.request(1)
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
		Code: pb.ErrorCode_UNKNOWN_SESSION, Session: session, Number: 1}}})
	r.attach()
	r.keepAlive()
	r.request(1)
}

func TestClose(t *testing.T) {
	t.Run("work ended", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.call(1)
		r.request(1)
		r.step(machine.Close{})
		if c := r.request(2).GetCloseSession(); c == nil || !c.WorkEnded {
			t.Fatalf("sent %v", c)
		}
		r.call(3)
		r.fails(3, machine.ErrClosed)
		r.receive(code(1, storepb.Code_OK))
		r.succeeds(1, storepb.Code_OK)
		r.receive(code(2, storepb.Code_OK))
		r.lastState(machine.Closed)
		if err := r.m.Err(); !errors.Is(err, machine.ErrClosed) || errors.Is(err, machine.ErrUnavailable) {
			t.Fatalf("error %v", err)
		}
	})
	t.Run("work goes on", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.acquire(1, 0)
		r.request(1)
		r.receive(granted(1))
		r.acquire(2, 0)
		r.request(2)
		r.receive(code(2, storepb.Code_WAITING))
		r.step(machine.Close{})
		if len(r.lost) != 1 {
			t.Fatalf("lost %v", r.lost)
		}
		r.fails(2, machine.ErrClosed)
		r.silent() // the work is given time to end
		r.pass(sec)
		if c := r.request(3).GetCloseSession(); c == nil || c.WorkEnded {
			t.Fatalf("sent %v: no Release has said that the work under the lock has ended", c)
		}
		r.step(machine.Release{ID: 3, Lock: 1})
		r.fails(3, machine.ErrClosed)
	})
	t.Run("work ends after Close has begun", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		for id := machine.CallID(1); id <= 2; id++ {
			r.acquire(id, 0)
			r.request(uint64(id))
			r.receive(granted(uint64(id)))
		}
		r.step(machine.Close{})
		r.pass(sec / 2)
		r.step(machine.Release{ID: 3, Lock: 1})
		if rel := r.request(3).GetRelease(); rel.GetTicket() != 1 {
			t.Fatalf("sent %v", rel)
		}
		r.silent() // the other lock is held
		r.step(machine.Release{ID: 4, Lock: 2})
		if rel := r.request(4).GetRelease(); rel.GetTicket() != 2 {
			t.Fatalf("sent %v", rel)
		}
		if c := r.request(5).GetCloseSession(); c == nil || !c.WorkEnded {
			t.Fatalf("sent %v", c)
		}
		for n := uint64(3); n <= 5; n++ {
			r.receive(code(n, storepb.Code_OK))
		}
		r.succeeds(3, storepb.Code_OK)
		r.succeeds(4, storepb.Code_OK)
		r.lastState(machine.Closed)
	})
	t.Run("work under a lock that was lost before goes on", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.acquire(1, 0)
		r.request(1)
		r.receive(granted(1))
		r.cut()
		r.pass(r.ends[1] - r.now) // lost; the session is in jeopardy
		if len(r.lost) != 1 {
			t.Fatalf("lost %v", r.lost)
		}
		r.attach()
		r.receive(kept(r.keepAlive(), 0, 12*sec))
		if f := r.request(2).GetForfeit(); f.GetTicket() != 1 {
			t.Fatalf("sent %v", f)
		}
		r.receive(code(2, storepb.Code_OK))
		r.sent = nil
		r.step(machine.Close{})
		r.now += sec
		r.step(machine.Tick{})
		for len(r.sent) > 0 && r.sent[0].GetRequest() == nil {
			r.keepAlive()
		}
		if c := r.request(3).GetCloseSession(); c == nil || c.WorkEnded {
			t.Fatalf("sent %v: no Release has said that the work under the lost lock has ended", c)
		}
	})
	t.Run("service away", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.cut()
		r.step(machine.Close{})
		r.pass(3 * sec)
		r.lastState(machine.Closed)
		if err := r.m.Err(); !errors.Is(err, machine.ErrClosed) || !errors.Is(err, machine.ErrUnavailable) {
			t.Fatalf("error %v", err)
		}
	})
	t.Run("service away, and the grace period ends first", func(t *testing.T) {
		r := newRig(t, machine.Options{Grace: sec})
		r.open()
		r.cut()
		r.pass(12 * sec)
		r.lastState(machine.Jeopardy)
		r.step(machine.Close{})
		r.pass(sec)
		r.lastState(machine.Closed)
		if err := r.m.Err(); !errors.Is(err, machine.ErrClosed) || !errors.Is(err, machine.ErrUnavailable) {
			t.Fatalf("error %v, though nobody was told", err)
		}
	})
	t.Run("before it is open", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.step(machine.Close{})
		r.lastState(machine.Closed)
	})
}
