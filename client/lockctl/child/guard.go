package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnguarded says that the command was stopped, or not started, because its
// watchdog was not there to guard it.
var ErrUnguarded = errors.New("the watchdog that guards the command is not there")

// guard is lockctl's side of the watchdog. All methods but those of its own
// goroutine are for one goroutine.
type guard struct {
	cmd   *exec.Cmd
	stop  time.Duration
	to    *os.File      // never blocks
	from  *os.File      // what the watchdog answers
	said  chan struct{} // room for one: something was answered
	dead  chan struct{} // closed when the watchdog has ended
	ready atomic.Bool
	knows atomic.Bool  // it has answered the guard line
	until atomic.Int64 // the last deadline that it has answered
}

// watchdogTime is how long a watchdog may take to start and to end.
const watchdogTime = 10 * time.Second

func startGuard(stop time.Duration, lock string) (*guard, error) {
	r, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	from, w, err := os.Pipe()
	if err != nil {
		_ = to.Close()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer w.Close()
	cmd := exec.Command(self())
	// A name of its own: `pkill lockctl` is to leave it alive.
	cmd.Args = []string{"lock-watchdog", watchdogCommand, strconv.FormatInt(int64(stop), 10), lock}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, w, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_, _ = to.Close(), from.Close()
		return nil, fmt.Errorf("start lockctl once more: %w", err)
	}
	g := &guard{cmd: cmd, stop: stop, to: to, from: from, said: make(chan struct{}, 1), dead: make(chan struct{})}
	go g.listen()
	return g, nil
}

// listen takes the answers until the watchdog ends: nobody else has the other
// end of its pipe.
func (g *guard) listen() {
	defer close(g.dead)
	in := bufio.NewScanner(g.from)
	for in.Scan() {
		word, arg, _ := strings.Cut(in.Text(), " ")
		switch word {
		case lineReady:
			g.ready.Store(true)
		case lineGuard:
			g.knows.Store(true)
		case lineUntil:
			if n, err := strconv.ParseInt(arg, 10, 64); err == nil {
				g.until.Store(n)
			}
		}
		select {
		case g.said <- struct{}{}:
		default:
		}
	}
}

// tell sends a line. If the pipe is full, the watchdog is frozen: then the line
// is lost, and the answer that does not come tells.
func (g *guard) tell(word string, n int64) {
	g.send(word + " " + strconv.FormatInt(n, 10) + "\n")
}

func (g *guard) send(line string) {
	c, err := g.to.SyscallConn()
	if err != nil {
		return // closed
	}
	// A line is shorter than PIPE_BUF: it goes whole or not at all. An error is
	// that of a dead watchdog, which listen notices.
	_ = c.Write(func(fd uintptr) bool {
		_, _ = unix.Write(int(fd), []byte(line))
		return true
	})
}

// await waits until what holds.
func (g *guard) await(ctx context.Context, what func() bool) error {
	patience := time.NewTimer(watchdogTime)
	defer patience.Stop()
	for !what() {
		select {
		case <-g.said:
		case <-g.dead:
			return fmt.Errorf("%w: it has ended before the command was started", ErrUnguarded)
		case <-patience.C:
			return fmt.Errorf("%w: it has not answered within %v", ErrUnguarded, watchdogTime)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// guards returns when the watchdog is known to guard the group until the
// deadline.
func (g *guard) guards(ctx context.Context, group int, deadline time.Duration) error {
	g.tell(lineUntil, int64(deadline))
	g.tell(lineGuard, int64(group))
	return g.await(ctx, func() bool { return g.ready.Load() && g.knows.Load() && g.until.Load() > 0 })
}

// end tells the watchdog that the command is gone; it ends by itself then.
func (g *guard) end() {
	g.send(lineDone + "\n")
	_ = g.to.Close()
}

// kill ends a watchdog that does not answer.
func (g *guard) kill() { _ = g.cmd.Process.Kill() }

// wait waits until the watchdog is gone, and sees to it that it is.
func (g *guard) wait() {
	_ = g.to.Close() // end has, unless something failed
	patience := time.NewTimer(watchdogTime + g.stop)
	defer patience.Stop()
	select {
	case <-g.dead:
	case <-patience.C:
		g.kill() // frozen
		<-g.dead
	}
	_ = g.from.Close()
	_ = g.cmd.Wait() // how it ended changes nothing any more
}
