package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// stopTime is how long a server may take to stop in order.
const stopTime = 5 * time.Second

// processes are the servers. Whoever ends before stop makes the run fail.
type processes struct {
	fail     context.CancelCauseFunc
	wg       sync.WaitGroup
	mu       sync.Mutex
	stopping bool
	running  []*process
}

type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

// start runs a program with its output in a file.
func (ps *processes) start(name, logFile, program string, args ...string) error {
	out, err := os.Create(logFile)
	if err != nil {
		return fmt.Errorf("log of %s: %w", name, err)
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	ps.mu.Lock()
	ps.running = append(ps.running, p)
	ps.mu.Unlock()
	ps.wg.Go(func() {
		err := cmd.Wait()
		close(p.done)
		ps.mu.Lock()
		defer ps.mu.Unlock()
		if !ps.stopping {
			ps.fail(fmt.Errorf("%s has ended (%v):\n%s", name, err, tail(logFile)))
		}
	})
	return nil
}

// stop ends all of them and waits.
func (ps *processes) stop() {
	ps.mu.Lock()
	ps.stopping = true
	running := ps.running
	ps.mu.Unlock()
	for _, p := range running {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended
	}
	late := time.NewTimer(stopTime)
	defer late.Stop()
	for _, p := range running {
		select {
		case <-p.done:
		case <-late.C:
			late.Reset(0) // for those behind it too
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	ps.wg.Wait()
}

// tail is the end of a log file, for an error.
func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// checkPorts finds ports that are taken before anything starts.
func checkPorts(base int) error {
	for port := base; port < base+portsNeeded; port++ {
		l, err := net.Listen("tcp", address(port))
		if err != nil {
			return fmt.Errorf("port %d cannot be had: choose others with -base-port (%w)", port, err)
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// makeDir makes the directory of the data, on a disk.
func makeDir(where string) (string, error) {
	candidates := []string{where}
	if where == "" {
		candidates = []string{os.TempDir(), "."}
	}
	var errs []error
	for _, c := range candidates {
		if err := checkDisk(c); err != nil {
			errs = append(errs, err)
			continue
		}
		at, err := filepath.Abs(c)
		if err != nil {
			return "", err
		}
		return os.MkdirTemp(at, "zkbench-")
	}
	return "", errors.Join(errs...)
}

// until calls ready again and again until it is true or time is up.
func until(ctx context.Context, limit time.Duration, what string, ready func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s: not within %v", what, limit))
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for !ready() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
	return nil
}
