package e2e

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lockStatus runs `lockctl lock --status-fd 3` with fd 3 as given; its lines, if
// there is a reader, are read until lockctl has ended.
func lockStatus(t *testing.T, c *cell, fd3, reader *os.File, env string, args ...string) (code int, lines []string, stderr string) {
	t.Helper()
	cmd := c.ctlCommand(append([]string{"lock", "--status-fd", "3"}, args...)...)
	cmd.Env = append(cmd.Env, env)
	cmd.ExtraFiles = []*os.File{fd3}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = fd3.Close()
	var text []byte
	var wg sync.WaitGroup
	if reader != nil {
		wg.Go(func() { text, _ = io.ReadAll(reader) })
	}
	err := cmd.Wait()
	wg.Wait()
	return exitCode(t, err), strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), errs.String()
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return r, w
}

// TestStatusFD: what programs that start lockctl are told.
func TestStatusFD(t *testing.T) {
	c := startCell(t, 1)
	long := []string{"--lease", "60s", "--lock-delay", "0"}
	told := func(t *testing.T, lines []string, want ...string) {
		t.Helper()
		ok := len(lines) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = regexp.MustCompile("^" + want[i] + "$").MatchString(lines[i])
		}
		if !ok {
			t.Errorf("the lines are\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	}

	t.Run("a life", func(t *testing.T) {
		r, w := pipe(t)
		// The command does not hold the descriptor open.
		code, lines, errs := lockStatus(t, c, w, r, "", append(long, "/a b", "--", "sh", "-c", "test -e /proc/$$/fd/3 || exit 5")...)
		if code != 5 {
			t.Errorf("exit %d: %s", code, errs)
		}
		told(t, lines, `granted fence=\d+ path="/a b"`, `started pid=\d+`, "ended code=5", "released", "exit code=5")
	})
	t.Run("not granted", func(t *testing.T) {
		holder := c.holding(t, append(long, "/held", "--", "sh", "-c", "echo started; exec sleep 600")...)
		r, w := pipe(t)
		code, lines, errs := lockStatus(t, c, w, r, "", "--wait", "100ms", "/held", "--", "true")
		if code != 110 {
			t.Errorf("exit %d: %s", code, errs)
		}
		told(t, lines, "waiting place=1 path=/held", "exit code=110")
		_ = holder.Process.Signal(os.Interrupt)
		_ = holder.Wait()
	})
	t.Run("not started", func(t *testing.T) {
		r, w := pipe(t)
		code, lines, errs := lockStatus(t, c, w, r, "", append(long, "/a", "--", "not-a-command")...)
		if code != 127 {
			t.Errorf("exit %d: %s", code, errs)
		}
		told(t, lines, `granted fence=\d+ path=/a`, "released", "exit code=127")
	})
	t.Run("lost", func(t *testing.T) {
		p := newProxy(t, c.clients()[0])
		r, w := pipe(t)
		up := filepath.Join(t.TempDir(), "up")
		ctx, ended := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			// The network is cut as soon as the command runs.
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				if _, err := os.Stat(up); err == nil {
					p.cut()
					return
				}
				<-tick.C
			}
		})
		code, lines, errs := lockStatus(t, c, w, r, "LOCKCTL_ENDPOINTS="+p.address(), "--lease", "2s", "--lock-delay", "4s", "--stop", "500ms",
			"/lost", "--", "sh", "-c", ": > "+up+"; exec sleep 600")
		ended()
		wg.Wait()
		if code != 111 {
			t.Errorf("exit %d: %s", code, errs)
		}
		told(t, lines, `granted fence=\d+ path=/lost`, `started pid=\d+`, "jeopardy", `lost reason=".*"`, "ended code=143", `(unreleased reason=".*")?`, "exit code=111")
	})
	t.Run("a reader that has gone", func(t *testing.T) {
		r, w := pipe(t)
		_ = r.Close()
		if code, _, errs := lockStatus(t, c, w, nil, "", append(long, "/a", "--", "sh", "-c", "exit 5")...); code != 5 {
			t.Errorf("exit %d: %s", code, errs)
		}
	})
	t.Run("a reader that does not read", func(t *testing.T) {
		_, w := pipe(t)
		fill(t, w)
		if code, _, errs := lockStatus(t, c, w, nil, "", append(long, "/a", "--", "sh", "-c", "exit 5")...); code != 5 {
			t.Errorf("exit %d: %s", code, errs)
		}
	})
	t.Run("no such descriptor", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		readOnly, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		// Nobody serves there: the mistake is told before anybody is asked.
		code, _, errs := lockStatus(t, c, readOnly, nil, "LOCKCTL_ENDPOINTS=127.0.0.1:1", "/a", "--", "true")
		if code != 113 || !strings.Contains(errs, "not open for writing") {
			t.Errorf("exit %d: %s", code, errs)
		}
		for n, want := range map[string]string{"9": "no such descriptor is open", "0": "give the number", "-1": "give the number", "x": "\"x\"", "4": "no such descriptor is open"} {
			code, _, errs := c.ctl("", "lock", "--endpoints", "127.0.0.1:1", "--status-fd", n, "/a", "--", "true")
			if code != 113 || !strings.Contains(errs, want) || !strings.Contains(errs, "usage: lockctl lock") {
				t.Errorf("--status-fd %s: exit %d: %s", n, code, errs)
			}
		}
	})
}

// fill fills a pipe.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	c, err := w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	if err := c.Write(func(fd uintptr) bool {
		for {
			if _, err := unix.Write(int(fd), buf); err != nil {
				return true
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLockEdges: the stopping times that the lock's contract allows, and those
// that it does not.
func TestLockEdges(t *testing.T) {
	c := startCell(t, 1)
	for _, row := range []struct {
		flags string
		code  int
		text  string
	}{
		// D + 2L/3 = 32 s, of which 2.25 s are for KILL, 1.125 s for clocks, 1.5 s
		// for late renewals.
		{flags: "--lease 12s --lock-delay 24s --stop 27124ms"},
		{flags: "--lease 12s --lock-delay 24s --stop 27125ms", code: 113, text: "must be less than 27.125s"},
		{flags: "--lease 3s --lock-delay 0 --stop 2s", code: 113, text: "must be less than 1.156s"},
		{flags: "--lease 3s --lock-delay 0 --stop 9223372036s", code: 113, text: "must be less than"},
		{flags: "--lease 1s --lock-delay 0"},
		{flags: "--lease 10m --lock-delay 60s --stop 60s"},
		{flags: "--lease 1s --lock-delay 0 --stop -1s", code: 113, text: "must be positive"},
		{flags: "--lock-delay -1s", code: 113, text: "between 0 and 60s"},
	} {
		args := slices.Concat([]string{"lock"}, strings.Fields(row.flags), []string{"/edge", "--", "true"})
		code, _, errs := c.ctl("", args...)
		if code != row.code || !strings.Contains(errs, row.text) {
			t.Errorf("%s: exit %d, %s", row.flags, code, errs)
		}
	}
	// What CMD leaves behind goes on; lockctl and its watchdog do not wait for it.
	file := filepath.Join(t.TempDir(), "pid")
	if code, _, errs := c.ctl("", "lock", "/edge", "--", "sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $! > "+file); code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Errorf("what the command left running is gone: %v", err)
	}
}
