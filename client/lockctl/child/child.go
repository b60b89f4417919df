// Package child runs the command that `lockctl lock` guards: in a process
// group of its own, in the terminal's foreground when there is one, with
// signals passed on and its end reported as a shell would.
package child

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
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
	// Kill is how long the process group may take to end after TERM before it
	// gets KILL.
	Kill time.Duration
	// Stopping is called once, on a goroutine of its own, when TERM has been sent
	// because ctx ended: it may block, for example on a terminal that is held up.
	Stopping func(cause error)
}

// Result tells how the command ended.
type Result struct {
	Code    int  // exit code; 128+N after signal N
	Stopped bool // it was told to stop because ctx ended
}

// Run starts the command and waits for its end. When ctx ends first, the whole
// process group gets TERM and, after o.Kill, KILL; Run returns only when the
// command is gone. It is not started if ctx has ended already. Signals that this
// process receives meanwhile are passed on to the group. The error is a
// *StartError or an error of waiting.
func Run(ctx context.Context, o Options) (Result, error) {
	if ctx.Err() != nil {
		return Result{Stopped: true}, nil
	}
	cmd := exec.Command(o.Args[0], o.Args[1:]...)
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	restore := inOwnGroup(cmd)
	defer restore()

	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn...)
	defer signal.Stop(signals)

	if err := cmd.Start(); err != nil {
		return Result{}, startError(o.Args[0], err)
	}
	group := cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	var res Result
	done := ctx.Done()
	var kill <-chan time.Time
	told := make(chan struct{})
	for {
		select {
		case err := <-ended:
			if res.Stopped {
				// The command is gone; what it left behind must not outlive
				// the lock either.
				signalGroup(group, syscall.SIGKILL)
				select {
				case <-told:
				case <-time.After(toldTime):
				}
			}
			code, err := exitCode(err)
			res.Code = code
			return res, err
		case s := <-signals:
			signalGroup(group, s.(syscall.Signal))
		case <-done:
			done, res.Stopped = nil, true
			signalGroup(group, syscall.SIGTERM)
			signalGroup(group, syscall.SIGCONT) // a stopped command must wake to see it
			go func() {
				defer close(told)
				if o.Stopping != nil {
					o.Stopping(context.Cause(ctx))
				}
			}()
			timer := time.NewTimer(o.Kill)
			defer timer.Stop()
			kill = timer.C
		case <-kill:
			kill = nil
			signalGroup(group, syscall.SIGKILL)
		}
	}
}

// toldTime is how long Run waits for Stopping once the command is gone.
const toldTime = 100 * time.Millisecond

func startError(name string, err error) error {
	code := CodeNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = CodeNotFound
	}
	return &StartError{Command: name, Code: code, Err: err}
}

// exitCode turns what Wait returned into a shell's exit code.
func exitCode(err error) (int, error) {
	if err == nil {
		return 0, nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return CodeNotExecutable, fmt.Errorf("wait for the command: %w", err)
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// signalGroup sends sig to every process of the group. A group that is gone is
// no error: that is what the signal is for.
func signalGroup(group int, sig syscall.Signal) {
	if err := syscall.Kill(-group, sig); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EPERM) {
		fmt.Fprintf(os.Stderr, "lockctl: send %v to process group %d: %v\n", sig, group, err)
	}
}
