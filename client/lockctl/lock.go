package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/client/lockctl/child"
)

// The exit codes of lock besides those of the command itself: out of the way
// of what programs and shells use.
const (
	codeNotAcquired     = 110
	codeLost            = 111
	codeLockUnavailable = 112
	codeLockUsage       = 113
)

// killMargin is the part of the stopping time that is kept for KILL to do its
// work on a machine that is busy: limit is how long lease and lock-delay allow
// the whole to take.
func killMargin(limit time.Duration) time.Duration { return 250*time.Millisecond + limit/16 }

type lockFlags struct {
	shared, try bool
	wait        time.Duration
	lease       time.Duration
	delay       time.Duration
	stop        time.Duration
	quiet       bool
	name        string
	statusFD    int
}

func (a *app) lockCmd() *cobra.Command {
	fl := lockFlags{}
	c := &cobra.Command{
		Use:   "lock [flags] PATH -- CMD [ARG...]",
		Short: "Run a command while holding a lock",
		Long: `Acquires the lock of PATH, creating missing path components as container nodes,
removed when no longer used; runs CMD while it is held, and releases it.

CMD runs in a process group of its own, in the terminal's foreground if there
is one, with LOCKD_FENCE (the number to send along with every write),
LOCKD_HOLD (for 'lockctl put --while-held' and the like), LOCKD_SEQUENCER and
LOCKD_LOCK (the path) in its environment. Signals are passed on to it.

If the lock is about to be lost, the group gets TERM early enough, and KILL
--stop later, so that it is gone before anybody else can be granted the lock. A
watchdog process does that if lockctl itself is killed or frozen.

Only the fence protects you from a frozen machine: make the system CMD writes to
reject any fence lower than the highest it has seen.

Exit code: that of CMD (128+N after signal N, 127 not found, 126 not
executable); 110 lock not acquired, 111 lock lost, 112 service unavailable,
113 usage. A signal while it still waits for the lock: 128+N.`,
		Example: `  lockctl lock /backup -- ./backup.sh
  lockctl lock --try --lock-delay 1s /backup -- sh -c 'echo "fence $LOCKD_FENCE"'`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 || args[0] == "":
				return errors.New("missing PATH of the lock")
			case len(args) > 1 && args[1] != "--" && strings.HasPrefix(args[1], "-"):
				return fmt.Errorf("%s must come before PATH: lock's own flags go before PATH, CMD after --", args[1])
			case len(guarded(args)) == 0 || guarded(args)[0] == "":
				return errors.New("missing CMD: lock PATH -- CMD [ARG...]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if fl.try && cmd.Flags().Changed("wait") {
				return usagef("--try does not wait: give --try or --wait, not both")
			}
			if fl.wait < 0 {
				return usagef("--wait %v: must not be negative", fl.wait)
			}
			if !cmd.Flags().Changed("wait") {
				fl.wait = -1
			}
			if cmd.Flags().Changed("stop") && fl.stop <= 0 {
				return usagef("--stop %v: must be positive", fl.stop)
			}
			if err := fl.check(); err != nil {
				return err
			}
			var status *statusLines
			if cmd.Flags().Changed("status-fd") {
				var err error
				if status, err = openStatus(fl.statusFD); err != nil {
					return err
				}
			}
			err := a.lock(fl, status, args[0], guarded(args))
			code := 0
			if err != nil {
				code = lockExitCode(err)
			}
			status.event("exit", "code", strconv.Itoa(code))
			status.close()
			return err
		},
	}
	f := c.Flags()
	f.SetInterspersed(false) // flags behind PATH belong to CMD
	f.BoolVar(&fl.shared, "shared", false, "share the lock with other --shared holders")
	f.BoolVar(&fl.try, "try", false, "do not wait")
	f.DurationVar(&fl.wait, "wait", 0, "wait at most this long (default: until it is granted)")
	f.DurationVar(&fl.lease, "lease", 12*time.Second, "how long the service keeps the lock for a holder it no longer hears from")
	f.DurationVar(&fl.delay, "lock-delay", 15*time.Second, "how long the lock stays unavailable after its holder is lost (at most 60s)")
	f.DurationVar(&fl.stop, "stop", 0, "time between TERM and KILL if the lock is about to be lost (default: as much as lease and lock-delay allow, 3s at most)")
	f.BoolVarP(&fl.quiet, "quiet", "q", false, "do not say who holds the lock while waiting")
	f.StringVar(&fl.name, "name", "", "name shown to others (default: CMD)")
	f.IntVar(&fl.statusFD, "status-fd", 0, "write a line for each event (waiting, granted, lost, ...) to this open descriptor")
	return c
}

// guarded is the command behind PATH and, if it is there, "--".
func guarded(args []string) []string {
	args = args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	return args
}

// stopMax is what --stop must be less than. Of lock-delay and two thirds of the
// lease (the service answers a renewal after the other third) the margin goes,
// and what clocks may differ by and a renewal may be late by: with less the lock
// would be lost between two renewals of a service that is well.
func (fl *lockFlags) stopMax() time.Duration {
	limit := fl.delay + 2*fl.lease/3
	return limit - killMargin(limit) - (fl.lease+fl.delay)/32 - fl.lease/8
}

// check refuses what cannot work, and chooses the stopping time: a quarter of
// what the lock's contract allows leaves the rest for missed renewals.
func (fl *lockFlags) check() error {
	switch {
	case fl.lease < time.Second || fl.lease > 10*time.Minute:
		return usagef("--lease %v: must be between 1s and 10m", fl.lease)
	case fl.delay < 0 || fl.delay > time.Minute:
		return usagef("--lock-delay %v: must be between 0 and 60s", fl.delay)
	}
	limit, most := fl.delay+2*fl.lease/3, fl.stopMax()
	if fl.stop == 0 {
		fl.stop = min(3*time.Second, limit/4).Truncate(time.Millisecond)
	}
	if fl.stop >= most {
		return usagef("--stop %v: must be less than %v (lock-delay + 2/3 of the lease, less %v)",
			fl.stop, most.Truncate(time.Millisecond), (limit - most).Round(time.Millisecond))
	}
	return nil
}

func (fl *lockFlags) options(onWait func(*client.HeldError)) []client.LockOption {
	margin := killMargin(fl.delay + 2*fl.lease/3)
	options := []client.LockOption{client.LockDelay(fl.delay), client.StopGrace(fl.stop + margin)}
	if fl.shared {
		options = append(options, client.Shared())
	}
	if fl.try {
		options = append(options, client.Wait(0))
	} else if fl.wait >= 0 {
		options = append(options, client.Wait(fl.wait))
	}
	return append(options, client.OnWait(onWait))
}

// lock holds path while args run.
func (a *app) lock(fl lockFlags, status *statusLines, path string, args []string) error {
	addresses, err := a.addresses()
	if err != nil {
		return err
	}
	name := fl.name
	if name == "" {
		name = args[0]
	}
	// A reader of our messages that goes away must not take us with it.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	// Until the command runs, a signal ends the wait; then they are passed on. One
	// channel takes them from beginning to end, so that none is lost in between.
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, child.NotIgnored(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)...)
	defer signal.Stop(signals)
	waiting, stop := untilSignal(signals)
	defer stop()
	options := append(a.options(name), client.WithLease(fl.lease), client.WithStateHandler(status.state()))
	s, err := client.Dial(waiting, addresses, options...)
	if err != nil {
		return signalOr(waiting, fmt.Errorf("lock %s: %w", path, err))
	}
	l, err := s.Lock(waiting, path, fl.options(func(h *client.HeldError) {
		status.event("waiting", "place", strconv.Itoa(h.Position), "path", path)
		if !fl.quiet {
			sayWaiting(path, h)
		}
	})...)
	if err != nil {
		cerr := s.Close()
		return signalOr(waiting, errors.Join(err, cerr))
	}
	stop()
	status.event("granted", "fence", strconv.FormatUint(l.Fence(), 10), "path", l.Path())
	if err := signalOr(waiting, nil); err != nil {
		// It came together with the grant.
		_, rerr := a.giveBack(s, l, status)
		return errors.Join(err, rerr)
	}
	return a.underLock(s, l, fl, status, signals, args)
}

// underLock runs the command, gives the lock back when it is gone, and
// chooses the exit code.
func (a *app) underLock(s *client.Session, l *client.Lock, fl lockFlags, status *statusLines, signals chan os.Signal, args []string) error {
	started := false
	var told atomic.Bool
	res, runErr := child.Run(l.Context(), child.Options{
		Args: args,
		Env: []string{
			fmt.Sprintf("LOCKD_FENCE=%d", l.Fence()),
			envHold + "=" + l.Hold().String(),
			"LOCKD_SEQUENCER=" + l.Sequencer(),
			"LOCKD_LOCK=" + l.Path(),
		},
		Lock:     l.Path(),
		Kill:     fl.stop,
		Deadline: l.BootDeadline,
		Signals:  signals,
		Started: func(pid int) {
			started = true
			status.event("started", "pid", strconv.Itoa(pid))
		},
		Suspended: func(on bool) {
			if on {
				status.event("suspended")
			} else {
				status.event("resumed")
			}
		},
		Stopping: func(cause error) {
			told.Store(true)
			status.event(stopEvent(cause), "reason", cause.Error())
			fmt.Fprintf(os.Stderr, "lockctl: lock %s: %v: stopping the command (TERM, KILL after %v)\n", l.Path(), cause, fl.stop)
		},
	})
	if res.Stopped && !told.Load() {
		status.event(stopEvent(res.Cause), "reason", res.Cause.Error())
	}
	if started {
		status.event("ended", "code", strconv.Itoa(res.Code))
	}
	if res.Left {
		// Not released: closing the session lets the service wait as for a dead
		// holder.
		fmt.Fprintf(os.Stderr, "lockctl: lock %s: a process of the command cannot be killed: the lock goes on to others only after lease and lock-delay\n", l.Path())
		return &exitError{codeLost, errors.Join(res.Cause, s.Close())}
	}
	lost, relErr := a.giveBack(s, l, status)
	var start *child.StartError
	switch {
	case errors.As(runErr, &start):
		return &exitError{start.Code, runErr}
	case errors.Is(runErr, child.ErrUnguarded):
		return &exitError{codeNotAcquired, fmt.Errorf("lock %s: the command was not started: %w", l.Path(), runErr)}
	case runErr != nil:
		return runErr
	case errors.Is(res.Cause, child.ErrUnguarded) && !lost:
		return &exitError{codeLost, fmt.Errorf("lock %s was given back, the command stopped (it ended with %d): %w", l.Path(), res.Code, res.Cause)}
	case res.Stopped || lost:
		// The command may have done its last work without the lock: its own
		// exit code would hide that.
		return &exitError{codeLost, fmt.Errorf("lock %s was lost while the command ran (it ended with %d)", l.Path(), res.Code)}
	}
	if relErr != nil {
		// The command did its work under the lock; that the release could not
		// be confirmed delays others, and is not the command's failure.
		fmt.Fprintf(os.Stderr, "lockctl: lock %s: release not confirmed, it goes on to others after lease and lock-delay: %v\n", l.Path(), relErr)
	}
	if res.Code != 0 {
		return &exitError{res.Code, nil}
	}
	return nil
}

// stopEvent tells a lock that was lost from one that is given up for want of a
// watchdog.
func stopEvent(cause error) string {
	if errors.Is(cause, child.ErrUnguarded) {
		return "unguarded"
	}
	return "lost"
}

// giveBack releases the lock and ends the session. lost: the lock had been lost
// before.
func (a *app) giveBack(s *client.Session, l *client.Lock, status *statusLines) (lost bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.timeout)
	defer cancel()
	err = l.Release(ctx)
	lost = errors.Is(err, client.ErrLost) || errors.Is(err, client.ErrExpired)
	switch {
	case err == nil:
		status.event("released")
	case lost:
		err = nil
	default:
		status.event("unreleased", "reason", err.Error())
	}
	cerr := s.Close()
	if err == nil {
		return lost, nil // a session without locks that the service cannot be told of holds up nobody
	}
	return lost, errors.Join(err, cerr)
}

// state tells of the session's jeopardy, and of its end.
func (s *statusLines) state() func(client.State) {
	jeopardy := false
	return func(st client.State) {
		switch {
		case st == client.Jeopardy:
			jeopardy = true
			s.event("jeopardy")
		case st == client.Live && jeopardy:
			jeopardy = false
			s.event("safe")
		}
	}
}

func sayWaiting(path string, h *client.HeldError) {
	for _, x := range h.Holders {
		if x.Ghost {
			fmt.Fprintf(os.Stderr, "lockctl: %s: its last holder %v was lost; the lock-delay is still running\n", path, x.Client)
			continue
		}
		fmt.Fprintf(os.Stderr, "lockctl: %s is held by %v\n", path, x)
	}
	fmt.Fprintf(os.Stderr, "lockctl: waiting for %s, position %d in the queue\n", path, h.Position)
}

// signalError says that a signal ended the wait.
type signalError struct{ sig syscall.Signal }

func (e *signalError) Error() string { return fmt.Sprintf("interrupted (%s)", unix.SignalName(e.sig)) }

// untilSignal returns a context that ends with a *signalError as its cause when
// a signal comes. Once stop has returned, signals stay in the channel.
func untilSignal(signals <-chan os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-signals:
			cancel(&signalError{s.(syscall.Signal)})
		case <-quit:
		}
	}()
	return ctx, sync.OnceFunc(func() {
		close(quit)
		<-done // a signal that has been taken is the cause by now
		cancel(nil)
	})
}

// signalOr is the signal that ended ctx, if one did, else err.
func signalOr(ctx context.Context, err error) error {
	var sig *signalError
	if errors.As(context.Cause(ctx), &sig) {
		return &exitError{128 + int(sig.sig), fmt.Errorf("interrupted while waiting for the lock (%s)", unix.SignalName(sig.sig))}
	}
	return err
}

// lockExitCode is exitCode for the lock command.
func lockExitCode(err error) int {
	var exit *exitError
	var usage *usageError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage), errors.Is(err, client.ErrBadPath), errors.Is(err, client.ErrInvalid):
		return codeLockUsage
	case errors.Is(err, client.ErrHeld), errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrLimit):
		return codeNotAcquired
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrExpired), errors.Is(err, client.ErrWrongCell),
		errors.Is(err, client.ErrUnknownOutcome), errors.Is(err, context.DeadlineExceeded):
		return codeLockUnavailable
	case errors.Is(err, client.ErrLost):
		return codeLost
	}
	return codeNotAcquired
}
