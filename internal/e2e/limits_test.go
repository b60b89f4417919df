package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// A tree that is too large for one command is deleted in parts by rm -r, and
// refused as a whole by the library; what is in its way is told.
func TestRemoveALargeTree(t *testing.T) {
	c := startCell(t, 1)
	s := c.dial()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const wide, limit = 11, 10_000
	for i := range wide {
		for from := 0; from < 1000; from += 500 {
			txn := s.Txn()
			for k := range 500 {
				txn.Put(fmt.Sprintf("/big/%02d/%04d", i, from+k), nil, client.WithParents())
			}
			if _, err := txn.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := s.Delete(ctx, "/big", client.Recursive())
	if !errors.Is(err, client.ErrLimit) || !strings.Contains(err.Error(), fmt.Sprint(limit)) || !strings.Contains(err.Error(), "rm -r") {
		t.Fatalf("a delete of too many nodes: %v", err)
	}
	if err := s.Delete(ctx, "/big/10", client.Recursive()); err != nil {
		t.Fatalf("a part of it: %v", err)
	}
	l, err := s.Lock(ctx, "/big/05/0700")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args   string
		code   int
		stderr string
	}{
		{"rm /big", 4, "has children"},
		{"rm -r /big", 4, "lockctl why /big"},
		{"rm -r /big --force", 0, ""},
		{"rm -r /big", 3, "no such node"},
	} {
		code, _, stderr := c.ctl("", strings.Fields(row.args)...)
		if code != row.code || !strings.Contains(stderr, row.stderr) {
			t.Errorf("%s: exit code %d, %q; want %d, %q", row.args, code, stderr, row.code, row.stderr)
		}
	}
	<-l.Context().Done()
	if err := l.Err(); !errors.Is(err, client.ErrLost) {
		t.Errorf("the lock of a deleted node: %v", err)
	}
}

// A refusal is an error that names the limit; the session lives on.
func TestRefusalsOfALimit(t *testing.T) {
	c := startCell(t, 1)
	s := c.dial()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	full := make([]byte, client.DataMax)
	if _, err := s.Put(ctx, "/full", full); err != nil {
		t.Fatalf("content of the largest size: %v", err)
	}
	if n, err := s.Get(ctx, "/full"); err != nil || len(n.Data) != client.DataMax {
		t.Fatalf("it is read as %d bytes, %v", len(n.Data), err)
	}
	if _, err := s.Put(ctx, "/fuller", append(full, 0)); !errors.Is(err, client.ErrTooLarge) || !strings.Contains(err.Error(), "1048576") {
		t.Errorf("one byte more: %v", err)
	}
	if _, err := s.Txn().Put("/a", full).Put("/b", full).Commit(ctx); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("a transaction over the frame: %v", err)
	}
	for from := 0; from < 10_000; from += 1000 {
		txn := s.Txn()
		for k := range 1000 {
			txn.Create(fmt.Sprintf("/e/%d", from+k), nil, client.Ephemeral(), client.WithParents())
		}
		if _, err := txn.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Create(ctx, "/e/more", nil, client.Ephemeral()); !errors.Is(err, client.ErrLimit) || !strings.Contains(err.Error(), "10000 ephemeral nodes") {
		t.Errorf("one ephemeral node more: %v", err)
	}
	if err := s.Delete(ctx, "/e/0"); err != nil {
		t.Error(err)
	}
	if _, err := s.Create(ctx, "/e/again", nil, client.Ephemeral()); err != nil {
		t.Errorf("with one less: %v", err)
	}
}
