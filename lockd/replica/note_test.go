package replica

import (
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// Silent sessions are noted in the log, so that a dead one ends however often the
// master changes, and no lease is given that a note does not know of.

// notes returns every note in the log, in order.
func (c *testCell) notes() (list []*storepb.SessionNote) {
	for _, e := range c.log {
		for _, b := range e.Value.Commands {
			var cmd storepb.Command
			if err := proto.Unmarshal(b, &cmd); err != nil {
				c.t.Fatal(err)
			}
			list = append(list, cmd.GetNoteSessions().GetNotes()...)
		}
	}
	return list
}

// A holder dies. Its lease of 12 s and the lock-delay of 5 s are over after
// 17 s, and a little more for each change of the master.
func TestDeadHoldersLockIsFreedHoweverOftenMastersChange(t *testing.T) {
	for _, every := range []time.Duration{3 * time.Second, 5 * time.Second, 9 * time.Second, 14 * time.Second, time.Hour} {
		t.Run(every.String(), func(t *testing.T) {
			c := newCell(t, 3)
			cl := c.reps[0].dial()
			s := cl.open(1, 12*time.Second)
			a := lock("/l", 0)
			a.GetAcquire().LockDelayMs = 5000
			cl.code(storepb.Code_OK, cl.do(s, a))
			cl.send(keepAlive(1, true, s))
			died := c.now
			cl.hangup()
			failovers := 0
			for {
				c.advance(tick)
				if v, _ := c.reps[0].store.Lock("/l"); len(v.Holders) == 0 {
					break
				}
				if now := c.now - died; now > time.Duration(failovers+1)*every {
					failovers++
					c.elect(failovers%3 + 1)
				}
				if c.now-died > 17*time.Second+time.Duration(failovers)*1500*time.Millisecond+time.Second {
					t.Fatalf("after %v and %d changes of the master the lock is not free", c.now-died, failovers)
				}
			}
			if c.now-died < 17*time.Second {
				t.Errorf("free %v after the last KeepAlive, lease and lock-delay are 17 s", c.now-died)
			}
			t.Logf("free after %v, %d changes of the master", c.now-died, failovers)
		})
	}
}

// A lock-delay ends in a cell in which nothing happens but changes of the master.
func TestLockDelayEndsHoweverOftenMastersChange(t *testing.T) {
	c := newCell(t, 3)
	cl := c.reps[0].dial()
	s := cl.open(1, 2*time.Second)
	a := lock("/l", 0)
	a.GetAcquire().LockDelayMs = 15_000
	cl.code(storepb.Code_OK, cl.do(s, a))
	cl.hangup()
	c.advance(3 * time.Second)
	c.reps[0].ghostOf("/l")
	for i := range 4 {
		c.advance(4 * time.Second)
		c.elect(i%3 + 1)
	}
	c.advance(tick)
	if v, _ := c.reps[0].store.Lock("/l"); len(v.Holders) > 0 {
		t.Errorf("a lock-delay of 15 s still runs after 16 s: %v", v.Holders)
	}
}

// A client that is well has a KeepAlive held nearly all the time: it is never
// noted, over changes of the master either.
func TestHealthySessionsAreNeverNoted(t *testing.T) {
	c := newCell(t, 3)
	cl := c.reps[0].dial()
	sessions := []uint64{cl.open(1, time.Second), cl.open(2, 12*time.Second), cl.open(3, long)}
	sent := func(id uint64) { cl.send(keepAlive(id, false, sessions...)) }
	sent(1)
	for i := range 600 {
		c.advance(100 * time.Millisecond)
		for _, m := range cl.all() {
			if k := m.GetKept(); k != nil {
				sent(k.GetId() + 1)
			}
		}
		if i%70 == 69 {
			cl = c.elect(i/70%3 + 1).dial()
			for j, s := range sessions {
				cl.send(attach(s, uint64(j+1), 0))
			}
			sent(uint64(1000 * i))
		}
	}
	if n := c.notes(); len(n) > 0 {
		t.Errorf("noted: %v", n)
	}
}

// From the proposal of its note until its clear is applied a session gets no
// lease; its KeepAlive waits for that, those of others do not.
func TestNotedSessionsLeaseWaitsForTheClear(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s, other := cl.open(1, 12*time.Second), cl.open(2, long)
	c.advance(2*time.Second - tick)
	if len(c.notes()) > 0 {
		t.Fatal("noted too early")
	}
	cl.send(keepAlive(1, true, other))
	cl.kept(1, other)
	r.log.hold = true
	c.advance(2 * tick) // the note is proposed
	cl.send(keepAlive(2, true, s, other))
	cl.kept(2, other)
	cl.send(keepAlive(3, true, s))
	c.advance(time.Second)
	cl.none()
	r.log.hold = false
	c.settle()
	if k := cl.kept(3, s); k.GetHeldNs() < int64(time.Second) {
		t.Errorf("as of %v after its arrival, and the clear was applied after a second", time.Duration(k.GetHeldNs()))
	}
	// It has a full lease again, and nothing of the note is left.
	if n := c.notes(); len(n) != 2 || n[0].GetSession() != s || n[0].GetLeaseEndCell() == 0 || n[1].GetLeaseEndCell() != 0 {
		t.Fatalf("notes %v", n)
	}
	if v, _ := r.store.Session(s); v.LeaseEndCell != 0 {
		t.Errorf("still noted: %+v", v)
	}
	c.advance(12*time.Second - 2*tick)
	if !c.session(s) {
		t.Error("less than the lease that was given")
	}
}

// What the log did not take is as if it had not been proposed.
func TestNotesThatTheLogDoesNotTake(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 12*time.Second)
	r.log.drop = true
	c.advance(2 * time.Second)
	r.log.drop = false
	cl.send(keepAlive(1, true, s)) // there is no note to clear
	cl.kept(1, s)
	if n := c.notes(); len(n) > 0 {
		t.Fatalf("notes %v", n)
	}
	c.advance(2*time.Second + tick)
	if n := c.notes(); len(n) != 1 {
		t.Fatalf("notes %v, want one", n)
	}
	r.log.drop = true
	cl.send(keepAlive(2, true, s))
	c.advance(3 * tick)
	cl.none()
	r.log.drop = false
	c.advance(tick) // the clear is proposed again
	cl.kept(2, s)
}

// A new master gives a noted session what is left of its lease, at least a
// second, and others all of it; an Attach and a KeepAlive make it whole again.
func TestNewMasterGivesNotedSessionsWhatIsLeft(t *testing.T) {
	c := newCell(t, 3)
	cl := c.reps[0].dial()
	var sessions []uint64
	for i, lease := range []time.Duration{4, 4, 60, 60} {
		sessions = append(sessions, cl.open(uint64(i+1), lease*time.Second))
	}
	c.advance(3*time.Second + 900*time.Millisecond)
	next := c.elect(2).dial()
	next.send(attach(sessions[1], 2, 0))
	next.next()
	next.send(keepAlive(1, true, sessions[1]))
	next.kept(1, sessions[1])
	next.send(keepAlive(2, false, sessions[1]))
	c.advance(800 * time.Millisecond)
	if !c.session(sessions[0]) {
		t.Error("a noted session has less than a second to find the new master")
	}
	c.advance(300 * time.Millisecond)
	if c.session(sessions[0]) {
		t.Error("a noted session has more than what was left, and a second")
	}
	c.advance(4 * time.Second)
	next.all()
	if !c.session(sessions[1]) {
		t.Error("a session that came back has not its whole lease")
	}
	// 9 s have passed of the 60 s of the silent ones.
	c.elect(3)
	c.advance(50 * time.Second)
	if !c.session(sessions[2]) {
		t.Error("expired before its lease was over")
	}
	c.advance(4 * time.Second)
	if c.session(sessions[2]) || c.session(sessions[3]) {
		t.Error("a new master gave noted sessions more than what was left")
	}
}

// The late repeat of an opening whose session is noted by then.
func TestOpenedAgainWhenNoted(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, 12*time.Second)
	cl.hangup()
	c.advance(5 * time.Second)
	cl = c.reps[0].dial()
	c.reps[0].log.hold = true
	cl.send(open(1, nonce(1), 12*time.Second))
	commands := c.reps[0].log.kept
	c.reps[0].log.kept = nil
	c.chooseCommands(commands)
	c.settle()
	cl.none() // its lease waits for the clear
	c.reps[0].log.hold = false
	c.settle()
	if o := cl.next().GetOpened(); o.GetSession() != s || o.GetLeaseMs() != 12_000 {
		t.Fatalf("opened %v", o)
	}
	c.advance(12*time.Second - 6*tick)
	if !c.session(s) {
		t.Error("less than the lease that was given")
	}
}

// leaseModel is a client that trusts what the service says about its lease.
type leaseModel struct {
	session, nonce uint64
	lease          time.Duration
	sent           map[uint64]time.Duration // KeepAlives
	ends           time.Duration            // of its lease
	gone           bool
}

// No session ends while its client may still count on a lease that any master
// gave it: whatever is held back, dropped or lost, and whenever masters change.
func TestNoSessionEndsWithinALease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCell(rapidTB{TB: quiet{}, t: t}, 3)
		master, cl := c.reps[0], c.reps[0].dial()
		var clients []*leaseModel
		for i := range 3 {
			lease := time.Duration(rapid.IntRange(1, 15).Draw(t, "lease")) * time.Second
			n := uint64(i + 1)
			clients = append(clients, &leaseModel{nonce: n, lease: lease, sent: map[uint64]time.Duration{}, ends: c.now + lease, session: cl.open(n, lease)})
		}
		last := uint64(100)
		look := func() {
			for _, m := range cl.all() {
				k := m.GetKept()
				for _, l := range k.GetLeases() {
					for _, x := range clients {
						if sent, ok := x.sent[k.GetId()]; ok && x.session == l.GetSession() {
							// As the client counts, but for the drift.
							held := min(time.Duration(k.GetHeldNs()), c.now-sent)
							x.ends = max(x.ends, sent+held+time.Duration(l.GetLeaseMs())*time.Millisecond)
						}
					}
				}
			}
			for _, x := range clients {
				_, lives := master.store.Session(x.session)
				if x.gone = x.gone || !lives; x.gone && c.now < x.ends {
					t.Fatalf("session %d of %v has ended %v before its lease", x.session, x.lease, x.ends-c.now)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			x := clients[rapid.IntRange(0, 2).Draw(t, "client")]
			switch rapid.IntRange(0, 8).Draw(t, "what") {
			case 0, 1, 2:
				last++
				x.sent[last] = c.now
				cl.send(keepAlive(last, rapid.Bool().Draw(t, "now"), x.session))
			case 3:
				cl.send(attach(x.session, x.nonce, 0))
			case 4:
				master.log.hold = !master.log.hold
			case 5:
				master.log.drop = !master.log.drop
			case 6:
				master.log.unproven = !master.log.unproven
			case 7:
				master = c.elect(rapid.IntRange(1, 3).Draw(t, "master"))
				cl = master.dial()
				for _, x := range clients {
					clear(x.sent)
				}
			}
			for d := time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond; d > 0; d -= 5 * tick {
				c.advance(min(d, 5*tick))
				look()
			}
			c.settle()
			look()
		}
	})
}

// rapidTB makes a cell's failures those of a rapid check.
type rapidTB struct {
	testing.TB
	t *rapid.T
}

type quiet struct{ testing.TB }

func (r rapidTB) Helper()                    { r.t.Helper() }
func (r rapidTB) Fatal(args ...any)          { r.t.Fatal(args...) }
func (r rapidTB) Fatalf(f string, a ...any)  { r.t.Fatalf(f, a...) }
func (r rapidTB) Error(args ...any)          { r.t.Error(args...) }
func (r rapidTB) Errorf(f string, a ...any)  { r.t.Errorf(f, a...) }
func (r rapidTB) Cleanup(f func())           { r.t.Cleanup(f) }
func (r rapidTB) Logf(f string, args ...any) { r.t.Logf(f, args...) }

// The repeat of an opening whose session is noted waits for the clear of the note.
// If the log does not take that, and the lease is over meanwhile, the repeat is
// still heard: the session lives, and the repeat is answered.
func TestRepeatedOpenOfANotedSessionIsAnswered(t *testing.T) {
	for _, taken := range []bool{true, false} {
		c := newCell(t, 1)
		r := c.reps[0]
		cl := r.dial()
		s := cl.open(1, 2*time.Second)
		cl.hangup()
		c.advance(2*time.Second - tick)
		if len(c.notes()) == 0 {
			t.Fatal("not noted")
		}
		cl = r.dial()
		r.log.unproven = true
		cl.send(open(2, nonce(1), 2*time.Second)) // applied, not proven
		r.log.unproven, r.log.drop = false, !taken
		c.settle()
		r.log.drop = false
		c.advance(2 * tick)
		if o := cl.next().GetOpened(); o.GetSession() != s || o.GetId() != 2 {
			t.Errorf("taken %t: opened %v", taken, o)
		}
	}
}

// A session that ends while the repeat of its opening waits for the clear of its
// note leaves no opening behind, and the repeat is told.
func TestRepeatedOpenOfASessionThatEnds(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 2*time.Second)
	cl.hangup()
	c.advance(time.Second)
	cl, other := r.dial(), r.dial()
	r.log.unproven = true
	cl.send(open(2, nonce(1), 2*time.Second))
	r.log.unproven, r.log.drop = false, true
	c.settle()
	r.log.drop = false
	// The client has learnt the session's number from the answer that was late.
	end, err := proto.Marshal(&storepb.Command{Session: s, Number: 1, Epoch: r.store.Epoch(),
		Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{WorkEnded: true}}})
	if err != nil {
		t.Fatal(err)
	}
	c.chooseCommands([][]byte{end})
	c.settle()
	cl.err(wirepb.ErrorCode_UNKNOWN_SESSION)
	other.none()
}
