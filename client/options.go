package client

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Option sets something of a Session or Reader. None may be given twice.
type Option func(*config)

type config struct {
	given
	name        string
	cell        string
	identity    uint64
	lease       time.Duration
	grace       time.Duration
	openTimeout time.Duration
	driftPPM    int
	log         *slog.Logger
	onState     func(State)
	dial        func(ctx context.Context, address string) (net.Conn, error)
	quickTime   time.Duration // see lend.go; others in tests
	lentTick    time.Duration
}

// WithName says what the program is called; people see it where the session
// holds a lock or waits for one. The default is the name of the executable.
func WithName(name string) Option {
	return func(c *config) { c.once(optWithName); c.name = name }
}

// WithCell names the cell that is meant: a service of another cell is refused
// with ErrWrongCell. By default any cell will do.
func WithCell(cell string) Option {
	return func(c *config) { c.once(optWithCell); c.cell = cell }
}

// WithCellIdentity names the cell that is meant by its identity (CellIdentity,
// Hold.Cell), which no two cells have in common. Without it the cell is the one
// that more than half of the addresses name that answer within a second.
func WithCellIdentity(identity uint64) Option {
	return func(c *config) { c.once(optWithCellIdentity); c.identity = identity }
}

// WithLease sets the length of the session's lease: for how long a session
// that is not heard of keeps its locks. Default 12 s; 1 s to 10 min.
func WithLease(d time.Duration) Option {
	return func(c *config) { c.once(optWithLease); c.lease = d }
}

// WithGrace sets for how long a session in jeopardy looks for a master before
// it counts as expired. Default 45 s. For a Reader: for how long a call waits
// for a master before it fails with ErrUnavailable.
func WithGrace(d time.Duration) Option {
	return func(c *config) { c.once(optWithGrace); c.grace = d }
}

// WithOpenTimeout limits how long Dial and Connect look for a master. Default
// 10 s; the context may end it earlier.
func WithOpenTimeout(d time.Duration) Option {
	return func(c *config) { c.once(optWithOpenTimeout); c.openTimeout = d }
}

// WithMaxClockDrift tells how far the clocks of this machine and the service may run
// apart, in parts per million. It must not be less than what the service was
// told. Default 10,000 (1 %).
func WithMaxClockDrift(ppm int) Option {
	return func(c *config) { c.once(optWithMaxClockDrift); c.driftPPM = ppm }
}

// WithLogger sets where the client logs changes of connection and state. By
// default it is silent.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.once(optWithLogger); c.log = l }
}

// WithStateHandler has f called with each new state of the session, in order,
// on a goroutine of its own. f may take its time and may use the session; if
// it falls far behind, states in between are left out, never the last one.
func WithStateHandler(f func(State)) Option {
	return func(c *config) { c.once(optWithStateHandler); c.onState = f }
}

// WithDialer sets how connections are made, by default with a net.Dialer over
// TCP. It is called with one of the addresses given to Dial, or with the one
// that the service advertises for its master.
func WithDialer(dial func(ctx context.Context, address string) (net.Conn, error)) Option {
	return func(c *config) { c.once(optWithDialer); c.dial = dial }
}

// Mode of a lock.
type Mode uint8

// The modes.
const (
	ModeExclusive Mode = 1 // one holder
	ModeShared    Mode = 2 // any number of shared holders
)

// String is "exclusive" or "shared".
func (m Mode) String() string {
	switch m {
	case ModeExclusive:
		return "exclusive"
	case ModeShared:
		return "shared"
	default:
		return "unknown"
	}
}

// LockOption sets something of a lock request.
type LockOption interface{ lockOption(*lockConfig) }

type lockConfig struct {
	given
	mode   Mode
	wait   time.Duration
	delay  time.Duration
	stop   time.Duration
	onWait func(*HeldError)
}

type lockOptionFunc func(*lockConfig)

func (f lockOptionFunc) lockOption(c *lockConfig) { f(c) }

// Shared asks for the lock in shared mode.
func Shared() LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.once(optShared); c.mode = ModeShared })
}

// Wait limits how long Lock waits, counted by the service from the arrival of
// the request: then it fails with *HeldError. 0 does not wait, like TryLock.
// Without it Lock waits until its context ends.
func Wait(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.once(optWait); c.wait = d })
}

// LockDelay sets for how long nobody gets the lock after it was lost (and not
// released): time in which late writes of the old holder die out. Default
// 15 s, at most 60 s; 0 is honoured: then the lock goes on at once, and the
// guarded work is told at the end of its lease.
func LockDelay(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.once(optLockDelay); c.delay = d })
}

// StopGrace says how long the guarded work needs to stop once its context has
// ended. The context ends so much earlier. It must be less than the lock-delay
// plus two thirds of the lease, less twice the drift of clocks and 50 ms, or the
// lock would be lost while nothing is wrong. Default: a third of the lock-delay.
func StopGrace(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.once(optStopGrace); c.stop = d })
}

// OnWait has f called when the request must wait, with who is in the way, on
// the goroutine that called Lock. Lock returns only after f has.
func OnWait(f func(*HeldError)) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.once(optOnWait); c.onWait = f })
}
