package child

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/seed70370324/lockd/internal/clock"
)

func TestMain(m *testing.M) {
	// With the race detector, processes would wait a second at their end.
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	Main(os.Args[1:]) // the tests' watchdogs and gates are this program, too
	goleak.VerifyTestMain(m)
}

// held is a deadline that is not reached.
func held() (time.Duration, <-chan struct{}) { return clock.Now() + time.Hour, nil }

func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		t.Fatal("waited 60 s in vain: " + what)
	}
}

// eventually polls until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	end := time.After(60 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-end:
			t.Fatal("waited 60 s in vain until " + what)
		case <-tick.C:
		}
	}
}

// The command is gone in time even if the message that it is being stopped
// cannot be written.
func TestBlockedMessageDoesNotHoldUpTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	block := make(chan struct{})
	defer close(block)
	within(t, "the command outlives the lock", func() {
		res, err := Run(ctx, Options{
			Args:     []string{"sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"},
			Kill:     100 * time.Millisecond,
			Deadline: held,
			Started:  func(int) { time.AfterFunc(50*time.Millisecond, cancel) },
			Stopping: func(error) { <-block },
		})
		// TERM before the trap stands ends it, too.
		if err != nil || !res.Stopped || res.Code != 128+9 && res.Code != 128+15 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

func TestCommandIsNotStartedWithoutTheLock(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	file := filepath.Join(t.TempDir(), "started")
	res, err := Run(ctx, Options{Args: []string{"touch", file}, Kill: time.Second, Deadline: held})
	if err != nil || !res.Stopped {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("started although the lock was lost")
	}
}

// A lock that is lost between the grant and the start.
func TestLostBeforeTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "started")
	ctx, cancel := context.WithCancel(context.Background())
	res, err := Run(ctx, Options{Args: []string{"touch", file}, Kill: time.Second, Deadline: func() (time.Duration, <-chan struct{}) {
		cancel()
		return held()
	}})
	if err != nil || !res.Stopped {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("started although the lock was lost")
	}
}

func TestExitCodes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "not-executable")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args    string
		code    int
		started bool
		text    string
	}{
		{args: "true"},
		{args: "sh -c exit_7", code: 7, started: true},
		{args: "sh -c kill_-TERM_$$", code: 128 + 15},
		{args: "not-a-command", code: 127, text: `cannot run not-a-command: exec: "not-a-command": executable file not found`},
		{args: "/not/a/command", code: 127, text: "no such file"},
		{args: file, code: 126, text: "permission denied"},
	} {
		args := strings.Fields(row.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_", " ")
		}
		res, err := Run(t.Context(), Options{Args: args, Kill: time.Second, Deadline: held})
		var start *StartError
		if errors.As(err, &start) {
			if start.Code != row.code || row.text == "" || !strings.Contains(err.Error(), row.text) {
				t.Errorf("%s: code %d, %v", row.args, start.Code, err)
			}
			continue
		}
		if err != nil || row.text != "" || res.Code != row.code || res.Stopped {
			t.Errorf("%s: %+v, %v", row.args, res, err)
		}
	}
}

// The command has the descriptors that lockctl was started with, and no other;
// the watchdog has none but its own.
func TestDescriptors(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Log("no /proc here: what a process has open cannot be seen")
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	// Like a descriptor that a shell has opened: it stays open over exec.
	inherited, err := syscall.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	file := filepath.Join(t.TempDir(), "fds")
	// The shell's $PPID is this process; its other child is the watchdog.
	script := `ls -l /proc/$$/fd > ` + file + `
for p in $(cat /proc/$PPID/task/*/children); do
	grep -q [l]ock-watchdog /proc/$p/cmdline && ls -l /proc/$p/fd > ` + file + `.watchdog
done
exit 0`
	res, err := Run(t.Context(), Options{Args: []string{"sh", "-c", script}, Kill: time.Second, Deadline: held})
	if err != nil || res.Code != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	pipe, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(inherited))
	if err != nil {
		t.Fatal(err)
	}
	fds := func(name string) (pipes int, inherits bool) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(b), "\n") {
			_, target, ok := strings.Cut(line, " -> ")
			if ok && strings.HasPrefix(target, "pipe:") {
				if target == pipe {
					inherits = true
				} else {
					pipes++
				}
			}
		}
		return pipes, inherits
	}
	// Whoever runs the tests may have left descriptors open, too.
	others := 0
	for fd := range 1024 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		to, lerr := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && lerr == nil && to != pipe && (fd < 3 || flags&unix.FD_CLOEXEC == 0) && strings.HasPrefix(to, "pipe:") {
			others++
		}
	}
	if pipes, inherits := fds(file); !inherits || pipes != others {
		t.Errorf("the command has the inherited pipe: %v, and %d others instead of %d", inherits, pipes, others)
	}
	if _, inherits := fds(file + ".watchdog"); inherits {
		t.Error("the watchdog holds an inherited pipe open")
	}
}

// watchdogOf finds this process's watchdog.
func watchdogOf(t *testing.T) int {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(procs) == 0 {
		t.Fatalf("find the watchdog: no /proc, %v", err)
	}
	for _, proc := range procs {
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil || parentOf(pid) != os.Getpid() {
			continue
		}
		if line, err := os.ReadFile(proc + "/cmdline"); err == nil && bytes.HasPrefix(line, []byte(watchdogCommand)) {
			return pid
		}
	}
	t.Fatal("there is no watchdog")
	return 0
}

// A command whose watchdog dies is stopped at once, all of its group.
func TestWatchdogDies(t *testing.T) {
	group := make(chan int, 1)
	within(t, "the command goes on unguarded", func() {
		var told error
		res, err := Run(t.Context(), Options{
			Args:     []string{"sh", "-c", "(trap '' TERM; while :; do sleep 0.1; done) & wait"},
			Kill:     200 * time.Millisecond,
			Deadline: held,
			Started: func(pid int) {
				group <- pid
				if err := syscall.Kill(watchdogOf(t), syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			},
			Stopping: func(cause error) { told = cause },
		})
		if err != nil || !res.Stopped || res.Left || !errors.Is(res.Cause, ErrUnguarded) || !errors.Is(told, ErrUnguarded) {
			t.Errorf("%+v, %v; told %v", res, err, told)
		}
	})
	if g := <-group; groupExists(g) && groupLives(g) {
		t.Error("a process of the group lives on")
	}
}

// A watchdog that is frozen guards nothing: lockctl stops the command when the
// deadline comes that the watchdog would have acted on.
func TestWatchdogFrozen(t *testing.T) {
	moved := make(chan struct{}, 1)
	began := clock.Now()
	deadline := began + time.Second
	within(t, "the command goes on unguarded", func() {
		res, err := Run(t.Context(), Options{
			Args: []string{"sleep", "600"},
			Kill: 200 * time.Millisecond,
			Deadline: func() (time.Duration, <-chan struct{}) {
				return max(deadline, clock.Now()+time.Second), moved
			},
			Started: func(int) {
				if err := syscall.Kill(watchdogOf(t), syscall.SIGSTOP); err != nil {
					t.Error(err)
				}
				moved <- struct{}{}
			},
		})
		if err != nil || !res.Stopped || !errors.Is(res.Cause, ErrUnguarded) {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// What TERM, INT and the like do to a watchdog: nothing.
func TestWatchdogIgnoresSignals(t *testing.T) {
	release := filepath.Join(t.TempDir(), "release")
	within(t, "the command does not end", func() {
		res, err := Run(t.Context(), Options{
			Args:     []string{"sh", "-c", "until [ -e " + release + " ]; do sleep 0.02; done"},
			Kill:     time.Second,
			Deadline: held,
			Started: func(pid int) {
				w := watchdogOf(t)
				group, err := syscall.Getpgid(w)
				if err != nil || group == syscall.Getpgrp() || group == pid {
					t.Errorf("the watchdog's group is %d, the command's %d, ours %d, %v", group, pid, syscall.Getpgrp(), err)
				}
				for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGTSTP, syscall.SIGQUIT} {
					if err := syscall.Kill(w, sig); err != nil {
						t.Error(err)
					}
				}
				if err := os.WriteFile(release, nil, 0o600); err != nil {
					t.Error(err)
				}
			},
		})
		if err != nil || res.Stopped || res.Code != 0 {
			t.Errorf("%+v, %v", res, err)
		}
	})
}

// A signal that came before Run reaches the command.
func TestEarlySignal(t *testing.T) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the signal is there", func() bool { return len(signals) == 1 })
	within(t, "the signal was lost", func() {
		res, err := Run(t.Context(), Options{Args: []string{"sleep", "600"}, Kill: time.Second, Deadline: held, Signals: signals})
		if err != nil || res.Code != 128+int(syscall.SIGUSR1) {
			t.Errorf("%+v, %v", res, err)
		}
	})
}
