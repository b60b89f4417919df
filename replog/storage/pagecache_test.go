package storage_test

import (
	"errors"
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// TestFailedFsyncThenRestartThenPowerCut: after an fsync that failed, a new
// process on the same machine sees in the page cache what never reached the
// disk. What it builds on that must outlive a power cut.
func TestFailedFsyncThenRestartThenPowerCut(t *testing.T) {
	broken := errors.New("input/output error")
	for _, flushes := range []int{0, 1, 2, 3} {
		fsys := faultfs.New()
		opened := mustOpen(t, fsys)
		record := func(slot int) []*paxos.Record {
			b := paxos.Ballot{Round: uint64(slot), Replica: 1}
			return []*paxos.Record{{Promised: b, Entries: []paxos.Entry{{Slot: paxos.Slot(slot), Ballot: b,
				Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, 700)}}}}}}
		}
		for i := 1; i <= flushes; i++ {
			if err := errors.Join(opened.Storage.Append(record(i)), opened.Storage.Sync()); err != nil {
				t.Fatal(err)
			}
		}
		last := flushes + 1
		if err := opened.Storage.Append(record(last)); err != nil {
			t.Fatal(err)
		}
		fsys.Fail(faultfs.Sync, 1, broken)
		if err := opened.Storage.Sync(); !errors.Is(err, broken) {
			t.Fatalf("%d flushes: the failed fsync gave %v", flushes, err)
		}
		fsys = fsys.Kill()
		opened = mustOpen(t, fsys)
		if n := len(opened.Paxos.Entries); n != last {
			t.Fatalf("%d flushes: the next process sees %d entries, not %d", flushes, n, last)
		}
		// It may now tell others of all that it has seen. Then the power goes.
		opened = mustOpen(t, fsys.CrashLost())
		if n := len(opened.Paxos.Entries); n != last || opened.Paxos.Promised.Round != uint64(last) {
			t.Fatalf("%d flushes: after the power cut there are %d entries of %d, promised %v", flushes, n, last, opened.Paxos.Promised)
		}
	}
}

func mustOpen(t *testing.T, fsys *faultfs.FS) *storage.Opened {
	t.Helper()
	opened, err := storage.Open(options(fsys))
	if err != nil {
		t.Fatalf("opening: %v", err)
	}
	return opened
}

// TestLargeFlushFailedThenPowerCut: the same with flushes of many blocks, behind
// one that ends in their first block or not. Each block of the last flush is
// written again, not only the last, or the first 256 KiB.
func TestLargeFlushFailedThenPowerCut(t *testing.T) {
	broken := errors.New("input/output error")
	for _, before := range []int{0, 30, 3900} {
		for _, n := range []int{1, 6, 40, 300, 2000} {
			fsys := faultfs.New()
			opened := mustOpenLarge(t, fsys)
			last := paxos.Slot(0)
			if before > 0 {
				last++
				write(t, opened.Storage, last, last, before)
			}
			for range n {
				last++
				must(t, opened.Storage.Append([]*paxos.Record{record(last, 300)}))
			}
			fsys.Fail(faultfs.Sync, 1, broken)
			if err := opened.Storage.Sync(); !errors.Is(err, broken) {
				t.Fatalf("%d records behind %d bytes: the failed fsync gave %v", n, before, err)
			}
			fsys = fsys.Kill()
			opened = mustOpenLarge(t, fsys)
			wantSlots(t, opened, last)
			opened = mustOpenLarge(t, fsys.CrashLost())
			wantSlots(t, opened, last)
		}
	}
}

// mustOpenLarge opens with segments that all flushes of a test fit in.
func mustOpenLarge(t *testing.T, fsys *faultfs.FS) *storage.Opened {
	t.Helper()
	o := options(fsys)
	o.SegmentBytes = 1 << 20
	opened, err := storage.Open(o)
	must(t, err)
	return opened
}
