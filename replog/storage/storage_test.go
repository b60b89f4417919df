package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs"
)

func openOS(tb testing.TB, dir string, segment int64) *storage.Opened {
	tb.Helper()
	fsys, err := vfs.NewOSFS(dir)
	if err != nil {
		tb.Fatal(err)
	}
	o, err := storage.Open(storage.Options{FS: fsys, Cell: "demo", Replica: "n1", SegmentBytes: segment,
		NewIncarnation: func() uint64 { return 77 }})
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func TestRealDiskKeepsWhatWasSynced(t *testing.T) {
	dir := t.TempDir()
	o := openOS(t, dir, 1<<20)
	if !o.Empty || o.Identity.Incarnation != 77 {
		t.Fatalf("opened %+v", o)
	}
	const slots = 3000
	for s := paxos.Slot(1); s <= slots; s++ {
		r := &paxos.Record{Promised: paxos.Ballot{Round: 3, Replica: 1}, Chosen: s - 1, Entries: []paxos.Entry{{
			Slot: s, Ballot: paxos.Ballot{Round: 3, Replica: 1},
			Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, 1000), []byte(fmt.Sprint("c", s))}}}}}
		if err := o.Storage.Append([]*paxos.Record{r}); err != nil {
			t.Fatal(err)
		}
		if s%500 == 0 {
			if err := o.Storage.Sync(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := o.Storage.Close(); err != nil {
		t.Fatal(err)
	}
	o = openOS(t, dir, 1<<20)
	if o.Empty || len(o.Paxos.Entries) != slots || o.Paxos.Chosen != slots-1 || o.Paxos.First != 1 {
		t.Fatalf("found %d entries, chosen %d, first %d, notes %q", len(o.Paxos.Entries), o.Paxos.Chosen, o.Paxos.First, o.Notes)
	}
	got := paxos.Slot(0)
	for from := paxos.Slot(1); ; {
		entries, trimmed, err := o.Storage.Read(from, 100_000, slots)
		if err != nil || trimmed {
			t.Fatal(err, trimmed)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if got++; e.Slot != got || string(e.Value.Commands[1]) != fmt.Sprint("c", got) {
				t.Fatalf("entry %+v where slot %d belongs", e.Slot, got)
			}
		}
		from = got + 1
	}
	if got != slots {
		t.Fatalf("read up to %d", got)
	}
	if err := o.Storage.Close(); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkAppendSync(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("records=%d", n), func(b *testing.B) {
			o := openOS(b, b.TempDir(), 0)
			command := make([]byte, 256)
			slot := paxos.Slot(0)
			records := make([]*paxos.Record, n)
			for b.Loop() {
				for i := range records {
					slot++
					records[i] = &paxos.Record{Promised: paxos.Ballot{Round: 1, Replica: 1}, Chosen: slot - 1,
						Entries: []paxos.Entry{{Slot: slot, Ballot: paxos.Ballot{Round: 1, Replica: 1},
							Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{command}}}}}
				}
				if err := o.Storage.Append(records); err != nil {
					b.Fatal(err)
				}
				if err := o.Storage.Sync(); err != nil {
					b.Fatal(err)
				}
			}
			if err := o.Storage.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	o := openOS(b, b.TempDir(), 0)
	command := make([]byte, 256)
	slot := paxos.Slot(0)
	e := []paxos.Entry{{Ballot: paxos.Ballot{Round: 1, Replica: 1}, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{command}}}}
	r := []*paxos.Record{{Promised: paxos.Ballot{Round: 1, Replica: 1}, Entries: e}}
	b.ReportAllocs()
	for b.Loop() {
		slot++
		e[0].Slot, r[0].Chosen = slot, slot-1
		if err := o.Storage.Append(r); err != nil {
			b.Fatal(err)
		}
	}
	if err := o.Storage.Close(); err != nil {
		b.Fatal(err)
	}
}

// A file that is preallocated beside flushes rests between its parts, until there
// is a hurry; either way it holds zeros alone in the end.
func TestPreallocateGradually(t *testing.T) {
	fsys, err := vfs.NewOSFS(t.TempDir())
	must(t, err)
	for _, size := range []int64{1, 256 << 10, 1<<20 + 1} {
		f, err := fsys.Create(fmt.Sprint(size))
		must(t, err)
		hurry, done := make(chan struct{}), make(chan error)
		go func() {
			done <- f.(interface {
				PreallocateGradually(size int64, hurry, unwanted <-chan struct{}) error
			}).PreallocateGradually(size, hurry, nil)
		}()
		close(hurry)
		must(t, <-done)
		got := make([]byte, size+1)
		n, err := f.ReadAt(got, 0)
		if int64(n) != size || !errors.Is(err, io.EOF) || len(bytes.Trim(got, "\x00")) != 0 {
			t.Errorf("%d bytes: %d are there, zeros alone: %v, %v", size, n, len(bytes.Trim(got, "\x00")) == 0, err)
		}
		must(t, f.Close())
	}
}

// Segments prepared beside the writing are used, and none is left behind.
func TestPreparedSegments(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	o := openOS(t, dir, 64<<10)
	write(t, o.Storage, 1, 200, 1500)
	must(t, o.Storage.Close())
	names, err := os.ReadDir(filepath.Join(dir, "log"))
	must(t, err)
	for _, n := range names {
		if filepath.Ext(n.Name()) != ".seg" {
			t.Errorf("%s was left", n.Name())
		}
	}
	if len(names) < 5 {
		t.Errorf("only %d segments", len(names))
	}
	o = openOS(t, dir, 64<<10)
	wantSlots(t, o, 200)
	if len(o.Notes) > 0 {
		t.Errorf("notes %q", o.Notes)
	}
	must(t, o.Storage.Close())
}
