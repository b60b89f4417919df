package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// ctl runs lockctl against the cell and returns its exit code and output.
func (c *cell) ctl(stdin string, args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	cmd := c.ctlCommand(args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	return exitCode(c.t, cmd.Run()), out.String(), errs.String()
}

func (c *cell) ctlCommand(args ...string) *exec.Cmd {
	cmd := exec.Command(program("lockctl"), args...)
	cmd.Env = append(os.Environ(), "LOCKCTL_ENDPOINTS="+strings.Join(c.clients(), ","))
	return cmd
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// TestLockctl walks through the commands: what they print, what they complain
// about and how they exit. The rows build on one another.
func TestLockctl(t *testing.T) {
	c := startCell(t, 1)
	big := strings.Repeat("x", client.DataMax+1)
	full := strings.Repeat("y", client.DataMax)
	dir := t.TempDir()
	file := filepath.Join(dir, "content")
	if err := os.WriteFile(file, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("\x00", " ", "{lockctl}", program("lockctl"), "{endpoints}", strings.Join(c.clients(), ","))
	for _, row := range []struct {
		stdin  string
		args   string // split at blanks; "_" in it stands for nothing
		code   int
		stdout string // contained; "=" in front: the whole of it
		stderr string // contained
	}{
		// files
		{args: "create /a hello", stdout: "=/a\n"},
		{args: "create /a again", code: 4, stderr: "create /a: node exists already"},
		{args: "get /a", stdout: "=hello"},
		{args: "put /a world", stdout: "generation 2, revision "},
		{args: "put /a swapped --if-generation 2", stdout: "generation 3, revision "},
		{args: "put /a late --if-generation 2", code: 4, stderr: "condition does not hold"},
		{args: "put /a x --if-generation two", code: 2, stderr: "is not a number"},
		{args: "put /new x --if-generation 0", code: 2, stderr: "--if-generation 0 is no condition"},
		{args: "put /new x --if-absent", stdout: "generation 1, revision "},
		{args: "put /new x --if-absent", code: 4, stderr: "condition does not hold"},
		{args: "put /new x --if-revision 7", code: 4, stderr: "condition does not hold"},
		{args: "put /new x --while-held", code: 2, stderr: "LOCKD_HOLD is not set"},
		{args: "put /new x --while-held=junk", code: 2, stderr: "--while-held"},
		{args: "create /held-only --while-held=lockd-hold1:1:1:0:/l", code: 4, stderr: "condition does not hold"},
		{args: "rm -r /new --while-held=lockd-hold1:1:1:0:/l", code: 4, stderr: "condition does not hold"},
		{stdin: "from stdin", args: "put /b", stdout: "generation 1, revision "},
		{args: "get /b", stdout: "=from stdin"},
		{args: "put /b --file " + file, stdout: "generation 2, revision "},
		{args: "get /b", stdout: "=from a file"},
		{args: "put /b --file " + file + "-not-there", code: 1, stderr: "no such file"},
		{args: "put /b x --file " + file, code: 2, stderr: "not both"},
		{stdin: full, args: "put /full -", stdout: "generation 1, revision "},
		{args: "get /full", stdout: "=" + full},
		{stdin: big, args: "put /big", code: 2, stderr: "over 1048576 bytes (1 MiB)"},
		{args: "get /big", code: 3, stderr: "no such node"},
		{args: "create /q", stdout: "=/q\n"},
		{args: "create /q/ --sequential", stdout: "=/q/0000000000\n"},
		{args: "create /q/item- --sequential", stdout: "=/q/item-0000000001\n"},
		{args: "create /x/y/z -p", stdout: "=/x/y/z\n"},
		{args: "create /no/parent", code: 3, stderr: "no such node"},
		{args: "create /e --ephemeral --container", code: 2, stderr: "not both"},
		{args: "ls /q", stdout: "=0000000000\nitem-0000000001\n"},
		{args: "ls -l /q", stdout: "item-0000000001  permanent"},
		{args: "ls /not-there", code: 3, stderr: "no such node"},
		{args: "stat /a", stdout: "content generation  3"},
		{args: "-o json stat /a", stdout: `"content_generation": "3"`},
		{args: "-o yaml stat /a", code: 2, stderr: `unknown output "yaml"`},
		{args: "rm /q", code: 4, stderr: "rm -r deletes what is below it too"},
		{args: "rm -r /q"},
		{args: "rm /q", code: 3, stderr: "no such node"},
		{args: "create /dir", stdout: "=/dir\n"},
		{args: "create /dir/leaf", stdout: "=/dir/leaf\n"},
		{args: "ls /dir -o json", stdout: `"path": "/dir/leaf"`},
		{args: "ls -o json", stdout: `"path": "/dir"`},
		{args: "tree /dir", stdout: "=/dir\n└── leaf\n\n2 nodes, 0 locks held or waited for\n"},
		{args: "tree --depth 0 /dir", stdout: "=/dir  1 child\n\n1 node, 0 locks held or waited for\n"},
		{args: "tree /x", stdout: "=/x  container\n└── y  container\n    └── z\n\n3 nodes, 0 locks held or waited for\n"},
		{args: "tree", stdout: "├── a  7 bytes\n├── b  11 bytes\n├── dir\n│   └── leaf\n├── full  1048576 bytes\n"},
		{args: "tree /dir -o json", stdout: `"depth": 1`},
		{args: "tree /not-there", code: 3, stderr: "no such node"},
		{args: "tree --depth -1", code: 2, stderr: "--depth -1: must not be negative"},
		{args: "tree --endpoints 127.0.0.1:1 --timeout 300ms", code: 6, stderr: "connection refused"},
		// paths
		{args: "get a", code: 2, stderr: "malformed path"},
		{args: "get /a/../b", code: 2, stderr: "malformed path"},
		{args: "get /a//b", code: 2, stderr: "malformed path"},
		{args: "get /a/", code: 2, stderr: "malformed path"},
		{args: "put /a/./b x", code: 2, stderr: "malformed path"},
		{args: "rm /", code: 2, stderr: "/"},
		// the command line
		{args: "get", code: 2, stderr: "missing argument PATH\nusage: lockctl get PATH"},
		{args: "get /a /b", code: 2, stderr: "usage: lockctl get PATH"},
		{args: "put /a b c", code: 2, stderr: `unexpected argument "c"`},
		{args: "frobnicate", code: 2, stderr: `unknown command "frobnicate"`},
		{args: "session", code: 2, stderr: `unknown command "session": is it sessions?`},
		{args: "sequencer frob", code: 2, stderr: "unknown command"},
		{args: "get /a --timeout 0s", code: 2, stderr: "--timeout 0s: must be positive"},
		{args: "status --endpoints 127.0.0.1", code: 2, stderr: `endpoint "127.0.0.1" is not HOST:PORT`},
		{args: "status --cell other", code: 6, stdout: "other cell", stderr: `it belongs to cell "e2e", not "other"`},
		{args: "status --cell e2e", stdout: "master"},
		{args: "get --colour /a", code: 2, stderr: "unknown flag: --colour"},
		{args: "get /a --timeout soon", code: 2, stderr: "must be a time"},
		{args: "bench", code: 2, stderr: "usage: lockctl bench"},
		{args: "bench fly", code: 2, stderr: `"fly" is none of write, read, lock`},
		{args: "bench write --clients 0", code: 2, stderr: "--clients 0"},
		{args: "bench sessions --sessions 0", code: 2, stderr: "--sessions 0"},
		{args: "get /a --cell other", code: 6, stderr: "other"},
		{args: "get /a --endpoints 127.0.0.1:1 --timeout 300ms", code: 6, stderr: "connection refused"},
		{args: "get /a --endpoints _", code: 2, stderr: "no endpoints"},
		{args: "status --endpoints 127.0.0.1:1", code: 6, stderr: "connection refused"},
		{args: "status", stdout: "CELL"},
		{args: "status", stdout: "  e2e   n1       master"},
		{args: "-o json status", stdout: `"role": "master"`},
		{args: "--version", stdout: "lockctl "},
		// locks
		{args: "why /a", stdout: "=/a is free\nno waiters\n"},
		{args: "why /free", stdout: "=/free does not exist, so its lock is free ('lockctl lock /free' would create it)\nno waiters\n"},
		{args: "-o json why /free", stdout: `"exists": false`},
		{args: "-o json why /a", stdout: `"exists": true`},
		{args: "locks /free", stdout: "LOCK", stderr: "/free does not exist"},
		{args: "locks", stdout: "LOCK"},
		{args: "lock /l -- sh -c exit\x007", code: 7},
		{args: "lock /l true"},
		{args: "lock /l -- sh -c kill\x00-TERM\x00$$", code: 128 + 15},
		{args: "lock /l -- not-a-command", code: 127, stderr: "not-a-command"},
		{args: "lock /l -- " + file, code: 126, stderr: "permission denied"},
		{args: "lock /l -- sh -c echo\x00$LOCKD_FENCE:$LOCKD_SEQUENCER", stdout: ":lockd1:X:"},
		{args: "lock /l -- {lockctl} --endpoints {endpoints} put /guarded yes --while-held", stdout: "generation 1, revision "},
		{args: "lock /l -- sh -c LOCKD_HOLD=lockd-hold1:1:1:0:/l\x00exec\x00{lockctl}\x00--endpoints\x00{endpoints}\x00put\x00/guarded\x00no\x00--while-held", code: 4, stderr: "condition does not hold"},
		{args: "get /guarded", stdout: "=yes"},
		{args: "ls /l", code: 3}, // the container has gone with its last use
		{args: "lock", code: 113, stderr: "missing PATH of the lock"},
		{args: "lock /l", code: 113, stderr: "missing CMD"},
		{args: "lock /l --", code: 113, stderr: "missing CMD"},
		{args: "lock --frob /l -- true", code: 113, stderr: "unknown flag"},
		{args: "lock /l --try -- true", code: 113, stderr: "--try must come before PATH"},
		{args: "lock --timeout 0s /l -- true", code: 113, stderr: "--timeout 0s"},
		{args: "lock --try --wait 1s /l -- true", code: 113, stderr: "not both"},
		{args: "lock --lease 10ms /l -- true", code: 113, stderr: "--lease"},
		{args: "lock --lock-delay 61s /l -- true", code: 113, stderr: "between 0 and 60s"},
		{args: "lock --lease 2s --lock-delay 0 --stop 5s /l -- true", code: 113, stderr: "--stop"},
		{args: "lock /a/../l -- true", code: 113, stderr: "malformed path"},
		{args: "lock --endpoints 127.0.0.1:1 --timeout 300ms /l -- true", code: 112, stderr: "connection refused"},
		{args: "break /l", code: 2, stderr: "--fence N is needed"},
		{args: "break /l --fence 12", code: 4},
		{args: "sequencer check nonsense", code: 2, stderr: "sequencer"},
		{args: "sessions", stdout: "SESSION"},
		{args: "bench write read lock --clients 4 --duration 100ms", stdout: "lock      4"},
		{args: "bench handoff --clients 4 --duration 100ms", stdout: "handoff   4"},
		{args: "bench sessions --sessions 40 --duration 100ms", stdout: "KEEPALIVES/S"},
		{args: "ls /lockctl-bench", code: 3}, // cleaned up
		{args: "bench write --clients 2 --duration 100ms --path /dir", stdout: "write     2"},
		{args: "tree /dir", stdout: "=/dir\n└── leaf\n\n2 nodes, 0 locks held or waited for\n"}, // as it was
		{args: "bench write --clients 2 --duration 100ms --path /", stdout: "write     2"},
		{args: "stat /", stdout: "content generation  1\n"},
		// completion
		{args: "__complete get /di", stdout: "=/dir\n/dir/\n:4\n"},
		{args: "__complete get -o _", stdout: "=table\njson\n:4\n"},
	} {
		var args []string
		for _, a := range strings.Fields(row.args) {
			if a == "_" {
				a = ""
			}
			args = append(args, fill.Replace(a))
		}
		code, stdout, stderr := c.ctl(row.stdin, args...)
		whole, exact := strings.CutPrefix(row.stdout, "=")
		if code != row.code || (exact && stdout != whole) || !strings.Contains(stdout, strings.TrimPrefix(row.stdout, "=")) ||
			!strings.Contains(stderr, row.stderr) {
			t.Errorf("lockctl %q: exit %d, want %d\nstdout %.200q, want %.200q\nstderr %.300q, want %.200q",
				row.args, code, row.code, stdout, row.stdout, stderr, row.stderr)
		}
		if strings.Contains(stderr, "goroutine ") {
			t.Errorf("lockctl %q panicked:\n%s", row.args, stderr)
		}
	}
}

// TestConditionFlags tries every pair of conditions on every command that takes
// them. /n exists and is held; all conditions but --if-absent are true of it, so
// a pair is done unless it contradicts itself.
func TestConditionFlags(t *testing.T) {
	c := startCell(t, 1)
	ctx := t.Context()
	s, err := client.Dial(ctx, c.clients())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Lock(ctx, "/n")
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{"if-revision", "if-instance", "if-generation", "held-fence", "while-held", "if-absent"}
	for i, a := range flags {
		for _, b := range flags[i:] {
			var st client.Stat
			write := func() {
				if st, err = s.Put(ctx, "/n", []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
			write()
			flag := func(name string) string {
				return map[string]string{
					"if-revision":   fmt.Sprintf("--if-revision=%d", st.ModifyRevision),
					"if-instance":   fmt.Sprintf("--if-instance=%d", st.Instance),
					"if-generation": fmt.Sprintf("--if-generation=%d", st.ContentGeneration),
					"held-fence":    fmt.Sprintf("--held-fence=%d", l.Fence()),
					"while-held":    "--while-held=" + l.Hold().String(),
					"if-absent":     "--if-absent",
				}[name]
			}
			exit := 0
			switch {
			case a == b:
				exit = 2 // given twice
			case b == "if-absent":
				exit = 2 // absent, and something of a node that exists
			}
			if code, _, stderr := c.ctl("", "put", "/n", "y", flag(a), flag(b)); code != exit {
				t.Errorf("put %s %s: exit %d, want %d: %s", flag(a), flag(b), code, exit, stderr)
			}
			if b == "if-absent" {
				continue // rm has none
			}
			// All conditions hold, so it is the lock that is told to be in the way.
			write()
			want, text := 4, "lock is held"
			if a == b {
				want, text = 2, "is given twice"
			}
			if code, _, stderr := c.ctl("", "rm", "/n", flag(a), flag(b)); code != want || !strings.Contains(stderr, text) {
				t.Errorf("rm %s %s: exit %d: %s", flag(a), flag(b), code, stderr)
			}
		}
	}
	// Created while the lock is held, and not once it is released.
	hold := "--while-held=" + l.Hold().String()
	if code, _, stderr := c.ctl("", "create", "/made", hold); code != 0 {
		t.Errorf("create: exit %d: %s", code, stderr)
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"create", "/late", hold}, {"put", "/made", "late", hold}, {"rm", "/made", hold}, {"rm", "-r", "/made", hold}} {
		if code, _, stderr := c.ctl("", args...); code != 4 || !strings.Contains(stderr, "condition does not hold") {
			t.Errorf("%q after the release: exit %d: %s", args, code, stderr)
		}
	}
}

// TestNoMajorityHint: who asks a replica that is cut off is told to look for
// the others, and not to start a cell.
func TestNoMajorityHint(t *testing.T) {
	c := startCell(t, 3)
	c.kill(c.replicas[1])
	c.kill(c.replicas[2])
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		code, _, stderr := c.ctl("", "get", "/", "--timeout", "1s")
		if code == 6 && strings.Contains(stderr, "a majority of its replicas must be running") && !strings.Contains(stderr, "lockd local") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("exit %d: %s", code, stderr)
		}
	}
}

// TestWatchEndsUnread: a watch in a pipe ends when its reader has gone, without
// waiting for another change.
func TestWatchEndsUnread(t *testing.T) {
	c := startCell(t, 1)
	cmd := c.ctlCommand("watch", "/quiet")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ready") {
		t.Errorf("watch prints %q, %v", line, err)
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("watch ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("watch goes on without a reader")
		_ = cmd.Process.Kill()
		<-ended
	}
}

// holding starts lockctl lock and waits until its command runs.
func (c *cell) holding(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := c.ctlCommand(append([]string{"lock"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill() // it may have ended
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the guarded command did not start: %v", err)
	}
	return cmd
}

// why is the lock as `lockctl -o json why` shows it.
func (c *cell) why(path string) (l struct {
	Holders []struct {
		Client, Fence string
		PID           int
		Lost          bool
	}
	Waiters []struct {
		Client string
		Place  int
	}
}) {
	c.t.Helper()
	code, out, errs := c.ctl("", "-o", "json", "why", path)
	if code != 0 {
		c.t.Fatalf("why %s: exit %d: %s", path, code, errs)
	}
	if err := json.Unmarshal([]byte(out), &l); err != nil {
		c.t.Fatalf("why %s: %v in %s", path, err, out)
	}
	return l
}

// TestLockWrapper tells the life of a lock held by commands: refused, waited
// for, passed on with its signal, broken by an operator, lost with its holder.
func TestLockWrapper(t *testing.T) {
	c := startCell(t, 1)
	run := []string{"--lease", "2s", "--lock-delay", "500ms"}
	sleeper := append(run, "/job", "--", "sh", "-c", "echo started; exec sleep 600")

	holder := c.holding(t, append([]string{"--name", "first"}, sleeper...)...)
	if code, _, errs := c.ctl("", "lock", "--try", "/job", "--", "true"); code != 110 || !strings.Contains(errs, "held by first on") {
		t.Errorf("--try of a held lock: exit %d, %s", code, errs)
	}
	if code, _, errs := c.ctl("", "lock", "--wait", "100ms", "/job", "--", "true"); code != 110 ||
		!strings.Contains(errs, "position 1 in the queue") || !strings.Contains(errs, "not granted within") {
		t.Errorf("--wait on a held lock: exit %d, %s", code, errs)
	}
	l := c.why("/job")
	if len(l.Holders) != 1 || l.Holders[0].Client != "first" || l.Holders[0].PID != holder.Process.Pid || len(l.Waiters) != 0 {
		t.Errorf("why shows %+v", l)
	}
	if code, _, errs := c.ctl("", "rm", "/job"); code != 4 || !strings.Contains(errs, "lockctl why /job") {
		t.Errorf("rm of a held lock: exit %d, %s", code, errs)
	}

	// A waiter that is interrupted leaves the queue.
	waiter := c.ctlCommand(append([]string{"lock"}, sleeper...)...)
	if err := waiter.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it waits", func() bool { return len(c.why("/job").Waiters) == 1 })
	if err := waiter.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, waiter.Wait()); code != 128+2 {
		t.Errorf("a waiter that gets INT exits with %d", code)
	}
	eventually(t, "nobody waits", func() bool { return len(c.why("/job").Waiters) == 0 })

	// Signals go to the command; its end releases the lock.
	if err := holder.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, holder.Wait()); code != 128+15 {
		t.Errorf("a holder that gets TERM exits with %d", code)
	}
	if l := c.why("/job"); len(l.Holders) != 0 {
		t.Errorf("after the release: %+v", l)
	}

	// Broken by an operator: the command is stopped, the exit code says so.
	holder = c.holding(t, sleeper...)
	fence := c.why("/job").Holders[0].Fence
	if code, _, errs := c.ctl("", "break", "/job", "--fence", fence); code != 0 {
		t.Errorf("break: exit %d, %s", code, errs)
	}
	if code := exitCode(t, holder.Wait()); code != 111 {
		t.Errorf("a holder whose lock is broken exits with %d", code)
	}

	// A holder that dies: the next one waits for lease and lock-delay, and gets
	// a higher fence.
	holder = c.holding(t, sleeper...)
	old, err := strconv.ParseUint(c.why("/job").Holders[0].Fence, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	code, out, errs := c.ctl("", "lock", "/job", "--", "sh", "-c", "echo $LOCKD_FENCE")
	if code != 0 {
		t.Fatalf("after the holder's death: exit %d, %s", code, errs)
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Errorf("granted %v after the death of a holder with a lock-delay of 500 ms", took)
	}
	if now, err := strconv.ParseUint(strings.TrimSpace(out), 10, 64); err != nil || now <= old {
		t.Errorf("fence %q is not higher than %d", out, old)
	}
}
