package store

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// cell drives a Store the way a master and its clients do: it numbers requests
// and keeps the time. After every command the state's invariants are checked.
type cell struct {
	t      testing.TB
	s      *Store
	now    int64 // cell time, nanoseconds
	wall   int64
	next   map[uint64]uint64 // session: next request number
	nonces int
	log    [][]byte // every command, for replays
	last   []Change
}

func newCell(t testing.TB) *cell {
	s := New()
	s.ApplyFound("test", 77, RevisionFloor(1_767_225_600_000, 0))
	s.ApplyLead(0, 0, 0)
	return &cell{t: t, s: s, next: map[uint64]uint64{}, wall: 1_767_225_600_000}
}

func (c *cell) apply(cmd *pb.Command) *pb.Result {
	c.t.Helper()
	c.wall++
	cmd.CellTime, cmd.WallMs, cmd.Epoch = c.now, c.wall, c.s.Epoch()
	b, err := proto.Marshal(cmd)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.applyBytes(b)
}

func (c *cell) applyBytes(b []byte) *pb.Result {
	c.t.Helper()
	c.log = append(c.log, b)
	before := c.s.Revision()
	r, changes := c.s.Apply(b)
	c.last = append([]Change(nil), changes...)
	if err := c.s.Check(); err != nil {
		c.t.Fatalf("after %v: %v", r, err)
	}
	if len(changes) == 0 && c.s.Revision() != before {
		c.t.Fatalf("revision %d taken by a command without changes", c.s.Revision())
	}
	if len(changes) > 0 && c.s.Revision() != before+1 {
		c.t.Fatalf("revision went from %d to %d", before, c.s.Revision())
	}
	return r
}

func (c *cell) open() uint64 {
	c.t.Helper()
	c.nonces++
	r := c.apply(&pb.Command{Op: &pb.Command_OpenSession{OpenSession: &pb.OpenSession{
		Nonce: fmt.Appendf(nil, "nonce-%06d", c.nonces), LeaseMs: 12_000,
		Client: &pb.ClientInfo{Name: fmt.Sprintf("client%d", c.nonces), Host: "h", Pid: uint64(c.nonces)},
	}}})
	if r.Code != pb.Code_OK {
		c.t.Fatalf("open: %v", r)
	}
	c.next[r.Session] = 1
	return r.Session
}

// do sends a session's next request; cmd needs its op only. All earlier answers
// have been taken.
func (c *cell) do(session uint64, cmd *pb.Command) *pb.Result {
	c.t.Helper()
	cmd.Session, cmd.Number = session, c.next[session]
	cmd.LowestUnanswered = cmd.Number
	r := c.apply(cmd)
	c.next[session]++
	return r
}

// want is do with the code that is expected.
func (c *cell) want(code pb.Code, session uint64, cmd *pb.Command) *pb.Result {
	c.t.Helper()
	r := c.do(session, cmd)
	if r.Code != code {
		c.t.Fatalf("got %s (%s), want %s", r.Code, r.Detail, code)
	}
	return r
}

func create(path string) *pb.Command {
	return &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: path}}}
}

func createKind(path string, kind pb.NodeKind) *pb.Command {
	return &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: path, Kind: kind}}}
}

func put(path, data string) *pb.Command {
	return &pb.Command{Op: &pb.Command_Put{Put: &pb.Put{Path: path, Data: []byte(data), HasData: true, Create: true}}}
}

// putIf creates the node if the conditions are exists = false.
func putIf(path, data string, conditions ...*pb.Condition) *pb.Command {
	absent := len(conditions) > 0 && conditions[0].Demand != nil && proto.Equal(conditions[0], exists(false))
	return &pb.Command{Op: &pb.Command_Put{Put: &pb.Put{Path: path, Data: []byte(data), HasData: true, Create: absent, Conditions: conditions}}}
}

func check(path string, conditions ...*pb.Condition) *pb.MultiOp {
	return &pb.MultiOp{Op: &pb.MultiOp_Check{Check: &pb.Check{Path: path, Conditions: conditions}}}
}

func multi(ops ...*pb.MultiOp) *pb.Command {
	return &pb.Command{Op: &pb.Command_Multi{Multi: &pb.Multi{Ops: ops}}}
}

func exists(yes bool) *pb.Condition {
	return &pb.Condition{Demand: &pb.Condition_Exists{Exists: yes}}
}

func generation(n uint64) *pb.Condition {
	return &pb.Condition{Demand: &pb.Condition_Generation{Generation: n}}
}

func ifRevision(n uint64) *pb.Condition {
	return &pb.Condition{Demand: &pb.Condition_Revision{Revision: n}}
}

func ifInstance(n uint64) *pb.Condition {
	return &pb.Condition{Demand: &pb.Condition_Instance{Instance: n}}
}

func ifFence(n uint64) *pb.Condition {
	return &pb.Condition{Demand: &pb.Condition_Fence{Fence: n}}
}

func heldBy(h *pb.Holding) *pb.Condition {
	return &pb.Condition{Demand: &pb.Condition_HeldBy{HeldBy: h}}
}

func del(path string) *pb.Command {
	return &pb.Command{Op: &pb.Command_Delete{Delete: &pb.Delete{Path: path}}}
}

func delForce(path string) *pb.Command {
	return &pb.Command{Op: &pb.Command_Delete{Delete: &pb.Delete{Path: path, Recursive: true, Force: true}}}
}

const (
	exclusive = pb.LockMode_EXCLUSIVE
	shared    = pb.LockMode_SHARED
)

// acquire waits for ever and creates what is missing.
func acquire(path string, mode pb.LockMode, delayMS uint64) *pb.Command {
	return &pb.Command{Op: &pb.Command_Acquire{Acquire: &pb.Acquire{Path: path, Mode: mode, LockDelayMs: delayMS, NoDeadline: true, Create: true}}}
}

func acquireWait(path string, mode pb.LockMode, waitMS uint64) *pb.Command {
	return &pb.Command{Op: &pb.Command_Acquire{Acquire: &pb.Acquire{Path: path, Mode: mode, WaitMs: waitMS, Create: true}}}
}

func release(ticket uint64) *pb.Command {
	return &pb.Command{Op: &pb.Command_Release{Release: &pb.Release{Ticket: ticket}}}
}

func closeSession(workEnded bool) *pb.Command {
	return &pb.Command{Op: &pb.Command_CloseSession{CloseSession: &pb.CloseSession{WorkEnded: workEnded}}}
}

func (c *cell) expire(session uint64) *pb.Result {
	c.t.Helper()
	x, _ := c.s.Session(session)
	return c.apply(&pb.Command{Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: session, LastChange: x.LastChange}}})
}

func breakLock(path string, fence uint64) *pb.Command {
	return &pb.Command{Op: &pb.Command_BreakLock{BreakLock: &pb.Break{Path: path, Fence: fence}}}
}

func forfeit(ticket uint64) *pb.Command {
	return &pb.Command{Op: &pb.Command_Forfeit{Forfeit: &pb.Forfeit{Ticket: ticket}}}
}

// pass lets cell time pass and, like a master, logs the timers that are due: the
// starts of ghosts ahead of it.
func (c *cell) pass(ms int64) {
	c.t.Helper()
	c.due()
	c.now += ms * 1_000_000
	c.due()
	c.apply(&pb.Command{Op: &pb.Command_Clock{Clock: &pb.Clock{}}})
}

// due logs the timers that are due.
func (c *cell) due() {
	c.t.Helper()
	for {
		var due []*pb.TimerRef
		for _, d := range c.s.NextDue(8) {
			if d.At <= c.now {
				due = append(due, d.Ref)
			}
		}
		if len(due) == 0 {
			return
		}
		c.apply(&pb.Command{Op: &pb.Command_Timers{Timers: &pb.Timers{Due: due}}})
	}
}

// eventsOf lists the unacknowledged events of a session as "CODE ticket".
func (c *cell) eventsOf(session uint64) string {
	var out string
	c.s.Events(session, 0, func(e *pb.SessionEvent) bool {
		if out != "" {
			out += ", "
		}
		out += fmt.Sprintf("%s %d", e.Code, e.Ticket)
		return true
	})
	return out
}

// held lists who holds path: "S/ticket", ghosts in brackets, then waiters
// behind a bar. Sessions are named by their order of opening.
func (c *cell) held(path string) string {
	v, _ := c.s.Lock(path)
	var out string
	for _, b := range v.Holders {
		if b.Ghost {
			out += fmt.Sprintf("(%s)", b.Client.Name[6:])
		} else {
			out += b.Client.Name[6:]
		}
	}
	if len(v.Waiters) > 0 {
		out += "|"
	}
	for _, b := range v.Waiters {
		out += b.Client.Name[6:]
	}
	return out
}

func (c *cell) wantHeld(path, want string) {
	c.t.Helper()
	if got := c.held(path); got != want {
		c.t.Fatalf("%s is held by %q, want %q", path, got, want)
	}
}

func (c *cell) exists(path string) bool {
	_, ok := c.s.Node(path)
	return ok
}

func snapshot(t testing.TB, s *Store) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func restore(t testing.TB, b []byte) *Store {
	t.Helper()
	s, err := ReadSnapshot(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
