package machine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// held is a rig whose call 1 holds a lock with number 1, under a lease of 12 s
// that began at 100 s.
func heldRig(t *testing.T, o machine.Options, stop time.Duration) *rig {
	t.Helper()
	r := newRig(t, o)
	r.open()
	r.keepAlive()
	r.acquire(1, stop)
	r.request(1)
	r.receive(granted(1))
	res := r.succeeds(1, storepb.Code_GRANTED)
	if res.GetGrant().GetFence() != 501 {
		t.Fatalf("granted %v", res)
	}
	return r
}

func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		name  string
		drift int
		stop  time.Duration
		want  time.Duration // after the lease began
	}{
		// 12 s of lease and 15 s of lock-delay, each less 2 %.
		{"drift", 10_000, 0, 11760*ms + 14700*ms},
		{"stop", 10_000, 5 * sec, 11760*ms + 14700*ms - 5*sec},
		{"long stop", 10_000, 20 * sec, 11760*ms + 14700*ms - 20*sec},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := heldRig(t, machine.Options{DriftPPM: c.drift}, c.stop)
			end := 100*sec + c.want
			if r.ends[1] != end {
				t.Fatalf("deadline %v, expected %v", r.ends[1], end)
			}
			r.now = end - 1
			r.step(machine.Tick{})
			if len(r.lost) != 0 {
				t.Fatalf("lost %v before its deadline", r.lost)
			}
			r.now = end
			r.step(machine.Tick{})
			if len(r.lost) != 1 || r.lost[0].Lock != 1 {
				t.Fatalf("lost %v", r.lost)
			}
		})
	}
}

func TestRenewalMovesTheDeadline(t *testing.T) {
	r := newRig(t, machine.Options{DriftPPM: 10_000})
	r.open()
	k := r.keepAlive()
	r.acquire(1, 0)
	r.request(1)
	r.receive(granted(1))
	r.now += 4 * sec
	r.receive(kept(k, 4*sec, 12*sec))
	// (held + lease) and the lock-delay, each less 2 %.
	if want := 100*sec + 15680*ms + 14700*ms; r.ends[1] != want {
		t.Fatalf("deadline %v, expected %v", r.ends[1], want)
	}
	r.now += 2 * sec
	r.receive(kept(r.keepAlive(), 0, sec)) // ends earlier: is not taken back
	if want := 100*sec + 15680*ms + 14700*ms; r.ends[1] != want {
		t.Fatalf("deadline %v, expected %v", r.ends[1], want)
	}
}

// A lock is lost for good at its deadline, although the session comes back: the
// message that arrives at that very moment is too late.
func TestLostForGood(t *testing.T) {
	r := heldRig(t, machine.Options{Grace: 45 * sec}, 0)
	r.cut()
	r.now = r.ends[1] - sec
	r.step(machine.Tick{})
	r.lastState(machine.Jeopardy)
	r.attach()
	k := r.keepAlive()
	r.now = r.ends[1]
	r.receive(kept(k, 0, 12*sec))
	r.lastState(machine.Live)
	if len(r.lost) != 1 {
		t.Fatalf("lost %v", r.lost)
	}
	k = r.keepAlive()
	if f := r.request(2).GetForfeit(); f.GetTicket() != 1 {
		t.Fatalf("sent %v, expected that the loss is told", f)
	}
	r.receive(code(2, storepb.Code_OK))
	moved := r.ends[1]
	r.receive(kept(k, 0, 12*sec))
	if len(r.lost) != 1 || r.ends[1] != moved {
		t.Fatalf("lost %v, deadline moved to %v", r.lost, r.ends[1])
	}
	// A LOST of the service does not tell it again.
	r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_LOST, Ticket: 1}))
	if len(r.lost) != 1 {
		t.Fatalf("lost %v", r.lost)
	}
	// The work has ended: the ghost goes.
	r.sent = nil
	r.step(machine.Release{ID: 9, Lock: 1})
	if rel := r.request(3).GetRelease(); rel.GetTicket() != 1 || rel.GetPath() != "/l" {
		t.Fatalf("sent %v", rel)
	}
	r.receive(code(3, storepb.Code_OK))
	r.succeeds(9, storepb.Code_OK)
}

// The loss is told ahead of what the application asks for after it, so that its
// session does not wait for its own lock; it is repeated like any request.
func TestForfeitGoesFirst(t *testing.T) {
	r := heldRig(t, machine.Options{Grace: 45 * sec}, 0)
	r.acquire(2, 0) // queued before the loss, and numbered
	r.request(2)
	r.receive(code(2, storepb.Code_WAITING))
	r.cut()
	r.step(machine.Call{ID: 3, Command: put("/a")}) // queued, without a number
	r.pass(r.ends[1] - r.now)
	if len(r.lost) != 1 || r.lost[0].Lock != 1 {
		t.Fatalf("lost %v", r.lost)
	}
	r.acquire(4, 0)
	r.attach()
	r.receive(kept(r.keepAlive(), 0, 12*sec))
	if f := r.request(3).GetForfeit(); f.GetTicket() != 1 {
		t.Fatalf("sent %v", f)
	}
	if r.request(4).GetPut() == nil || r.request(5).GetAcquire() == nil {
		t.Fatal("not the calls that waited")
	}
	r.reconnect()
	r.receive(kept(r.keepAlive(), 0, 12*sec))
	if f := r.request(3).GetForfeit(); f.GetTicket() != 1 {
		t.Fatalf("repeated %v", f)
	}
	r.receive(code(3, storepb.Code_OK))
	// What the service took away needs no telling.
	r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_LOST, Ticket: 1}))
	if len(r.lost) != 1 {
		t.Fatalf("lost %v", r.lost)
	}
}

// keepAliveAfter lets time pass until a KeepAlive is sent.
func (r *rig) keepAliveAfter() *pb.KeepAlive {
	r.t.Helper()
	for len(r.sent) == 0 {
		r.now = r.wake
		r.step(machine.Tick{})
	}
	return r.keepAlive()
}

func TestStopIsBounded(t *testing.T) {
	r := live(t)
	// Lock-delay and two thirds of the lease; the drift of this rig is next to
	// nothing.
	limit := lockDelay + 8*sec - 50*ms - 2*(lockDelay+16*sec)/1_000_000
	r.acquire(1, limit)
	r.fails(1, machine.ErrInvalid)
	r.acquire(2, span.Forever)
	r.fails(2, machine.ErrInvalid)
	r.silent()
	r.acquire(3, limit-1)
	r.request(1)
}

// The longest time to stop that is taken leaves the lock held as long as
// nothing is wrong: each KeepAlive is held for a third of the lease, and its
// answer comes 20 ms late.
func TestLongestStopHolds(t *testing.T) {
	const lease, drift = 3 * sec, 10_000
	r := newRig(t, machine.Options{DriftPPM: drift, Lease: lease})
	r.openLease(lease)
	k := r.keepAlive()
	r.acquire(1, lockDelay+lease*2/3-(lockDelay+lease*4/3)*2*drift/1_000_000-50*ms-1)
	r.request(1)
	r.now += ms
	r.receive(granted(1))
	r.outcome(1)
	for range 30 {
		sentAt := r.now
		r.pass(lease/3 + 20*ms)
		r.receive(kept(k, r.now-sentAt-20*ms, lease))
		k = r.keepAliveAfter()
		if len(r.lost) > 0 {
			t.Fatalf("lost at %v: %v", r.now, r.lost)
		}
	}
}

func TestAcquireOutcomes(t *testing.T) {
	blockers := []*storepb.Blocker{{Session: 3, Fence: 5}}
	for _, c := range []struct {
		name string
		play func(r *rig)
		want storepb.Code
	}{
		{"refused", func(r *rig) {
			r.receive(reply(1, &storepb.Result{Code: storepb.Code_HELD, Blockers: blockers}))
		}, storepb.Code_HELD},
		{"waits and is granted", func(r *rig) {
			r.receive(reply(1, &storepb.Result{Code: storepb.Code_WAITING, Blockers: blockers, Position: 2}))
			if w := r.waits[1]; w.GetPosition() != 2 || len(w.GetBlockers()) != 1 {
				r.t.Fatalf("told to wait for %v", w)
			}
			r.pending(1)
			r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 1, Grant: grant(1)}))
		}, storepb.Code_GRANTED},
		{"waits and times out", func(r *rig) {
			r.receive(code(1, storepb.Code_WAITING))
			r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_TIMED_OUT, Ticket: 1, Blockers: blockers}))
		}, storepb.Code_TIMED_OUT},
		{"waits and is withdrawn", func(r *rig) {
			r.receive(code(1, storepb.Code_WAITING))
			r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_WITHDRAWN, Ticket: 1}))
		}, storepb.Code_WITHDRAWN},
		{"granted before the answer that it waits", func(r *rig) {
			r.reconnect()
			r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 1, Grant: grant(1)}))
			r.receive(code(1, storepb.Code_WAITING))
		}, storepb.Code_GRANTED},
		{"timed out before the answer that it waits", func(r *rig) {
			r.reconnect()
			r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_TIMED_OUT, Ticket: 1}))
			r.receive(code(1, storepb.Code_WAITING))
		}, storepb.Code_TIMED_OUT},
		{"waits over a reconnect", func(r *rig) {
			r.receive(code(1, storepb.Code_WAITING))
			r.reconnect()
			r.keepAlive()
			r.silent() // it was answered, so it is not asked for again
			r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 1, Grant: grant(1)}))
		}, storepb.Code_GRANTED},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := live(t)
			r.acquire(1, 0)
			r.request(1)
			c.play(r)
			r.succeeds(1, c.want)
		})
	}
}

func TestEventsCountOnce(t *testing.T) {
	r := live(t)
	r.acquire(1, 0)
	r.request(1)
	r.receive(code(1, storepb.Code_WAITING))
	ev := event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 1, Grant: grant(1)})
	r.receive(ev)
	if a := expect[*pb.ClientMessage_Ack](r).Ack; a.Number != 1 || a.Session != session {
		t.Fatalf("acknowledged %v", a)
	}
	r.receive(ev) // not done twice: take() checks it
	if a := expect[*pb.ClientMessage_Ack](r).Ack; a.Number != 1 {
		t.Fatalf("acknowledged %v", a)
	}
	r.silent()
	// A request carries the acknowledgement, and so does an Attach.
	r.m.Step(r.now, machine.Received{Message: event(&storepb.SessionEvent{Number: 2, Code: storepb.Code_LOST, Ticket: 99})})
	r.call(2)
	if c := r.request(2); c.AckedEvent != 2 {
		t.Fatalf("acknowledges %d", c.AckedEvent)
	}
	r.silent()
	r.cut()
	for r.dial == "" {
		r.now = r.wake
		r.step(machine.Tick{})
	}
	r.connect()
	if a := expect[*pb.ClientMessage_Attach](r).Attach; a.AckedEvent != 2 {
		t.Fatalf("acknowledges %d", a.AckedEvent)
	}
}

func TestGapInEventsAttachesAnew(t *testing.T) {
	r := live(t)
	r.receive(event(&storepb.SessionEvent{Number: 2, Code: storepb.Code_GRANTED, Ticket: 1}))
	if r.linked {
		t.Fatal("an event was left out and the connection is kept")
	}
	r.attach()
}

// A grant that arrives when the lease has run out is no success yet: the
// session may have ended, and the lock with it.
func TestLateGrant(t *testing.T) {
	late := func(t *testing.T) *rig {
		r := live(t)
		r.acquire(1, 0)
		r.request(1)
		r.receive(code(1, storepb.Code_WAITING))
		r.cut()
		r.now += 13 * sec
		r.step(machine.Tick{})
		r.lastState(machine.Jeopardy)
		r.attach()
		r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 1, Grant: grant(1)}))
		r.pending(1)
		return r
	}
	t.Run("the session lives", func(t *testing.T) {
		r := late(t)
		r.receive(kept(r.keepAlive(), 0, 12*sec))
		r.succeeds(1, storepb.Code_GRANTED)
		if r.ends[1] <= r.now {
			t.Fatalf("deadline %v, now %v", r.ends[1], r.now)
		}
	})
	t.Run("the session is gone", func(t *testing.T) {
		r := late(t)
		k := r.keepAlive()
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Kept{Kept: &pb.KeepAliveReply{Id: k.Id, Gone: []uint64{session}}}})
		r.fails(1, machine.ErrExpired)
		if len(r.lost) != 0 {
			t.Fatalf("lost %v, which was never handed over", r.lost)
		}
	})
	t.Run("the lock is gone", func(t *testing.T) {
		r := late(t)
		r.receive(event(&storepb.SessionEvent{Number: 2, Code: storepb.Code_LOST, Ticket: 1, Reason: "broken"}))
		r.fails(1, machine.ErrLost)
		r.receive(kept(r.keepAlive(), 0, 12*sec))
		if rel := r.request(2).GetRelease(); rel.GetTicket() != 1 {
			t.Fatalf("sent %v, expected the ghost's release: no work was begun", rel)
		}
	})
	t.Run("the caller is gone", func(t *testing.T) {
		r := late(t)
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrCanceled)
		r.receive(kept(r.keepAlive(), 0, 12*sec))
		if rel := r.request(2).GetRelease(); rel.GetTicket() != 1 {
			t.Fatalf("sent %v", rel)
		}
	})
	t.Run("too late for the time to stop", func(t *testing.T) {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.acquire(1, lockDelay+7*sec) // deadline is 5 s after the lease began
		r.request(1)
		r.now += 5 * sec
		r.receive(granted(1))
		r.pending(1)
	})
}

func TestCancelAcquire(t *testing.T) {
	t.Run("before it was sent", func(t *testing.T) {
		r := live(t)
		r.cut()
		r.acquire(1, 0)
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrCanceled)
		r.attach()
		r.keepAlive()
		r.silent()
	})
	t.Run("before it was answered", func(t *testing.T) {
		r := live(t)
		r.acquire(1, 0)
		r.request(1)
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrCanceled)
		if rel := r.request(2).GetRelease(); rel.GetTicket() != 1 {
			t.Fatalf("sent %v", rel)
		}
		r.receive(granted(1)) // is on its way back already
		r.reconnect()
		r.keepAlive()
		r.request(2)
		r.receive(code(2, storepb.Code_OK))
		if len(r.lost) != 0 || len(r.ends) != 0 {
			t.Fatalf("lost %v, deadlines %v", r.lost, r.ends)
		}
	})
	t.Run("before it was answered, and the answer never comes", func(t *testing.T) {
		r := live(t)
		r.acquire(1, 0)
		r.request(1)
		r.cut()
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrCanceled) // at once, without a connection
		r.attach()
		r.keepAlive()
		if c := r.request(1); c.GetVoidRequest() == nil {
			t.Fatalf("repeats %v", c)
		}
		r.request(2)
		r.receive(code(1, storepb.Code_VOIDED))
		r.receive(code(2, storepb.Code_NOT_HELD))
	})
	t.Run("while it waits", func(t *testing.T) {
		r := live(t)
		r.acquire(1, 0)
		r.request(1)
		r.receive(code(1, storepb.Code_WAITING))
		r.step(machine.Cancel{ID: 1})
		r.fails(1, machine.ErrCanceled)
		r.request(2)
		r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 1, Grant: grant(1)}))
		r.receive(code(2, storepb.Code_OK))
	})
	t.Run("when it was granted in the same batch", func(t *testing.T) {
		r := live(t)
		r.acquire(1, 0)
		r.request(1)
		r.m.Step(r.now, machine.Received{Message: granted(1)})
		r.step(machine.Cancel{ID: 1})
		r.succeeds(1, storepb.Code_GRANTED)
		if rel := r.request(2).GetRelease(); rel.GetTicket() != 1 {
			t.Fatalf("sent %v", rel)
		}
	})
}

func TestRelease(t *testing.T) {
	r := newRig(t, machine.Options{})
	r.open()
	k := r.keepAlive()
	r.acquire(1, 0)
	r.request(1)
	r.receive(granted(1))
	r.step(machine.Release{ID: 2, Lock: 1})
	r.request(2)
	// Released: it has no deadline and is not lost any more, whatever comes.
	delete(r.ends, 1)
	r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 1, Grant: grant(1)}))
	r.now += sec
	r.receive(kept(k, 0, 12*sec))
	if len(r.ends) != 0 {
		t.Fatalf("deadlines %v", r.ends)
	}
	r.receive(event(&storepb.SessionEvent{Number: 2, Code: storepb.Code_LOST, Ticket: 1}))
	if len(r.lost) != 0 {
		t.Fatalf("lost %v", r.lost)
	}
	// Its caller may go; the release itself goes on.
	r.step(machine.Cancel{ID: 2})
	r.fails(2, machine.ErrUnknownOutcome)
	r.reconnect()
	r.keepAlive()
	if c := r.request(2); c.GetRelease() == nil {
		t.Fatalf("repeats %v", c)
	}
	r.receive(code(2, storepb.Code_OK))
	r.step(machine.Release{ID: 3, Lock: 1})
	r.fails(3, machine.ErrInvalid)
	r.step(machine.Release{ID: 4, Lock: 77})
	r.fails(4, machine.ErrInvalid)
}

func TestLostByTheService(t *testing.T) {
	r := heldRig(t, machine.Options{}, 0)
	r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_LOST, Ticket: 1, Reason: "an operator broke it"}))
	if len(r.lost) != 1 || r.lost[0].Reason != "an operator broke it" {
		t.Fatalf("lost %v", r.lost)
	}
	r.pass(sec)
	if len(r.lost) != 1 || errors.Is(r.m.Err(), machine.ErrExpired) {
		t.Fatalf("lost %v, %v", r.lost, r.m.Err())
	}
}

func TestTicketsOfOneSession(t *testing.T) {
	r := live(t)
	r.acquire(1, 0)
	r.acquire(2, 0)
	r.request(1)
	r.request(2)
	r.receive(granted(1))
	r.receive(code(2, storepb.Code_WAITING))
	r.step(machine.Release{ID: 3, Lock: 1})
	r.request(3)
	r.receive(code(3, storepb.Code_OK))
	r.receive(event(&storepb.SessionEvent{Number: 1, Code: storepb.Code_GRANTED, Ticket: 2, Grant: grant(2)}))
	r.succeeds(2, storepb.Code_GRANTED)
	// The first's deadline has gone with it.
	if r.pass(sec); len(r.lost) != 0 {
		t.Fatalf("lost %v", r.lost)
	}
}

// A transaction that releases a lock ends it when it is done: no Release goes
// out for it, and Close may say that the work has ended.
func TestTransactionReleases(t *testing.T) {
	commit := func(r *rig, id machine.CallID, lock machine.CallID) {
		r.step(machine.Call{ID: id, Releases: []machine.CallID{lock}, Command: &storepb.Command{Op: &storepb.Command_Multi{
			Multi: &storepb.Multi{Ops: []*storepb.MultiOp{{Op: &storepb.MultiOp_Release{Release: &storepb.Release{Path: "/l", Ticket: 1}}}}}}}})
	}
	begin := func(t *testing.T) *rig {
		r := newRig(t, machine.Options{})
		r.open()
		r.keepAlive()
		r.acquire(1, 0)
		r.request(1)
		r.receive(granted(1))
		r.outcome(1)
		commit(r, 2, 1)
		if r.request(2).GetMulti() == nil {
			t.Fatal("not the transaction")
		}
		return r
	}
	t.Run("done", func(t *testing.T) {
		r := begin(t)
		r.receive(code(2, storepb.Code_OK))
		r.succeeds(2, storepb.Code_OK)
		r.step(machine.Close{})
		if c := r.request(3).GetCloseSession(); c == nil || !c.WorkEnded {
			t.Fatalf("Close: %v", c)
		}
		if len(r.lost) != 0 {
			t.Fatalf("lost: %v", r.lost)
		}
	})
	t.Run("refused", func(t *testing.T) {
		r := begin(t)
		r.receive(code(2, storepb.Code_MULTI_FAILED))
		r.outcome(2)
		r.step(machine.Release{ID: 3, Lock: 1})
		if r.request(3).GetRelease() == nil {
			t.Fatal("no Release")
		}
		r.receive(code(3, storepb.Code_OK))
		r.succeeds(3, storepb.Code_OK)
	})
	t.Run("done, and a Release under way", func(t *testing.T) {
		r := begin(t)
		r.step(machine.Release{ID: 3, Lock: 1})
		r.request(3)
		r.receive(code(2, storepb.Code_OK))
		r.receive(code(3, storepb.Code_NOT_HELD))
		r.succeeds(2, storepb.Code_OK)
		r.succeeds(3, storepb.Code_OK)
	})
	t.Run("the call was cancelled", func(t *testing.T) {
		r := begin(t)
		r.step(machine.Cancel{ID: 2})
		r.fails(2, machine.ErrUnknownOutcome)
		r.step(machine.Release{ID: 3, Lock: 1})
		r.request(3)
		r.receive(code(2, storepb.Code_OK))
		r.receive(code(3, storepb.Code_NOT_HELD))
		r.succeeds(3, storepb.Code_OK)
	})
}

// A transaction whose caller does not wait any more is done before that caller
// has released its lock on its own: the Release then is no mistake.
func TestTransactionReleasesBehindItsCaller(t *testing.T) {
	r := heldRig(t, machine.Options{}, 0)
	r.step(machine.Call{ID: 2, Releases: []machine.CallID{1}, Command: &storepb.Command{Op: &storepb.Command_Multi{
		Multi: &storepb.Multi{Ops: []*storepb.MultiOp{{Op: &storepb.MultiOp_Release{Release: &storepb.Release{Path: "/l", Ticket: 1}}}}}}}})
	r.request(2)
	r.step(machine.Cancel{ID: 2})
	r.fails(2, machine.ErrUnknownOutcome)
	r.receive(code(2, storepb.Code_OK))
	r.step(machine.Release{ID: 3, Lock: 1})
	r.request(3)
	r.receive(code(3, storepb.Code_NOT_HELD))
	r.succeeds(3, storepb.Code_OK)
}

// The application has been told that a lock is lost, by a look at the clock that
// came while the renewal which saves the lock was on its way to the machine: it
// stays lost, and the service is told, or the session could wait for itself.
func TestLoseForGood(t *testing.T) {
	r := heldRig(t, machine.Options{}, 0)
	r.step(machine.Lose{Lock: 1})
	if len(r.lost) != 1 || r.lost[0].Lock != 1 {
		t.Fatalf("lost %v", r.lost)
	}
	if f := r.request(2).GetForfeit(); f.GetTicket() != 1 {
		t.Fatalf("sent %v", f)
	}
	r.step(machine.Lose{Lock: 1})
	r.step(machine.Lose{Lock: 77})
	r.silent()
	if len(r.lost) != 1 {
		t.Fatalf("lost %v", r.lost)
	}
	r.step(machine.Release{ID: 3, Lock: 1})
	if rel := r.request(3).GetRelease(); rel.GetTicket() != 1 {
		t.Fatalf("sent %v", rel)
	}
}
