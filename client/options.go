package client

import (
	"context"
	"log/slog"
	"net"
	"time"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// Option sets something of a Session or Reader.
type Option func(*config)

type config struct {
	name        string
	cell        string
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
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithCell names the cell that is meant: a service of another cell is refused
// with ErrWrongCell. By default any cell will do.
func WithCell(cell string) Option { return func(c *config) { c.cell = cell } }

// WithLease sets the length of the session's lease: for how long a session
// that is not heard of keeps its locks. Default 12 s; 1 s to 10 min.
func WithLease(d time.Duration) Option { return func(c *config) { c.lease = d } }

// WithGrace sets for how long a session in jeopardy looks for a master before
// it counts as expired. Default 45 s. For a Reader: for how long a call waits
// for a master before it fails with ErrUnavailable.
func WithGrace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// WithOpenTimeout limits how long Dial and Connect look for a master. Default
// 10 s; the context may end it earlier.
func WithOpenTimeout(d time.Duration) Option { return func(c *config) { c.openTimeout = d } }

// WithDrift tells how far the clocks of this machine and the service may run
// apart, in parts per million. It must not be less than what the service was
// told. Default 10,000 (1 %).
func WithDrift(ppm int) Option { return func(c *config) { c.driftPPM = ppm } }

// WithLogger sets where the client logs changes of connection and state. By
// default it is silent.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// WithStateHandler has f called with each new state of the session, in order,
// on a goroutine of its own. f may take its time and may use the session; if
// it falls far behind, states in between are left out, never the last one.
func WithStateHandler(f func(State)) Option { return func(c *config) { c.onState = f } }

// WithDialer sets how connections are made, by default with a net.Dialer over
// TCP. It is called with one of the addresses given to Dial, or with the one
// that the service advertises for its master.
func WithDialer(dial func(ctx context.Context, address string) (net.Conn, error)) Option {
	return func(c *config) { c.dial = dial }
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
	mode      Mode
	wait      time.Duration
	waitSet   bool
	delay     time.Duration
	stop      time.Duration
	mustExist bool
	onWait    func(*HeldError)
}

type lockOptionFunc func(*lockConfig)

func (f lockOptionFunc) lockOption(c *lockConfig) { f(c) }

// Shared asks for the lock in shared mode.
func Shared() LockOption { return lockOptionFunc(func(c *lockConfig) { c.mode = ModeShared }) }

// Wait limits how long Lock waits, counted by the service from the arrival of
// the request: then it fails with *HeldError. 0 does not wait, like TryLock.
// Without it Lock waits until its context ends.
func Wait(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.wait, c.waitSet = d, true })
}

// LockDelay sets for how long nobody gets the lock after it was lost (and not
// released): time in which late writes of the old holder die out. Default
// 15 s, at most 60 s; 0 is honoured: then the lock goes on at once, and the
// guarded work is told at the end of its lease.
func LockDelay(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.delay = d })
}

// Stop says how long the guarded work needs to stop once its context has
// ended. The context ends so much earlier. It must be less than the lock-delay
// plus two thirds of the lease. Default 0.
func Stop(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.stop = d })
}

// OnWait has f called when the request must wait, with who is in the way, on
// the goroutine that called Lock. Lock returns only after f has.
func OnWait(f func(*HeldError)) LockOption {
	return lockOptionFunc(func(c *lockConfig) { c.onWait = f })
}

// ConditionOption is an option of Put as well as Delete.
type ConditionOption interface {
	PutOption
	DeleteOption
	CheckOption
}

// PutOption sets something of Put.
type PutOption interface{ putOption(*storepb.Put) }

// DeleteOption sets something of Delete.
type DeleteOption interface{ deleteOption(*storepb.Delete) }

// CreateOption sets something of Create.
type CreateOption interface{ createOption(*storepb.Create) }

// CheckOption is a condition of Txn.Check.
type CheckOption interface{ checkOption(*storepb.Check) }

type ifGeneration uint64

func (g ifGeneration) putOption(p *storepb.Put) {
	p.Conditional, p.IfGeneration = true, uint64(g)
	p.Create = p.Create && g == 0
}
func (g ifGeneration) deleteOption(d *storepb.Delete) {
	d.Conditional, d.IfGeneration = true, uint64(g)
}
func (g ifGeneration) checkOption(c *storepb.Check) {
	c.Conditional, c.IfGeneration = true, uint64(g)
}

// IfGeneration demands that the node's content generation (from its Stat) is
// n: compare-and-swap. For Put, 0 demands that the node does not exist. If not,
// the call fails with ErrConflict (or ErrNotFound).
func IfGeneration(n uint64) ConditionOption { return ifGeneration(n) }

type absent struct{}

func (absent) putOption(p *storepb.Put)     { p.Conditional, p.IfGeneration, p.Create = true, 0, true }
func (absent) checkOption(c *storepb.Check) { c.Absent = true }

// AbsentOption is an option of Put as well as Txn.Check.
type AbsentOption interface {
	PutOption
	CheckOption
}

// IfAbsent demands that the node does not exist.
func IfAbsent() AbsentOption { return absent{} }

type heldFence uint64

func (f heldFence) checkOption(c *storepb.Check) { c.Fence = uint64(f) }

// HeldFence demands that the node's lock is held under exactly this fence:
// with it in a transaction, a write is done only while the lock is held.
func HeldFence(fence uint64) CheckOption { return heldFence(fence) }

type mustExist struct{}

func (mustExist) putOption(p *storepb.Put) { p.Create = false }
func (mustExist) lockOption(c *lockConfig) { c.mustExist = true }

// ExistOption is an option of Put as well as Lock.
type ExistOption interface {
	PutOption
	LockOption
}

// MustExist keeps Put and Lock from creating a node that does not exist: they
// fail with ErrNotFound.
func MustExist() ExistOption { return mustExist{} }

type withParents struct{}

func (withParents) putOption(p *storepb.Put)       { p.Parents = true }
func (withParents) createOption(c *storepb.Create) { c.Parents = true }

// ParentsOption is an option of Put as well as Create.
type ParentsOption interface {
	PutOption
	CreateOption
}

// WithParents creates missing parents as container nodes, which go away when
// they have become empty again.
func WithParents() ParentsOption { return withParents{} }

type createFunc func(*storepb.Create)

func (f createFunc) createOption(c *storepb.Create) { f(c) }

// Ephemeral makes the node go away with this session. It cannot have children.
func Ephemeral() CreateOption {
	return createFunc(func(c *storepb.Create) { c.Kind = storepb.NodeKind_EPHEMERAL })
}

// Container makes the node go away once it has been used and has neither
// children nor a lock any more.
func Container() CreateOption {
	return createFunc(func(c *storepb.Create) { c.Kind = storepb.NodeKind_CONTAINER })
}

// Sequential appends the parent's next sequence number, ten digits, to the
// path; the path may end in a slash then, for an empty base name. Node.Path
// tells what it has become.
func Sequential() CreateOption {
	return createFunc(func(c *storepb.Create) { c.Sequential = true })
}

type deleteFunc func(*storepb.Delete)

func (f deleteFunc) deleteOption(d *storepb.Delete) { f(d) }

// Recursive deletes everything below the node too, all or nothing.
func Recursive() DeleteOption {
	return deleteFunc(func(d *storepb.Delete) { d.Recursive = true })
}

// Force deletes the node in spite of those who hold its lock or wait for it:
// they lose it.
func Force() DeleteOption {
	return deleteFunc(func(d *storepb.Delete) { d.Force = true })
}
