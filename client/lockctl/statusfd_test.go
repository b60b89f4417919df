package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A descriptor that was ready and takes less than a line does not keep lockctl
// from ending.
func TestStatusThatHangsInAWrite(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	// As a descriptor that was given: blocking, and open over exec.
	fd, err := unix.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	s, err := openStatus(fd)
	if err != nil {
		t.Fatal(err)
	}
	// Far more than a pipe holds stands for others who fill it at the same time.
	s.event("waiting", "path", strings.Repeat("/x", 1<<20))
	closed := make(chan struct{})
	go func() { s.close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("the end waits for a reader that does not read")
	}
	_ = r.Close() // the write ends
	<-s.done
	_, _ = w.Close(), unix.Close(fd)
}
