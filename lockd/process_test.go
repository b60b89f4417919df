package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asLockd makes the test binary be lockd: so the processes of these tests run
// with the race detector too.
const asLockd = "TEST_RUNS_AS_LOCKD"

func TestMain(m *testing.M) {
	if os.Getenv(asLockd) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait.
const patience = 60 * time.Second

// process is a running lockd.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.Closer
	output *watchedOutput
	done   chan struct{}
}

// watchedOutput keeps what a process says and wakes who waits for some of it.
type watchedOutput struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (w *watchedOutput) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	select {
	case w.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (w *watchedOutput) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// launchLockd starts lockd with a clean environment.
func launchLockd(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], args...), output: &watchedOutput{more: make(chan struct{}, 1)}, done: make(chan struct{})}
	// The race detector, if it is in, need not sleep at each end.
	p.cmd.Env = append(childEnvironment(os.Environ()), asLockd+"=1", "GORACE=atexit_sleep_ms=0")
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Dir = t.TempDir()
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the state tells how it ended
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("lockd %s said:\n%s", strings.Join(args, " "), p.output)
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// exit waits for the end and returns the exit code, -1 after a signal.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("lockd does not end; it said:\n%s", p.output)
		return 0
	}
}

// says waits until the output matches, and returns the submatches.
func (p *process) says(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	timeout := time.After(patience)
	for {
		if m := re.FindStringSubmatch(p.output.String()); m != nil {
			return m
		}
		select {
		case <-p.output.more:
		case <-p.done:
			if m := re.FindStringSubmatch(p.output.String()); m != nil {
				return m
			}
			p.t.Fatalf("lockd ended without saying %q; it said:\n%s", pattern, p.output)
		case <-timeout:
			p.t.Fatalf("lockd does not say %q; it said:\n%s", pattern, p.output)
		}
	}
}

// basePort finds a port with everything free that a cell of replicas needs.
func basePort(t *testing.T, replicas int) int {
	t.Helper()
	for range 100 {
		f := localFlags{replicas: replicas, basePort: 20_000 + rand.IntN(10_000)}
		if checkPorts(f.members()) == nil {
			return f.basePort
		}
	}
	t.Fatal("no free ports")
	return 0
}

// alone is the flags of a replica alone on free ports.
func alone(t *testing.T, dir string, more ...string) []string {
	t.Helper()
	f := localFlags{replicas: 1, basePort: basePort(t, 1)}
	m := f.members()[0]
	return append([]string{"--data-dir", dir, "--listen-client", m.client, "--listen-peer", m.peer, "--listen-http", m.http}, more...)
}

func TestVersion(t *testing.T) {
	p := launchLockd(t, nil, "--version")
	if code := p.exit(); code != exitClean || !strings.HasPrefix(p.output.String(), "lockd ") {
		t.Errorf("exit code %d, %q", code, p.output)
	}
}

func TestStopBySignal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	args := alone(t, dir)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGKILL, syscall.SIGTERM} {
		if signal.Ignored(s) {
			continue // these tests run under nohup, and what they start keeps it so
		}
		p := launchLockd(t, nil, args...)
		p.says("became master")
		p.signal(s)
		code := p.exit()
		if s == syscall.SIGKILL {
			continue
		}
		if out := p.output.String(); code != exitClean || !strings.Contains(out, "the replica has stopped") {
			t.Errorf("%v: exit code %d, %s", s, code, out)
		}
	}
}

func TestStopWithStdin(t *testing.T) {
	p := launchLockd(t, nil, alone(t, filepath.Join(t.TempDir(), "data"), "--exit-with-stdin")...)
	p.says("became master")
	if err := p.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.exit(); code != exitClean {
		t.Errorf("exit code %d", code)
	}
}

func TestStartsThatCannotWork(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	args := alone(t, dir, "--cell", "one", "--log-format", "json")
	first := launchLockd(t, nil, args...)
	first.says(`"msg":"became master"`)
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		want string
	}{
		{"taken port", nil, args, exitFailure, "--listen-client .* the port is taken"},
		{"directory in use", nil, alone(t, dir, "--cell", "one"), exitFailure, "is in use by process " + strconv.Itoa(first.cmd.Process.Pid)},
		{"wrong variable", []string{"LOCKD_LISTEN_CLIENT=0.0.0.0:1"}, nil, exitUsage, "--listen-client 0.0.0.0:1 is not on loopback"},
		{"no member", []string{"LOCKD_INITIAL_CLUSTER=n2=127.0.0.1:1"}, nil, exitUsage, "--name n1 is not in --initial-cluster"},
	} {
		t.Run(tc.name, func(t *testing.T) { mustFail(t, launchLockd(t, tc.env, tc.args...), tc.code, tc.want) })
	}
	first.signal(syscall.SIGTERM)
	if code := first.exit(); code != exitClean {
		t.Fatalf("exit code %d", code)
	}
	for name, more := range map[string][]string{"another name": {"--name", "n2", "--cell", "one"}, "another cell": {"--cell", "two"}} {
		t.Run(name, func(t *testing.T) {
			mustFail(t, launchLockd(t, nil, alone(t, dir, more...)...), exitFailure, `replica "n1" of cell "one"`)
		})
	}
	t.Run("the rightful owner", func(t *testing.T) {
		p := launchLockd(t, nil, args...)
		p.says(`"msg":"became master"`)
	})
}

func mustFail(t *testing.T, p *process, code int, want string) {
	t.Helper()
	got := p.exit()
	var plain []string
	for _, line := range strings.Split(strings.TrimSpace(p.output.String()), "\n") {
		if !strings.HasPrefix(line, "time=") && !strings.HasPrefix(line, "{") {
			plain = append(plain, line)
		}
	}
	if out := strings.Join(plain, "\n"); got != code || len(plain) > 2 || !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("exit code %d, want %d; %d lines:\n%s\nwant %q", got, code, len(plain), out, want)
	}
}

func TestProfileIsWritten(t *testing.T) {
	p := launchLockd(t, nil, alone(t, filepath.Join(t.TempDir(), "data"), "--profile", "mem")...)
	p.says("became master")
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != exitClean {
		t.Fatalf("exit code %d", code)
	}
	if i, err := os.Stat(filepath.Join(p.cmd.Dir, "mem.pprof")); err != nil || i.Size() == 0 {
		t.Errorf("mem.pprof: %v, %v", i, err)
	}
}

// localCell is a running `lockd local` with what it printed.
type localCell struct {
	*process
	base    int
	dir     string // its temporary directory lies in this one
	pids    map[string]int
	clients map[string]string
	master  string
}

func startLocal(t *testing.T, more ...string) *localCell {
	t.Helper()
	c := &localCell{base: basePort(t, 3), dir: t.TempDir(), pids: map[string]int{}, clients: map[string]string{}}
	args := append([]string{"local", "--replicas", "3", "--base-port", strconv.Itoa(c.base)}, more...)
	c.process = launchLockd(t, []string{"TMPDIR=" + c.dir}, args...)
	c.says("Ctrl-C stops the cell")
	re := regexp.MustCompile(`(?m)^  (n\d)  pid (\d+) +clients (\S+)  peers \S+  http \S+(.*)$`)
	for _, m := range re.FindAllStringSubmatch(c.output.String(), -1) {
		pid, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		c.pids[m[1]], c.clients[m[1]] = pid, m[3]
		if strings.Contains(m[4], "master") {
			c.master = m[1]
		}
	}
	if len(c.pids) != 3 || c.master == "" {
		t.Fatalf("it printed:\n%s", c.output)
	}
	return c
}

// gone waits until no replica of the cell listens any more.
func (c *localCell) gone() {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for name, address := range c.clients {
		for {
			nc, err := net.Dial("tcp", address)
			if err != nil {
				break
			}
			_ = nc.Close()
			if time.Now().After(deadline) {
				c.t.Fatalf("%s (pid %d) lives on", name, c.pids[name])
			}
			time.Sleep(10 * time.Millisecond) // between two looks
		}
	}
}

// TestLocalCellOfOne: nobody is told to kill the only replica.
func TestLocalCellOfOne(t *testing.T) {
	p := launchLockd(t, []string{"TMPDIR=" + t.TempDir()}, "local", "--replicas", "1", "--base-port", strconv.Itoa(basePort(t, 1)))
	p.says("(?s)A cell of 1 replica serves.*why /job\n\nCtrl-C stops the cell")
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestLocalCell(t *testing.T) {
	c := startLocal(t)
	defer http.DefaultClient.CloseIdleConnections()
	endpoints := fmt.Sprintf("--endpoints 127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d ", c.base, c.base+1, c.base+2)
	for _, want := range []string{
		"bin/lockctl " + endpoints + "lock /job -- sleep 60\n", "bin/lockctl " + endpoints + "why /job\n",
		fmt.Sprintf("  kill -9 %d\n", c.pids[c.master]),
	} {
		if !strings.Contains(c.output.String(), want) {
			t.Errorf("it does not print %q", want)
		}
	}
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/healthz", c.base+httpPorts))
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("healthz: %v, %v", resp, err)
	}
	_ = resp.Body.Close()
	// The master is killed: it says so, another one takes over, nothing is
	// started again.
	if err := syscall.Kill(c.pids[c.master], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.says(fmt.Sprintf(`%s \(pid %d\) has ended: signal: killed \(--restart would start it again\)`, c.master, c.pids[c.master]))
	m := c.says(`(n\d) \(pid (\d+)\) is master`)
	if m[1] == c.master || m[2] != strconv.Itoa(c.pids[m[1]]) {
		t.Errorf("%s is said to be master with pid %s", m[1], m[2])
	}
	if strings.Contains(c.output.String(), "started again") {
		t.Error("a replica was started again unasked")
	}
	c.signal(syscall.SIGINT)
	if code := c.exit(); code != exitClean {
		t.Errorf("exit code %d", code)
	}
	c.gone()
	if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestLocalCellRestartsWhenAsked(t *testing.T) {
	data := filepath.Join(t.TempDir(), "cell")
	c := startLocal(t, "--restart", "--data-dir", data)
	if err := syscall.Kill(c.pids[c.master], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.says(c.master + ` is started again, pid \d+`)
	c.signal(syscall.SIGTERM)
	if code := c.exit(); code != exitClean {
		t.Errorf("exit code %d", code)
	}
	c.gone()
	for _, name := range []string{"n1", "n2", "n3", "n1.log"} {
		if _, err := os.Stat(filepath.Join(data, name)); err != nil {
			t.Errorf("the data was to be kept: %v", err)
		}
	}
	// It is a cell of three for good.
	p := launchLockd(t, nil, "local", "--data-dir", data, "--replicas", "5", "--base-port", strconv.Itoa(basePort(t, 5)))
	mustFail(t, p, exitUsage, "holds the data of n1, n2, n3, .*give --replicas 3")
}

// The replicas end with `lockd local` however it ends.
func TestLocalCellEndsWithItsParent(t *testing.T) {
	c := startLocal(t)
	c.signal(syscall.SIGKILL)
	c.exit()
	c.gone()
}

func TestLocalCellNeedsItsPorts(t *testing.T) {
	base := basePort(t, 3)
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(base+peerPorts+1)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := launchLockd(t, nil, "local", "--base-port", strconv.Itoa(base))
	mustFail(t, p, exitFailure, l.Addr().String()+` \(for the peers of n2\) cannot be had: .*--base-port`)
}

// A service that does not speak the protocol is no master, and is not waited
// for.
func TestProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = bufio.NewReader(nc).ReadByte()
				_, _ = io.WriteString(nc, "HTTP/1.1 400 Bad Request\r\n\r\n")
				_ = nc.Close()
			}
		}
	}()
	if servesAsMaster(context.Background(), l.Addr().String()) {
		t.Error("an HTTP server is master")
	}
	_ = l.Close()
	<-done
	if servesAsMaster(context.Background(), l.Addr().String()) {
		t.Error("nobody is master")
	}
}
