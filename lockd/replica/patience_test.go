package replica

import (
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// What does not count against a session: a KeepAlive that waits for its proof,
// and time in which the master was behind or could not prove its lead.

// A KeepAlive that arrived in time waits for its proof beyond the end of the
// lease: no expiry is proposed, and the lease runs from the proof.
func TestNoExpiryWhileAKeepAliveWaitsForItsProof(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl, silent := r.dial(), r.dial()
	s, dead := cl.open(1, 2*time.Second), silent.open(2, 2*time.Second)
	c.advance(2*time.Second - 10*tick)
	r.log.unproven = true
	cl.send(keepAlive(1, true, s))
	c.advance(20 * tick)
	if !c.session(s) {
		t.Fatal("expired although its KeepAlive waits")
	}
	if c.session(dead) {
		t.Fatal("one without a KeepAlive lives on")
	}
	r.log.unproven = false
	c.settle()
	cl.kept(1, s)
}

// A client that comes back just before its lease ends at the master is answered,
// and is not expired before its next message can have arrived. One that then says
// nothing is.
func TestNoExpiryJustBehindAnAnswer(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	first, other := r.dial(), r.dial()
	s, dead := first.open(1, 2*time.Second), other.open(2, 2*time.Second)
	first.hangup()
	other.hangup()
	c.advance(2*time.Second - 2*tick)
	cl, silent := r.dial(), r.dial()
	cl.send(attach(s, 1, 0))
	silent.send(attach(dead, 2, 0))
	c.advance(25 * tick)
	if !c.session(s) {
		t.Fatal("expired half a second after its client was answered")
	}
	cl.send(keepAlive(1, true, s))
	c.advance(25 * tick)
	if !c.session(s) {
		t.Fatal("expired although its KeepAlive was answered with a lease")
	}
	if c.session(dead) {
		t.Fatal("a client that attaches and says nothing more lives on")
	}
}

// The same of a noted session whose opening is repeated: it is answered only when
// the log has cleared the note, which may take as long as the lease.
func TestNoExpiryJustBehindALateOpening(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	first := r.dial()
	s := first.open(1, 2*time.Second)
	first.hangup()
	c.advance(1500 * time.Millisecond) // noted meanwhile
	r.log.hold = true
	take := func() {
		held := r.log.kept
		r.log.kept = nil
		c.choose(paxos.Value{Kind: paxos.Batch, Commands: held})
		c.settle()
	}
	cl := r.dial()
	cl.post(open(1, nonce(1), 2*time.Second))
	c.settle()
	take()
	cl.none()
	c.advance(2500 * time.Millisecond)
	take()
	if got := cl.next().GetOpened().GetSession(); got != s {
		t.Fatalf("session %d is opened, want %d", got, s)
	}
	r.log.hold = false
	c.advance(25 * tick)
	if !c.session(s) {
		t.Fatal("expired half a second after its client was told of it")
	}
	c.advance(2 * time.Second)
	if c.session(s) {
		t.Fatal("a client that opens a session and says nothing more lives on")
	}
}

// A client that closed its connection has no KeepAlive in hand.
func TestKeepAliveOfAClosedConnectionCountsForNothing(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	c.advance(2*time.Second - 10*tick)
	r.log.unproven = true
	cl.send(keepAlive(1, true, s))
	cl.hangup()
	c.advance(10 * tick)
	if c.session(s) {
		t.Fatal("a connection that is gone keeps its session alive")
	}
}

// While the lead is not proven no lease runs down; behind that each has what it
// had before.
func TestTimeWithoutProofCountsForNobody(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl, silent := r.dial(), r.dial()
	s, other := cl.open(1, 3*time.Second), silent.open(2, 3*time.Second)
	c.advance(time.Second)
	r.log.unproven = true
	cl.send(keepAlive(1, true, s))
	c.advance(time.Minute)
	cl.none()
	if !c.session(s) || !c.session(other) {
		t.Fatal("expired while nobody could renew")
	}
	r.log.unproven = false
	c.settle()
	c.advance(2*time.Second - 3*tick)
	if !c.session(other) {
		t.Fatal("less is left than before")
	}
	c.advance(5 * tick)
	if c.session(other) {
		t.Fatal("more is left than before")
	}
}

// A loop whose turns take 300 ms each is behind: that time does not count.
func TestTimeBehindCountsForNobody(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	for range 100 {
		c.jump(300 * time.Millisecond)
		r.Step(c.now, replog.Tick{})
		r.take()
	}
	if !c.session(s) {
		t.Fatal("expired by a master that was behind")
	}
	c.advance(2*time.Second + tick)
	if c.session(s) {
		t.Fatal("lives although the master runs again and its lease is over")
	}
}

// What had arrived when the loop woke is seen before time brings anything about.
func TestWhatArrivedBeforeATickIsSeenBeforeIt(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	c.advance(2*time.Second - tick)
	c.jump(tick)
	cl.post(keepAlive(1, true, s)) // in the mailbox when the lease ends
	r.Step(c.now, replog.Tick{})
	c.settle()
	cl.kept(1, s)
	if !c.session(s) {
		t.Fatal("expired although its KeepAlive had arrived")
	}
}

// The news of a lost lock goes ahead of every renewal, on every connection.
func TestLossGoesAheadOfEveryRenewal(t *testing.T) {
	setup := func(t *testing.T) (c *testCell, holder *testClient, s uint64) {
		c = newCell(t, 1)
		holder = c.reps[0].dial()
		operator := c.reps[0].dial()
		s = holder.open(1, 4*time.Second)
		by := operator.open(2, long)
		fence := holder.do(s, lock("/l", 0)).GetGrant().GetFence()
		holder.hangup()
		operator.code(storepb.Code_OK, operator.do(by, &storepb.Command{Op: &storepb.Command_BreakLock{BreakLock: &storepb.Break{Path: "/l", Fence: fence}}}))
		return c, c.reps[0].dial(), s
	}
	newsFirst := func(t *testing.T, got []*wirepb.ServerMessage, leases int) {
		told := false
		for _, m := range got {
			told = told || m.GetEvent().GetEvent().GetCode() == storepb.Code_LOST
			n := len(m.GetKept().GetLeases())
			if m.GetOpened() != nil {
				n++
			}
			if leases -= n; n > 0 && !told {
				t.Errorf("a lease ahead of the news: %v", got)
			}
		}
		if leases != 0 || !told {
			t.Errorf("told %v, %d leases too few: %v", told, leases, got)
		}
	}
	t.Run("attached anew", func(t *testing.T) {
		c, cl, s := setup(t)
		cl.post(attach(s, 1, 0))
		cl.send(keepAlive(1, true, s))
		c.settle()
		newsFirst(t, cl.all(), 1)
	})
	t.Run("attached while a KeepAlive is under way", func(t *testing.T) {
		c, cl, s := setup(t)
		c.reps[0].log.unproven = true
		cl.send(keepAlive(1, true, s))
		early := c.reps[0].log.confirms
		c.reps[0].log.confirms = nil
		cl.send(attach(s, 1, 0))
		late := c.reps[0].log.confirms
		c.reps[0].log.unproven = false
		c.reps[0].log.confirms = early
		c.settle()
		if got := cl.all(); len(got) != 1 || len(got[0].GetKept().GetLeases()) != 0 {
			t.Errorf("before the Attach is answered: %v", got)
		}
		c.reps[0].log.confirms = late
		c.settle()
		cl.send(keepAlive(2, true, s))
		newsFirst(t, cl.all(), 1)
	})
	t.Run("opened again with its nonce", func(t *testing.T) {
		_, cl, _ := setup(t)
		cl.send(open(1, nonce(1), 4*time.Second))
		newsFirst(t, cl.all(), 1)
	})
}
