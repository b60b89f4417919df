package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// wrapperTries is how often each kind of failure is tried, at the same time on as
// many locks. LOCKD_WRAPPER_TRIES=50 has more of them.
func wrapperTries(t *testing.T) int {
	text := os.Getenv("LOCKD_WRAPPER_TRIES")
	if text == "" {
		return 10
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("LOCKD_WRAPPER_TRIES=%q is no number of tries", text)
	}
	return n
}

// holderScript is the command under the lock: a shell that ends with TERM and,
// in its process group, a child that does not. Both write into the same log as
// the next holder, so that a late write would be seen.
const holderScript = `(trap '' TERM; while :; do echo old; sleep 0.2; done) >>"$LOG" &
echo $$ $!
wait`

// nextScript is the next holder's command. Its first act is to look whether
// anything of the former holder's group lives. The kernel counts zombies in,
// such as the child of a frozen parent: they do nothing any more.
const nextScript = `alive=no
if kill -s 0 -- -$GROUP 2>/dev/null; then
	for s in /proc/[0-9]*/stat; do
		{ read -r line <"$s"; } 2>/dev/null || continue
		set -- ${line##*)}
		[ "$3" = "$GROUP" ] && [ "$1" != Z ] && [ "$1" != X ] && alive="yes, $line"
	done
fi
echo next >>"$LOG"
echo "$(date +%s%N) $alive"`

// TestWrapper: a lockctl that is killed with -9, frozen, or cut off from the
// service. Each time its command, with all of its process group, is gone before
// the next holder's command starts.
func TestWrapper(t *testing.T) {
	c := startCell(t, 1)
	viewer := c.dial()
	for _, kind := range []wrapperKind{
		{name: "killed", fault: func(w *wrapperTry) { w.signal(syscall.SIGKILL) }, code: -1},
		{name: "frozen", fault: func(w *wrapperTry) { w.signal(syscall.SIGSTOP) }, thaw: true, code: 111},
		{name: "cut off", proxied: true, code: 111},
		{name: "frozen without lock-delay", fault: func(w *wrapperTry) { w.signal(syscall.SIGSTOP) }, thaw: true, code: 111,
			flags: []string{"--lock-delay", "0"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			c.t = t
			began := time.Now()
			stalls := watchStalls(t)
			margins := c.wrapperRound(t, viewer, kind, wrapperTries(t), stalls)
			slices.Sort(margins)
			t.Logf("%d tries in %v: the command was gone %v before the next started (least; median %v); stalls of this machine: %v",
				len(margins), time.Since(began).Round(time.Millisecond), margins[0].Round(time.Millisecond),
				margins[len(margins)/2].Round(time.Millisecond), stalls.longest())
		})
	}
	c.t = t
}

type wrapperKind struct {
	name    string
	flags   []string
	proxied bool              // through a proxy that is cut
	fault   func(*wrapperTry) // nil: the proxy is cut
	thaw    bool
	code    int // exit code of the wrapper; -1: killed
}

// wrapperTry is one holder with one waiter behind it.
type wrapperTry struct {
	c            *cell
	path, log    string
	holder, next *exec.Cmd
	holderErr    bytes.Buffer
	nextOut      bytes.Buffer
	nextErr      bytes.Buffer
	group, child int
	watchdog     int
	failed       error
	died         time.Time // of the command's last process
	margin       time.Duration
}

func (w *wrapperTry) signal(sig syscall.Signal) {
	if err := w.holder.Process.Signal(sig); err != nil {
		w.failed = errors.Join(w.failed, err)
	}
}

// wrapperRound makes n tries at once. Those in which the machine itself stood
// still at the wrong moment, so that no process could have kept its time, are
// made again.
func (c *cell) wrapperRound(t *testing.T, viewer *client.Session, kind wrapperKind, n int, stalls *stallWatch) (margins []time.Duration) {
	for round := 0; n > 0; round++ {
		var p *proxy
		if kind.proxied {
			p = newProxy(t, c.clients()[0])
		}
		tries := make([]*wrapperTry, n)
		begun := time.Now()
		var wg sync.WaitGroup
		starting := make(chan struct{}, 4) // a crowd that starts at once only starts later
		for i := range tries {
			w := &wrapperTry{c: c, path: fmt.Sprintf("/%s/%d-%d", strings.ReplaceAll(kind.name, " ", "-"), round, i),
				log: filepath.Join(t.TempDir(), "log")}
			tries[i] = w
			wg.Go(func() {
				starting <- struct{}{}
				defer func() { <-starting }()
				w.failed = w.start(t, viewer, kind, p)
			})
		}
		wg.Wait()
		struck := time.Now()
		if p != nil {
			p.cut()
		}
		for _, w := range tries {
			if w.failed == nil && kind.fault != nil {
				kind.fault(w)
			}
		}
		for _, w := range tries {
			wg.Go(func() {
				if w.failed == nil {
					w.failed = w.finish(t, kind, struck)
				}
			})
		}
		wg.Wait()
		again := 0
		for _, w := range tries {
			switch {
			case w.failed == nil:
				margins = append(margins, w.margin)
			case stalls.since(begun) > stallMax && round < 3:
				t.Logf("%s is tried again, this machine stood still for %v: %v", w.path, stalls.since(begun), w.failed)
				again++
			default:
				t.Errorf("%s: %v\nlockctl said: %s\nthe next one said: %s", w.path, w.failed, &w.holderErr, &w.nextErr)
			}
		}
		n = again
	}
	if len(margins) == 0 {
		t.Fatal("no try succeeded")
	}
	return margins
}

// start has the lock held and waited for.
func (w *wrapperTry) start(t *testing.T, viewer *client.Session, kind wrapperKind, p *proxy) error {
	flags := append([]string{"lock", "--lease", "3s", "--lock-delay", "2s", "--stop", "500ms"}, kind.flags...)
	w.holder = w.c.ctlCommand(append(flags, w.path, "--", "sh", "-c", holderScript)...)
	w.holder.Env = append(w.holder.Env, "LOG="+w.log)
	if p != nil {
		w.holder.Env = append(w.holder.Env, "LOCKCTL_ENDPOINTS="+p.address())
	}
	// Files, not pipes: who outlives the wrapper must not hold up its Wait.
	errs, err := os.Create(w.log + ".err")
	if err != nil {
		return err
	}
	defer errs.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	defer in.Close()
	w.holder.Stdout, w.holder.Stderr = in, errs
	if err := w.holder.Start(); err != nil {
		return err
	}
	_ = in.Close()
	t.Cleanup(w.clean)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the command does not start: %w", err)
	}
	if _, err := fmt.Sscan(line, &w.group, &w.child); err != nil {
		return fmt.Errorf("the command says %q: %w", line, err)
	}
	if w.watchdog = watchdogOf(w.holder.Process.Pid); w.watchdog == 0 {
		return errors.New("there is no watchdog")
	}
	w.next = w.c.ctlCommand("lock", "--lease", "20s", w.path, "--", "sh", "-c", nextScript)
	w.next.Env = append(w.next.Env, "LOG="+w.log, "GROUP="+strconv.Itoa(w.group))
	w.next.Stdout, w.next.Stderr = &w.nextOut, &w.nextErr
	if err := w.next.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		l, err := viewer.Why(ctx, w.path)
		if err != nil {
			return err
		}
		if len(l.Waiters) == 1 {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.New("the next one does not come to wait")
		}
	}
}

// clean ends what a failed try leaves.
func (w *wrapperTry) clean() {
	_ = w.holder.Process.Kill()
	if w.next != nil {
		_ = w.next.Process.Kill()
	}
	if w.group > 1 && processAlive(w.child) {
		_ = syscall.Kill(-w.group, syscall.SIGKILL)
	}
}

// finish waits for the next holder and looks at what it saw.
func (w *wrapperTry) finish(t *testing.T, kind wrapperKind, struck time.Time) error {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for processAlive(w.child) {
			time.Sleep(5 * time.Millisecond)
		}
		w.died = time.Now()
	}()
	patience := time.AfterFunc(2*time.Minute, func() { _ = w.next.Process.Kill() })
	err := w.next.Wait()
	patience.Stop()
	if err != nil {
		w.clean()
		<-gone
		return fmt.Errorf("the next one: %w", err)
	}
	var stamp int64
	var alive string
	text := strings.TrimSpace(w.nextOut.String())
	if _, err := fmt.Sscan(text, &stamp, &alive); err != nil {
		return fmt.Errorf("the next one says %q: %w", text, err)
	}
	left := processAlive(w.child)
	if kind.thaw {
		w.signal(syscall.SIGCONT)
	}
	code := 0
	if err := w.holder.Wait(); err != nil {
		code = w.holder.ProcessState.ExitCode()
	}
	if b, err := os.ReadFile(w.log + ".err"); err == nil {
		w.holderErr.Write(b)
	}
	if left || alive != "no" {
		w.clean()
		<-gone
		return fmt.Errorf("the command was still there when the next one started: it saw %q", text)
	}
	<-gone
	if time.Unix(0, stamp).Before(struck) {
		return errors.New("the lock was lost before the failure")
	}
	if w.margin = time.Unix(0, stamp).Sub(w.died); w.margin < 0 {
		return fmt.Errorf("the command was gone %v after the next one started", -w.margin)
	}
	if code != kind.code {
		return fmt.Errorf("lockctl exits with %d, want %d", code, kind.code)
	}
	log, err := os.ReadFile(w.log)
	if err != nil {
		return err
	}
	if _, after, ok := strings.Cut(string(log), "next\n"); !ok || after != "" {
		return fmt.Errorf("written behind the next holder's start: %q", after)
	}
	eventually(t, "the watchdog is gone", func() bool { return !processAlive(w.watchdog) })
	return nil
}

// processAlive: it exists and is no zombie.
func processAlive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return len(f) > 0 && f[0][0] != 'Z' && f[0][0] != 'X'
}

// watchdogOf is the watchdog that the lockctl of that pid has started; 0: none.
func watchdogOf(pid int) int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		b, _ := os.ReadFile(task)
		for _, child := range strings.Fields(string(b)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			if n, err := strconv.Atoi(child); err == nil && bytes.Contains(line, []byte("lock-watchdog")) {
				return n
			}
		}
	}
	return 0
}

// stallMax is what the contract's margins bear.
const stallMax = 300 * time.Millisecond

// stallWatch notes when this machine did not let a process run that was due.
type stallWatch struct {
	mu    sync.Mutex
	at    []time.Time
	spans []time.Duration
}

func watchStalls(t *testing.T) *stallWatch {
	s := &stallWatch{}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		const step = 10 * time.Millisecond
		tick := time.NewTicker(step)
		defer tick.Stop()
		last := time.Now()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			now := time.Now()
			if late := now.Sub(last) - step; late > 5*step {
				s.mu.Lock()
				s.at, s.spans = append(s.at, now), append(s.spans, late)
				s.mu.Unlock()
			}
			last = now
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	return s
}

// since is the longest stall since then.
func (s *stallWatch) since(from time.Time) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.at {
		if at.After(from) {
			longest = max(longest, s.spans[i])
		}
	}
	return longest.Round(time.Millisecond)
}

func (s *stallWatch) longest() time.Duration { return s.since(time.Time{}) }

// proxy passes bytes until it is cut: from then on connections stay open and
// nothing comes through, like a network that drops every packet.
type proxy struct {
	l      net.Listener
	to     string
	isCut  atomic.Bool
	mu     sync.Mutex
	closed bool
	conns  []net.Conn
	wg     sync.WaitGroup
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		p.closed = true
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) cut() { p.isCut.Store(true) }

// keep remembers a connection, to close it at the end.
func (p *proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.conns = append(p.conns, c)
	return true
}

func (p *proxy) accept() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		if !p.keep(in) || p.isCut.Load() {
			continue
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		if p.keep(out) {
			p.wg.Go(func() { p.pass(in, out) })
			p.wg.Go(func() { p.pass(out, in) })
		}
	}
}

func (p *proxy) pass(from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if p.isCut.Load() {
			_, _ = io.Copy(io.Discard, from) // nor does the end of one side reach the other
			return
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}
