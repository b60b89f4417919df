// Package machine is the client's session as a deterministic state machine:
// finding the master, the lease with jeopardy, grace, safe and expired,
// requests that are executed exactly once over reconnects, watches that resume,
// and the locks' deadlines. Package client puts sockets and goroutines around
// it; the simulator drives it as it is.
package machine

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
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
	// Asked answers Ask: the first message that came from the address, or why
	// none did.
	Asked struct {
		Address string
		Message *pb.ServerMessage
		Err     error
	}
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
		// Releases names the locks (by their Acquire) that the Command releases
		// if it is done.
		Releases []CallID
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
	// Lose tells that the application has been told that the lock of Acquire call
	// Lock is lost: by a look at the clock that came while a renewal was on its
	// way to the Machine.
	Lose struct{ Lock CallID }
	// Read starts a read. The Machine owns the message from then on and gives it
	// its id.
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
	// Pause stops a watch whose updates the driver cannot take fast enough: no
	// more come until Resume, and then what has changed meanwhile comes once.
	Pause struct{ ID CallID }
	// Resume goes on with a paused watch.
	Resume struct{ ID CallID }
	// Close ends the session.
	Close struct{}
)

func (Tick) event()          {}
func (Asked) event()         {}
func (Connected) event()     {}
func (ConnectFailed) event() {}
func (Disconnected) event()  {}
func (Received) event()      {}
func (Call) event()          {}
func (Acquire) event()       {}
func (Release) event()       {}
func (Lose) event()          {}
func (Read) event()          {}
func (Watch) event()         {}
func (Cancel) event()        {}
func (Pause) event()         {}
func (Resume) event()        {}
func (Close) event()         {}

// Effects is what the driver owes after a Step or a batch of them. Messages
// must not be changed: the Machine may send parts of them again.
type Effects struct {
	// Ask: beside the connection, ask each of these addresses who it is: connect,
	// send a Hello, hand over what comes first as Asked, and hang up. What takes
	// longer than a second or two may be given up, with an error.
	Ask []string
	// Warnings are for the program's log.
	Warnings []string
	// Dial: connect to this address (drop any connection there is first).
	Dial string
	// Hangup: drop the connection.
	Hangup bool
	// Send: queue these on the connection, after Dial or Hangup was obeyed.
	Send []*pb.ClientMessage
	Done []Done
	// Waiting tells, once for each, of Acquires that were queued.
	Waiting []Waiting
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

// Waiting tells that an Acquire was queued by the service. Result has the
// blockers and the position.
type Waiting struct {
	ID     CallID
	Result *storepb.Result
}

// Update is a change (or a page of the first state) for a watch. State and End
// are set for the state that was found first alone. What is found to have changed
// after a reconnect or a Pause, or when the service had to leave changes out,
// comes as changes, each path once, deletions too, with WatchItem.missed set.
// If only nodes were missed that came and went, the next change has it set.
// Creations, changes of content, and deletions are told, and with Watch.locks who
// gets and loses locks.
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

// String names the state.
func (s State) String() string {
	switch s {
	case Connecting:
		return "connecting"
	case Live:
		return "live"
	case Jeopardy:
		return "jeopardy"
	case Expired:
		return "expired"
	case Closed:
		return "closed"
	default:
		invariant.Unreachable("a session has no other states")
		return "unknown"
	}
}

// Options of a Machine.
type Options struct {
	Addresses []string
	// Survey: ask all addresses who they are before the first connection (Ask).
	// Without it the first one that answers decides which cell is meant.
	Survey bool
	// CellIdentity of the cell that is meant; 0: the one that most addresses
	// name.
	CellIdentity uint64
	Cell         string
	Name         string // program's name, for people
	Host         string
	PID          int
	Lease        time.Duration // default 12 s
	Grace        time.Duration // default 45 s
	// DriftPPM bounds how far two clocks run apart: default 10,000 (1 %).
	DriftPPM int
	Nonce    []byte // 16 random bytes
	Seed     uint64 // of the back-off
	Now      time.Duration
	// OpenTimeout: give up if no session could be opened by then; default 10 s.
	OpenTimeout time.Duration
	// NoSession makes a Machine that only reads and watches. It has no lease;
	// calls that found no master for Grace fail with ErrUnavailable.
	NoSession bool
	// Program is the program's name and version, for the service's log.
	Program string
}

// API of *Machine; New is `func New(o Options) *Machine`.
type API interface {
	// Step takes an event. What is to be done gathers until Take.
	Step(now time.Duration, ev Event)
	// Take closes the batch and hands over what is to be done.
	Take(now time.Duration) Effects
	// Reuse gives the slices of the last Effects back, so that the next one need
	// not make its own. Whoever calls it must not look at them any more; nobody
	// needs to call it.
	Reuse(e Effects)
	// Err tells why the session has ended: nil while it has not; it wraps
	// ErrExpired or ErrClosed; both ErrClosed and ErrUnavailable if Close could
	// not tell the service or no session could be opened in time.
	Err() error
	// Session is the session's number, 0 before there is one.
	Session() uint64
	// Lease is the session's lease as the service gave it.
	Lease() time.Duration
	// Cell is the name and identity of the cell, once it is known.
	Cell() (name string, identity uint64)
	// Attempts lists the addresses tried since the last good connection and why
	// each failed last.
	Attempts() string
}
