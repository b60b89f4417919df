package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/sequencer"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// A linearizable read is answered under a proof begun after it arrived, one for
// all that wait, from a state that has everything chosen by then.
func TestReadsWaitForProof(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, long)
	cl.do(s, put("/a", "1"))
	r.log.unproven = true
	for range 5 {
		cl.post(read(nodeRead("/a")))
	}
	c.settle()
	cl.none()
	if n := len(r.log.confirms); n != 1 {
		t.Errorf("%d rounds for reads that came together", n)
	}
	cl.send(request(s, 2, put("/a", "2")))
	cl.result(2)
	// Proven, but what was chosen before the proof is not applied yet.
	r.log.lag, r.log.unproven = true, false
	cl.post(request(s, 3, put("/a", "3")))
	c.settle()
	cl.none()
	r.log.lag = false
	c.settle()
	cl.result(3)
	for range 5 {
		if n := cl.next().GetRead().GetNode(); string(n.GetData()) != "3" {
			t.Errorf("read %q, want what was chosen before the proof", n.GetData())
		}
	}
}

func TestNodeReads(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, long)
	cl.do(s, put("/a", "hello"))
	a := cl.read(nodeRead("/a"))
	if a.GetCode() != storepb.Code_OK || a.GetId() != 1 || a.GetRevision() != c.reps[0].store.Revision() ||
		string(a.GetNode().GetData()) != "hello" || a.GetNode().GetStat().GetContentGeneration() != 1 {
		t.Errorf("read %v", a)
	}
	if a := cl.read(&wirepb.Read{Id: 2, Op: &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: "/a", NoData: true}}}); len(a.GetNode().GetData()) != 0 || !a.GetNode().GetHasData() {
		t.Errorf("read %v", a)
	}
	if a := cl.read(nodeRead("/b")); a.GetCode() != storepb.Code_NOT_FOUND || a.GetDetail() == "" {
		t.Errorf("read %v", a)
	}
	for _, path := range []string{"", "a", "/a/", "/a//b", "/../a", "/a\x00", "/" + strings.Repeat("é", 1<<20)} {
		if a := cl.read(nodeRead(path)); a.GetCode() != storepb.Code_BAD_PATH || a.GetDetail() == "" || proto.Size(a) > 4096 {
			t.Errorf("read of %.20q: %.200v", path, a)
		}
	}
	cl.send(read(&wirepb.Read{Id: 9}))
	if e := cl.err(wirepb.ErrorCode_BAD_MESSAGE); e.GetId() != 9 {
		t.Errorf("error %v", e)
	}
	cl.send(read(&wirepb.Read{Id: 9, Level: 5, Op: nodeRead("/a").GetOp()}))
	cl.err(wirepb.ErrorCode_INVALID_ARGUMENT)
}

func TestListsComeInPages(t *testing.T) {
	const frame = 64 << 10
	c := newCell(t, 1)
	r := c.reps[0]
	writer := r.dial()
	s := writer.open(1, long)
	name := strings.Repeat("n", 200)
	for i := range 500 {
		writer.post(request(s, uint64(i+1), put(fmt.Sprintf("/d/%s%04d", name, i), "")))
		writer.number++
		if i%100 == 99 {
			c.settle()
		}
	}
	writer.all()
	cl := r.connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, MaxFrame: frame}))
	cl.next()
	for _, tc := range []struct {
		limit uint32
		stats bool
		pages int
	}{{0, false, 2}, {0, true, 4}, {100, true, 5}} {
		seen, pages, after := 0, 0, ""
		for more := true; more; pages++ {
			cl.send(read(&wirepb.Read{Id: 1, Op: &wirepb.Read_Children{Children: &wirepb.ReadChildren{
				Path: "/d", After: after, Limit: tc.limit, Stats: tc.stats}}}))
			m := cl.next()
			if proto.Size(m) > frame {
				t.Fatalf("a page of %d bytes", proto.Size(m))
			}
			ch := m.GetRead().GetChildren()
			for _, child := range ch.GetChildren() {
				if want := fmt.Sprintf("%s%04d", name, seen); child.GetName() != want || (child.GetStat() != nil) != tc.stats {
					t.Fatalf("child %d is %v", seen, child)
				}
				seen++
				after = child.GetName()
			}
			more = ch.GetMore()
		}
		if seen != 500 || pages < tc.pages {
			t.Errorf("%d children in %d pages", seen, pages)
		}
	}
	if a := cl.read(&wirepb.Read{Op: &wirepb.Read_Children{Children: &wirepb.ReadChildren{Path: "/none"}}}); a.GetCode() != storepb.Code_NOT_FOUND {
		t.Errorf("read %v", a)
	}
}

func TestLocksAndSessionsForPeople(t *testing.T) {
	c := newCell(t, 1)
	start := c.now
	cl := c.reps[0].dial()
	a, b := cl.open(1, 12*time.Second), cl.open(2, 60*time.Second)
	cl.send(request(a, 1, lock("/l/1", 0)))
	cl.send(request(b, 1, lock("/l/1", time.Minute)))
	cl.send(request(b, 2, lock("/l/2", 0)))
	cl.all()
	c.advance(start + 2*time.Second - c.now)
	got := cl.read(&wirepb.Read{Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: "/l/1"}}}).GetLocks()
	if len(got.GetLocks()) != 1 || len(got.GetLocks()[0].GetWaiters()) != 1 || len(got.GetLocks()[0].GetHolders()) != 1 {
		t.Fatalf("locks %v", got)
	}
	l := got.GetLocks()[0]
	if l.GetHolders()[0].GetClient().GetHost() != "here" || l.GetHolderLeaseLeftMs()[0] != 10_000 {
		t.Errorf("lock %v", l)
	}
	waited := time.Duration(got.GetCellTime() - l.GetWaiters()[0].GetSinceCell())
	if waited < 1900*time.Millisecond || waited > 2*time.Second {
		t.Errorf("the waiter has waited %v, want nearly 2 s", waited)
	}
	all := cl.read(&wirepb.Read{Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: "/", Subtree: true, Limit: 1}}}).GetLocks()
	if len(all.GetLocks()) != 1 || !all.GetMore() {
		t.Errorf("locks %v", all)
	}
	all = cl.read(&wirepb.Read{Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: "/", Subtree: true, After: "/l/1"}}}).GetLocks()
	if len(all.GetLocks()) != 1 || all.GetMore() || all.GetLocks()[0].GetPath() != "/l/2" {
		t.Errorf("locks %v", all)
	}
	cl.send(request(b, 3, put("/free", "")))
	cl.result(3)
	if got := cl.read(&wirepb.Read{Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: "/free"}}}).GetLocks(); len(got.GetLocks()) != 0 {
		t.Errorf("a free lock is listed: %v", got)
	}
	if n := c.reps[0].Metrics().Granted; n != 2 {
		t.Errorf("%d grants counted, want 2", n)
	}
	ss := cl.read(&wirepb.Read{Op: &wirepb.Read_Sessions{Sessions: &wirepb.ReadSessions{}}}).GetSessions().GetSessions()
	if len(ss) != 2 || ss[0].GetId() != a || ss[0].GetLeaseLeftMs() != 10_000 || ss[0].GetAddress() == "" ||
		ss[0].GetLocks() != 1 || ss[1].GetWaiting() != 1 {
		t.Errorf("sessions %v", ss)
	}
	st := cl.read(&wirepb.Read{Op: &wirepb.Read_Status{Status: &wirepb.ReadStatus{}}}).GetStatus()
	if st.GetRole() != "master" || st.GetSessions() != 2 || st.GetEpoch() != 1 || st.GetMasterName() != "n1" || st.GetConnections() != 1 || st.GetUptimeMs() != 2000 {
		t.Errorf("status %v", st)
	}
}

// A lock with a queue that fits into no frame is shown as far as it goes.
func TestLockWithALongQueue(t *testing.T) {
	const frame = 64 << 10
	c := newCell(t, 1)
	r := c.reps[0]
	writer := r.dial()
	for i := uint64(1); i <= 9; i++ {
		s := writer.open(i, long)
		for n := uint64(1); n <= 200; n++ {
			writer.post(request(s, n, lock("/l", time.Hour)))
		}
		c.settle()
		writer.all()
	}
	cl := r.connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, MaxFrame: frame}))
	cl.next()
	cl.send(read(&wirepb.Read{Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: "/", Subtree: true}}}))
	m := cl.next()
	l := m.GetRead().GetLocks().GetLocks()
	if proto.Size(m) > frame || len(l) != 1 || len(l[0].GetHolders()) != 1 || len(l[0].GetWaiters()) < 100 || m.GetRead().GetDetail() == "" {
		t.Errorf("%d bytes, %d waiters, %q", proto.Size(m), len(l[0].GetWaiters()), m.GetRead().GetDetail())
	}
}

func TestCheckSequencer(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	a, b := cl.open(1, 4*time.Second), cl.open(2, long)
	seq := func(r *storepb.Result) sequencer.S {
		g := r.GetGrant()
		return sequencer.S{Fence: g.GetFence(), Generation: g.GetLockGeneration(), Instance: g.GetInstance(), Cell: 0xce11, Path: g.GetPath()}
	}
	check := func(text, want string) {
		t.Helper()
		a := cl.read(&wirepb.Read{Op: &wirepb.Read_Check{Check: &wirepb.CheckSequencer{Sequencer: text}}})
		if got := a.GetCheck(); got.GetValid() != (want == "") || !strings.Contains(got.GetReason(), want) {
			t.Errorf("%s: %v, want %q", text, got, want)
		}
	}
	cl.send(request(a, 1, lock("/l", 0)))
	held := seq(cl.code(storepb.Code_OK, cl.result(1)))
	check(held.String(), "")
	check("nonsense", "not a sequencer")
	other := held
	other.Cell++
	check(other.String(), "another cell")
	other = held
	other.Shared = true
	check(other.String(), "released")
	other = held
	other.Generation++
	check(other.String(), "generation")
	other = held
	other.Path = "/none"
	check(other.String(), "does not exist")
	// Its session expires: the lock-delay runs, then another gets it.
	cl.send(request(b, 1, lock("/l", time.Hour)))
	cl.result(1)
	c.advance(4 * time.Second)
	check(held.String(), "lock-delay")
	c.advance(1100 * time.Millisecond)
	cl.event(1, storepb.Code_GRANTED)
	check(held.String(), "held under fence")
	// Released.
	cl.send(request(b, 2, put("/l/keep", "")))
	cl.result(2)
	l, _ := c.reps[0].store.Lock("/l")
	held = sequencer.S{Fence: l.Fence, Generation: l.Generation, Instance: l.Instance, Cell: 0xce11, Path: "/l"}
	check(held.String(), "")
	cl.send(request(b, 3, unlock("/l", 1)))
	cl.code(storepb.Code_OK, cl.result(3))
	check(held.String(), "released")
	cl.send(request(b, 4, remove("/l")))
	cl.code(storepb.Code_OK, cl.result(4))
	check(held.String(), "does not exist")
	cl.send(request(b, 5, put("/l", "")))
	cl.code(storepb.Code_OK, cl.result(5))
	check(held.String(), "created again")
}
