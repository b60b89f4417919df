package machine_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// model is a service that executes each number of the session once, and has one
// lock, which others take and leave at random. Messages travel in order and
// wait until the test delivers them; a broken connection loses those under way.
type model struct {
	t   *rapid.T
	m   *machine.Machine
	now time.Duration

	// The service.
	opened   bool
	last     uint64
	results  map[uint64]*storepb.Result
	runs     map[string]int // executions of a put, by its path
	queue    []uint64       // tickets that wait; 0: somebody else
	holder   uint64         // ticket, 0 nobody
	foreign  bool           // somebody else holds the lock
	fence    uint64
	events   []*storepb.SessionEvent // not acknowledged
	eventNo  uint64
	attached bool
	refuse   pb.ErrorCode // the next request is refused with it

	// The network.
	linked   bool
	dialing  bool
	toServer []*pb.ClientMessage
	toClient []*pb.ServerMessage

	// The application.
	next    machine.CallID
	paths   map[machine.CallID]string // puts
	open    map[machine.CallID]bool   // calls without an answer
	done    map[machine.CallID]machine.Done
	held    map[machine.CallID]uint64 // locks held, with their tickets
	lost    map[machine.CallID]bool
	tickets map[uint64]machine.CallID
	state   machine.State
}

func newModel(t *rapid.T) *model {
	return &model{t: t, now: sec,
		m: machine.New(machine.Options{Addresses: []string{"a", "b"}, Nonce: []byte("n"), Seed: rapid.Uint64().Draw(t, "seed"),
			Now: sec, OpenTimeout: 1000 * time.Hour, Grace: 1000 * time.Hour}),
		results: make(map[uint64]*storepb.Result), runs: make(map[string]int), fence: 100,
		paths: make(map[machine.CallID]string), open: make(map[machine.CallID]bool), done: make(map[machine.CallID]machine.Done),
		held: make(map[machine.CallID]uint64), lost: make(map[machine.CallID]bool), tickets: make(map[uint64]machine.CallID)}
}

func (x *model) step(ev machine.Event) {
	x.m.Step(x.now, ev)
	if rapid.IntRange(0, 3).Draw(x.t, "batch") > 0 {
		x.take()
	}
}

func (x *model) take() {
	e := x.m.Take(x.now)
	if e.Hangup || e.Dial != "" {
		x.unlink()
		x.dialing = e.Dial != ""
	}
	for _, msg := range e.Send {
		if !x.linked {
			x.t.Fatalf("sends without a connection: %v", msg)
		}
		x.toServer = append(x.toServer, proto.Clone(msg).(*pb.ClientMessage))
	}
	if e.State != nil {
		x.state = *e.State
	}
	for _, d := range e.Done {
		if !x.open[d.ID] {
			x.t.Fatalf("call %d is done and was not open: %+v", d.ID, d)
		}
		delete(x.open, d.ID)
		x.done[d.ID] = d
		if g := d.Result.GetGrant(); d.Result.GetCode() == storepb.Code_GRANTED {
			if x.state != machine.Live {
				x.t.Fatalf("lock handed over while %v", x.state)
			}
			x.held[d.ID] = g.GetTicket()
		}
	}
	for _, l := range e.Lost {
		if _, held := x.held[l.Lock]; !held || x.lost[l.Lock] {
			x.t.Fatalf("lock %d is lost, held %v, lost before %v", l.Lock, held, x.lost[l.Lock])
		}
		x.lost[l.Lock] = true
	}
	if len(x.working()) > 1 {
		x.t.Fatalf("locks %v are held at the same time", x.working())
	}
}

// working lists the locks that the application believes to hold.
func (x *model) working() (all []machine.CallID) {
	for id := range x.held {
		if !x.lost[id] {
			all = append(all, id)
		}
	}
	return all
}

func (x *model) unlink() {
	x.linked, x.dialing, x.attached = false, false, false
	x.toServer, x.toClient = nil, nil
}

func (x *model) answer(msg *pb.ServerMessage) {
	if x.linked {
		x.toClient = append(x.toClient, msg)
	}
}

func (x *model) sendEvent(e *storepb.SessionEvent) {
	if x.attached {
		x.answer(event(e))
	}
}

func (x *model) addEvent(c storepb.Code, ticket uint64) {
	x.eventNo++
	e := &storepb.SessionEvent{Number: x.eventNo, Code: c, Ticket: ticket}
	if c == storepb.Code_GRANTED {
		e.Grant = x.grant(ticket)
	}
	x.events = append(x.events, e)
	x.sendEvent(e)
}

func (x *model) acked(n uint64) {
	for len(x.events) > 0 && x.events[0].Number <= n {
		x.events = x.events[1:]
	}
}

func (x *model) grant(ticket uint64) *storepb.Grant {
	x.fence++
	return &storepb.Grant{Path: "/l", Ticket: ticket, Fence: x.fence, LockDelayMs: 15000}
}

// pass grants the lock to the next in the queue.
func (x *model) pass() {
	for x.holder == 0 && !x.foreign && len(x.queue) > 0 {
		first := x.queue[0]
		x.queue = x.queue[1:]
		if first == 0 {
			x.foreign = true
		} else {
			x.holder = first
			x.addEvent(storepb.Code_GRANTED, first)
		}
	}
}

// serve takes the first message under way to the service.
func (x *model) serve() {
	msg := x.toServer[0]
	x.toServer = x.toServer[1:]
	switch b := msg.Body.(type) {
	case *pb.ClientMessage_Hello:
		x.answer(hello(true, ""))
	case *pb.ClientMessage_Open:
		x.opened, x.attached = true, true
		x.answer(&pb.ServerMessage{Body: &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{
			Id: b.Open.Id, Session: session, LeaseMs: 12000}}})
	case *pb.ClientMessage_Attach:
		x.attached = true
		x.acked(b.Attach.AckedEvent)
		x.answer(&pb.ServerMessage{Body: &pb.ServerMessage_Attached{Attached: &pb.AttachReply{Session: session}}})
		for _, e := range x.events {
			x.sendEvent(e)
		}
	case *pb.ClientMessage_KeepAlive:
		x.answer(kept(b.KeepAlive, 0, 12*sec))
	case *pb.ClientMessage_Ack:
		x.acked(b.Ack.Number)
	case *pb.ClientMessage_Request:
		x.request(b.Request.Command)
	}
}

func (x *model) request(c *storepb.Command) {
	if x.refuse != 0 {
		x.answer(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
			Code: x.refuse, Session: session, Number: c.Number, RetryAfterMs: 20}}})
		if x.refuse == pb.ErrorCode_OVERLOADED || c.GetVoidRequest() == nil && c.GetRelease() == nil {
			x.refuse = 0
			return
		}
		x.toClient = x.toClient[:len(x.toClient)-1] // never refused
	}
	switch {
	case c.Number > x.last+1:
		x.answer(code(c.Number, storepb.Code_RETRY))
	case c.Number <= x.last:
		r := x.results[c.Number]
		if r == nil {
			r = &storepb.Result{Code: storepb.Code_FORGOTTEN, Number: c.Number}
		}
		x.answer(reply(c.Number, proto.Clone(r).(*storepb.Result)))
	default:
		x.last = c.Number
		x.acked(c.AckedEvent)
		for n := range x.results {
			if n < c.LowestUnanswered {
				delete(x.results, n)
			}
		}
		r := x.execute(c)
		x.results[c.Number] = r
		x.answer(reply(c.Number, proto.Clone(r).(*storepb.Result)))
		x.pass()
	}
}

func (x *model) execute(c *storepb.Command) *storepb.Result {
	switch op := c.Op.(type) {
	case *storepb.Command_VoidRequest:
		return &storepb.Result{Code: storepb.Code_VOIDED}
	case *storepb.Command_Put:
		x.runs[op.Put.Path]++
		return &storepb.Result{Code: storepb.Code_OK}
	case *storepb.Command_Acquire:
		switch {
		case x.holder == 0 && !x.foreign && len(x.queue) == 0:
			x.holder = c.Number
			return &storepb.Result{Code: storepb.Code_OK, Grant: x.grant(c.Number)}
		case !op.Acquire.NoDeadline:
			return &storepb.Result{Code: storepb.Code_HELD}
		}
		x.queue = append(x.queue, c.Number)
		return &storepb.Result{Code: storepb.Code_WAITING, Position: uint32(len(x.queue))}
	case *storepb.Command_Release:
		if x.holder == op.Release.Ticket {
			x.holder = 0
			return &storepb.Result{Code: storepb.Code_OK}
		}
		for i, ticket := range x.queue {
			if ticket == op.Release.Ticket {
				x.queue = append(x.queue[:i:i], x.queue[i+1:]...)
				x.addEvent(storepb.Code_WITHDRAWN, ticket)
				return &storepb.Result{Code: storepb.Code_WITHDRAWN}
			}
		}
		return &storepb.Result{Code: storepb.Code_NOT_HELD}
	}
	x.t.Fatalf("unexpected command %v", c)
	return nil
}

func (x *model) start(ev func(id machine.CallID) machine.Event) machine.CallID {
	x.next++
	x.open[x.next] = true
	x.step(ev(x.next))
	return x.next
}

func (x *model) pick(from []machine.CallID, what string) (machine.CallID, bool) {
	if len(from) == 0 {
		return 0, false
	}
	lowest := from[0] // map order must not decide
	for _, id := range from {
		lowest = min(lowest, id)
	}
	k := rapid.IntRange(0, 3).Draw(x.t, what)
	for id := lowest + machine.CallID(k); id >= lowest; id-- {
		for _, f := range from {
			if f == id {
				return id, true
			}
		}
	}
	return lowest, true
}

func (x *model) dialed(ok bool) {
	x.dialing = false
	if ok {
		x.linked = true
		x.step(machine.Connected{})
	} else {
		x.step(machine.ConnectFailed{Err: errors.New("refused")})
	}
}

// act does one thing at random.
func (x *model) act() {
	switch rapid.IntRange(0, 15).Draw(x.t, "act") {
	case 0, 1:
		x.start(func(id machine.CallID) machine.Event {
			x.paths[id] = fmt.Sprintf("/p%d", id)
			return machine.Call{ID: id, Command: put(x.paths[id])}
		})
	case 2:
		wait := rapid.Bool().Draw(x.t, "wait")
		x.start(func(id machine.CallID) machine.Event {
			return machine.Acquire{ID: id, Acquire: &storepb.Acquire{Path: "/l", LockDelayMs: 15000, NoDeadline: wait}}
		})
	case 3:
		var all []machine.CallID
		for id := range x.held {
			all = append(all, id)
		}
		if lock, ok := x.pick(all, "release"); ok {
			delete(x.held, lock)
			delete(x.lost, lock)
			x.start(func(id machine.CallID) machine.Event { return machine.Release{ID: id, Lock: lock} })
		}
	case 4:
		var all []machine.CallID
		for id := range x.open {
			all = append(all, id)
		}
		if id, ok := x.pick(all, "cancel"); ok {
			x.m.Step(x.now, machine.Cancel{ID: id})
			x.take()
			if x.open[id] {
				x.t.Fatalf("call %d was cancelled and is not done", id)
			}
			// Granted in the same batch: given back by the machine.
			delete(x.held, id)
			delete(x.lost, id)
		}
	case 5:
		if x.linked {
			x.unlink()
			x.step(machine.Disconnected{Err: errors.New("cut")})
		}
	case 6:
		x.refuse = rapid.SampledFrom([]pb.ErrorCode{pb.ErrorCode_OVERLOADED, pb.ErrorCode_TOO_MANY}).Draw(x.t, "refuse")
	case 7:
		switch {
		case x.foreign:
			x.foreign = false
			x.pass()
		case x.holder == 0:
			x.foreign = true
		default:
			x.queue = append(x.queue, 0)
		}
	case 8:
		if x.holder != 0 && rapid.IntRange(0, 3).Draw(x.t, "break") == 0 {
			x.addEvent(storepb.Code_LOST, x.holder)
			x.holder = 0
			x.foreign = true // nobody gets it at once
		}
	case 9:
		x.now += time.Duration(rapid.IntRange(1, 4000).Draw(x.t, "ms")) * ms
		x.step(machine.Tick{})
	case 10:
		x.now += 20 * ms
		x.step(machine.Tick{})
	default:
		x.move(true)
	}
}

// move moves one message, or a dial, a step further; false: nothing is under
// way.
func (x *model) move(random bool) bool {
	toServer := len(x.toServer) > 0 && (len(x.toClient) == 0 || !random || rapid.Bool().Draw(x.t, "direction"))
	switch {
	case x.dialing:
		x.dialed(!random || rapid.IntRange(0, 3).Draw(x.t, "refused") > 0)
	case toServer:
		x.serve()
	case len(x.toClient) > 0:
		msg := x.toClient[0]
		x.toClient = x.toClient[1:]
		x.m.Step(x.now, machine.Received{Message: msg})
		x.take()
	default:
		return false
	}
	return true
}

// settle lets everything come to rest, without faults, and gives every lock
// back as it comes.
func (x *model) settle() {
	x.refuse = 0
	for range 20_000 {
		x.take()
		if x.move(false) {
			continue
		}
		for id := range x.held {
			delete(x.held, id)
			delete(x.lost, id)
			x.start(func(rel machine.CallID) machine.Event { return machine.Release{ID: rel, Lock: id} })
		}
		if x.foreign {
			x.foreign = false
			x.pass()
			continue
		}
		if len(x.open) == 0 && x.holder == 0 && len(x.queue) == 0 && len(x.toServer) == 0 {
			return
		}
		x.now += 50 * ms
		x.m.Step(x.now, machine.Tick{})
	}
	x.t.Fatalf("does not come to rest: open %v, holder %d, queue %v, state %v", x.open, x.holder, x.queue, x.state)
}

func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newModel(t)
		x.take()
		for range rapid.IntRange(10, 150).Draw(t, "acts") {
			x.act()
		}
		x.settle()
		for id, path := range x.paths {
			d, runs := x.done[id], x.runs[path]
			switch {
			case runs > 1:
				t.Fatalf("call %d was executed %d times", id, runs)
			case d.Err == nil && runs != 1:
				t.Fatalf("call %d succeeded and was executed %d times", id, runs)
			case d.Err != nil && !errors.Is(d.Err, machine.ErrUnknownOutcome) && runs != 0:
				t.Fatalf("call %d failed with %v and was executed", id, d.Err)
			}
		}
		if x.state >= machine.Expired {
			t.Fatalf("session is %v: %v", x.state, x.m.Err())
		}
	})
}
