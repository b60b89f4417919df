package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/internal/sequencer"
	"github.com/seed70370324/lockd/internal/span"
	storepb "github.com/seed70370324/lockd/store/pb"
)

const (
	// DefaultLockDelay is the lock-delay without the option LockDelay.
	DefaultLockDelay = 15 * time.Second
	// LockDelayMax is the longest lock-delay.
	LockDelayMax = 60 * time.Second
)

// Lock is a lock that was granted. It is held until Release, or until it is
// lost: then its context ends. A lock that is lost does not come back, not even
// if the session lives on. Release a lost lock too, once the work it guarded
// has ended: that lets others have it without waiting for the lock-delay.
type Lock struct {
	d         *driver
	id        machine.CallID // of the Acquire
	path      string
	mode      Mode
	grant     *storepb.Grant
	cell      uint64
	from      context.Context // that Lock was called with
	releasing call            // of the release

	mu       sync.Mutex
	ctx      context.Context // nil: nobody asked
	cancel   context.CancelCauseFunc
	deadline time.Duration // on the client's clock
	moved    chan struct{} // closed when deadline has moved or the lock is over; nil: nobody asked
	over     error         // why it is not held any more; set once
	released chan struct{} // closed when a release has been answered; nil before one began
	result   error         // of the release; ErrLost from its beginning if it was lost
	inTxn    bool          // a transaction that was done has released it while it was held
}

// Path of the lock's node.
func (l *Lock) Path() string { return l.path }

// Mode in which it is held.
func (l *Lock) Mode() Mode { return l.mode }

// Fence is the number to send along with everything that the lock guards. It
// is larger than that of every earlier exclusive grant of this lock, also over
// deletion of the node, failovers and restores of the service. Shared holders
// at the same time have the same fence.
func (l *Lock) Fence() uint64 { return l.grant.GetFence() }

// Sequencer describes the grant for others, who can have the service Check it:
// lockd1:<X|S>:<fence>:<generation>:<instance>:<cell identity, hex>:<path>.
func (l *Lock) Sequencer() string {
	return sequencer.Make(sequencer.S{
		Shared:     l.mode == ModeShared,
		Fence:      l.grant.GetFence(),
		Generation: l.grant.GetLockGeneration(),
		Instance:   l.grant.GetInstance(),
		Cell:       l.cell,
		Path:       l.path,
	})
}

// holdContext is a context that ends with a lock. Err looks at the clock, so that
// work which asks does not go on behind the deadline, even if the goroutine that
// ends contexts has not got to run yet.
type holdContext struct {
	context.Context
	l      *Lock
	cancel context.CancelCauseFunc
}

// Err is context.Context's.
func (c *holdContext) Err() error {
	if lost := c.l.Err(); lost != nil {
		c.cancel(lost)
	}
	return c.Context.Err()
}

// holdKey finds the lock that a context belongs to.
type holdKey struct{}

// Value is context.Context's.
func (c *holdContext) Value(key any) any {
	if key == (holdKey{}) {
		return c.l
	}
	return c.Context.Value(key)
}

// reentered returns the lock of path, held by the session of d, that ctx belongs
// to, if there is one: a caller that waits for it under itself waits for ever.
func (d *driver) reentered(ctx context.Context, path string) *Lock {
	for l, _ := ctx.Value(holdKey{}).(*Lock); l != nil; l, _ = l.from.Value(holdKey{}).(*Lock) {
		if l.d == d && l.path == path && l.Err() == nil {
			return l
		}
	}
	return nil
}

// Context ends when the lock is lost (context.Cause is then ErrLost with the
// reason) or released (ErrReleased). Guarded work should stop with it. It has
// the values of the context that Lock was called with, but does not end with
// that one.
func (l *Lock) Context() context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.from))
		l.ctx, l.cancel = &holdContext{ctx, l, cancel}, cancel
		if l.over != nil {
			l.cancel(l.over)
		}
	}
	return l.ctx
}

// Deadline is when the lock will be lost unless the service is heard of before:
// the end of the client's lease, plus the lock-delay, less StopGrace and an
// allowance for the drift of clocks. It moves forward with each renewal.
func (l *Lock) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.deadline - clock.Now())
}

// BootDeadline is Deadline as a reading of CLOCK_BOOTTIME (on macOS of
// CLOCK_MONOTONIC; elsewhere of a clock that only this process can read), which
// other processes of this machine can compare with their own, and a channel that
// is closed when the deadline has moved or the lock is over: then ask again. It
// is for those who hand the deadline on to another process, such as a watchdog.
func (l *Lock) BootDeadline() (at time.Duration, moved <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return l.deadline, closedChan
	}
	if l.moved == nil {
		l.moved = make(chan struct{})
	}
	return l.deadline, l.moved
}

// tellMoved wakes those who wait for a new deadline; l.mu is held.
func (l *Lock) tellMoved() {
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Err is nil while the lock is held: it compares the deadline with the clock
// at this very moment. Then it is ErrLost with the reason, or ErrReleased.
func (l *Lock) Err() error {
	l.checkDeadline(clock.Now())
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// checkDeadline loses the lock if its deadline has passed. It returns the
// deadline, 0 once the lock is over.
func (l *Lock) checkDeadline(now time.Duration) time.Duration {
	l.mu.Lock()
	deadline, over := l.deadline, l.over != nil
	l.mu.Unlock()
	if over {
		return 0
	}
	if now < deadline {
		return deadline
	}
	l.lose("the service was not heard of before the lock's deadline")
	return 0
}

// watched reports whether the lock has a deadline, or is over.
func (l *Lock) watched() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline != 0 || l.over != nil
}

// move sets the deadline of a lock that is held. It reports whether the lock is
// lost already: it stays lost, and the machine may not know that yet.
func (l *Lock) move(at time.Duration) (lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return errors.Is(l.over, ErrLost)
	}
	l.deadline = at
	l.tellMoved()
	return false
}

func (l *Lock) lose(reason string) {
	l.end(&Error{Op: "hold", Path: l.path, Err: ErrLost, Detail: reason})
}

// end ends the lock's context; the first cause stays.
func (l *Lock) end(cause error) {
	l.mu.Lock()
	var cancel context.CancelCauseFunc
	if l.over == nil {
		l.over = cause
		l.tellMoved()
		cancel = l.cancel
	}
	l.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// Release gives the lock back, after all that it guarded has ended. It works
// whatever has become of ctx and of the lock's context: ctx only ends the wait
// for the answer, and not before two seconds, so that a program that is being
// shut down gives its locks back before it exits. The release is carried out
// all the same, as long as the session lives. Releasing again waits for the
// same answer.
//
// The error is ErrLost if the lock had been lost before, also by the end of the
// session; ErrExpired or ErrClosed if the session ended before the service
// answered (then the lock goes on after its lock-delay); or it wraps that of
// ctx.
func (l *Lock) Release(ctx context.Context) error {
	begun := clock.Now()
	released := l.startRelease()
	l.d.readFor(closing(released))
	select {
	case <-released:
	case <-ctx.Done():
		patience := time.NewTimer(begun + releasePatience - clock.Now())
		defer patience.Stop()
		select {
		case <-released:
		case <-patience.C:
			return &Error{Op: "release", Path: l.path, Err: ctx.Err(), Detail: "it goes on in the background"}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.result
}

// startRelease sends the release unless one is under way or done, and returns
// what is closed when it has been answered.
func (l *Lock) startRelease() (released chan struct{}) {
	l.checkDeadline(clock.Now())
	l.mu.Lock()
	first := l.released == nil
	if first {
		l.released = make(chan struct{})
		if errors.Is(l.over, ErrLost) {
			l.result = l.over
		}
	}
	released = l.released
	l.mu.Unlock()
	if first {
		l.end(ErrReleased)
		l.d.release(l)
	}
	return released
}

// committed: a transaction that was done has released the lock. There is
// nothing to send any more. A Release that was called meanwhile gets its answer
// on its own. If the transaction did not demand that the lock is held, the loss
// of a lock that was lost stands.
func (l *Lock) committed(demanded bool) {
	l.end(ErrReleased)
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.over, ErrLost) && !demanded {
		l.result = l.over
	} else {
		l.inTxn = true
	}
	if l.released == nil {
		l.released = closedChan
	}
}

func (l *Lock) releasedInTxn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inTxn
}

// releasePatience is how long Release waits even if its context has ended.
const releasePatience = 2 * time.Second

// releaseDone takes the answer to the release; the first one counts.
func (l *Lock) releaseDone(r *storepb.Result, err error) {
	if err != nil {
		err = opError("release", l.path, err)
	} else {
		err = resultError("release", l.path, r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.released:
		return
	default:
	}
	if l.result == nil && !l.inTxn {
		l.result = err
	}
	close(l.released)
}

// Lock acquires the lock of path, exclusive unless Shared, creating what is
// missing of the path as container nodes unless MustExist. It waits until the
// lock is granted, in the order in which requests arrived; a second call with
// the same session queues behind the first like any other. It fails with
// ErrReentrant at once if ctx descends from the context of that very lock, for
// then it would wait for itself.
//
// A lock that was granted and lost again before the caller got to run is not
// handed over: the error is ErrLost then.
//
// If it is not granted within Wait, or ctx ends while it waits, the error is a
// *HeldError, which names the holders; the request is withdrawn. When ctx ends
// Lock returns at once, also if no service can be reached; nothing stays held.
func (s *Session) Lock(ctx context.Context, path string, options ...LockOption) (*Lock, error) {
	return s.d.lock(ctx, "lock", path, options, false)
}

// TryLock is Lock without waiting: if the lock is not free it fails at once
// with *HeldError. If the service does not answer within a second it fails with
// ErrUnavailable, and the request is withdrawn.
func (s *Session) TryLock(ctx context.Context, path string, options ...LockOption) (*Lock, error) {
	return s.d.lock(ctx, "trylock", path, options, true)
}

// waitForever is a wait that is not told to the service: it is not limited.
const waitForever = 100 * 365 * 24 * time.Hour

// defaultStopShare: without StopGrace a third of the lock-delay is for the work
// to stop in; the rest is kept for outages, in which the lock is not lost.
const defaultStopShare = 3

// waitSlack is how much longer than Wait the client gives the service to
// answer before it withdraws the request by itself.
const waitSlack = time.Second

func (d *driver) lock(ctx context.Context, op, path string, options []LockOption, try bool) (*Lock, error) {
	c := lockConfig{mode: ModeExclusive, delay: DefaultLockDelay}
	for _, o := range options {
		o.lockOption(&c)
	}
	if try {
		if c.seen.has(optWait) {
			c.refuse("TryLock does not wait: Wait is an option of Lock")
		}
		c.once(optWait)
	}
	path, err := d.path(op, path)
	if err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, &Error{Op: op, Path: path, Err: ErrInvalid, Detail: err.Error()}
	}
	if l := d.reentered(ctx, path); l != nil {
		return nil, &Error{Op: op, Path: path, Err: ErrReentrant,
			Detail: fmt.Sprintf("it was asked for with a context of the lock that this session holds under fence %d", l.Fence())}
	}
	if !c.seen.has(optStopGrace) {
		c.stop = c.delay / defaultStopShare
	}
	a := &storepb.Acquire{
		Path:        path,
		Mode:        storepb.LockMode(c.mode),
		LockDelayMs: uint64(c.delay / time.Millisecond),
		NoDeadline:  !c.seen.has(optWait) || c.wait >= waitForever,
		WaitMs:      span.UpToMillis(c.wait),
		Create:      !c.seen.has(optMustExist),
	}
	return d.acquire(ctx, op, a, c)
}

func (c *lockConfig) check() error {
	switch {
	case c.fault != "":
		return errors.New(c.fault)
	case c.delay < 0 || c.delay > LockDelayMax:
		return fmt.Errorf("lock-delay of %v: 0 to %v is allowed", c.delay, LockDelayMax)
	case c.stop < 0:
		return fmt.Errorf("time to stop of %v is negative", c.stop)
	case c.wait < 0:
		return fmt.Errorf("wait of %v is negative", c.wait)
	}
	return nil
}
