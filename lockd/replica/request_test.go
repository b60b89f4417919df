package replica

import (
	"strings"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	storepb "github.com/seed70370324/lockd/store/pb"
)

func TestRequestsInOrder(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, 12*time.Second)
	// Pipelined: one batch, answered in order.
	for n := uint64(1); n <= 3; n++ {
		cl.post(request(s, n, put("/a", "x")))
	}
	c.settle()
	for n := uint64(1); n <= 3; n++ {
		if r := cl.code(storepb.Code_OK, cl.result(n)); r.GetStat().GetContentGeneration() != n {
			t.Errorf("generation %d after write %d", r.GetStat().GetContentGeneration(), n)
		}
	}
	// A gap is bounced and nothing of it is logged.
	before := c.reps[0].log.proposals
	cl.send(request(s, 5, put("/a", "y")))
	cl.code(storepb.Code_RETRY, cl.result(5))
	if c.reps[0].log.proposals != before {
		t.Error("a request behind a gap was logged")
	}
	cl.send(request(s, 4, put("/a", "y")))
	cl.code(storepb.Code_OK, cl.result(4))
	cl.send(request(s, 5, put("/a", "z")))
	cl.code(storepb.Code_OK, cl.result(5))
	// A repeat of an old one is answered from the record.
	cl.send(request(s, 4, put("/a", "again")))
	if r := cl.code(storepb.Code_OK, cl.result(4)); r.GetStat().GetContentGeneration() != 4 {
		t.Errorf("the repeat was executed: %v", r)
	}
}

// A repeat of a request that is under way is not logged again; its answer goes
// to where the session is attached now.
func TestRepeatUnderWayIsRouted(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	one := r.dial()
	s := one.open(1, 12*time.Second)
	r.log.hold = true
	one.send(request(s, 1, put("/a", "x")))
	one.hangup()
	two := r.dial()
	two.send(attach(s, 1, 0))
	if a := two.next().GetAttached(); a.GetCode() != storepb.Code_OK || a.GetLastNumber() != 0 {
		t.Fatalf("attached: %v", a)
	}
	before := r.log.proposals
	two.send(request(s, 1, put("/a", "x")))
	if r.log.proposals != before {
		t.Error("the repeat was logged beside the first")
	}
	r.log.hold = false
	c.settle()
	two.code(storepb.Code_OK, two.result(1))
	two.none()
	if n := r.Metrics().Pending; n != 0 {
		t.Errorf("%d requests left under way", n)
	}
}

func TestOlderConnectionLosesTheSession(t *testing.T) {
	c := newCell(t, 1)
	one, two := c.reps[0].dial(), c.reps[0].dial()
	s := one.open(1, 12*time.Second)
	two.send(attach(s, 1, 0))
	two.next()
	one.send(request(s, 1, put("/a", "x")))
	if e := one.err(wirepb.ErrorCode_UNKNOWN_SESSION); e.GetSession() != s || e.GetNumber() != 1 || !strings.Contains(e.GetText(), "attach") {
		t.Errorf("error %v", e)
	}
	one.send(keepAlive(1, true, s))
	one.kept(1)
	two.send(request(s, 1, put("/a", "x")))
	two.code(storepb.Code_OK, two.result(1))
}

func TestAttachNeedsTheSecret(t *testing.T) {
	c := newCell(t, 1)
	one, two := c.reps[0].dial(), c.reps[0].dial()
	s := one.open(1, 12*time.Second)
	two.send(attach(s, 2, 0))
	if a := two.next().GetAttached(); a.GetCode() != storepb.Code_UNKNOWN_SESSION {
		t.Errorf("attached with a wrong nonce: %v", a)
	}
	one.send(request(s, 1, put("/a", "x")))
	one.code(storepb.Code_OK, one.result(1))
	// "It has ended" must be true, so the answer waits for a proof.
	c.reps[0].log.unproven = true
	two.send(attach(4711, 2, 0))
	two.none()
	c.reps[0].log.unproven = false
	c.settle()
	if a := two.next().GetAttached(); a.GetCode() != storepb.Code_UNKNOWN_SESSION || a.GetSession() != 4711 {
		t.Errorf("attached: %v", a)
	}
}

// Requests may follow an Attach without waiting for its answer.
func TestRequestsBehindAttach(t *testing.T) {
	c := newCell(t, 1)
	one := c.reps[0].dial()
	s := one.open(1, 12*time.Second)
	one.hangup()
	two := c.reps[0].dial()
	two.post(attach(s, 1, 0))
	two.post(request(s, 1, put("/a", "x")))
	c.settle()
	var attached, replied bool
	for _, m := range two.all() {
		attached = attached || m.GetAttached() != nil
		replied = replied || m.GetReply().GetResult().GetCode() == storepb.Code_OK
	}
	if !attached || !replied {
		t.Errorf("attached %v, replied %v", attached, replied)
	}
}

// Session events are repeated with every attach until they are acknowledged,
// ahead of anything newer.
func TestEventsAreRepeatedUntilAcknowledged(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	holder, waiter := r.dial(), r.dial()
	h, w := holder.open(1, 60*time.Second), waiter.open(2, 60*time.Second)
	holder.code(storepb.Code_OK, holder.do(h, lock("/l", 0)))
	waiter.code(storepb.Code_WAITING, waiter.do(w, lock("/l", time.Minute)))
	holder.code(storepb.Code_OK, holder.do(h, unlock("/l", 1)))
	waiter.event(1, storepb.Code_GRANTED)
	for range 2 {
		waiter.hangup()
		waiter = r.dial()
		waiter.send(attach(w, 2, 0))
		if waiter.next().GetAttached() == nil {
			t.Fatal("the event goes ahead of the AttachReply")
		}
		waiter.event(1, storepb.Code_GRANTED)
		waiter.none()
	}
	waiter.send(ack(w, 1))
	waiter.hangup()
	waiter = r.dial()
	waiter.send(attach(w, 2, 0))
	waiter.next()
	waiter.none()
	// Not logged yet, so a new master repeats it, unless the Attach says so.
	if n := events(r, w); n != 1 {
		t.Fatalf("%d events in the record, want 1", n)
	}
	waiter.send(request(w, 2, put("/a", "x")))
	waiter.code(storepb.Code_OK, waiter.result(2))
	if n := events(r, w); n != 0 {
		t.Fatal("a command did not carry the acknowledgement")
	}
}

func events(r *testReplica, session uint64) (n int) {
	r.store.Events(session, 0, func(*storepb.SessionEvent) bool { n++; return true })
	return n
}

func TestAcknowledgementIsLoggedAlone(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	h, w := cl.open(1, 60*time.Second), cl.open(2, 60*time.Second)
	cl.send(request(h, 1, lock("/l", 0)))
	cl.send(request(w, 1, lock("/l", time.Minute)))
	cl.send(request(h, 2, unlock("/l", 1)))
	cl.all()
	cl.send(ack(w, 1))
	c.advance(5*time.Second - tick)
	if events(r, w) != 1 {
		t.Fatal("logged although a command might yet carry it")
	}
	c.advance(2 * tick)
	if events(r, w) != 0 {
		t.Fatal("the event stays in the record although it is acknowledged")
	}
	before := r.log.proposals
	c.advance(10 * time.Second)
	if r.log.proposals != before {
		t.Error("the acknowledgement is logged again")
	}
}

func TestWaiterTimesOut(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	a, b := cl.open(1, 60*time.Second), cl.open(2, 60*time.Second)
	cl.send(request(a, 1, lock("/l", 0)))
	cl.send(request(b, 1, lock("/l", 3*time.Second)))
	cl.all()
	c.advance(3 * time.Second)
	cl.none() // cell time is slower than the clock by the drift bound
	c.advance(60 * time.Millisecond)
	if e := cl.event(1, storepb.Code_TIMED_OUT); len(e.GetBlockers()) != 1 || e.GetBlockers()[0].GetSession() != a {
		t.Errorf("the event does not name the holder: %v", e)
	}
	// A withdrawn one does not time out later.
	cl.send(request(b, 2, lock("/l", 3*time.Second)))
	cl.send(request(b, 3, unlock("/l", 2)))
	cl.code(storepb.Code_WAITING, cl.result(2))
	got := cl.all()
	before := c.reps[0].log.proposals
	c.advance(4 * time.Second)
	cl.none()
	if c.reps[0].log.proposals != before || len(got) == 0 {
		t.Errorf("timers proposed for nothing, or no answer to the withdrawal: %v", got)
	}
}

// What is pending is not proposed again while its command is under way, and is
// when that one was lost.
func TestTimersOnceAtATime(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	a, b := cl.open(1, 60*time.Second), cl.open(2, 60*time.Second)
	cl.send(request(a, 1, lock("/l", 0)))
	cl.send(request(b, 1, lock("/l", time.Second)))
	cl.all()
	r.log.hold = true
	before := r.log.proposals
	c.advance(1500 * time.Millisecond)
	if n := r.log.proposals - before; n != 1 {
		t.Fatalf("%d commands for one timer", n)
	}
	r.log.dropped, r.log.kept, r.log.hold = r.log.kept, nil, false
	c.advance(2 * tick)
	cl.event(1, storepb.Code_TIMED_OUT)
}

// While something is pending in cell time, an idle master logs the time; a
// failover then sets timers back by little.
func TestClockIsLogged(t *testing.T) {
	c := newCell(t, 2)
	r := c.reps[0]
	cl := r.dial()
	a, b := cl.open(1, 10*time.Minute), cl.open(2, 10*time.Minute)
	c.advance(3 * time.Second) // their silence is noted, once
	before := r.log.proposals
	c.advance(time.Minute)
	if r.log.proposals != before {
		t.Error("time is logged although nothing is pending")
	}
	cl.send(request(a, 1, lock("/l", 0)))
	cl.send(request(b, 1, lock("/l", 50*time.Second)))
	before = r.log.proposals
	c.advance(19 * time.Second)
	if r.log.proposals != before {
		t.Error("time is logged too often")
	}
	c.advance(22 * time.Second)
	if n := r.log.proposals - before; n != 2 {
		t.Errorf("%d commands in 41 s, want 2", n)
	}
	before2 := r.store.CellTime()
	next := c.elect(2)
	c.advance(5 * time.Second)
	if next.store.CellTime() < before2 {
		t.Error("cell time went back")
	}
	c.advance(7 * time.Second)
	if n := events(next, b); n != 1 {
		t.Error("a failover forgot how long the waiter had waited")
	}
}

func TestOverload(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxPendingSession = 4; o.MaxPending = 6 })
	r := c.reps[0]
	cl := r.dial()
	a, b := cl.open(1, 60*time.Second), cl.open(2, 60*time.Second)
	r.log.hold = true
	for n := uint64(1); n <= 4; n++ {
		cl.send(request(a, n, put("/a", "x")))
	}
	cl.none()
	cl.send(request(a, 5, put("/a", "x")))
	if e := cl.err(wirepb.ErrorCode_OVERLOADED); e.GetSession() != a || e.GetNumber() != 5 || e.GetRetryAfterMs() == 0 {
		t.Errorf("error %v", e)
	}
	// What makes the service smaller is never refused; the refused number may be
	// settled with it.
	cl.send(request(a, 5, void()))
	cl.send(request(a, 6, unlock("/l", 1)))
	cl.none()
	cl.send(request(b, 1, put("/a", "x")))
	cl.err(wirepb.ErrorCode_OVERLOADED)
	cl.send(open(3, nonce(3), time.Minute))
	if e := cl.err(wirepb.ErrorCode_OVERLOADED); e.GetId() != 3 {
		t.Errorf("error %v", e)
	}
	if n := r.Metrics(); n.Pending != 6 || n.Refused != 3 {
		t.Errorf("metrics %+v", n)
	}
	r.log.hold = false
	c.settle()
	for n := uint64(1); n <= 6; n++ {
		cl.result(n)
	}
	cl.send(request(b, 1, put("/a", "x")))
	cl.code(storepb.Code_OK, cl.result(1))
}

func TestEndlessReleasesAreCutOff(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, time.Minute)
	r.log.hold = true
	for n := uint64(1); n <= 2000; n++ {
		cl.post(request(s, n, unlock("/l", 1)))
	}
	c.settle()
	cl.err(wirepb.ErrorCode_TOO_MANY)
	if r.ended[cl.conn] == "" {
		t.Error("the connection stays open")
	}
	r.log.hold = false
	c.settle()
	if n := r.Metrics().Pending; n != 0 {
		t.Errorf("%d requests left under way", n)
	}
}

func TestDroppedByTheLog(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, time.Minute)
	r.log.drop = true
	cl.send(request(s, 1, put("/a", "x")))
	if e := cl.err(wirepb.ErrorCode_OVERLOADED); e.GetNumber() != 1 || e.GetSession() != s {
		t.Errorf("error %v", e)
	}
	cl.send(open(9, nonce(9), time.Minute))
	if e := cl.err(wirepb.ErrorCode_OVERLOADED); e.GetId() != 9 {
		t.Errorf("error %v", e)
	}
	r.log.drop = false
	cl.send(request(s, 1, put("/a", "x")))
	cl.code(storepb.Code_OK, cl.result(1))
}

// Only the client's fields of a command are taken over.
func TestMastersFieldsAreTheMasters(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, time.Minute)
	cmd := put("/a", "x")
	cmd.CellTime, cmd.WallMs, cmd.Epoch = 1<<62, 1<<62, 77
	r := cl.code(storepb.Code_OK, cl.do(s, cmd))
	if c.reps[0].store.CellTime() >= 1<<60 || r.GetStat().GetModifyMs() >= 1<<60 {
		t.Error("a client moves the service's clocks")
	}
}

func TestRefusedRequests(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, time.Minute)
	for name, tc := range map[string]struct {
		number uint64
		cmd    *storepb.Command
		code   wirepb.ErrorCode
	}{
		"no op":      {1, &storepb.Command{}, wirepb.ErrorCode_BAD_MESSAGE},
		"a master's": {1, &storepb.Command{Op: &storepb.Command_Clock{Clock: &storepb.Clock{}}}, wirepb.ErrorCode_BAD_MESSAGE},
		"an expiry":  {1, &storepb.Command{Op: &storepb.Command_ExpireSession{}}, wirepb.ErrorCode_BAD_MESSAGE},
		"an opening": {1, &storepb.Command{Op: &storepb.Command_OpenSession{}}, wirepb.ErrorCode_BAD_MESSAGE},
		"no number":  {0, put("/a", "x"), wirepb.ErrorCode_INVALID_ARGUMENT},
	} {
		cl.send(request(s, tc.number, tc.cmd))
		if e := cl.err(tc.code); e.GetSession() != s || e.GetNumber() != tc.number || e.GetFatal() {
			t.Errorf("%s: error %v", name, e)
		}
	}
	// The store's refusals settle their number.
	cl.code(storepb.Code_BAD_PATH, cl.do(s, put("/a/../b", "x")))
	cl.code(storepb.Code_TOO_LARGE, cl.do(s, put("/a", strings.Repeat("x", 1<<20+1))))
	cl.code(storepb.Code_OK, cl.do(s, put("/a", "x")))
}

// Requests behind a CloseSession are answered too.
func TestRequestsBehindClose(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, time.Minute)
	cl.post(request(s, 1, &storepb.Command{Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{}}}))
	cl.post(request(s, 2, put("/a", "x")))
	c.settle()
	cl.code(storepb.Code_OK, cl.result(1))
	m := cl.next()
	if m.GetReply().GetResult().GetCode() != storepb.Code_UNKNOWN_SESSION {
		t.Errorf("got %v", m)
	}
	cl.send(request(s, 3, put("/a", "x")))
	cl.err(wirepb.ErrorCode_UNKNOWN_SESSION)
	if n := c.reps[0].Metrics().Pending; n != 0 {
		t.Errorf("%d under way", n)
	}
}

// An Acquire that can only queue up waits a moment for company, and goes ahead
// of what comes next; whatever is granted at once waits for nothing.
func TestAcquireThatQueuesWaitsForCompany(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	one, two := r.dial(), r.dial()
	a, b := one.open(1, time.Minute), two.open(2, time.Minute)
	reads := lock("/shared", time.Minute)
	reads.GetAcquire().Mode = storepb.LockMode_SHARED
	now := func(cl *testClient, n uint64, session uint64, cmd *storepb.Command) {
		t.Helper()
		cl.post(request(session, n, cmd))
		r.take()
		if r.Due(c.now) != paxos.Never {
			t.Fatalf("%v is held back", cmd)
		}
		cl.code(storepb.Code_OK, cl.result(n))
	}
	now(one, 1, a, lock("/l", time.Minute))
	now(one, 2, a, reads)
	now(two, 1, b, reads) // readers pass together
	logged := r.log.proposals
	held := func(n uint64, cmd *storepb.Command) {
		t.Helper()
		two.post(request(b, n, cmd))
		r.take()
		two.none()
		if due := r.Due(c.now); due == paxos.Never || due <= c.now || r.log.proposals != logged {
			t.Fatalf("%v is not held back", cmd)
		}
	}
	// With the release that it waits for.
	held(2, lock("/l", time.Minute))
	one.post(request(a, 3, unlock("/l", 1)))
	r.take()
	if r.log.proposals != logged+2 || r.Due(c.now) != paxos.Never {
		t.Errorf("%d commands are logged together, want 2", r.log.proposals-logged)
	}
	one.code(storepb.Code_OK, one.result(3))
	two.code(storepb.Code_WAITING, two.result(2))
	two.event(1, storepb.Code_GRANTED)
	// Behind a writer that waits a reader waits too; alone it goes by itself.
	now(one, 4, a, put("/x", "y"))
	one.post(request(a, 5, lock("/shared", time.Minute)))
	c.now += 2 * time.Millisecond
	if r.Due(c.now) > c.now {
		t.Error("it is held back for more than 2 ms")
	}
	r.take()
	one.code(storepb.Code_WAITING, one.result(5))
	logged = r.log.proposals
	held(3, reads)
	// Nothing of it is left when the mastership ends.
	r.log.setRole(paxos.RoleEvent{Role: paxos.Follower})
	r.take()
	if r.Due(c.now) != paxos.Never || r.log.proposals != logged {
		t.Error("something is held back by who is not master")
	}
}
