package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed70370324/lockd/client"
)

const (
	replicas  = 3
	startTime = 30 * time.Second
	stopTime  = 10 * time.Second
)

// cell is a cell of three real processes.
type cell struct {
	bin, dir, host string
	port           int
	extra          []string
	stderr         func(name string) (*os.File, error)
	running        []*exec.Cmd
	ended          []chan struct{}
}

// startCell starts a cell with fresh data and waits until it serves.
func startCell(ctx context.Context, o options, stderr func(string) (*os.File, error)) (*cell, error) {
	dir, err := os.MkdirTemp("", "lockd-attack-")
	if err != nil {
		return nil, err
	}
	c := &cell{bin: o.bin, dir: dir, host: "127.0.0.1", port: 18101, stderr: stderr}
	if o.inside {
		c.host = cellHost
		c.extra = []string{"--insecure"}
	}
	if c.stderr == nil {
		c.stderr = func(name string) (*os.File, error) { return os.Create(filepath.Join(dir, name+".log")) }
	}
	for i := range replicas {
		if err := c.start(i); err != nil {
			return nil, errors.Join(err, c.stop())
		}
	}
	if _, err := c.master(ctx, startTime); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *cell) address(kind, i int) string {
	return c.host + ":" + strconv.Itoa(c.port+100*kind+i)
}

// clients returns the addresses for clients.
func (c *cell) clients() (all []string) {
	for i := range replicas {
		all = append(all, c.address(0, i))
	}
	return all
}

// targets returns client, peer and HTTP address of each replica.
func (c *cell) targets() (all []string) {
	for i := range replicas {
		all = append(all, c.address(0, i), c.address(1, i), c.address(2, i))
	}
	return all
}

func (c *cell) start(i int) error {
	name := fmt.Sprintf("n%d", i+1)
	var members []string
	for k := range replicas {
		members = append(members, fmt.Sprintf("n%d=%s", k+1, c.address(1, k)))
	}
	cmd := exec.Command(filepath.Join(c.bin, "lockd"), append([]string{"--name", name, "--cell", "attacked",
		"--data-dir", filepath.Join(c.dir, name), "--listen-client", c.address(0, i), "--listen-peer", c.address(1, i),
		"--listen-http", c.address(2, i), "--initial-cluster", strings.Join(members, ",")}, c.extra...)...)
	log, err := c.stderr(name)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w (make build first)", name, err)
	}
	done := make(chan struct{})
	go func() { // ends with the replica; stop waits for it
		_ = cmd.Wait() // how it ended is seen in its log
		close(done)
	}()
	if i < len(c.running) {
		c.running[i], c.ended[i] = cmd, done
	} else {
		c.running, c.ended = append(c.running, cmd), append(c.ended, done)
	}
	return nil
}

// kill kills a replica and starts it again.
func (c *cell) kill(i int) error {
	if err := c.running[i].Process.Kill(); err != nil {
		return err
	}
	<-c.ended[i]
	return c.start(i)
}

// dead returns the names of the replicas that have ended.
func (c *cell) dead() (names []string) {
	for i, done := range c.ended {
		select {
		case <-done:
			names = append(names, fmt.Sprintf("n%d", i+1))
		default:
		}
	}
	return names
}

func (c *cell) stop() error {
	for _, cmd := range c.running {
		_ = cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended
	}
	late := time.NewTimer(stopTime)
	defer late.Stop()
	for i, done := range c.ended {
		select {
		case <-done:
		case <-late.C:
			late.Reset(0)
			_ = c.running[i].Process.Kill()
			<-done
		}
	}
	return os.RemoveAll(c.dir)
}

// state is what the replicas say of themselves.
type state struct {
	master int // -1: none
	epoch  uint64
}

// look asks all replicas at once; one that does not answer in a second says nothing.
func (c *cell) look(ctx context.Context) state {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s := state{master: -1}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, a := range c.clients() {
		wg.Go(func() {
			r, err := client.Status(ctx, a)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			s.epoch = max(s.epoch, r.Epoch)
			if r.Role == "master" {
				s.master = i
			}
		})
	}
	wg.Wait()
	return s
}

// master waits for a master.
func (c *cell) master(ctx context.Context, limit time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		if s := c.look(ctx); s.master >= 0 {
			return s.master, nil
		}
		select {
		case <-ctx.Done():
			return -1, fmt.Errorf("no master within %v", limit)
		case <-again.C:
		}
	}
}

// memory returns the largest peak of resident memory of a replica, in MiB.
func (c *cell) memory() int {
	most := 0
	for _, cmd := range c.running {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
		if err != nil {
			continue // it has ended
		}
		if _, rest, ok := bytes.Cut(b, []byte("VmHWM:")); ok {
			if f := bytes.Fields(rest); len(f) > 0 {
				if kib, err := strconv.Atoi(string(f[0])); err == nil {
					most = max(most, kib>>10)
				}
			}
		}
	}
	return most
}
