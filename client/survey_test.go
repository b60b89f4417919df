package client_test

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/seed70370324/lockd/client"
)

// buffer is what a logger has written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A replica of another cell among the addresses makes no start fail, and no
// session there.
func TestForeignReplicaAmongAddresses(t *testing.T) {
	ours, theirs := newCell(t), newCell(t)
	ctx := within(t)
	_, port, err := net.SplitHostPort(ours.address)
	if err != nil {
		t.Fatal(err)
	}
	again := net.JoinHostPort("localhost", port) // a second address of the same cell
	var identity uint64                          // of ours
	for _, c := range []*cell{theirs, ours} {    // each is founded by then, and says whose it is
		reader := must(client.Connect(ctx, []string{c.address}, client.WithOpenTimeout(patience)))(t)
		identity = reader.CellIdentity()
		if err := reader.Close(); err != nil || identity == 0 {
			t.Fatalf("identity %x, %v", identity, err)
		}
	}
	for range 8 {
		var log buffer
		s := must(client.Dial(ctx, []string{theirs.address, again, ours.address}, client.WithOpenTimeout(patience),
			client.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))(t)
		if s.CellIdentity() != identity {
			t.Fatalf("a session of the cell %x, expected %x", s.CellIdentity(), identity)
		}
		eventually(t, "the warning", func() error {
			if strings.Contains(log.String(), "level=WARN") && strings.Contains(log.String(), theirs.address+" is skipped") {
				return nil
			}
			return client.ErrNotFound
		})
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = client.Dial(ctx, []string{theirs.address, ours.address}, client.WithOpenTimeout(patience))
	wantErr(t, err, client.ErrWrongCell)
	for _, address := range []string{theirs.address, ours.address} {
		if !strings.Contains(err.Error(), address) {
			t.Errorf("%v does not name %s", err, address)
		}
	}
	s := must(client.Dial(ctx, []string{theirs.address, ours.address}, client.WithCellIdentity(identity), client.WithOpenTimeout(patience)))(t)
	if s.CellIdentity() != identity {
		t.Fatalf("a session of the cell %x, expected %x", s.CellIdentity(), identity)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = client.Dial(ctx, []string{ours.address}, client.WithCellIdentity(identity+1), client.WithOpenTimeout(patience))
	wantErr(t, err, client.ErrWrongCell)
}

// An address that is given twice is one: with one address there is no survey, and
// nothing waits for an answer that came already.
func TestAddressGivenTwice(t *testing.T) {
	c := newCell(t)
	c.dial() // it serves
	n := newNetwork()
	s := must(client.Dial(within(t), []string{c.address, c.address, c.address}, n.option(), client.WithOpenTimeout(patience)))(t)
	defer s.Close()
	must(s.Put(within(t), "/a", nil))(t)
	if dials := n.dials.Load(); dials != 1 {
		t.Errorf("%d connections to one address", dials)
	}
}
