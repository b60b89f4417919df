package store

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// quick is a cell without a check of the whole state after each command: the
// tests of limits make many.
type quick struct{ *cell }

func newQuick(t *testing.T) *quick { return &quick{newCell(t)} }

// do is cell.do, unchecked.
func (q *quick) do(session uint64, cmd *pb.Command) *pb.Result {
	q.t.Helper()
	cmd.Session, cmd.Number, cmd.LowestUnanswered = session, q.next[session], q.next[session]
	r := q.send(cmd)
	q.next[session]++
	return r
}

func (q *quick) send(cmd *pb.Command) *pb.Result {
	q.t.Helper()
	cmd.Epoch = q.s.Epoch()
	b, err := proto.Marshal(cmd)
	if err != nil {
		q.t.Fatal(err)
	}
	r, _ := q.s.Apply(b)
	return r
}

// fill creates many nodes at once, as one command.
func (q *quick) fill(n int, owner uint64, path func(i int) string) {
	kind := pb.NodeKind_PERMANENT
	if owner != 0 {
		kind = pb.NodeKind_EPHEMERAL
	}
	q.s.begin()
	for i := range n {
		q.s.makeParents(parent(path(i)))
		q.s.makeNode(path(i), kind, owner, nil, false)
	}
	q.s.commit()
}

// passes executes a command that no limit may refuse.
func (q *quick) passes(session uint64, cmd *pb.Command) *pb.Result {
	q.t.Helper()
	r := q.do(session, cmd)
	if r.Code != pb.Code_OK && r.Code != pb.Code_WAITING {
		q.t.Fatalf("%s (%s): it should pass", r.Code, r.Detail)
	}
	return r
}

// refused executes a command that the limit refuses: its answer names the
// limit, and says the words; and nothing has changed.
func (q *quick) refused(session uint64, cmd *pb.Command, code pb.Code, limit string, words ...string) {
	q.t.Helper()
	before := q.s.Revision()
	r := q.do(session, cmd)
	if r.Code != code || r.Limit != limit {
		q.t.Fatalf("%s, limit %q (%s), want %s of %q", r.Code, r.Limit, r.Detail, code, limit)
	}
	for _, w := range words {
		if !strings.Contains(r.Detail, w) {
			q.t.Errorf("%q does not say %q", r.Detail, w)
		}
	}
	if q.s.Revision() != before {
		q.t.Errorf("%s: a refused command has changed the state", limit)
	}
}

// ends checks that what makes the state smaller passes, and the state.
func (q *quick) ends() {
	q.t.Helper()
	if err := q.s.Check(); err != nil {
		q.t.Fatal(err)
	}
	if again := restore(q.t, snapshot(q.t, q.s)); again.Hash() != q.s.Hash() {
		q.t.Error("the state is another one after a snapshot")
	}
	var all []uint64
	q.s.Sessions(0, func(v SessionView) bool { all = append(all, v.ID); return true })
	for _, id := range all {
		q.passes(id, closeSession(true))
	}
	if err := q.s.Check(); err != nil {
		q.t.Fatal(err)
	}
	if n, _ := q.s.Counts(); n != 0 {
		q.t.Errorf("%d sessions are left", n)
	}
}

func ephemeral(path string) *pb.Command {
	c := createKind(path, pb.NodeKind_EPHEMERAL)
	c.GetCreate().Parents = true
	return c
}

func sequential(path string) *pb.Command {
	return &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: path, Sequential: true}}}
}

func multiOf(n int, op func(i int) *pb.MultiOp) *pb.Command {
	m := &pb.Multi{}
	for i := range n {
		m.Ops = append(m.Ops, op(i))
	}
	return &pb.Command{Op: &pb.Command_Multi{Multi: m}}
}

func void() *pb.Command {
	return &pb.Command{Op: &pb.Command_VoidRequest{VoidRequest: &pb.VoidRequest{}}}
}

// Each limit at its edge: the largest that is allowed passes, one more is
// refused with its name.
func TestLimitsOfNodes(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	full := strings.Repeat("x", DataMax)
	q.passes(a, put("/full", full))
	q.refused(a, put("/full", full+"x"), pb.Code_TOO_LARGE, LimitData, "1048577", "1048576")
	q.refused(a, &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: "/fuller", Data: []byte(full + "x")}}}, pb.Code_TOO_LARGE, LimitData)

	name := strings.Repeat("n", NameMax)
	q.passes(a, create("/"+name))
	q.refused(a, create("/"+name+"n"), pb.Code_BAD_PATH, LimitName, "256", "255")
	q.refused(a, acquire("/"+name+"n", exclusive, 0), pb.Code_BAD_PATH, LimitName)
	q.refused(a, sequential("/"+name[:NameMax-9]), pb.Code_BAD_PATH, LimitName, "with its number")
	q.passes(a, sequential("/"+name[:NameMax-10]))
	long := strings.Repeat("/"+name[:127], PathMax/128) // 1024
	deep := create(long)
	deep.GetCreate().Parents = true
	q.passes(a, deep)
	q.refused(a, create(long+"x"), pb.Code_BAD_PATH, LimitPath, "1025", "1024")
	q.refused(a, put(long+"x", ""), pb.Code_BAD_PATH, LimitPath)
	q.refused(a, del(long+"x"), pb.Code_BAD_PATH, LimitPath)
	q.passes(a, del(long))
	if r := q.do(a, create("no-slash")); r.Code != pb.Code_BAD_PATH || r.Limit != "" {
		t.Errorf("a bad path that meets no limit: %v", r)
	}
	q.ends()
}

func TestLimitOfChildren(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	q.passes(a, create("/p"))
	// A million creates would only take long: the count is what decides.
	count := func(n uint32) { q.s.editNode("/p", func(p *node) { p.children = n }) }
	count(ChildrenMax - 1)
	q.passes(a, create("/p/last"))
	q.refused(a, create("/p/more"), pb.Code_LIMIT, LimitChildren, "/p has 1048576 children")
	q.refused(a, put("/p/more", ""), pb.Code_LIMIT, LimitChildren)
	q.refused(a, sequential("/p/more"), pb.Code_LIMIT, LimitChildren)
	q.refused(a, acquire("/p/more", exclusive, 0), pb.Code_LIMIT, LimitChildren)
	q.refused(a, acquire("/p/more/below", exclusive, 0), pb.Code_LIMIT, LimitChildren)
	q.passes(a, put("/p/last", "still written"))
	q.passes(a, acquire("/p/last", exclusive, 0))
	q.passes(a, release(q.next[a]-1))
	q.passes(a, del("/p/last"))
	q.passes(a, create("/p/again"))
	count(1)
	q.ends()
}

func TestLimitOfTakenNames(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	q.fill(SkipMax+1, 0, func(i int) string { return fmt.Sprintf("/s%010d", i) })
	q.refused(a, sequential("/s"), pb.Code_LIMIT, LimitSkip, "names from s0000000000 on", "10000")
	if r := q.passes(a, sequential("/other")); r.Path != "/other0000000000" {
		t.Errorf("another base name: %s", r.Path)
	}
	if r := q.passes(a, sequential("/s")); r.Path != fmt.Sprintf("/s%010d", SkipMax+1) {
		t.Errorf("with one less to pass over: %s", r.Path)
	}
	q.ends()
}

func TestLimitOfRecursiveDelete(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	grow := func(path string, children int) {
		q.passes(a, create(path))
		q.fill(children, 0, func(i int) string { return fmt.Sprintf("%s/%d", path, i) })
	}
	recursive := func(path string) *pb.Command {
		return &pb.Command{Op: &pb.Command_Delete{Delete: &pb.Delete{Path: path, Recursive: true}}}
	}
	grow("/d", DeleteMax)
	q.refused(a, recursive("/d"), pb.Code_LIMIT, LimitDelete, "/d", "10000", "not deleted", "rm -r")
	q.passes(a, del("/d/0"))
	q.passes(a, recursive("/d"))
	if q.exists("/d") || q.exists("/d/1") {
		t.Fatal("/d was not deleted")
	}
	// All Deletes of a Multi count together.
	grow("/e", DeleteMax/2-1)
	grow("/f", DeleteMax/2-1)
	q.passes(a, create("/g"))
	paths := []string{"/e", "/f", "/g"}
	both := func(n int) *pb.Command {
		return multiOf(n, func(i int) *pb.MultiOp {
			return &pb.MultiOp{Op: &pb.MultiOp_Delete{Delete: &pb.Delete{Path: paths[i], Recursive: true}}}
		})
	}
	q.refused(a, both(3), pb.Code_LIMIT, LimitDelete)
	if !q.exists("/e/0") || !q.exists("/f/0") {
		t.Fatal("the refused Multi has deleted something")
	}
	q.passes(a, both(2))
	// Holders and waiters of what is deleted count; a single node always goes,
	// whoever waits for it.
	b := q.open()
	grow("/h", 1)
	for range WaitersMax {
		if q.next[b] > LocksMax {
			b = q.open()
		}
		q.passes(b, acquire("/h/0", shared, 0))
	}
	force := delForce("/h")
	q.refused(a, force, pb.Code_LIMIT, LimitDelete)
	q.passes(a, delForce("/h/0"))
	q.passes(a, delForce("/h"))
	q.ends()
}

func TestLimitOfMulti(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	puts := func(n int) *pb.Command {
		return multiOf(n, func(i int) *pb.MultiOp {
			return &pb.MultiOp{Op: &pb.MultiOp_Put{Put: &pb.Put{Path: fmt.Sprintf("/m%d", i), Create: true}}}
		})
	}
	q.refused(a, puts(MultiMax+1), pb.Code_LIMIT, LimitMulti, "1025", "1024")
	if q.exists("/m0") {
		t.Error("a part of it was executed")
	}
	q.passes(a, puts(MultiMax))
	// What one of its operations meets is the Multi's.
	r := q.do(a, multiOf(2, func(i int) *pb.MultiOp {
		return &pb.MultiOp{Op: &pb.MultiOp_Put{Put: &pb.Put{Path: "/big", Create: true, Data: make([]byte, DataMax+i)}}}
	}))
	if r.Code != pb.Code_TOO_LARGE || r.Limit != LimitData || r.FailedOp != 1 || q.exists("/big") {
		t.Errorf("%v %q at %d", r.Code, r.Limit, r.FailedOp)
	}
	q.ends()
}

func TestLimitsOfLocks(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	q.passes(a, acquire("/delay", exclusive, LockDelayMaxMillis))
	q.refused(a, acquire("/delay2", exclusive, LockDelayMaxMillis+1), pb.Code_BAD_COMMAND, LimitLockDelay, "60001", "60000")
	// Of a session: those held, waited for and lost.
	for i := 1; i < LocksMax-2; i++ {
		q.passes(a, acquire(fmt.Sprintf("/l/%d", i), exclusive, 1000))
	}
	b := q.open()
	q.passes(b, acquire("/l/of-b", exclusive, 0))
	q.passes(a, acquire("/l/of-b", exclusive, 0))
	waits := q.next[a] - 1
	q.passes(a, acquire("/l/last", exclusive, 1000))
	v, _ := q.s.Lock("/l/last")
	q.passes(b, &pb.Command{Op: &pb.Command_BreakLock{BreakLock: &pb.Break{Path: "/l/last", Fence: v.Fence}}})
	lost := q.next[a] - 1
	q.refused(a, acquire("/l/more", exclusive, 0), pb.Code_LIMIT, LimitLocks, "9998 locks", "lost 1", "waits for 1", "10000")
	q.refused(a, acquireWait("/l/of-b", exclusive, 0), pb.Code_LIMIT, LimitLocks)
	for _, ticket := range []uint64{lost, 1} {
		q.passes(a, release(ticket))
		q.passes(a, acquire("/l/again", exclusive, 0))
		q.refused(a, acquire("/l/more", exclusive, 0), pb.Code_LIMIT, LimitLocks)
		q.passes(a, release(q.next[a]-2))
		q.passes(a, acquire(fmt.Sprint("/l/again", ticket), exclusive, 0))
	}
	if r := q.do(a, release(waits)); r.Code != pb.Code_WITHDRAWN {
		t.Errorf("a waiter leaves: %v", r)
	}
	q.passes(b, acquire("/l/more", exclusive, 0)) // others are not concerned
	q.ends()
}

func TestLimitOfALocksQueue(t *testing.T) {
	q := newQuick(t)
	holder := q.open()
	q.passes(holder, acquire("/l", shared, 0))
	readers := q.open()
	for range WaitersMax/2 - 1 {
		q.passes(readers, acquire("/l", shared, 0))
	}
	writers := q.open()
	for range WaitersMax / 2 {
		q.passes(writers, acquire("/l", exclusive, 0))
	}
	late := q.open()
	q.refused(late, acquire("/l", shared, 0), pb.Code_LIMIT, LimitWaiters, "/l has 5000 holders and 5000 waiters", "10000")
	if r := q.do(late, acquireWait("/l", exclusive, 0)); r.Code != pb.Code_HELD || len(r.Blockers) != BlockersMax {
		t.Errorf("a try says who holds it: %v", r.Code)
	}
	q.passes(holder, release(1))
	q.passes(late, acquire("/l", exclusive, 0))
	q.refused(late, acquire("/l", exclusive, 0), pb.Code_LIMIT, LimitWaiters)
	// Readers alone meet it too, with nobody waiting.
	many := q.open()
	for i := range WaitersMax {
		if i == LocksMax/2 {
			many = q.open() // LocksMax is that of a session
		}
		q.passes(many, acquire("/r", shared, 0))
	}
	q.refused(late, acquire("/r", shared, 0), pb.Code_LIMIT, LimitWaiters, "10000 holders and 0 waiters")
	q.ends()
}

func TestLimitOfEphemerals(t *testing.T) {
	q := newQuick(t)
	a, b := q.open(), q.open()
	q.fill(EphemeralsMax-1, a, func(i int) string { return fmt.Sprintf("/e/%d", i) })
	q.passes(a, ephemeral("/e/last"))
	q.refused(a, ephemeral("/e/more"), pb.Code_LIMIT, LimitEphemerals, "10000")
	q.passes(a, create("/permanent"))
	q.passes(b, ephemeral("/e/of-b"))
	q.passes(a, del("/e/0"))
	q.passes(a, ephemeral("/e/again"))
	q.refused(a, ephemeral("/e/more"), pb.Code_LIMIT, LimitEphemerals)
	q.ends()
	if q.exists("/e/1") || q.exists("/e/of-b") {
		t.Error("ephemeral nodes outlive their sessions")
	}
}

func TestLimitOfEvents(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	q.passes(a, acquire("/held", exclusive, 0))
	// So many events as if the client had acknowledged none of them.
	count := func(n uint64) { q.s.editSession(a, func(x *session) { x.nextEvent = n + 1 }) }
	count(EventsMax - 1 - 2)
	q.passes(a, acquire("/last", exclusive, 0))
	q.refused(a, acquire("/more", exclusive, 0), pb.Code_LIMIT, LimitEvents, "65533 events", "65536", "acknowledge")
	q.passes(a, create("/x"))
	q.passes(a, release(1))
	q.passes(a, acquire("/more", exclusive, 0))
	count(0)
	q.ends()
}

// The window of results: a session that takes no answers can execute no more,
// but it can give back all it has, and end.
func TestLimitOfResults(t *testing.T) {
	q := newQuick(t)
	a := q.open()
	const locks = 2 * WindowMax
	for i := range locks {
		q.passes(a, acquire(fmt.Sprintf("/l/%d", i), exclusive, 0))
	}
	first := q.next[a]
	n := first
	send := func(c *pb.Command) *pb.Result {
		c.Session, c.Number, c.LowestUnanswered = a, n, first
		return q.send(c)
	}
	ok := func(c *pb.Command, code pb.Code) {
		t.Helper()
		if r := send(c); r.Code != code {
			t.Fatalf("%d: %v (%s), want %v", n-first, r.Code, r.Detail, code)
		}
		n++
	}
	for range WindowMax {
		ok(put("/x", ""), pb.Code_OK)
	}
	r := send(put("/x", ""))
	if r.Code != pb.Code_LIMIT || r.Limit != LimitWindow || !strings.Contains(r.Detail, "1024") || !strings.Contains(r.Detail, "not executed") {
		t.Fatalf("%v", r)
	}
	ok(void(), pb.Code_VOIDED)
	for i := range uint64(locks - 1) {
		ok(release(i+1), pb.Code_OK)
	}
	// Beyond twice the window only what ends something passes.
	if r := send(void()); r.Code != pb.Code_LIMIT {
		t.Fatalf("void: %v", r)
	}
	if r := send(release(1)); r.Code != pb.Code_LIMIT {
		t.Fatalf("release of nothing: %v", r)
	}
	ok(release(locks), pb.Code_OK)
	if err := q.s.Check(); err != nil {
		t.Fatal(err)
	}
	if again := restore(t, snapshot(t, q.s)); again.Hash() != q.s.Hash() {
		t.Error("the state is another one after a snapshot")
	}
	ok(closeSession(true), pb.Code_OK)
	if err := q.s.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestLimitsOfSessions(t *testing.T) {
	q := newQuick(t)
	text := strings.Repeat("x", TextMax)
	open := func(i int, name, host string) *pb.Result {
		return q.send(&pb.Command{Op: &pb.Command_OpenSession{OpenSession: &pb.OpenSession{
			Nonce: fmt.Appendf(nil, "nonce %10d", i), Client: &pb.ClientInfo{Name: name, Host: host}}}})
	}
	if r := open(1, text, text); r.Code != pb.Code_OK {
		t.Errorf("%v", r)
	}
	for i, r := range []*pb.Result{open(2, text+"x", ""), open(3, "", text+"x")} {
		if r.Code != pb.Code_BAD_COMMAND || r.Limit != LimitText || !strings.Contains(r.Detail, "256") || !strings.Contains(r.Detail, "255") {
			t.Errorf("%d: %v", i, r)
		}
	}
}
