package server

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/storage"
)

// TestWhatIsReadAtTheStartIsLetGo: what a replica finds in its log is the
// node's alone once it runs; nothing else keeps it in memory.
func TestWhatIsReadAtTheStartIsLetGo(t *testing.T) {
	c := newTestCell(t, 1)
	c.start("n1")
	c.master()
	cl := c.dial("n1")
	cl.open()
	for i := range 20 {
		cl.put(fmt.Sprintf("/n%d", i), "data")
	}
	c.stop("n1")

	s, err := New(c.config("n1"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	found, entries, stop := startFound(t, s)
	defer stop()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for found.Value() != nil || entries.Value() != nil {
		runtime.GC()
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("still in memory: what was found %v, its entries %v", found.Value() != nil, entries.Value() != nil)
		}
	}
}

// startFound starts a server that has something in its log, and watches over
// what was read.
func startFound(t *testing.T, s *Server) (found weak.Pointer[storage.Opened], entries weak.Pointer[paxos.Entry], stop func()) {
	t.Helper()
	opened, err := s.open()
	if err != nil {
		t.Fatal(err)
	}
	if len(opened.Paxos.Entries) == 0 {
		t.Fatal("nothing was found in the log")
	}
	p, err := s.start(opened)
	if err != nil {
		t.Fatal(err)
	}
	storage := opened.Storage
	return weak.Make(opened), weak.Make(&opened.Paxos.Entries[0]), func() {
		p.stop()
		if err := closeStorage(storage); err != nil {
			t.Error(err)
		}
	}
}
