package machine_test

import (
	"errors"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

const (
	ms      = time.Millisecond
	sec     = time.Second
	session = 7
	// exact is a drift so small that it vanishes in the tests' round figures.
	exact = 1
)

// rig drives a machine by hand: the test plays the service.
type rig struct {
	t      *testing.T
	m      *machine.Machine
	now    time.Duration
	dial   string
	linked bool
	sent   []*pb.ClientMessage // not yet taken by the test
	done   map[machine.CallID]machine.Done
	waits  map[machine.CallID]*storepb.Result
	news   map[machine.CallID][]machine.Update
	lost   []machine.Lost
	ends   map[machine.CallID]time.Duration // deadlines
	states []machine.State
	asks   []string // addresses to be asked who they are
	warned []string
	wake   time.Duration
}

func newRig(t *testing.T, o machine.Options) *rig {
	t.Helper()
	if o.Addresses == nil {
		o.Addresses = []string{"a:1", "b:1", "c:1"}
	}
	if o.Nonce == nil {
		o.Nonce = []byte("0123456789abcdef")
	}
	if o.DriftPPM == 0 {
		o.DriftPPM = exact
	}
	r := &rig{t: t, now: 100 * sec,
		done:  make(map[machine.CallID]machine.Done),
		waits: make(map[machine.CallID]*storepb.Result),
		news:  make(map[machine.CallID][]machine.Update),
		ends:  make(map[machine.CallID]time.Duration),
	}
	o.Now = r.now
	r.m = machine.New(o)
	r.take()
	return r
}

// take closes a batch.
func (r *rig) take() {
	r.t.Helper()
	e := r.m.Take(r.now)
	if e.Hangup || e.Dial != "" {
		r.linked = false
		r.dial = ""
	}
	if e.Dial != "" {
		r.dial = e.Dial
	}
	if len(e.Send) > 0 && !r.linked {
		r.t.Fatalf("sends without a connection: %v", e.Send)
	}
	r.sent = append(r.sent, e.Send...)
	for _, d := range e.Done {
		if old, twice := r.done[d.ID]; twice {
			r.t.Fatalf("call %d is done twice: %+v, %+v", d.ID, old, d)
		}
		r.done[d.ID] = d
	}
	for _, w := range e.Waiting {
		r.waits[w.ID] = w.Result
	}
	for _, u := range e.Updates {
		r.news[u.ID] = append(r.news[u.ID], u)
	}
	r.lost = append(r.lost, e.Lost...)
	for _, d := range e.Deadlines {
		r.ends[d.Lock] = d.At
	}
	r.asks = append(r.asks, e.Ask...)
	r.warned = append(r.warned, e.Warnings...)
	if e.State != nil {
		r.states = append(r.states, *e.State)
	}
	if e.Wake != 0 && e.Wake < r.now {
		r.t.Fatalf("asks to be woken at %v, now is %v", e.Wake, r.now)
	}
	r.wake = e.Wake
	r.m.Reuse(e)
}

func (r *rig) step(ev machine.Event) {
	r.t.Helper()
	r.m.Step(r.now, ev)
	r.take()
}

// pass lets time pass, waking the machine when it asks for it.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	end := r.now + d
	for i := 0; ; i++ {
		if i > 100_000 {
			r.t.Fatalf("wakes up without end at %v", r.now)
		}
		if r.wake == 0 || r.wake > end {
			break
		}
		r.now = max(r.now, r.wake)
		r.step(machine.Tick{})
	}
	r.now = end
	r.step(machine.Tick{})
}

func (r *rig) receive(msg *pb.ServerMessage) {
	r.t.Helper()
	r.step(machine.Received{Message: msg})
}

// expect takes the next message that the machine sent, which is of type T.
func expect[T any](r *rig) T {
	r.t.Helper()
	if len(r.sent) == 0 {
		r.t.Fatalf("nothing was sent, expected %T", *new(T))
	}
	body, ok := any(r.sent[0].GetBody()).(T)
	if !ok {
		r.t.Fatalf("sent %v, expected %T", r.sent[0], *new(T))
	}
	r.sent = r.sent[1:]
	return body
}

// request takes the next message, which is request number n.
func (r *rig) request(n uint64) *storepb.Command {
	r.t.Helper()
	c := expect[*pb.ClientMessage_Request](r).Request.GetCommand()
	if c.GetNumber() != n || c.GetSession() != session {
		r.t.Fatalf("sent request %d of session %d, expected %d of %d", c.GetNumber(), c.GetSession(), n, session)
	}
	return c
}

// silent demands that nothing was sent.
func (r *rig) silent() {
	r.t.Helper()
	if len(r.sent) > 0 {
		r.t.Fatalf("sent %v, expected nothing", r.sent)
	}
}

// dialed lets time pass until the machine dials, and takes its Hello.
func (r *rig) dialed() (address string) {
	r.t.Helper()
	for r.dial == "" {
		if r.wake == 0 {
			r.t.Fatal("does not want to dial")
		}
		r.now = max(r.now, r.wake)
		r.step(machine.Tick{})
	}
	address = r.dial
	r.linked = true
	r.step(machine.Connected{})
	expect[*pb.ClientMessage_Hello](r)
	return address
}

// connect answers Dial and Hello as the master.
func (r *rig) connect() {
	r.t.Helper()
	if r.dial == "" {
		r.t.Fatal("does not dial")
	}
	r.linked = true
	r.step(machine.Connected{})
	expect[*pb.ClientMessage_Hello](r)
	r.receive(hello(true, ""))
}

func hello(master bool, address string) *pb.ServerMessage {
	return &pb.ServerMessage{Body: &pb.ServerMessage_Hello{Hello: &pb.HelloReply{
		Version: 1, Cell: "test", Replica: "n1", Master: master, MasterAddress: address, CellIdentity: 99}}}
}

// open opens the session with a lease of 12 s that begins now.
func (r *rig) open() { r.t.Helper(); r.openLease(12 * sec) }

func (r *rig) openLease(lease time.Duration) {
	r.t.Helper()
	r.connect()
	o := expect[*pb.ClientMessage_Open](r).Open
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{
		Id: o.Id, Session: session, LeaseMs: uint64(lease / ms)}}})
}

// keepAlive takes the next message, a KeepAlive.
func (r *rig) keepAlive() *pb.KeepAlive {
	r.t.Helper()
	return expect[*pb.ClientMessage_KeepAlive](r).KeepAlive
}

func kept(k *pb.KeepAlive, held, lease time.Duration) *pb.ServerMessage {
	return &pb.ServerMessage{Body: &pb.ServerMessage_Kept{Kept: &pb.KeepAliveReply{
		Id: k.Id, HeldNs: int64(held), Leases: []*pb.SessionLease{{Session: session, LeaseMs: uint64(lease / ms)}}}}}
}

// reconnect breaks the connection and attaches on the next one.
func (r *rig) reconnect() {
	r.t.Helper()
	r.cut()
	r.attach()
}

// cut breaks the connection.
func (r *rig) cut() {
	r.t.Helper()
	r.sent = nil
	r.step(machine.Disconnected{Err: errors.New("cut")})
	r.linked = false
}

// attach dials when the machine wants to and attaches the session. The
// KeepAlive that follows is left to be taken.
func (r *rig) attach() {
	r.t.Helper()
	for r.dial == "" {
		if r.wake == 0 {
			r.t.Fatal("does not want to dial")
		}
		r.now = max(r.now, r.wake)
		r.step(machine.Tick{})
	}
	r.connect()
	a := expect[*pb.ClientMessage_Attach](r).Attach
	if a.Session != session || string(a.Nonce) != "0123456789abcdef" {
		r.t.Fatalf("attaches %v", a)
	}
	r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Attached{Attached: &pb.AttachReply{Session: session}}})
}

func reply(n uint64, res *storepb.Result) *pb.ServerMessage {
	res.Number = n
	return &pb.ServerMessage{Body: &pb.ServerMessage_Reply{Reply: &pb.Reply{Session: session, Result: res}}}
}

func code(n uint64, c storepb.Code) *pb.ServerMessage {
	return reply(n, &storepb.Result{Code: c})
}

func event(e *storepb.SessionEvent) *pb.ServerMessage {
	return &pb.ServerMessage{Body: &pb.ServerMessage_Event{Event: &pb.Event{Session: session, Event: e}}}
}

func put(path string) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{Path: path, Create: true}}}
}

func (r *rig) call(id machine.CallID) {
	r.t.Helper()
	r.step(machine.Call{ID: id, Command: put("/x")})
}

const lockDelay = 15 * sec

func (r *rig) acquire(id machine.CallID, stop time.Duration) {
	r.t.Helper()
	r.step(machine.Acquire{ID: id, Stop: stop, Acquire: &storepb.Acquire{
		Path: "/l", Mode: storepb.LockMode_EXCLUSIVE, LockDelayMs: uint64(lockDelay / ms), NoDeadline: true, Create: true}})
}

func grant(ticket uint64) *storepb.Grant {
	return &storepb.Grant{Path: "/l", Mode: storepb.LockMode_EXCLUSIVE, Fence: 500 + ticket, Ticket: ticket,
		LockDelayMs: uint64(lockDelay / ms)}
}

func granted(n uint64) *pb.ServerMessage {
	return reply(n, &storepb.Result{Code: storepb.Code_OK, Grant: grant(n)})
}

// outcome demands that a call is done, and returns how.
func (r *rig) outcome(id machine.CallID) machine.Done {
	r.t.Helper()
	d, ok := r.done[id]
	if !ok {
		r.t.Fatalf("call %d is not done", id)
	}
	return d
}

func (r *rig) pending(id machine.CallID) {
	r.t.Helper()
	if d, ok := r.done[id]; ok {
		r.t.Fatalf("call %d is done: %+v", id, d)
	}
}

func (r *rig) fails(id machine.CallID, want ...error) {
	r.t.Helper()
	d := r.outcome(id)
	for _, w := range want {
		if !errors.Is(d.Err, w) {
			r.t.Fatalf("call %d: error %v, result %v; expected %v", id, d.Err, d.Result, w)
		}
	}
}

func (r *rig) succeeds(id machine.CallID, want storepb.Code) *storepb.Result {
	r.t.Helper()
	d := r.outcome(id)
	if d.Err != nil || d.Result.GetCode() != want {
		r.t.Fatalf("call %d: error %v, result %v; expected %v", id, d.Err, d.Result, want)
	}
	return d.Result
}

// lastState demands the state that was told last.
func (r *rig) lastState(want machine.State) {
	r.t.Helper()
	if len(r.states) == 0 || r.states[len(r.states)-1] != want {
		r.t.Fatalf("states %v, expected %v at the end", r.states, want)
	}
}
