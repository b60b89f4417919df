package replica

import (
	"fmt"
	"slices"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// The tests here drive whole replicas over a log made by hand: the test says
// who leads, what is chosen and when leadership is proven.

const (
	tick = 20 * time.Millisecond
	long = 10 * time.Minute // the longest lease
)

// testCell is a cell on a log made by hand.
type testCell struct {
	t     testing.TB
	now   time.Duration
	log   []paxos.Entry
	round uint64
	reps  []*testReplica
}

type testReplica struct {
	*Replica
	c     *testCell
	log   *handLog
	last  ConnID
	inbox map[ConnID][]*wirepb.ServerMessage
	ended map[ConnID]string
	notes []Note
	role  Role
}

// handLog is a replica's part of the log.
type handLog struct {
	c         *testCell
	id        paxos.ReplicaID
	sm        replog.StateMachine
	role      paxos.RoleEvent
	newRole   bool
	applied   int
	lag       bool     // applies nothing
	hold      bool     // proposals are kept, not chosen
	kept      [][]byte // those
	drop      bool     // proposals are dropped, as by a leader that hands over
	dropped   [][]byte
	unproven  bool // leadership is not proven
	confirms  []paxos.Confirm
	proposals int
	handed    bool
	cellTime  int64 // of the last tick, read in cellEpoch
	cellEpoch uint64
	state     replog.StateLimits
}

func (l *handLog) leads() bool { return l.role.Role == paxos.Leader }

func (l *handLog) Step(now time.Duration, ev replog.Event) {
	switch e := ev.(type) {
	case replog.ProposeCommands:
		l.proposals += len(e.Commands)
		switch {
		case !l.leads() || l.drop:
			l.dropped = append(l.dropped, e.Commands...)
		default:
			l.kept = append(l.kept, e.Commands...)
		}
	case replog.ConfirmLead:
		l.confirms = append(l.confirms, paxos.Confirm{ID: e.ID, Since: now})
	case replog.Tick:
		l.cellTime, l.cellEpoch = e.CellTime, e.CellEpoch
	case replog.HandOver:
		l.handed, l.drop = true, true
	}
}

func (l *handLog) Take(now time.Duration) replog.Effects {
	var e replog.Effects
	if len(l.kept) > 0 && !l.hold {
		l.c.choose(paxos.Value{Kind: paxos.Batch, Commands: l.kept})
		l.kept = nil
	}
	for !l.lag && l.applied < len(l.c.log) {
		l.applied++
		l.sm.Apply(l.c.log[l.applied-1])
	}
	if len(l.confirms) > 0 && !l.unproven && l.leads() {
		for i := range l.confirms {
			l.confirms[i].Slot = paxos.Slot(len(l.c.log))
		}
		e.Confirmed, l.confirms = l.confirms, nil
	}
	if l.newRole {
		role := l.role
		e.Role, l.newRole = &role, false
	}
	e.Dropped, l.dropped = l.dropped, nil
	return e
}

func (l *handLog) Begin(time.Duration) replog.Effects { return replog.Effects{} }

func (l *handLog) Gathering(time.Duration) int { return 0 }

func (l *handLog) Awaits() (flush bool, votes paxos.Slot) { return true, 0 }

func (l *handLog) Due(time.Duration) time.Duration { return paxos.Never }

func (l *handLog) Status() replog.NodeStatus {
	return replog.NodeStatus{
		Paxos:     paxos.Status{ID: l.id, Role: l.role.Role, Ballot: l.role.Ballot, Leader: l.role.Leader, Chosen: paxos.Slot(len(l.c.log))},
		Applied:   paxos.Slot(l.applied),
		Founded:   l.applied > 0,
		Connected: map[paxos.ReplicaID]bool{},
	}
}

func (l *handLog) StateLimits() replog.StateLimits { return l.state }

func (l *handLog) Configuration() *paxos.Configuration {
	c := &paxos.Configuration{Cell: "test", CellIdentity: 0xce11, RevisionFloor: 1 << 40}
	for i := range l.c.reps {
		c.Members = append(c.Members, paxos.Member{ID: paxos.ReplicaID(i + 1), Name: fmt.Sprintf("n%d", i+1),
			ClientAddress: fmt.Sprintf("host%d:7101", i+1), Voter: true})
	}
	return c
}

// newCell makes a founded cell of n replicas whose first one is master.
func newCell(t testing.TB, n int, edit ...func(*Options)) *testCell {
	c := unfounded(t, n, edit...)
	c.found()
	c.elect(1)
	return c
}

func unfounded(t testing.TB, n int, edit ...func(*Options)) *testCell {
	c := &testCell{t: t, now: time.Hour}
	for i := 1; i <= n; i++ {
		o := Options{Version: "test", WallMS: func() int64 { return 1_700_000_000_000 }}
		o.Node.Cell, o.Node.Name, o.Node.Now = "test", fmt.Sprintf("n%d", i), c.now
		for _, f := range edit {
			f(&o)
		}
		r := &testReplica{c: c, inbox: map[ConnID][]*wirepb.ServerMessage{}, ended: map[ConnID]string{}}
		rep, err := build(o, &replog.Found{}, func(sm replog.StateMachine) (replog.NodeAPI, error) {
			r.log = &handLog{c: c, id: paxos.ReplicaID(i), sm: sm}
			return r.log, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Replica = rep
		c.reps = append(c.reps, r)
	}
	t.Cleanup(c.rest)
	return c
}

// rest demands at the end of a test that nothing is under way once the log takes
// and proves again.
func (c *testCell) rest() {
	for _, r := range c.reps {
		r.log.hold, r.log.lag, r.log.unproven = false, false, false
		if r.log.handed && r.log.leads() { // nobody has taken the lead that it gives away
			r.log.setRole(paxos.RoleEvent{Role: paxos.Follower})
		}
	}
	c.settle()
	for i, r := range c.reps {
		if f := r.Metrics().InFlight; f != (master.InFlight{}) {
			c.t.Errorf("at rest replica %d has in flight: %+v", i+1, f)
		}
	}
}

func (c *testCell) found() {
	c.choose(paxos.Value{Kind: paxos.Config, Config: c.reps[0].log.Configuration()})
	c.settle()
}

// choose appends a value to the log.
func (c *testCell) choose(v paxos.Value) {
	c.log = append(c.log, paxos.Entry{Slot: paxos.Slot(len(c.log) + 1), Chosen: true, Value: v})
}

// chooseCommands appends commands to the log.
func (c *testCell) chooseCommands(commands [][]byte) {
	c.choose(paxos.Value{Kind: paxos.Batch, Commands: commands})
}

// elect makes replica id the leader; cut ones hear nothing of it.
func (c *testCell) elect(id int, cut ...int) *testReplica {
	c.round++
	b := paxos.Ballot{Round: c.round, Replica: paxos.ReplicaID(id)}
	// As the log does it: with what the leader's last tick said.
	c.choose(paxos.Value{Kind: paxos.Lead, Leader: b, CellTime: c.reps[id-1].log.cellTime, CellEpoch: c.reps[id-1].log.cellEpoch})
	for i, r := range c.reps {
		if !slices.Contains(cut, i+1) {
			role := paxos.Follower
			if i+1 == id {
				role = paxos.Leader
			}
			r.log.setRole(paxos.RoleEvent{Role: role, Ballot: b, Leader: paxos.ReplicaID(id)})
		}
	}
	c.settle()
	return c.reps[id-1]
}

func (l *handLog) setRole(e paxos.RoleEvent) {
	l.role, l.newRole = e, true
	l.hold, l.drop, l.unproven = false, false, false
	l.kept, l.confirms = nil, nil
}

// settle takes from every replica until nothing moves.
func (c *testCell) settle() {
	for range 4 {
		for _, r := range c.reps {
			r.take()
		}
		for _, r := range c.reps {
			if due := r.Due(c.now); due != paxos.Never {
				c.now = max(c.now, due) // what was held back for company goes then
			}
		}
	}
}

// advance lets time pass in ticks.
func (c *testCell) advance(d time.Duration) {
	for end := c.now + d; c.now < end; {
		c.now = min(end, c.now+tick)
		for _, r := range c.reps {
			r.Step(c.now, replog.Tick{})
			r.take()
		}
	}
}

// jump lets time pass without a tick: the replicas do not run.
func (c *testCell) jump(d time.Duration) { c.now += d }

func (r *testReplica) take() {
	e := r.Take(r.c.now)
	for _, s := range e.Conns {
		if _, gone := r.ended[s.Conn]; gone {
			r.c.t.Errorf("a message for the closed connection %d", s.Conn)
		}
		r.inbox[s.Conn] = append(r.inbox[s.Conn], s.Message)
	}
	for _, x := range e.Close {
		r.ended[x.Conn] = x.Reason
	}
	r.notes = append(r.notes, e.Notes...)
	r.role = e.Role
}

func (r *testReplica) noted(text string) bool {
	return slices.ContainsFunc(r.notes, func(n Note) bool { return n.Text == text })
}

// testClient is a connection.
type testClient struct {
	r      *testReplica
	conn   ConnID
	number uint64 // of the last request
}

// connect opens a connection without a hello.
func (r *testReplica) connect() *testClient {
	r.last++
	r.Step(r.c.now, ConnOpened{Conn: r.last, Remote: fmt.Sprintf("client:%d", r.last)})
	return &testClient{r: r, conn: r.last}
}

// dial opens a connection and says hello.
func (r *testReplica) dial() *testClient {
	cl := r.connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, Cell: "test"}))
	if h := cl.next().GetHello(); h == nil {
		r.c.t.Fatal("no HelloReply")
	}
	return cl
}

// post steps a message and does not wait.
func (cl *testClient) post(m *wirepb.ClientMessage) {
	cl.r.Step(cl.r.c.now, ConnReceived{Conn: cl.conn, Message: m})
}

// send steps a message and lets the cell settle.
func (cl *testClient) send(m *wirepb.ClientMessage) {
	cl.post(m)
	cl.r.c.settle()
}

// hangup closes the connection.
func (cl *testClient) hangup() {
	cl.r.Step(cl.r.c.now, ConnClosed{Conn: cl.conn})
	cl.r.c.settle()
}

// next returns the next message received.
func (cl *testClient) next() *wirepb.ServerMessage {
	cl.r.c.t.Helper()
	box := cl.r.inbox[cl.conn]
	if len(box) == 0 {
		cl.r.c.t.Fatal("no message where one is due")
	}
	cl.r.inbox[cl.conn] = box[1:]
	return box[0]
}

// none demands that nothing was received.
func (cl *testClient) none() {
	cl.r.c.t.Helper()
	if box := cl.r.inbox[cl.conn]; len(box) > 0 {
		cl.r.c.t.Fatalf("unexpected message: %v", box[0])
	}
}

func (cl *testClient) all() []*wirepb.ServerMessage {
	box := cl.r.inbox[cl.conn]
	cl.r.inbox[cl.conn] = nil
	return box
}

// err demands an error of a code.
func (cl *testClient) err(code wirepb.ErrorCode) *wirepb.Error {
	cl.r.c.t.Helper()
	m := cl.next()
	e := m.GetError()
	if e == nil || e.GetCode() != code {
		cl.r.c.t.Fatalf("got %v, want the error %v", m, code)
	}
	if e.GetText() == "" {
		cl.r.c.t.Errorf("the error %v says nothing to people", code)
	}
	return e
}

func nonce(n uint64) []byte { return fmt.Appendf(nil, "nonce-%010d", n) }

// open opens a session of a lease.
func (cl *testClient) open(n uint64, lease time.Duration) uint64 {
	cl.r.c.t.Helper()
	cl.send(open(n, nonce(n), lease))
	m := cl.next()
	o := m.GetOpened()
	if o == nil || o.GetId() != n || o.GetSession() == 0 || o.GetLeaseMs() != uint64(lease/time.Millisecond) {
		cl.r.c.t.Fatalf("opened: %v", m)
	}
	return o.GetSession()
}

// do sends the next request of a session and returns its result.
func (cl *testClient) do(session uint64, cmd *storepb.Command) *storepb.Result {
	cl.r.c.t.Helper()
	cl.number++
	cl.send(request(session, cl.number, cmd))
	return cl.result(cl.number)
}

func (cl *testClient) result(number uint64) *storepb.Result {
	cl.r.c.t.Helper()
	m := cl.next()
	r := m.GetReply().GetResult()
	if r.GetNumber() != number {
		cl.r.c.t.Fatalf("got %v, want the result of %d", m, number)
	}
	return r
}

// code demands a result of a code.
func (cl *testClient) code(want storepb.Code, got *storepb.Result) *storepb.Result {
	cl.r.c.t.Helper()
	if got.GetCode() != want {
		cl.r.c.t.Fatalf("result %v, want %v", got, want)
	}
	return got
}

// event demands a session event.
func (cl *testClient) event(number uint64, code storepb.Code) *storepb.SessionEvent {
	cl.r.c.t.Helper()
	m := cl.next()
	e := m.GetEvent().GetEvent()
	if e.GetNumber() != number || e.GetCode() != code {
		cl.r.c.t.Fatalf("got %v, want event %d, %v", m, number, code)
	}
	return e
}

// kept demands the answer to a KeepAlive that renews exactly these sessions.
func (cl *testClient) kept(id uint64, sessions ...uint64) *wirepb.KeepAliveReply {
	cl.r.c.t.Helper()
	m := cl.next()
	k := m.GetKept()
	if k == nil || k.GetId() != id {
		cl.r.c.t.Fatalf("got %v, want the answer to KeepAlive %d", m, id)
	}
	var got []uint64
	for _, l := range k.GetLeases() {
		got = append(got, l.GetSession())
	}
	if !slices.Equal(got, sessions) {
		cl.r.c.t.Fatalf("KeepAlive %d renewed %v, want %v", id, got, sessions)
	}
	return k
}

// read sends a read and returns the answer.
func (cl *testClient) read(r *wirepb.Read) *wirepb.ReadReply {
	cl.r.c.t.Helper()
	cl.send(read(r))
	m := cl.next()
	if m.GetRead() == nil {
		cl.r.c.t.Fatalf("got %v, want a ReadReply", m)
	}
	return m.GetRead()
}

func hello(h *wirepb.Hello) *wirepb.ClientMessage {
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_Hello{Hello: h}}
}

func open(id uint64, nonce []byte, lease time.Duration) *wirepb.ClientMessage {
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_Open{Open: &wirepb.OpenSession{
		Id: id, Nonce: nonce, LeaseMs: uint64(lease / time.Millisecond), Client: &storepb.ClientInfo{Name: "test", Host: "here", Pid: 7}}}}
}

func attach(session, n, acked uint64) *wirepb.ClientMessage {
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_Attach{Attach: &wirepb.Attach{
		Session: session, Nonce: nonce(n), AckedEvent: acked}}}
}

func keepAlive(id uint64, now bool, sessions ...uint64) *wirepb.ClientMessage {
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_KeepAlive{KeepAlive: &wirepb.KeepAlive{
		Id: id, Now: now, Sessions: sessions}}}
}

func request(session, number uint64, cmd *storepb.Command) *wirepb.ClientMessage {
	cmd.Session, cmd.Number = session, number
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_Request{Request: &wirepb.Request{Command: cmd}}}
}

func read(r *wirepb.Read) *wirepb.ClientMessage {
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: r}}
}

func watch(w *wirepb.Watch) *wirepb.ClientMessage {
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_Watch{Watch: w}}
}

func ack(session, number uint64) *wirepb.ClientMessage {
	return &wirepb.ClientMessage{Body: &wirepb.ClientMessage_Ack{Ack: &wirepb.AckEvents{Session: session, Number: number}}}
}

func put(path, data string) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{
		Path: path, Data: []byte(data), HasData: true, Create: true, Parents: true}}}
}

func remove(path string) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Delete{Delete: &storepb.Delete{Path: path, Recursive: true}}}
}

func void() *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_VoidRequest{VoidRequest: &storepb.VoidRequest{}}}
}

func lock(path string, wait time.Duration) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Acquire{Acquire: &storepb.Acquire{
		Path: path, Mode: storepb.LockMode_EXCLUSIVE, WaitMs: uint64(wait / time.Millisecond), LockDelayMs: 1000, Create: true}}}
}

func unlock(path string, ticket uint64) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Release{Release: &storepb.Release{Path: path, Ticket: ticket}}}
}

func nodeRead(path string) *wirepb.Read {
	return &wirepb.Read{Id: 1, Op: &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: path}}}
}

func (c *testCell) session(id uint64) bool {
	c.settle()
	_, ok := c.reps[0].store.Session(id)
	return ok
}
