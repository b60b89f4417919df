package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// cell is the running replicas of `lockd local`. Its methods belong to one
// goroutine; the children report their end through exits.
type cell struct {
	members  []member
	dir      string
	restart  bool
	logLevel string
	out, err *lines
	self     string // this program
	launcher *launcher
	children map[string]*child // by name; those that run
	exits    chan exit         // one slot for each replica
	failures map[string]int    // starts in a row that did not last
}

// child is one replica's process.
type child struct {
	member  member
	cmd     *exec.Cmd
	stdin   io.Closer // closed when this process ends, however it ends
	log     *childLog
	started time.Time
}

// exit is the end of a child.
type exit struct {
	child *child
	err   error
}

func (x exit) how() string {
	if x.err == nil {
		return "exit code 0"
	}
	return x.err.Error()
}

// lasting is how long a replica must have run for its end not to count as a
// failed start.
const lasting = 10 * time.Second

// localSegment is the size of the replicas' log files: small ones are made
// quickly, so that a cell on a laptop serves at once.
const localSegment = 16 << 20

func newCell(f *localFlags, ms []member, dir string, stdout, stderr io.Writer) (*cell, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to start replicas: %w", err)
	}
	return &cell{
		members: ms, dir: dir, restart: f.restart, logLevel: f.logLevel, self: self,
		out: &lines{w: stdout}, err: &lines{w: stderr},
		launcher: newLauncher(), children: map[string]*child{}, exits: make(chan exit, len(ms)), failures: map[string]int{},
	}, nil
}

func (c *cell) logFile(name string) string { return filepath.Join(c.dir, name+".log") }

func (c *cell) pid(name string) int {
	if ch := c.children[name]; ch != nil {
		return ch.cmd.Process.Pid
	}
	return 0
}

func (c *cell) startAll() error {
	for _, m := range c.members {
		if err := c.start(m); err != nil {
			return err
		}
	}
	return nil
}

// start starts one replica.
func (c *cell) start(m member) error {
	var all []string
	for _, o := range c.members {
		all = append(all, o.name+"="+o.peer)
	}
	cmd := exec.Command(c.self,
		"--name", m.name, "--cell", "local", "--data-dir", filepath.Join(c.dir, m.name),
		"--listen-client", m.client, "--listen-peer", m.peer, "--listen-http", m.http,
		"--initial-cluster", strings.Join(all, ","), "--segment-bytes", strconv.Itoa(localSegment), "--log-level", c.logLevel, "--log-format", "text", "--exit-with-stdin")
	cmd.Env = childEnvironment(os.Environ())
	cmd.SysProcAttr = childAttributes()
	log, err := newChildLog(c.logFile(m.name), m.name, c.err)
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = log, log
	// The child stops when the pipe's other end is closed: by us, or by the
	// system when this process is no more.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", m.name, err), log.close())
	}
	if err := c.launcher.start(cmd); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", m.name, err), stdin.Close(), log.close())
	}
	ch := &child{member: m, cmd: cmd, stdin: stdin, log: log, started: time.Now()}
	c.children[m.name] = ch
	// It ends with the child; close waits for every child.
	go func() { c.exits <- exit{ch, cmd.Wait()} }()
	return nil
}

// childEnvironment leaves out what would change the replicas' flags.
func childEnvironment(env []string) []string {
	var kept []string
	for _, e := range env {
		if !strings.HasPrefix(e, "LOCKD_") {
			kept = append(kept, e)
		}
	}
	return kept
}

// ended takes note of a child's end.
func (c *cell) ended(x exit) {
	delete(c.children, x.child.member.name)
	// The pipe's other end is gone with the child.
	_ = x.child.stdin.Close()
	if err := x.child.log.close(); err != nil {
		c.err.printf("%s\n", err)
	}
}

// follow tells what happens to the cell until ctx ends or nothing is left.
func (c *cell) follow(ctx context.Context, master string) error {
	look := time.NewTicker(250 * time.Millisecond)
	defer look.Stop()
	type due struct {
		member member
		at     time.Time
	}
	var starts []due
	lost := false // no master at the last look
	for {
		select {
		case <-ctx.Done():
			c.out.printf("Stopping.\n")
			return nil
		case x := <-c.exits:
			c.ended(x)
			name := x.child.member.name
			note := ""
			if !c.restart {
				note = " (--restart would start it again)"
			}
			c.out.printf("%s  %s (pid %d) has ended: %s%s\n", clockTime(), name, x.child.cmd.Process.Pid, x.how(), note)
			if !c.restart {
				if len(c.children) == 0 {
					return errors.New("every replica has ended")
				}
				continue
			}
			starts = append(starts, due{x.child.member, time.Now().Add(c.delay(x.child))})
		case <-look.C:
			for len(starts) > 0 && !time.Now().Before(starts[0].at) {
				m := starts[0].member
				starts = starts[1:]
				if err := c.start(m); err != nil {
					return err
				}
				c.out.printf("%s  %s is started again, pid %d\n", clockTime(), m.name, c.pid(m.name))
			}
			now := c.master(ctx)
			switch {
			case ctx.Err() != nil:
			case now == "" && !lost:
				lost = true
				c.out.printf("%s  no master\n", clockTime())
			case now != "" && (now != master || lost):
				master, lost = now, false
				c.out.printf("%s  %s (pid %d) is master\n", clockTime(), now, c.pid(now))
			}
		}
	}
}

// delay is how long to wait before a replica is started again: longer each
// time that it did not last.
func (c *cell) delay(ch *child) time.Duration {
	name := ch.member.name
	if time.Since(ch.started) >= lasting {
		c.failures[name] = 0
	} else {
		c.failures[name]++
	}
	return min(time.Second<<min(c.failures[name], 5), 30*time.Second)
}

// close ends every replica that still runs: in order first, then by force. It
// returns when no process is left.
func (c *cell) close() {
	for _, ch := range c.children {
		ch.log.quiet() // that the others go is no news now
	}
	for _, ch := range c.children {
		_ = ch.cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended
	}
	timeout := time.NewTimer(childTime)
	defer timeout.Stop()
	for len(c.children) > 0 {
		select {
		case x := <-c.exits:
			c.ended(x)
		case <-timeout.C:
			for name, ch := range c.children {
				c.err.printf("%s does not stop; killed\n", name)
				_ = ch.cmd.Process.Kill()
			}
		}
	}
	c.launcher.close()
}

const clockLayout = "15:04:05.000"

func clockTime() string { return time.Now().Format(clockLayout) }

// lines lets several goroutines print whole lines.
type lines struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lines) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// There is nowhere to complain when the terminal has gone.
	_, _ = fmt.Fprintf(l.w, format, args...)
}
