package replica

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
	storepb "github.com/seed70370324/lockd/store/pb"
)

func TestOpenRenewExpire(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, 6*time.Second)
	cl.send(keepAlive(1, false, s))
	cl.none() // held until a third of the lease is used
	c.advance(2*time.Second - tick)
	cl.none()
	c.advance(tick)
	if k := cl.kept(1, s); k.GetHeldNs() != int64(2*time.Second) || k.GetLeases()[0].GetLeaseMs() != 6000 {
		t.Errorf("lease %v, want 6000 ms held 2 s", k)
	}
	// Renewed at 2 s, so it ends at 8 s and not before.
	c.advance(6*time.Second - tick)
	if !c.session(s) {
		t.Fatal("expired before its lease was over")
	}
	c.advance(tick)
	if c.session(s) {
		t.Fatal("lives although its lease is over")
	}
	cl.send(keepAlive(2, false, s))
	if k := cl.kept(2); len(k.GetGone()) != 1 || k.GetGone()[0] != s {
		t.Errorf("the expired session is not told to be gone: %v", k)
	}
	if !c.reps[0].noted("session expired") || c.reps[0].Metrics().Expired != 1 {
		t.Error("the expiry is neither noted nor counted")
	}
}

func TestKeepAliveNowAndAnotherHeld(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, 6*time.Second)
	cl.send(keepAlive(1, false, s))
	cl.send(keepAlive(2, true, s))
	cl.kept(1, s) // let go by the second: none stays without an answer
	if k := cl.kept(2, s); k.GetHeldNs() != 0 {
		t.Errorf("held %d ns although asked for now", k.GetHeldNs())
	}
	c.advance(3 * time.Second)
	cl.none()
}

// The lease runs from the instant at which leadership was proven, not from the
// answer.
func TestLeaseRunsFromTheProof(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, 2*time.Second)
	c.reps[0].log.unproven = true
	cl.send(keepAlive(1, true, s)) // the round begins here
	c.advance(300 * time.Millisecond)
	cl.none()
	c.reps[0].log.unproven = false
	c.settle()
	if k := cl.kept(1, s); k.GetHeldNs() != 0 {
		t.Errorf("held %d ns: the proof was begun at once, though it came late", k.GetHeldNs())
	}
	c.advance(1700*time.Millisecond - tick)
	if !c.session(s) {
		t.Fatal("expired before its lease was over")
	}
	c.advance(tick)
	if c.session(s) {
		t.Fatal("the lease was counted from the answer")
	}
}

func TestOpenWaitsForProof(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	c.reps[0].log.unproven = true
	cl.send(open(1, nonce(1), 2*time.Second))
	c.advance(100 * time.Millisecond)
	cl.none()
	// A repeat on the same connection finds the same session, one answer.
	cl.send(open(2, nonce(1), 2*time.Second))
	c.advance(100 * time.Millisecond)
	c.reps[0].log.unproven = false
	c.settle()
	o := cl.next().GetOpened()
	if o.GetId() != 2 || o.GetSession() == 0 {
		t.Fatalf("opened %v", o)
	}
	cl.none()
	// A repeat after the answer too.
	cl.send(open(3, nonce(1), 2*time.Second))
	if again := cl.next().GetOpened(); again.GetSession() != o.GetSession() || again.GetId() != 3 {
		t.Fatalf("the repeat opened %v, the first %v", again, o)
	}
	if n, _ := c.reps[0].store.Counts(); n != 1 {
		t.Fatalf("%d sessions of one nonce", n)
	}
}

// From proposing an expiry until its outcome the session gets no lease; if it
// did not happen, renewals resume.
func TestExpiringGetsNoLease(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	r.log.hold = true
	c.advance(2 * time.Second)
	if r.log.proposals != 3 { // the open, the note of its silence and the expiry
		t.Fatalf("%d proposals, want an expiry", r.log.proposals)
	}
	cl.send(keepAlive(1, true, s))
	cl.none() // undecided: there is nothing to tell
	// A request that comes into the log first is no renewal.
	held := r.log.kept
	r.log.kept = nil
	cl.post(request(s, 1, put("/a", "x")))
	r.log.hold = false
	c.settle()
	cl.code(storepb.Code_OK, cl.result(1))
	c.choose(paxos.Value{Kind: paxos.Batch, Commands: held})
	c.settle()
	if c.session(s) {
		t.Fatal("lives although its lease is over")
	}
	if k := cl.kept(1); len(k.GetGone()) != 1 {
		t.Fatalf("it has ended, and its client is told %v", k)
	}
}

// The answer to a request behind the end of its session says which it is for.
func TestRequestBehindAnExpiryIsAnswered(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	r.log.hold = true
	c.advance(2 * time.Second)
	cl.send(request(s, 1, put("/a", "x")))
	r.log.hold = false
	c.settle()
	cl.code(storepb.Code_UNKNOWN_SESSION, cl.result(1))
}

// A client that sends requests and no KeepAlive has no lease of its own, and
// the service keeps its session no longer than that.
func TestRequestsDoNotRenewTheLease(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	c.advance(2*time.Second - tick)
	r.log.hold = true // the request is under way when the lease ends
	cl.post(request(s, 1, put("/a", "x")))
	c.advance(tick)
	held := r.log.kept
	r.log.kept, r.log.hold = nil, false
	c.choose(paxos.Value{Kind: paxos.Batch, Commands: held})
	c.settle()
	cl.code(storepb.Code_OK, cl.result(1))
	if c.session(s) {
		t.Fatal("a request under way kept a session alive whose lease was over")
	}
}

func TestExpiryDroppedByTheLog(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	r.log.drop = true
	c.advance(2 * time.Second)
	r.log.drop = false
	cl.send(keepAlive(1, true, s))
	cl.kept(1, s)
	c.advance(time.Second)
	if !c.session(s) {
		t.Fatal("expired")
	}
}

// Time in which the master did not run does not count against sessions.
func TestFrozenMasterExpiresNobody(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, 2*time.Second)
	c.advance(time.Second)
	c.jump(time.Hour)
	c.advance(500 * time.Millisecond)
	if !c.session(s) {
		t.Fatal("expired on waking")
	}
	cl.send(keepAlive(1, true, s))
	cl.kept(1, s)
	c.advance(2*time.Second - tick)
	if !c.session(s) {
		t.Fatal("the lease after waking is too short")
	}
	c.advance(tick)
	if c.session(s) {
		t.Fatal("the lease after waking is too long")
	}
}

// An expiry decided by a master that was deposed is void, even if the log takes
// it later.
func TestOldMastersExpiryIsVoid(t *testing.T) {
	c := newCell(t, 3)
	old := c.reps[0]
	cl := old.dial()
	s := cl.open(1, 2*time.Second)
	old.log.hold = true
	c.advance(2 * time.Second)
	expiry := old.log.kept
	if len(expiry) != 2 {
		t.Fatalf("%d commands held, want a note and the expiry", len(expiry))
	}
	next := c.elect(2)
	c.choose(paxos.Value{Kind: paxos.Batch, Commands: expiry})
	c.settle()
	if !c.session(s) {
		t.Fatal("the old master's expiry took effect under the new one")
	}
	cl = next.dial()
	cl.send(attach(s, 1, 0))
	if a := cl.next().GetAttached(); a.GetCode() != storepb.Code_OK || a.GetEpoch() != 2 {
		t.Fatalf("attached: %v", a)
	}
}

// A new master expires nobody before the full lease has passed since its
// election.
func TestFailoverGivesFullLeases(t *testing.T) {
	c := newCell(t, 3)
	cl := c.reps[0].dial()
	short, long := cl.open(1, 2*time.Second), cl.open(2, 4*time.Second)
	c.advance(600 * time.Millisecond)
	cl.send(keepAlive(1, false, long, short)) // held: neither is silent
	c.advance(60 * time.Millisecond)
	c.elect(3)
	c.advance(2*time.Second - tick)
	if !c.session(short) {
		t.Fatal("expired before the full lease from the election")
	}
	c.advance(tick)
	if c.session(short) || !c.session(long) {
		t.Fatalf("short lives: %v, long lives: %v", c.session(short), c.session(long))
	}
	c.advance(2 * time.Second)
	if c.session(long) {
		t.Fatal("the long one lives for ever")
	}
}

// A master that another has deposed without its knowledge proves nothing, and
// gives no lease.
func TestNoLeaseWithoutProof(t *testing.T) {
	c := newCell(t, 3)
	old := c.reps[0]
	cl := old.dial()
	s := cl.open(1, 2*time.Second)
	old.log.unproven, old.log.lag = true, true
	c.elect(2, 1)
	cl.send(keepAlive(1, true, s))
	cl.send(read(nodeRead("/")))
	c.advance(time.Second)
	cl.none()
	// It learns of the other's entry before its own role changes.
	old.log.lag = false
	c.settle()
	if old.role.Master {
		t.Fatal("serves although another's first entry is applied")
	}
	c.advance(time.Second)
	if got := cl.all(); len(got) != 1 || got[0].GetLeaving() == nil {
		t.Fatalf("got %v, want Leaving alone", got)
	}
	if old.ended[cl.conn] == "" {
		t.Error("the connection stays open")
	}
}

// Many sessions of one connection: the shortest lease decides when the
// KeepAlive is answered, and the end of one is told early.
func TestKeepAliveOfSeveralSessions(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	a, b := cl.open(1, 3*time.Second), cl.open(2, 30*time.Second)
	cl.send(keepAlive(1, false, a, b))
	c.advance(time.Second)
	cl.kept(1, a, b)
	cl.send(keepAlive(2, false, b))
	c.advance(2 * time.Second)
	cl.none()
	cl.send(request(b, 1, &storepb.Command{Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{WorkEnded: true}}}))
	cl.code(storepb.Code_OK, cl.result(1))
	if k := cl.kept(2); len(k.GetGone()) != 1 || k.GetGone()[0] != b {
		t.Fatalf("the end of a session is not told at once: %v", k)
	}
	// A session on another connection is left alone.
	other := c.reps[0].dial()
	other.send(keepAlive(1, true, a, 99))
	if k := other.kept(1); len(k.GetGone()) != 1 || k.GetGone()[0] != 99 {
		t.Fatalf("gone: %v, want 99", k.GetGone())
	}
}
