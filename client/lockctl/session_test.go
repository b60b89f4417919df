package main

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/lockd/server"
)

// newServer makes the only replica of a cell; the caller runs it.
func newServer(t *testing.T, cell string) *server.Server {
	t.Helper()
	s, err := server.New(server.Config{Name: "n1", Cell: cell, DataDir: t.TempDir(), Version: "test",
		ListenClient: "127.0.0.1:0", ListenPeer: "127.0.0.1:0", Tuning: server.Tuning{SegmentBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The service goes away when the command has done what it was to do: that was
// done, whatever becomes of the session. The exit code must not say that it was
// not executed.
func TestDoneAlthoughTheSessionCannotBeClosed(t *testing.T) {
	s := newServer(t, "test")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	a := &app{endpoints: s.ClientAddress(), timeout: time.Minute}
	var err error
	said := stderrOf(t, func() {
		err = a.withSession(t.Context(), "test", func(ctx context.Context, s *client.Session) error {
			_, err := s.Put(ctx, "/a", nil)
			stop()
			if err == nil {
				err = <-ended
			}
			return err
		})
	})
	if err != nil {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
	if !strings.HasPrefix(said, "lockctl: done, but the service could not be told that the session has ended: ") {
		t.Errorf("said %q", said)
	}
}

// Endpoints of two cells: lockctl says what to do in its own words.
func TestEndpointsOfTwoCells(t *testing.T) {
	var endpoints []string
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, cell := range []string{"one", "two"} {
		s := newServer(t, cell)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		defer func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		r, err := client.Connect(ctx, []string{s.ClientAddress()}, client.WithOpenTimeout(time.Minute)) // it is founded
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		endpoints = append(endpoints, s.ClientAddress())
	}
	code := 0
	said := stderrOf(t, func() { code = run([]string{"--endpoints", strings.Join(endpoints, ","), "ls"}) })
	if code != codeUnavailable || !strings.Contains(said, endpoints[0]) || !strings.Contains(said, endpoints[1]) || !strings.Contains(said, "--cell") {
		t.Errorf("exit code %d, %s", code, said)
	}
	if code = run([]string{"--endpoints", strings.Join(endpoints, ","), "--cell", "two", "get", "/none"}); code != codeNotFound {
		t.Errorf("with --cell: exit code %d", code)
	}
}

// cutConn lets so many writes pass; what is written later vanishes.
type cutConn struct {
	net.Conn
	left *atomic.Int64
}

func (c cutConn) Write(b []byte) (int, error) {
	if c.left.Add(-1) < 0 {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// The service takes the lock back, and then hears nothing more: that the session
// cannot be closed is no release without an answer.
func TestReleasedAlthoughTheSessionCannotBeClosed(t *testing.T) {
	s := newServer(t, "test")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	var left atomic.Int64
	left.Store(1 << 40)
	session, err := client.Dial(ctx, []string{s.ClientAddress()}, client.WithOpenTimeout(time.Minute),
		client.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
			var d net.Dialer
			nc, err := d.DialContext(ctx, "tcp", address)
			return cutConn{nc, &left}, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	l, err := session.Lock(ctx, "/l")
	if err != nil {
		t.Fatal(err)
	}
	left.Store(1) // the Release
	a := &app{timeout: time.Minute}
	if lost, err := a.giveBack(session, l, nil); lost || err != nil {
		t.Errorf("lost %v, error %v", lost, err)
	}
}

// stderrOf returns what f writes to stderr.
func stderrOf(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	was := os.Stderr
	os.Stderr = w
	defer func() { os.Stderr = was }()
	f()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
