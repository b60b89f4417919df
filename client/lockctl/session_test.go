package main

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/lockd/server"
)

// The service goes away when the command has done what it was to do: that was
// done, whatever becomes of the session. The exit code must not say that it was
// not executed.
func TestDoneAlthoughTheSessionCannotBeClosed(t *testing.T) {
	s, err := server.New(server.Config{Name: "n1", Cell: "test", DataDir: t.TempDir(), Version: "test",
		ListenClient: "127.0.0.1:0", ListenPeer: "127.0.0.1:0", Tuning: server.Tuning{SegmentBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	a := &app{endpoints: s.ClientAddress(), timeout: time.Minute}
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
