// Package child runs the command that `lockctl lock` guards: in a process
// group of its own, in the terminal's foreground when there is one, with
// signals passed on and its end reported as a shell would; and under the eyes
// of a watchdog process, which kills the group in time should lockctl be killed
// or frozen.
//
// Three processes take part. lockctl starts the watchdog (watchdog.go, which
// obeys watch.go) and the gate (gate.go), which stands in the command's group
// and will become the command. Only when the watchdog has said that it knows
// the group and the lock's deadline is the gate opened. So there is no moment
// at which the command runs and the watchdog does not know it.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed70370324/lockd/internal/clock"
)

// Exit codes a shell uses for commands that could not be started.
const (
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// StartError says why the command could not be started, and the exit code
// that goes with it.
type StartError struct {
	Command string
	Code    int
	Err     error
}

func (e *StartError) Error() string { return fmt.Sprintf("cannot run %s: %v", e.Command, e.Err) }

func (e *StartError) Unwrap() error { return e.Err }

// Options of Run.
type Options struct {
	Args []string // command and arguments, at least one
	Env  []string // added to the environment
	Lock string   // the lock's path, for messages
	// Kill is how long the process group may take to end after TERM before it
	// gets KILL.
	Kill time.Duration
	// Deadline is until when the lock is held, on CLOCK_BOOTTIME, and a channel
	// that is closed when that has moved; see client.Lock.BootDeadline. KILL comes
	// Kill after the deadline at the latest.
	Deadline func() (at time.Duration, moved <-chan struct{})
	// Signals, if not nil, is a channel that os/signal fills already. Run has the
	// other signals that are passed on come through it too, and takes them from
	// it: so one that came just before is not lost.
	Signals chan os.Signal
	// Started is called when the command runs, Suspended when it has been stopped
	// by the terminal and when it goes on. They must not block, and may be nil.
	Started   func(pid int)
	Suspended func(bool)
	// Stopping is called once, on a goroutine of its own, when TERM has been sent
	// because ctx ended or the watchdog is gone: it may block, for example on a
	// terminal that is held up.
	Stopping func(cause error)
}

// Result tells how the command ended.
type Result struct {
	Code    int   // exit code; 128+N after signal N
	Stopped bool  // it was told to stop because ctx ended, or for want of a watchdog
	Cause   error // why it was told to stop
	// Left: a process of the group could not be killed, and lives.
	Left bool
}

// change of a child that awaitChild saw: it has stopped, or else ended.
type change struct {
	stopped syscall.Signal
	status  *syscall.WaitStatus // nil: not reaped yet
}

// Run starts the command and waits for its end. When ctx ends first, or the
// watchdog is not there any more, the whole process group gets TERM and, after
// o.Kill, KILL; Run returns only when the command is gone. It is not started if
// ctx has ended already. Signals that this process receives meanwhile are passed
// on to the group. The error is a *StartError, wraps ErrUnguarded if the command
// was not started, or is one of waiting.
func Run(ctx context.Context, o Options) (Result, error) {
	if ctx.Err() != nil {
		return Result{Stopped: true, Cause: context.Cause(ctx)}, nil
	}
	signals := o.Signals
	if signals == nil {
		signals = make(chan os.Signal, 16)
	}
	signal.Notify(signals, NotIgnored(passedOn...)...)
	defer signal.Stop(signals)

	g, err := startGuard(o.Kill, o.Lock)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrUnguarded, err)
	}
	defer g.wait()
	tty := openTerminal()
	gate, err := startGate(o.Args, o.Env, tty.attr())
	if err != nil {
		g.end()
		return Result{}, &StartError{Command: o.Args[0], Code: CodeNotExecutable, Err: err}
	}
	defer tty.takeBack(gate.pid)
	r := &runner{o: o, ctx: ctx, guard: g, group: gate.pid, tty: tty, changes: make(chan change, 1), signals: signals}
	r.deadline, r.moved = o.Deadline()
	if err := g.guards(ctx, gate.pid, r.deadline); err != nil {
		gate.close() // it ends without having run anything
		return r.unstarted(err)
	}
	if ctx.Err() != nil {
		gate.close()
		return r.unstarted(context.Cause(ctx))
	}
	err = gate.run(o.Args[0])
	gate.close()
	if err != nil {
		res, _ := r.unstarted(nil)
		return res, err
	}
	if o.Started != nil {
		o.Started(gate.pid)
	}
	return r.run()
}

// runner accompanies a command that has been started.
type runner struct {
	o       Options
	ctx     context.Context
	guard   *guard
	group   int
	tty     *terminal
	changes chan change
	signals chan os.Signal
	waitErr error // set before changes is closed

	deadline time.Duration
	moved    <-chan struct{}
	res      Result
	killAt   time.Duration
	told     chan struct{}
}

// unstarted sees a gate gone that was not opened, or did not become the
// command.
func (r *runner) unstarted(cause error) (Result, error) {
	signalGroup(r.group, syscall.SIGKILL)
	var ws syscall.WaitStatus
	if err := reap(r.group, &ws); err != nil {
		return Result{}, fmt.Errorf("wait for the command: %w", err)
	}
	r.guard.end()
	switch {
	case cause == nil:
		return Result{}, nil
	case r.ctx.Err() != nil:
		return Result{Stopped: true, Cause: context.Cause(r.ctx)}, nil
	}
	return Result{}, cause
}

func reap(pid int, ws *syscall.WaitStatus) error {
	for {
		_, err := syscall.Wait4(pid, ws, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// watchChanges waits for the command's stops and its end, which is the last.
func (r *runner) watchChanges() {
	defer close(r.changes)
	for {
		c, err := awaitChild(r.group)
		if err != nil {
			r.waitErr = err
			return
		}
		r.changes <- c
		if c.stopped == 0 {
			return
		}
	}
}

func (r *runner) run() (Result, error) {
	go r.watchChanges() // ends with the command, whose end run waits for
	timer := time.NewTimer(0)
	defer timer.Stop()
	lost, dead := r.ctx.Done(), r.guard.dead
	for {
		timer.Reset(r.sleep(clock.Now()))
		select {
		case c, more := <-r.changes:
			switch {
			case !more:
				return r.res, fmt.Errorf("wait for the command: %w", r.waitErr)
			case c.stopped == 0:
				return r.ended(c.status)
			case jobStop(c.stopped) && !r.res.Stopped:
				r.suspend()
			}
		case s := <-r.signals:
			r.passOn(s.(syscall.Signal))
		case <-r.moved:
			r.deadline, r.moved = r.o.Deadline()
			if r.ctx.Err() != nil {
				r.moved = nil // it moves no more
				break
			}
			r.guard.tell(lineUntil, int64(r.deadline))
		case <-lost:
			lost = nil
			r.stop(context.Cause(r.ctx))
		case <-dead:
			dead = nil
			if cause := r.lost(); cause != nil {
				r.stop(cause) // it has done its work
			} else {
				r.stop(fmt.Errorf("%w any more", ErrUnguarded))
			}
		case <-timer.C:
			r.due(clock.Now())
		}
	}
}

// sleep is how long nothing falls due. Timers stand still while the machine is
// suspended: so it is looked again.
func (r *runner) sleep(now time.Duration) time.Duration {
	next := watchTick
	if r.killAt > 0 {
		next = min(next, r.killAt-now)
	} else {
		next = min(next, time.Duration(r.guard.until.Load())-now)
	}
	return max(next, time.Millisecond)
}

// due: a watchdog that has not answered a newer deadline than one that has
// passed would have killed the command by now if it ran.
func (r *runner) due(now time.Duration) {
	switch {
	case r.killAt > 0 && now >= r.killAt:
		signalGroup(r.group, syscall.SIGKILL)
		r.killAt = now + watchTick // whatever has come into being since
	case r.res.Stopped || r.lost() != nil:
	case now >= time.Duration(r.guard.until.Load()):
		r.stop(fmt.Errorf("%w: it does not answer", ErrUnguarded))
		r.guard.kill()
	}
}

// lost says why the lock is not held any more, nil if it is. A process that was
// frozen may look at a context that has not ended yet.
func (r *runner) lost() error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if at, _ := r.o.Deadline(); clock.Now() >= at {
		return errors.New("the lock's deadline has passed")
	}
	return nil
}

// stoppedByWatchdog says why the watchdog may have stopped the command, nil if
// it has not.
func (r *runner) stoppedByWatchdog() error {
	if cause := r.lost(); cause != nil {
		return cause
	}
	if clock.Now() >= time.Duration(r.guard.until.Load()) {
		return fmt.Errorf("%w: the last deadline that it has answered has passed", ErrUnguarded)
	}
	return nil
}

func (r *runner) passOn(sig syscall.Signal) {
	if sig == syscall.SIGCONT {
		r.tty.give(r.group) // the shell has put the job into the foreground, perhaps
	}
	signalGroup(r.group, sig)
}

// suspend stops with the command, as one job, if there is a shell to continue
// it; if there is none, the terminal's signal has no effect. While lockctl is
// stopped the lease is not renewed: a job that stays stopped for longer loses
// its lock, and the watchdog kills it.
func (r *runner) suspend() {
	if underJobControl() {
		if r.o.Suspended != nil {
			r.o.Suspended(true)
		}
		suspend()
		if r.o.Suspended != nil {
			r.o.Suspended(false)
		}
	}
	r.passOn(syscall.SIGCONT)
}

// stop begins to stop the command; once.
func (r *runner) stop(cause error) {
	if r.res.Stopped {
		return
	}
	r.res.Stopped, r.res.Cause = true, cause
	now := clock.Now()
	r.killAt = min(now, r.deadline) + r.o.Kill
	r.guard.tell(lineStopping, int64(r.killAt))
	signalGroup(r.group, syscall.SIGTERM)
	signalGroup(r.group, syscall.SIGCONT) // a stopped command must wake to see it
	r.told = make(chan struct{})
	go func() {
		defer close(r.told)
		if r.o.Stopping != nil {
			r.o.Stopping(cause)
		}
	}()
}

// ended: the command has.
func (r *runner) ended(status *syscall.WaitStatus) (Result, error) {
	if cause := r.stoppedByWatchdog(); cause != nil && !r.res.Stopped {
		r.res.Stopped, r.res.Cause = true, cause
	}
	if r.res.Stopped {
		// What it left behind must not outlive the lock either.
		signalGroup(r.group, syscall.SIGKILL)
	} else {
		r.guard.end() // before its number can become somebody else's
	}
	if status == nil {
		status = new(syscall.WaitStatus)
		if err := reap(r.group, status); err != nil {
			return r.res, fmt.Errorf("wait for the command: %w", err)
		}
	}
	if r.res.Stopped {
		r.res.Left = !killGroup(r.group, killPatience)
		r.guard.end()
	}
	if r.told != nil {
		select {
		case <-r.told:
		case <-time.After(toldTime):
		}
	}
	r.res.Code = status.ExitStatus()
	if status.Signaled() {
		r.res.Code = 128 + int(status.Signal())
	}
	return r.res, nil
}

// toldTime is how long the message that the command is being stopped is waited
// for once the command is gone.
const toldTime = 100 * time.Millisecond
