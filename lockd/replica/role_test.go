package replica

import (
	"strings"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	storepb "github.com/seed70370324/lockd/store/pb"
)

func TestHello(t *testing.T) {
	c := newCell(t, 3)
	cl := c.reps[1].connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 1, VersionMax: 3, Cell: "local"}))
	h := cl.next().GetHello()
	if h.GetMaster() || h.GetMasterAddress() != "host1:7101" || h.GetMasterName() != "n1" || h.GetReplica() != "n2" ||
		h.GetCell() != "test" || h.GetVersion() != 2 || h.GetMaxFrame() != 2<<20 || h.GetMaxData() != 1<<20 || h.GetCellIdentity() != 0xce11 {
		t.Errorf("hello %v", h)
	}
	cl = c.reps[0].connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2}))
	if h := cl.next().GetHello(); !h.GetMaster() || h.GetEpoch() != 1 {
		t.Errorf("hello %v", h)
	}
	for _, tc := range []struct {
		first *wirepb.ClientMessage
		code  wirepb.ErrorCode
		text  string
	}{
		{read(nodeRead("/")), wirepb.ErrorCode_BAD_MESSAGE, "Hello"},
		{&wirepb.ClientMessage{}, wirepb.ErrorCode_BAD_MESSAGE, "Hello"},
		{hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, Cell: "other"}), wirepb.ErrorCode_WRONG_CELL, `"other"`},
		{hello(&wirepb.Hello{VersionMin: 3, VersionMax: 4}), wirepb.ErrorCode_BAD_VERSION, "version 2"},
		{hello(nil), wirepb.ErrorCode_BAD_VERSION, "version 2"},
		{hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, MaxFrame: 100}), wirepb.ErrorCode_INVALID_ARGUMENT, "65536"},
	} {
		cl := c.reps[0].connect()
		cl.send(tc.first)
		if e := cl.err(tc.code); !e.GetFatal() || !strings.Contains(e.GetText(), tc.text) {
			t.Errorf("error %v, want %q", e, tc.text)
		}
		if c.reps[0].ended[cl.conn] == "" {
			t.Errorf("%v leaves the connection open", tc.code)
		}
		cl.send(read(nodeRead("/"))) // already under way: ignored
		cl.none()
		cl.hangup()
	}
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2}))
	cl.err(wirepb.ErrorCode_BAD_MESSAGE)
}

func TestTooManyConnections(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxConnections = 2 })
	one := c.reps[0].dial()
	c.reps[0].dial()
	third := c.reps[0].connect()
	c.settle()
	if e := third.err(wirepb.ErrorCode_TOO_MANY); !e.GetFatal() || !strings.Contains(e.GetText(), "2") {
		t.Errorf("error %v", e)
	}
	third.hangup()
	one.hangup()
	c.reps[0].dial()
}

func TestTooManySessions(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxSessions = 2 })
	cl := c.reps[0].dial()
	cl.post(open(1, nonce(1), time.Minute))
	cl.post(open(2, nonce(2), time.Minute))
	cl.post(open(3, nonce(3), time.Minute))
	c.settle()
	if e := cl.err(wirepb.ErrorCode_TOO_MANY); e.GetId() != 3 || !strings.Contains(e.GetText(), "limit") {
		t.Errorf("error %v", e)
	}
	for i := range 2 {
		if cl.next().GetOpened() == nil {
			t.Errorf("session %d is within the limit and was not opened", i+1)
		}
	}
	cl.send(open(4, []byte("short"), time.Minute))
	cl.err(wirepb.ErrorCode_INVALID_ARGUMENT)
	cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Open{Open: &wirepb.OpenSession{Nonce: nonce(5),
		Client: &storepb.ClientInfo{Host: strings.Repeat("h", 10_000)}}}})
	cl.err(wirepb.ErrorCode_INVALID_ARGUMENT)
}

// An OpenSession whose answer was lost has made its session: its repeat is
// answered also when no more sessions are taken.
func TestRepeatedOpenAtTheLimit(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxSessions = 1 })
	first := c.reps[0].dial()
	s := first.open(1, time.Minute)
	first.hangup()
	cl := c.reps[0].dial()
	cl.send(open(2, nonce(2), time.Minute))
	cl.err(wirepb.ErrorCode_TOO_MANY)
	if again := cl.open(1, time.Minute); again != s {
		t.Fatalf("the repeat opened %d, the first %d", again, s)
	}
}

func TestNotMaster(t *testing.T) {
	c := newCell(t, 3)
	writer := c.reps[0].dial()
	s := writer.open(1, long)
	writer.do(s, put("/a", "x"))
	cl := c.reps[1].dial()
	ask := func(code wirepb.ErrorCode) {
		t.Helper()
		for i, m := range []*wirepb.ClientMessage{
			open(9, nonce(9), time.Minute), attach(s, 1, 0), keepAlive(9, true, s), request(s, 9, put("/a", "y")),
			read(nodeRead("/a")), watch(&wirepb.Watch{Id: 9, Path: "/a"}),
		} {
			cl.send(m)
			e := cl.err(code)
			if e.GetFatal() || (code == wirepb.ErrorCode_NOT_MASTER && e.GetMasterAddress() != "host1:7101") ||
				(code == wirepb.ErrorCode_NO_MASTER && e.GetRetryAfterMs() == 0) {
				t.Errorf("error %v", e)
			}
			if i != 1 && i != 3 && i != 4 && e.GetId() != 9 {
				t.Errorf("the error does not name what it answers: %v", e)
			}
			if i == 3 && (e.GetSession() != s || e.GetNumber() != 9) {
				t.Errorf("the error does not name what it answers: %v", e)
			}
		}
		cl.send(ack(s, 1))
		cl.none()
		stale := nodeRead("/a")
		stale.Level = wirepb.ReadLevel_STALE
		if a := cl.read(stale); string(a.GetNode().GetData()) != "x" {
			t.Errorf("stale read %v", a)
		}
	}
	ask(wirepb.ErrorCode_NOT_MASTER)
	st := cl.read(&wirepb.Read{Op: &wirepb.Read_Status{}}).GetStatus()
	if st.GetRole() != "follower" || st.GetMasterName() != "n1" || st.GetMasterAddress() != "host1:7101" || len(st.GetPeers()) != 2 {
		t.Errorf("status %v", st)
	}
	c.reps[1].log.setRole(paxos.RoleEvent{Role: paxos.Candidate})
	c.settle()
	ask(wirepb.ErrorCode_NO_MASTER)
	if st := cl.read(&wirepb.Read{Op: &wirepb.Read_Status{}}).GetStatus(); st.GetRole() != "electing" || st.GetMasterName() != "" {
		t.Errorf("status %v", st)
	}
}

func TestAgeOfStaleReads(t *testing.T) {
	c := newCell(t, 2)
	cl := c.reps[1].dial()
	stale := nodeRead("/")
	stale.Level = wirepb.ReadLevel_STALE
	c.advance(3 * time.Second)
	if a := cl.read(stale); a.GetAgeMs() != 3000 {
		t.Errorf("age %d ms, want 3000", a.GetAgeMs())
	}
	c.reps[1].log.setRole(paxos.RoleEvent{Role: paxos.Follower})
	c.settle()
	if a := cl.read(stale); a.GetAgeMs() != -1 {
		t.Errorf("age %d ms without a master, want -1", a.GetAgeMs())
	}
	master := c.reps[0].dial()
	if a := master.read(stale); a.GetAgeMs() != 0 {
		t.Errorf("age %d ms at the master", a.GetAgeMs())
	}
}

func TestNothingBeforeFounding(t *testing.T) {
	c := unfounded(t, 1)
	cl := c.reps[0].dial()
	stale := nodeRead("/")
	stale.Level = wirepb.ReadLevel_STALE
	cl.send(read(stale))
	if e := cl.err(wirepb.ErrorCode_NO_MASTER); !strings.Contains(e.GetText(), "founded") {
		t.Errorf("error %v", e)
	}
	cl.send(open(1, nonce(1), time.Minute))
	if e := cl.err(wirepb.ErrorCode_NO_MASTER); !strings.Contains(e.GetText(), "founded") {
		t.Errorf("error %v", e)
	}
	if st := cl.read(&wirepb.Read{Op: &wirepb.Read_Status{}}).GetStatus(); st.GetRole() != "founding" || st.GetCell() != "test" {
		t.Errorf("status %v", st)
	}
	c.found()
	c.elect(1)
	cl.open(1, time.Minute)
	if !c.reps[0].role.Founded || !c.reps[0].noted("the cell is founded") || !c.reps[0].noted("became master") {
		t.Errorf("role %+v, notes %v", c.reps[0].role, c.reps[0].notes)
	}
}

// Nothing is served before this replica's own first entry is applied.
func TestServesOnlyInItsOwnEpoch(t *testing.T) {
	c := newCell(t, 2)
	r := c.reps[1]
	r.log.lag = true
	c.elect(2)
	cl := r.connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2}))
	if h := cl.next().GetHello(); h.GetMaster() || h.GetMasterAddress() != "" {
		t.Errorf("hello %v", h)
	}
	cl.send(read(nodeRead("/")))
	cl.err(wirepb.ErrorCode_NO_MASTER)
	if r.role.Master {
		t.Fatal("serves before its first entry is applied")
	}
	r.log.lag = false
	c.settle()
	if !r.role.Master || r.role.Epoch != 2 || r.role.MasterName != "n2" {
		t.Fatalf("role %+v", r.role)
	}
	cl.read(nodeRead("/"))
}

func TestSteppingDownSendsClientsOn(t *testing.T) {
	c := newCell(t, 2)
	old := c.reps[0]
	bound, watching, reading, idle := old.dial(), old.dial(), old.dial(), old.dial()
	s := bound.open(1, long)
	watching.send(watch(&wirepb.Watch{Id: 1, Path: "/"}))
	watching.next()
	old.log.unproven, old.log.hold = true, true
	reading.send(read(nodeRead("/")))
	bound.send(request(s, 1, put("/a", "x")))
	c.elect(2)
	for _, cl := range []*testClient{bound, watching, reading} {
		if l := cl.next().GetLeaving(); l.GetMasterAddress() != "host2:7101" {
			t.Errorf("leaving %v", l)
		}
		if old.ended[cl.conn] == "" {
			t.Error("the connection stays open")
		}
	}
	idle.none()
	if old.ended[idle.conn] != "" {
		t.Error("an idle connection is closed")
	}
	if m := old.Metrics(); m.Pending != 0 || m.Watches != 0 || m.Master {
		t.Errorf("left behind: %+v", m)
	}
	// At the next master everything goes on.
	cl := c.reps[1].dial()
	cl.send(attach(s, 1, 0))
	cl.next()
	cl.send(request(s, 1, put("/a", "x")))
	cl.code(storepb.Code_OK, cl.result(1))
	// And the old one can become master again.
	c.elect(1)
	idle.send(attach(s, 1, 0))
	if a := idle.next().GetAttached(); a.GetLastNumber() != 1 || a.GetEpoch() != 3 {
		t.Errorf("attached %v", a)
	}
}

func TestHandOver(t *testing.T) {
	c := newCell(t, 2)
	old := c.reps[0]
	cl := old.dial()
	s := cl.open(1, long)
	old.Step(c.now, HandOver{})
	c.settle()
	if !old.log.handed || old.role.Master {
		t.Fatalf("handed over: %v, still master: %v", old.log.handed, old.role.Master)
	}
	if !old.role.Leaving {
		t.Error("says that it has given the lead away, and still has it")
	}
	cl.send(request(s, 1, put("/a", "x")))
	cl.err(wirepb.ErrorCode_NO_MASTER)
	// It hears that it does not lead before it hears who does.
	old.log.setRole(paxos.RoleEvent{Role: paxos.Follower})
	c.settle()
	if old.role.Leaving {
		t.Error("has given the lead away, and does not say so")
	}
	cl.none()
	c.elect(2)
	if l := cl.next().GetLeaving(); l.GetMasterAddress() != "host2:7101" {
		t.Errorf("leaving %v", l)
	}
	// Nobody takes it: the clients look around.
	c2 := newCell(t, 2)
	cl = c2.reps[0].dial()
	cl.open(1, long)
	c2.reps[0].Step(c2.now, HandOver{})
	c2.settle()
	c2.reps[0].log.setRole(paxos.RoleEvent{Role: paxos.Follower})
	c2.advance(time.Second)
	if l := cl.next().GetLeaving(); l == nil || l.GetMasterAddress() != "" {
		t.Errorf("leaving %v", l)
	}
}

func TestBrokenLockIsNoted(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	a, b := cl.open(1, long), cl.open(2, long)
	cl.send(request(a, 1, lock("/l", 0)))
	fence := cl.result(1).GetGrant().GetFence()
	cl.send(request(b, 1, &storepb.Command{Op: &storepb.Command_BreakLock{BreakLock: &storepb.Break{Path: "/l", Fence: fence}}}))
	got := cl.all()
	if len(got) != 2 || got[1].GetEvent().GetEvent().GetCode() != storepb.Code_LOST {
		t.Errorf("got %v, want the result and LOST", got)
	}
	if !c.reps[0].noted("lock broken") {
		t.Errorf("notes %v", c.reps[0].notes)
	}
}
