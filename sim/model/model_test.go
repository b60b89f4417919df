package model

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store"
	"github.com/seed70370324/lockd/store/pb"
)

// cell applies commands to a model and to a store, which have to agree, and
// sees to numbers and time.
type cell struct {
	t       testing.TB
	m       *Model
	s       *store.Store
	numbers map[uint64]uint64
	cell    int64
	seen    map[pb.Code]int
	told    []store.Change // of the last command
}

func newCell(t testing.TB) *cell {
	c := &cell{t: t, m: New(), s: store.New(), numbers: map[uint64]uint64{}, seen: map[pb.Code]int{}}
	c.s.ApplyFound("test", 7, 100)
	if err := c.m.JudgeFound(100, c.s); err != nil {
		t.Fatal(err)
	}
	c.lead()
	return c
}

func (c *cell) lead() {
	c.s.ApplyLead(1_760_000_000, c.cell, c.s.Epoch())
	if err := c.m.JudgeLead(1_760_000_000, c.cell, c.s.Epoch()-1, c.s); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cell) apply(m *pb.Command) *pb.Result {
	c.t.Helper()
	m.CellTime, m.WallMs = c.cell, 1_760_000_000_000+c.cell/nanosOfMilli
	if m.Epoch == 0 {
		m.Epoch = c.s.Epoch()
	}
	data, err := m.MarshalVT()
	if err != nil {
		c.t.Fatal(err)
	}
	r, changes := c.s.Apply(data)
	if err := c.m.Judge(m, r, changes, c.s); err != nil {
		c.t.Fatalf("%v => %v: %v", m, r, err)
	}
	c.told = append([]store.Change(nil), changes...)
	c.seen[r.GetCode()]++
	return r
}

func (c *cell) open(nonce string) uint64 {
	c.t.Helper()
	return c.apply(&pb.Command{Op: &pb.Command_OpenSession{OpenSession: &pb.OpenSession{Nonce: []byte("nonce-of-" + nonce), LeaseMs: 2000}}}).GetSession()
}

// request gives m the next number of the session.
func (c *cell) request(session uint64, m *pb.Command) *pb.Result {
	c.t.Helper()
	m.Session = session
	if m.Number == 0 {
		c.numbers[session]++
		m.Number = c.numbers[session]
	}
	return c.apply(m)
}

func acquire(path string, mode pb.LockMode, delay, wait uint64) *pb.Command {
	return &pb.Command{Op: &pb.Command_Acquire{Acquire: &pb.Acquire{Path: path, Mode: mode, LockDelayMs: delay, WaitMs: wait, Create: true}}}
}

func release(ticket uint64) *pb.Command {
	return &pb.Command{Op: &pb.Command_Release{Release: &pb.Release{Ticket: ticket}}}
}

func put(path, data string, conditions ...*pb.Condition) *pb.Command {
	return &pb.Command{Op: &pb.Command_Put{Put: &pb.Put{Path: path, Data: []byte(data), HasData: true, Create: len(conditions) == 0, Parents: true, Conditions: conditions}}}
}

func (c *cell) expect(r *pb.Result, want pb.Code) {
	c.t.Helper()
	if r.GetCode() != want {
		c.t.Fatalf("answered %v, not %v", r, want)
	}
	if err := c.m.Compare(c.s); err != nil {
		c.t.Fatal(err)
	}
}

// due lets everything that falls due by now happen.
func (c *cell) due() {
	c.t.Helper()
	var refs []*pb.TimerRef
	for _, d := range c.s.NextDue(100) {
		if d.At <= c.cell {
			refs = append(refs, d.Ref)
		}
	}
	c.apply(&pb.Command{Op: &pb.Command_Timers{Timers: &pb.Timers{Due: refs}}})
}

func TestBrokenLockIsGrantedAfterLeaseAndDelay(t *testing.T) {
	c := newCell(t)
	a, b := c.open("a"), c.open("b")
	r := c.request(a, acquire("/l/x", pb.LockMode_EXCLUSIVE, 500, 0))
	c.expect(r, pb.Code_OK)
	fence := r.GetGrant().GetFence()
	c.expect(c.request(b, acquire("/l/x", pb.LockMode_EXCLUSIVE, 0, 60_000)), pb.Code_WAITING)
	c.expect(c.request(b, &pb.Command{Op: &pb.Command_BreakLock{BreakLock: &pb.Break{Path: "/l/x", Fence: fence + 9}}}), pb.Code_NOT_HELD)
	c.expect(c.request(b, &pb.Command{Op: &pb.Command_BreakLock{BreakLock: &pb.Break{Path: "/l/x", Fence: fence}}}), pb.Code_OK)
	c.due() // starts the ghost
	c.cell += 2499 * nanosOfMilli
	c.due()
	if l := c.m.locks["/l/x"]; len(l.holders) != 1 || !l.holders[0].ghost {
		t.Fatalf("holders %v before the end of lease and lock-delay", l.holders)
	}
	c.cell += nanosOfMilli
	c.due()
	if l := c.m.locks["/l/x"]; len(l.holders) != 1 || l.holders[0].session != b || l.holders[0].fence <= fence || l.generation != 2 {
		t.Fatalf("after the end: %+v", l)
	}
	c.expect(c.request(b, release(1)), pb.Code_OK)
	if len(c.m.nodes) != 1 {
		t.Fatalf("containers are left: %d nodes", len(c.m.nodes))
	}
}

func TestPutMakesImpliedContainerPermanent(t *testing.T) {
	c := newCell(t)
	a := c.open("a")
	c.expect(c.request(a, acquire("/l/x", pb.LockMode_SHARED, 0, 0)), pb.Code_OK)
	c.expect(c.request(a, put("/l/x", "")), pb.Code_OK)
	c.expect(c.request(a, release(1)), pb.Code_OK)
	if n := c.m.nodes["/l/x"]; n == nil || n.stat.Kind != pb.NodeKind_PERMANENT {
		t.Fatalf("the node with content is %v", n)
	}
}

func TestMultiIsTakenBack(t *testing.T) {
	c := newCell(t)
	a, b := c.open("a"), c.open("b")
	c.expect(c.request(a, put("/m/a", "1")), pb.Code_OK)
	c.expect(c.request(a, acquire("/l", pb.LockMode_EXCLUSIVE, 0, 0)), pb.Code_OK)
	c.expect(c.request(b, acquire("/l", pb.LockMode_EXCLUSIVE, 0, 9000)), pb.Code_WAITING)
	multi := func(generation uint64) *pb.Command {
		return &pb.Command{Op: &pb.Command_Multi{Multi: &pb.Multi{Ops: []*pb.MultiOp{
			{Op: &pb.MultiOp_Put{Put: put("/m/b", "2").GetPut()}},
			{Op: &pb.MultiOp_Release{Release: &pb.Release{Ticket: 2}}},
			{Op: &pb.MultiOp_Delete{Delete: &pb.Delete{Path: "/m/a", Conditions: []*pb.Condition{{Demand: &pb.Condition_Generation{Generation: generation}}}}}},
		}}}}
	}
	c.expect(c.request(a, multi(2)), pb.Code_CONFLICT)
	if c.m.nodes["/m/b"] != nil || len(c.told) > 0 {
		t.Fatal("a Multi that failed has left something")
	}
	c.expect(c.request(a, multi(1)), pb.Code_OK)
	if l := c.m.locks["/l"]; len(l.holders) != 1 || l.holders[0].session != b {
		t.Fatalf("the lock has not passed on: %+v", l)
	}
}

func TestNumbersAreExecutedOnce(t *testing.T) {
	c := newCell(t)
	a := c.open("a")
	first := c.request(a, put("/x", "1"))
	again := put("/x", "1")
	again.Number = 1
	if r := c.request(a, again); r.GetRevision() != first.GetRevision() || len(c.told) > 0 {
		t.Fatalf("the repeat is answered %v", r)
	}
	gap := put("/x", "3")
	gap.Number = 3
	c.expect(c.request(a, gap), pb.Code_RETRY)
	c.expect(c.request(a, &pb.Command{Op: &pb.Command_VoidRequest{VoidRequest: &pb.VoidRequest{}}}), pb.Code_VOIDED)
	late := put("/x", "2")
	late.Number = 2
	c.expect(c.request(a, late), pb.Code_VOIDED)
	third := put("/x", "3")
	third.LowestUnanswered = 3
	c.expect(c.request(a, third), pb.Code_OK)
	old := put("/x", "1")
	old.Number = 1
	c.expect(c.request(a, old), pb.Code_FORGOTTEN)
}

// TestJudgeNotices: a store that answers or does something else is found out.
func TestJudgeNotices(t *testing.T) {
	c := newCell(t)
	a := c.open("a")
	c.request(a, put("/x", "1"))
	c.m.nodes["/x"].stat.ContentGeneration++
	if err := c.m.Compare(c.s); err == nil || !strings.Contains(err.Error(), "/x") {
		t.Fatalf("another generation is not noticed: %v", err)
	}
	c.m.nodes["/x"].stat.ContentGeneration--
	m := put("/x", "2")
	m.Session, m.Number, m.Epoch = a, 2, c.s.Epoch()
	r, changes := c.m.Apply(m)
	r.Code = pb.Code_CONFLICT
	data, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	got, _ := c.s.Apply(data)
	if resultDiffers(r, got) == "" || changesDiffer(changes, nil) == "" {
		t.Fatal("another code, or missing changes, are not noticed")
	}
}

// TestModelAndStoreAgree draws commands that clients of the simulator do not send.
func TestModelAndStoreAgree(t *testing.T) {
	total := map[pb.Code]int{}
	for seed := int64(1); seed <= 60; seed++ {
		c := newCell(t)
		d := &draw{Rand: rand.New(rand.NewSource(seed)), c: c}
		for i := 0; i < 600; i++ {
			d.step()
			if i%20 == 0 {
				if err := c.m.Compare(c.s); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
		for code, n := range c.seen {
			total[code] += n
		}
	}
	for _, code := range []pb.Code{pb.Code_OK, pb.Code_NOT_FOUND, pb.Code_EXISTS, pb.Code_CONFLICT, pb.Code_NOT_EMPTY, pb.Code_EPHEMERAL_PARENT,
		pb.Code_HELD, pb.Code_WAITING, pb.Code_NOT_HELD, pb.Code_UNKNOWN_SESSION, pb.Code_LOCKED, pb.Code_WITHDRAWN, pb.Code_RETRY, pb.Code_FORGOTTEN, pb.Code_STALE_EPOCH} {
		if total[code] == 0 {
			t.Errorf("no command was answered %v: %v", code, total)
		}
	}
}

type draw struct {
	*rand.Rand
	c        *cell
	sessions []uint64
}

func (d *draw) path() string {
	return []string{"/a", "/a/b", "/a/b/c", "/e", "/e/f", "/l/x"}[d.Intn(6)]
}

func (d *draw) session() uint64 { return d.sessions[d.Intn(len(d.sessions))] }

func (d *draw) condition(path string) *pb.Condition {
	revision, instance, generation, fence := uint64(1), uint64(1), uint64(1), uint64(1)
	if n := d.c.m.nodes[path]; n != nil {
		revision, instance, generation = n.stat.ModifyRevision, n.stat.Instance, n.stat.ContentGeneration
	}
	held := &pb.Holding{Path: d.path(), Session: d.session(), Ticket: uint64(1 + d.Intn(20))}
	if l := d.c.m.locks[path]; l != nil && len(l.holders) > 0 {
		fence = l.fence
		held = &pb.Holding{Path: path, Session: l.holders[0].session, Ticket: l.holders[0].ticket}
	}
	switch d.Intn(7) {
	case 0:
		return &pb.Condition{Demand: &pb.Condition_Exists{Exists: true}}
	case 1:
		return &pb.Condition{Demand: &pb.Condition_Exists{}}
	case 2:
		return &pb.Condition{Demand: &pb.Condition_Generation{Generation: generation}}
	case 3:
		return &pb.Condition{Demand: &pb.Condition_Revision{Revision: revision}}
	case 4:
		return &pb.Condition{Demand: &pb.Condition_Instance{Instance: instance}}
	case 5:
		return &pb.Condition{Demand: &pb.Condition_Fence{Fence: fence}}
	}
	return &pb.Condition{Demand: &pb.Condition_HeldBy{HeldBy: held}}
}

func (d *draw) conditions(path string) (all []*pb.Condition) {
	for d.Intn(3) == 0 {
		all = append(all, d.condition(path))
	}
	return all
}

func (d *draw) flip() bool { return d.Intn(2) == 0 }

func (d *draw) op() *pb.MultiOp {
	path := d.path()
	switch d.Intn(5) {
	case 0:
		return &pb.MultiOp{Op: &pb.MultiOp_Create{Create: &pb.Create{Path: path, Kind: pb.NodeKind(d.Intn(4)), Sequential: d.Intn(4) == 0,
			Data: []byte("x"), HasData: true, Parents: d.flip(), Conditions: d.conditions(path)}}}
	case 1:
		return &pb.MultiOp{Op: &pb.MultiOp_Put{Put: &pb.Put{Path: path, Data: []byte(fmt.Sprint(d.Intn(1000))), HasData: true, Create: d.flip(),
			Parents: d.flip(), Conditions: d.conditions(path)}}}
	case 2:
		return &pb.MultiOp{Op: &pb.MultiOp_Delete{Delete: &pb.Delete{Path: path, Recursive: d.flip(), Force: d.Intn(3) == 0, Conditions: d.conditions(path)}}}
	case 3:
		return &pb.MultiOp{Op: &pb.MultiOp_Check{Check: &pb.Check{Path: path, Conditions: d.conditions(path)}}}
	}
	return &pb.MultiOp{Op: &pb.MultiOp_Release{Release: &pb.Release{Ticket: uint64(1 + d.Intn(60))}}}
}

func (d *draw) step() {
	c := d.c
	c.cell += d.Int63n(300 * nanosOfMilli)
	if len(d.sessions) < 3 {
		d.sessions = append(d.sessions, c.open(fmt.Sprint(d.Int63())))
		return
	}
	s := d.session()
	switch d.Intn(12) {
	case 0, 1, 2:
		a := acquire(d.path(), pb.LockMode(1+d.Intn(2)), uint64(d.Intn(3)*500), uint64(d.Intn(2)*d.Intn(5000)))
		a.GetAcquire().Create = d.Intn(4) > 0
		c.request(s, a)
	case 3:
		c.request(s, release(uint64(1+d.Intn(int(c.numbers[s]+1)))))
	case 4:
		c.request(s, &pb.Command{Op: &pb.Command_Forfeit{Forfeit: &pb.Forfeit{Ticket: uint64(1 + d.Intn(int(c.numbers[s]+1)))}}})
	case 5:
		c.due()
	case 6:
		ops := make([]*pb.MultiOp, 1+d.Intn(3))
		for i := range ops {
			ops[i] = d.op()
		}
		c.request(s, &pb.Command{Op: &pb.Command_Multi{Multi: &pb.Multi{Ops: ops}}})
	case 7:
		d.rare(s)
	default:
		m := &pb.Command{LowestUnanswered: uint64(d.Intn(3)) * c.numbers[s] / 2}
		switch op := d.op().Op.(type) {
		case *pb.MultiOp_Create:
			m.Op = &pb.Command_Create{Create: op.Create}
		case *pb.MultiOp_Put:
			m.Op = &pb.Command_Put{Put: op.Put}
		case *pb.MultiOp_Delete:
			m.Op = &pb.Command_Delete{Delete: op.Delete}
		default:
			return
		}
		c.request(s, m)
	}
}

func (d *draw) rare(s uint64) {
	c := d.c
	view, ok := c.s.Session(s)
	switch d.Intn(11) {
	case 8: // a repeat, or a gap
		m := put(d.path(), "again")
		if m.Number = 1 + uint64(d.Intn(int(c.numbers[s]+1))); m.Number > c.numbers[s] {
			m.Number++
		}
		c.request(s, m)
	case 9: // an expiry of another master
		c.apply(&pb.Command{Epoch: c.s.Epoch() + 1, Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: s, LastChange: view.LastChange}}})
	case 10:
		c.apply(&pb.Command{Op: &pb.Command_Clock{Clock: &pb.Clock{}}})
	case 0:
		c.request(s, &pb.Command{Op: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{WorkEnded: d.flip()}}})
	case 1:
		c.apply(&pb.Command{Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: s, LastChange: view.LastChange + uint64(d.Intn(2))}}})
	case 2:
		c.lead()
	case 3:
		c.apply(&pb.Command{Epoch: c.s.Epoch() + uint64(d.Intn(2)), Op: &pb.Command_NoteSessions{NoteSessions: &pb.NoteSessions{
			Notes: []*pb.SessionNote{{Session: s, LeaseEndCell: int64(d.Intn(2)) * (c.cell + 1)}}}}})
	case 4:
		c.apply(&pb.Command{Session: s, AckedEvent: uint64(d.Intn(10)), Op: &pb.Command_AckEvents{AckEvents: &pb.AckEvents{}}})
	default:
		path := d.path()
		if l := c.m.locks[path]; l != nil {
			c.request(s, &pb.Command{Op: &pb.Command_BreakLock{BreakLock: &pb.Break{Path: path, Fence: l.fence}}})
		}
	}
	if _, still := c.s.Session(s); ok && !still {
		for i := range d.sessions {
			if d.sessions[i] == s && d.Intn(3) > 0 { // now and then a dead one goes on
				d.sessions = append(d.sessions[:i], d.sessions[i+1:]...)
				return
			}
		}
	}
}
