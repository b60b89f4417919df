package main

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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/client"
)

const (
	demoLease = 2 * time.Second
	demoDelay = 1 * time.Second
	demoStep  = 15 * time.Second // longest that any step may take
	demoLock  = "/demo/job"
	demoFile  = "/demo/config"
)

func (a *app) demoCmd() *cobra.Command {
	var lockd string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Kill the master, freeze a lock's holder, and see the right thing happen",
		Long: `Starts a cell of three replicas in a temporary directory, a program that holds a
lock and one that waits for it, and a small store that checks fences. Then it
kills the master with -9, and later freezes the holder. It prints what happens
and when, checks it, and leaves no process and no file behind.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lockd == "" {
				lockd = besideSelf("lockd")
			}
			d := &demo{start: time.Now(), lockd: lockd}
			ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Minute)
			defer cancel()
			err := d.run(ctx)
			if err != nil {
				d.showLogs()
			}
			return errors.Join(err, d.cleanUp(err == nil))
		},
	}
	c.Flags().StringVar(&lockd, "lockd", "", "the lockd program (default: the one beside lockctl, or in PATH)")
	return c
}

// besideSelf is the program in the directory of this one, or just its name,
// for PATH.
func besideSelf(name string) string {
	if self, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(self), name); isFile(p) {
			return p
		}
	}
	return name
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// demo is a run of the demonstration: everything it started, to be undone.
type demo struct {
	start    time.Time
	lockd    string
	dir      string
	replicas []*process
	workers  []*process
	store    *fenceStore
	session  *client.Session
	clients  []string // client addresses
}

func (d *demo) say(format string, args ...any) {
	fmt.Printf("%7.2fs  %s\n", time.Since(d.start).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) run(ctx context.Context) error {
	if err := d.startCell(ctx); err != nil {
		return err
	}
	holder, waiter, err := d.startWorkers(ctx)
	if err != nil {
		return err
	}
	if err := d.killMaster(ctx, holder.fence); err != nil {
		return err
	}
	return d.freezeHolder(ctx, holder, waiter)
}

// startCell starts three replicas and writes a file.
func (d *demo) startCell(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "lockd-demo-"); err != nil {
		return fmt.Errorf("make a directory for the demo: %w", err)
	}
	if d.store, err = newFenceStore(); err != nil {
		return err
	}
	ports, err := freePorts(9)
	if err != nil {
		return err
	}
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, fmt.Sprintf("n%d=%s", i+1, ports[3+i]))
		d.clients = append(d.clients, ports[i])
	}
	d.say("starting three replicas of lockd")
	for i := range 3 {
		name := fmt.Sprintf("n%d", i+1)
		p, err := startProcess(name, d.lockd, "--name", name, "--cell", "demo", "--data-dir", filepath.Join(d.dir, name),
			"--listen-client", ports[i], "--listen-peer", ports[3+i], "--listen-http", ports[6+i],
			"--initial-cluster", strings.Join(cluster, ","), "--exit-with-stdin")
		if err != nil {
			return err
		}
		d.replicas = append(d.replicas, p)
	}
	ctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	d.session, err = client.Dial(ctx, d.clients, client.WithName("demo"), client.WithOpenTimeout(demoStep))
	if err != nil {
		return fmt.Errorf("reach the cell: %w", err)
	}
	if _, err := d.session.Put(ctx, demoFile, []byte("written before the crash"), client.WithParents()); err != nil {
		return err
	}
	st, err := d.session.Status(ctx)
	if err != nil {
		return err
	}
	d.say("the cell serves, %s is master; %s is written", st.MasterName, demoFile)
	return nil
}

// startWorkers starts the holder and the waiter.
func (d *demo) startWorkers(ctx context.Context) (holder, waiter *worker, err error) {
	if holder, err = d.startWorker("holder"); err != nil {
		return nil, nil, err
	}
	if err := holder.granted(ctx); err != nil {
		return nil, nil, err
	}
	d.say("the holder (pid %d) has lock %s, fence %d, lease %v, lock-delay %v", holder.pid(), demoLock, holder.fence, demoLease, demoDelay)
	if waiter, err = d.startWorker("waiter"); err != nil {
		return nil, nil, err
	}
	err = d.eventually(ctx, "the waiter waits", func(ctx context.Context) (bool, error) {
		l, err := d.session.Why(ctx, demoLock)
		return len(l.Waiters) == 1, err
	})
	if err != nil {
		return nil, nil, err
	}
	d.say("the waiter (pid %d) waits for it", waiter.pid())
	return holder, waiter, nil
}

// killMaster kills the master and checks that nothing is gone.
func (d *demo) killMaster(ctx context.Context, fence uint64) error {
	before, err := d.session.Why(ctx, demoLock)
	if err != nil {
		return err
	}
	st, err := d.session.Status(ctx)
	if err != nil {
		return err
	}
	victim := d.replica(st.MasterName)
	if victim == nil {
		return fmt.Errorf("the master calls itself %q, which was not started here", st.MasterName)
	}
	if err := victim.signal(syscall.SIGKILL); err != nil {
		return err
	}
	killed := time.Now()
	d.say("kill -9 of the master %s (pid %d)", st.MasterName, victim.pid())
	wctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	if _, err := d.session.Put(wctx, "/demo/after", []byte("written after the crash")); err != nil {
		return fmt.Errorf("first write after the crash: %w", err)
	}
	took := time.Since(killed)
	st, err = d.session.Status(wctx)
	if err != nil {
		return err
	}
	d.say("%s is master: first write acknowledged %.2f s after the kill", st.MasterName, took.Seconds())
	n, err := d.session.Get(wctx, demoFile)
	if err != nil {
		return err
	}
	after, err := d.session.Why(wctx, demoLock)
	if err != nil {
		return err
	}
	switch {
	case string(n.Data) != "written before the crash":
		return fmt.Errorf("%s reads %q after the crash", demoFile, n.Data)
	case len(after.Holders) != 1 || after.Holders[0].Session != before.Holders[0].Session || after.Holders[0].Fence != fence:
		return fmt.Errorf("the lock has changed hands at the crash: %+v", after)
	case len(after.Waiters) != 1:
		return fmt.Errorf("the waiter has lost its place at the crash: %+v", after)
	}
	d.say("file, session %d, lock with fence %d and the waiter's place have lived on", after.Holders[0].Session, fence)
	return nil
}

// freezeHolder stops the holder and checks that its late write is refused.
func (d *demo) freezeHolder(ctx context.Context, holder, waiter *worker) error {
	if err := holder.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	frozen := time.Now()
	d.say("the holder is frozen (SIGSTOP); it believes that it holds the lock")
	if err := waiter.granted(ctx); err != nil {
		return err
	}
	took := time.Since(frozen)
	if waiter.fence <= holder.fence {
		return fmt.Errorf("the waiter's fence %d is not higher than the holder's %d", waiter.fence, holder.fence)
	}
	d.say("the waiter is granted the lock with the higher fence %d, %.2f s after the freeze (lease + lock-delay)", waiter.fence, took.Seconds())
	if _, err := waiter.expect(ctx, "wrote"); err != nil {
		return err
	}
	d.say("the waiter writes to the store with fence %d", waiter.fence)
	if err := holder.signal(syscall.SIGCONT); err != nil {
		return err
	}
	thawed := time.Now()
	d.say("the holder thaws and goes on where it was: it writes with fence %d", holder.fence)
	line, err := holder.expect(ctx, "refused")
	if err != nil {
		return err
	}
	d.say("its late write is refused, %.0f ms later: %s", float64(time.Since(thawed).Microseconds())/1000, strings.TrimPrefix(line, "refused "))
	if line, err = holder.expect(ctx, "lost"); err != nil {
		return err
	}
	d.say("and its library tells it: %s", strings.TrimPrefix(line, "lost "))
	d.say("done: nobody wrote under a lock that was not theirs")
	return nil
}

// eventually waits until f is true.
func (d *demo) eventually(ctx context.Context, what string, f func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, demoStep)
	defer cancel()
	for {
		ok, err := f(ctx)
		if err != nil {
			return fmt.Errorf("wait until %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (d *demo) replica(name string) *process {
	for _, p := range d.replicas {
		if p.name == name {
			return p
		}
	}
	return nil
}

// showLogs prints what the replicas said last, for who has to find out why it
// went wrong.
func (d *demo) showLogs() {
	for _, p := range append(append([]*process{}, d.replicas...), d.workers...) {
		fmt.Fprintf(os.Stderr, "--- last lines of %s:\n%s\n", p.name, p.tail())
	}
}

// cleanUp ends every process and removes every file; it says so if asked to.
func (d *demo) cleanUp(say bool) error {
	var errs []error
	for _, p := range d.workers {
		p.stop(time.Second)
	}
	if d.session != nil {
		// The cell may be broken by now; the directory goes away anyhow.
		_ = d.session.Close()
	}
	for _, p := range d.replicas {
		p.stop(5 * time.Second)
	}
	if d.store != nil {
		d.store.close()
	}
	if d.dir != "" {
		if err := os.RemoveAll(d.dir); err != nil {
			errs = append(errs, fmt.Errorf("remove the demo's files: %w", err))
		}
	}
	if say && len(errs) == 0 {
		d.say("all processes ended, all files removed")
	}
	return errors.Join(errs...)
}

// freePorts finds n free ports on loopback, as addresses.
func freePorts(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // all at the end, so that they differ
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// process is a child of the demo, which ends with its stdin.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

// Write keeps the last of what the process says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log.Len() > 1<<20 {
		p.log.Reset()
	}
	return p.log.Write(b)
}

func (p *process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

func startProcess(name, program string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	return p, p.begin()
}

func (p *process) begin() error {
	// A group of its own: Ctrl-C reaches the demo alone, which ends the rest in
	// order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.stdin = in
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its log
		close(p.ended)
	}()
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, p.name, err)
	}
	return nil
}

// stop ends the process: in order, or after the time given by force.
func (p *process) stop(patience time.Duration) {
	if p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // it may be gone already
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	_ = p.stdin.Close()
}

// worker is a program that works under the lock.
type worker struct {
	*process
	lines chan string
	fence uint64
}

func (d *demo) startWorker(name string) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find lockctl itself: %w", err)
	}
	w := &worker{process: &process{name: name, ended: make(chan struct{})}, lines: make(chan string, 64)}
	w.cmd = exec.Command(self, "demo-worker", "--name", name,
		"--endpoints", strings.Join(d.clients, ","), "--store", d.store.listener.Addr().String())
	w.cmd.Stderr = w
	out, in := io.Pipe()
	w.cmd.Stdout = io.MultiWriter(w, in)
	if err := w.begin(); err != nil {
		return nil, err
	}
	d.workers = append(d.workers, w.process)
	go func() {
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			select {
			case w.lines <- sc.Text():
			case <-w.ended:
				return
			}
		}
	}()
	go func() {
		<-w.ended
		_ = in.Close()
	}()
	return w, nil
}

// expect waits for a line that begins with word.
func (w *worker) expect(ctx context.Context, word string) (string, error) {
	t := time.NewTimer(demoStep)
	defer t.Stop()
	for {
		select {
		case line := <-w.lines:
			if strings.HasPrefix(line, word+" ") {
				return line, nil
			}
		case <-ctx.Done():
			return "", ctx.Err()
		case <-t.C:
			return "", fmt.Errorf("%s did not say %q within %v", w.name, word, demoStep)
		}
	}
}

func (w *worker) granted(ctx context.Context) error {
	line, err := w.expect(ctx, "granted")
	if err != nil {
		return err
	}
	if _, err := fmt.Sscanf(line, "granted %d", &w.fence); err != nil {
		return fmt.Errorf("%s said %q: %w", w.name, line, err)
	}
	return nil
}

// demoWorkerCmd is the program under the lock. It is written badly on purpose:
// it never looks at the lock's context before it writes, like a program that
// was frozen between the look and the write.
func demoWorkerCmd() *cobra.Command {
	var name, store, endpoints string
	c := &cobra.Command{
		Use:    "demo-worker",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go func() {
				_, _ = io.Copy(io.Discard, os.Stdin) // ends with the demo
				cancel()
			}()
			return demoWork(ctx, name, store, strings.Split(endpoints, ","))
		},
	}
	c.Flags().StringVar(&name, "name", "worker", "")
	c.Flags().StringVar(&store, "store", "", "")
	c.Flags().StringVar(&endpoints, "endpoints", "", "")
	return c
}

func demoWork(ctx context.Context, name, address string, endpoints []string) error {
	store, err := dialStore(address)
	if err != nil {
		return err
	}
	defer store.conn.Close()
	s, err := client.Dial(ctx, endpoints, client.WithName(name), client.WithLease(demoLease))
	if err != nil {
		return err
	}
	defer s.Close()
	l, err := s.Lock(ctx, demoLock, client.LockDelay(demoDelay))
	if err != nil {
		return err
	}
	fmt.Printf("granted %d\n", l.Fence())
	for n := 1; ctx.Err() == nil; n++ {
		switch err := store.write(l.Fence(), fmt.Sprintf("%s, write %d", name, n)); {
		case errors.Is(err, errRefused):
			fmt.Printf("refused %v\n", err)
			<-l.Context().Done()
			fmt.Printf("lost %v\n", context.Cause(l.Context()))
			<-ctx.Done()
			return nil
		case err != nil:
			return err
		}
		fmt.Printf("wrote %d\n", n)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}
