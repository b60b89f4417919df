package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/lockd/server"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for something that must happen: far longer than it
// takes, so that a slow machine fails no test.
const patience = 60 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// cell is a service of one replica, in this process.
type cell struct {
	t       *testing.T
	dir     string
	address string
	stop    func()
}

func newCell(t *testing.T) *cell {
	t.Helper()
	c := &cell{t: t, dir: t.TempDir(), address: "127.0.0.1:0"}
	c.start()
	t.Cleanup(func() { c.stop() })
	return c
}

// start runs the replica, after a stop with the same data and address.
func (c *cell) start() {
	c.t.Helper()
	s, err := server.New(server.Config{
		Name: "n1", Cell: "test", DataDir: c.dir, Version: "test",
		ListenClient: c.address, ListenPeer: "127.0.0.1:0",
		Tuning: server.Tuning{SegmentBytes: 1 << 20},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.address = s.ClientAddress()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("replica: %v", err)
		}
	})
}

// network is the way from clients to the service, which can be cut.
type network struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	down   bool
	silent atomic.Bool // all that is sent either way vanishes
	dials  atomic.Int64
}

func newNetwork() *network { return &network{conns: make(map[net.Conn]struct{})} }

var errDown = errors.New("network is down")

func (n *network) option() client.Option {
	return client.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
		n.dials.Add(1)
		n.mu.Lock()
		down := n.down
		n.mu.Unlock()
		if down {
			return nil, errDown
		}
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.down {
			_ = nc.Close()
			return nil, errDown
		}
		n.conns[nc] = struct{}{}
		return &muteConn{nc, n}, nil
	})
}

// cut breaks every connection; later ones work.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for nc := range n.conns {
		_ = nc.Close()
		delete(n.conns, nc)
	}
}

// set takes the network down or up.
func (n *network) set(up bool) {
	n.mu.Lock()
	n.down = !up
	n.mu.Unlock()
	if !up {
		n.cut()
	}
}

type muteConn struct {
	net.Conn
	n *network
}

func (c *muteConn) Write(b []byte) (int, error) {
	if c.n.silent.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *muteConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.n.silent.Load() {
			return n, err
		}
	}
}

// dial opens a session that is closed with the test.
func (c *cell) dial(options ...client.Option) *client.Session {
	c.t.Helper()
	s, err := client.Dial(within(c.t), []string{c.address}, append([]client.Option{client.WithOpenTimeout(patience)}, options...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = s.Close() })
	return s
}

// eventually waits until check holds.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	ctx := within(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("error %v, expected %v", err, w)
		}
	}
}

// waiters waits until n requests are in the queue for path.
func waiters(t *testing.T, s *client.Session, path string, n int) {
	t.Helper()
	eventually(t, "waiters of "+path, func() error {
		info, err := s.Why(within(t), path)
		if err == nil && len(info.Waiters) != n {
			err = fmt.Errorf("%d wait, expected %d", len(info.Waiters), n)
		}
		return err
	})
}
