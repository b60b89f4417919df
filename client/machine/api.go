// Package machine is the client's session as a deterministic state machine:
// finding the master, the lease with jeopardy, grace, safe and expired,
// requests that are executed exactly once over reconnects, watches that resume,
// and the locks' deadlines. Package client puts sockets and goroutines around
// it; the simulator drives it as it is.
package machine

import (
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// CallID names a call of the application; chosen by the driver, never used
// twice in a Machine.
type CallID uint64

// Event is what a Machine is given: one of the types below.
type Event interface{ event() }

type (
	// Tick tells the time; give it at Effects.Wake at the latest.
	Tick struct{}
	// Connected answers Dial: the connection stands (preface sent).
	Connected struct{}
	// ConnectFailed answers Dial.
	ConnectFailed struct{ Err error }
	// Disconnected tells that the connection broke.
	Disconnected struct{ Err error }
	// Received delivers a message of the service.
	Received struct{ Message *pb.ServerMessage }
	// Call starts a logged request; Command holds the op only.
	Call struct {
		ID      CallID
		Command *storepb.Command
	}
	// Acquire starts a lock request; the answer (granted, refused, timed out)
	// comes as one Done, however long it waits.
	Acquire struct {
		ID      CallID
		Acquire *storepb.Acquire
		Stop    time.Duration // how long the guarded work needs to stop
	}
	// Release gives back the lock that Acquire call ID was granted.
	Release struct {
		ID   CallID // of this call
		Lock CallID // of the Acquire
	}
	// Read starts a read.
	Read struct {
		ID   CallID
		Read *pb.Read
	}
	// Watch starts a watch; updates come as Effects.Updates until Cancel.
	Watch struct {
		ID    CallID
		Watch *pb.Watch
	}
	// Cancel ends the wait for a call: its context is over. A watch ends; an
	// Acquire is withdrawn (and released, should it have been granted); another
	// request is done with ErrUnknownOutcome if it may have been executed.
	Cancel struct{ ID CallID }
	// Close ends the session.
	Close struct{}
)

func (Tick) event()          {}
func (Connected) event()     {}
func (ConnectFailed) event() {}
func (Disconnected) event()  {}
func (Received) event()      {}
func (Call) event()          {}
func (Acquire) event()       {}
func (Release) event()       {}
func (Read) event()          {}
func (Watch) event()         {}
func (Cancel) event()        {}
func (Close) event()         {}

// Effects is what the driver owes after a Step or a batch of them.
type Effects struct {
	// Dial: connect to this address (drop any connection there is first).
	Dial string
	// Hangup: drop the connection.
	Hangup bool
	Send   []*pb.ClientMessage
	Done   []Done
	// Updates of watches, in order.
	Updates []Update
	// Lost names locks (by their Acquire) that are lost to this client from now
	// on: cancel the guarded work. Release them when the work has ended.
	Lost []Lost
	// State is set when the session's state has changed.
	State *State
	// Wake: give a Tick then at the latest; 0: no need.
	Wake time.Duration
	// Deadlines lists held locks whose deadline has moved.
	Deadlines []Deadline
}

// Done ends a call. Exactly one of Result, Read, Err is set.
type Done struct {
	ID     CallID
	Result *storepb.Result // Call, Release; Acquire: code GRANTED with Grant, HELD, TIMED_OUT with blockers, or another refusal
	Read   *pb.ReadReply
	Err    error
}

// Update is a change (or a page of the first state) for a watch. Deletions
// found after a reconnect are in it too.
type Update struct {
	ID     CallID
	Update *pb.WatchUpdate
	// Err ends the watch.
	Err error
}

// Lost tells that a lock is lost, and why.
type Lost struct {
	Lock   CallID
	Reason string
}

// Deadline is the instant (on the machine's clock) at which a held lock will
// be lost unless the lease is renewed.
type Deadline struct {
	Lock CallID
	At   time.Duration
}

// State of the session.
type State uint8

// The states. Jeopardy: the lease has run out on the client's clock and the
// service has not been heard; Safe is Live again.
const (
	Connecting State = iota // no session yet
	Live
	Jeopardy
	Expired
	Closed
)

// Options of a Machine.
type Options struct {
	Addresses []string
	Cell      string
	Name      string // program's name, for people
	Host      string
	PID       int
	Lease     time.Duration // default 12 s
	Grace     time.Duration // default 45 s
	// DriftPPM bounds how far two clocks run apart: default 10,000 (1 %).
	DriftPPM int
	Nonce    []byte // 16 random bytes
	Seed     uint64 // of the back-off
	Now      time.Duration
	// OpenTimeout: give up if no session could be opened by then; default 10 s.
	OpenTimeout time.Duration
}

// API of *Machine; New is `func New(o Options) *Machine`.
type API interface {
	Step(now time.Duration, ev Event)
	Take(now time.Duration) Effects
}
