// Package e2e tests whole cells of real processes, through the client library
// and lockctl.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// programs is the directory in which TestMain builds lockd and lockctl.
var programs string

// soakFor is how long TestSoak is to last, "" for a short time.
var soakFor = os.Getenv("LOCKD_SOAK")

func TestMain(m *testing.M) {
	os.Exit(func() int {
		// lockd refuses what stands in its environment and is no flag of it.
		for _, name := range []string{"LOCKD_SOAK", "LOCKD_SLOW", "LOCKD_LONG"} {
			if err := os.Unsetenv(name); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		dir, err := os.MkdirTemp("", "lockd-e2e-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "make a directory for the programs:", err)
			return 1
		}
		defer os.RemoveAll(dir)
		build := exec.Command("go", "build", "-o", dir+"/", "../../lockd", "../../client/lockctl")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
			return 1
		}
		programs = dir
		return m.Run()
	}())
}

func program(name string) string { return filepath.Join(programs, name) }

// cell is a cell of real processes on loopback.
type cell struct {
	t        *testing.T
	dir      string
	ports    []string // client, peer and HTTP addresses: three a replica
	replicas []*replica
}

type replica struct {
	name  string
	args  []string
	cmd   *exec.Cmd
	ended chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

func (r *replica) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(b)
}

func (r *replica) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// freeAddresses finds n free addresses on loopback.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

// startCell starts n replicas and waits until they serve.
func startCell(t *testing.T, n int, flags ...string) *cell {
	t.Helper()
	c := &cell{t: t, dir: t.TempDir(), ports: freeAddresses(t, 3*n)}
	var members []string
	for i := range n {
		members = append(members, fmt.Sprintf("n%d=%s", i+1, c.ports[n+i]))
	}
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		c.replicas = append(c.replicas, &replica{name: name, args: append([]string{
			"--name", name, "--cell", "e2e", "--data-dir", filepath.Join(c.dir, name),
			"--listen-client", c.ports[i], "--listen-peer", c.ports[n+i], "--listen-http", c.ports[2*n+i],
			"--initial-cluster", strings.Join(members, ","),
		}, flags...)})
	}
	t.Cleanup(c.stop)
	for _, r := range c.replicas {
		c.start(r)
	}
	c.master()
	return c
}

func (c *cell) clients() []string { return c.ports[:len(c.replicas)] }

func (c *cell) start(r *replica) {
	c.t.Helper()
	r.cmd = exec.Command(program("lockd"), r.args...)
	r.cmd.Stdout, r.cmd.Stderr = r, r
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := r.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan struct{})
	r.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // tests look at what matters of it
		close(ended)
	}(r.cmd)
}

// kill ends a replica with -9.
func (c *cell) kill(r *replica) {
	c.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		c.t.Fatalf("kill %s: %v", r.name, err)
	}
	<-r.ended
}

func (c *cell) stop() {
	for _, r := range c.replicas {
		if r.cmd != nil {
			_ = r.cmd.Process.Signal(syscall.SIGCONT)
			_ = r.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	for _, r := range c.replicas {
		if r.cmd == nil {
			continue
		}
		select {
		case <-r.ended:
		case <-time.After(10 * time.Second):
			_ = r.cmd.Process.Kill()
			<-r.ended
			c.t.Errorf("%s did not stop within 10 s of SIGTERM", r.name)
		}
		if c.t.Failed() {
			c.t.Logf("--- %s said:\n%s", r.name, r.said())
		}
		if strings.Contains(r.said(), "panic:") || strings.Contains(r.said(), "invariant broken") {
			c.t.Errorf("%s panicked:\n%s", r.name, r.said())
		}
	}
}

// eventually waits until f holds; patience is generous since machines are slow.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatalf("waited 60 s in vain until %s", what)
		case <-tick.C:
		}
	}
}

func ask(t *testing.T, address string) (client.ReplicaStatus, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	return client.Status(ctx, address)
}

// master waits until one of the running replicas is master.
func (c *cell) master() *replica {
	c.t.Helper()
	var found *replica
	eventually(c.t, "the cell has a master", func() bool {
		for i, r := range c.replicas {
			select {
			case <-r.ended:
				continue
			default:
			}
			if st, err := ask(c.t, c.ports[i]); err == nil && st.Role == "master" {
				found = r
				return true
			}
		}
		return false
	})
	return found
}

func (c *cell) follower() *replica {
	c.t.Helper()
	m := c.master()
	for _, r := range c.replicas {
		if r != m {
			return r
		}
	}
	c.t.Fatal("no follower")
	return nil
}

func (c *cell) dial(options ...client.Option) *client.Session {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	s, err := client.Dial(ctx, c.clients(), append([]client.Option{client.WithOpenTimeout(30 * time.Second)}, options...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = s.Close() })
	return s
}

// sameState waits until all replicas have applied the same and agree on the
// hash of the state.
func (c *cell) sameState() {
	c.t.Helper()
	eventually(c.t, "all replicas have the same state", func() bool {
		var first client.ReplicaStatus
		for i := range c.replicas {
			st, err := ask(c.t, c.ports[i])
			if err != nil {
				return false
			}
			if i == 0 {
				first = st
			}
			if st.Applied != first.Applied || st.StateHash != first.StateHash {
				return false
			}
		}
		return true
	})
}
