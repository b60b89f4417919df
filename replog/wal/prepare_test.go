package wal

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/replogtest"
	"github.com/seed70370324/lockd/replog/vfs"
)

// fillTo writes records until so much of the first segment is used.
func fillTo(t *testing.T, w *Log, last *paxos.Slot, part float64) {
	t.Helper()
	for float64(w.active.end) < part*float64(w.active.size) {
		*last++
		r := &paxos.Record{Entries: []paxos.Entry{{Slot: *last, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, 100<<10)}}}}}
		if err := errors.Join(w.Append([]*paxos.Record{r}), w.Sync()); err != nil {
			t.Fatal(err)
		}
	}
}

// testOptions are those of a log on fsys, which has its directory.
func testOptions(t *testing.T, fsys vfs.FS, segmentBytes int64) Options {
	t.Helper()
	if err := fsys.MkdirAll(ondisk.LogDir); err != nil {
		t.Fatal(err)
	}
	return Options{FS: fsys, Stop: &ondisk.FailStop{}, Identity: replogtest.ID, SegmentBytes: segmentBytes}
}

// TestPreparation: the next segment's file is begun at half of this one, hurried
// on at three quarters, and given up, with no trace, when the log is closed.
func TestPreparation(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, until := range []float64{0.55, 0.8} {
		dir := t.TempDir()
		fsys, err := vfs.NewOSFS(dir)
		if err != nil {
			t.Fatal(err)
		}
		options := testOptions(t, fsys, 8<<20)
		w, err := Create(options)
		if err != nil {
			t.Fatal(err)
		}
		var last paxos.Slot
		fillTo(t, w, &last, 0.4)
		if w.next != nil {
			t.Error("the next segment is begun too early")
		}
		fillTo(t, w, &last, until)
		if w.next == nil || w.next.hurried != (until > 0.75) {
			t.Errorf("at %v of the segment the preparation is %+v", until, w.next)
		}
		options.Stop.Close()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "log", "*"+ondisk.TempSuffix)); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// fullFS is a disk on which a segment finds no room while full is set.
type fullFS struct {
	*vfs.OSFS
	full atomic.Bool
	err  error
}

type fullFile struct {
	vfs.File
	fs *fullFS
}

func (f *fullFS) Create(name string) (vfs.File, error) {
	file, err := f.OSFS.Create(name)
	if err != nil {
		return nil, err
	}
	return &fullFile{file, f}, nil
}

func (f *fullFile) Preallocate(size int64) error {
	if f.fs.full.Load() {
		return f.fs.err
	}
	return f.File.Preallocate(size)
}

// TestPreparationWithoutRoom: a disk that was full while the next segment was
// prepared, and has room when it is due, stops no replica; one that is still full
// does, and so does an error that is not about room.
func TestPreparationWithoutRoom(t *testing.T) {
	for _, tc := range []struct {
		name  string
		err   error
		still bool
		want  error
	}{
		{"room again", syscall.ENOSPC, false, nil},
		{"quota raised", syscall.EDQUOT, false, nil},
		{"still full", syscall.ENOSPC, true, syscall.ENOSPC},
		{"a bad disk", syscall.EIO, false, syscall.EIO},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			dir := t.TempDir()
			under, err := vfs.NewOSFS(dir)
			if err != nil {
				t.Fatal(err)
			}
			fsys := &fullFS{OSFS: under, err: os.NewSyscallError("fallocate", tc.err)}
			options := testOptions(t, fsys, 1<<20)
			w, err := Create(options)
			if err != nil {
				t.Fatal(err)
			}
			fsys.full.Store(true)
			var last paxos.Slot
			fillTo(t, w, &last, 0.6)
			if w.next == nil {
				t.Fatal("no segment is prepared")
			}
			<-w.next.done
			if !errors.Is(w.next.err, tc.err) {
				t.Fatalf("the preparation ended with %v", w.next.err)
			}
			fsys.full.Store(tc.still)
			for number := w.active.number; err == nil && w.active.number == number; {
				last++
				r := &paxos.Record{Entries: []paxos.Entry{{Slot: last, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, 100<<10)}}}}}
				if err = w.Append([]*paxos.Record{r}); err == nil {
					err = w.Sync()
				}
			}
			if !errors.Is(err, tc.want) {
				t.Fatalf("the next segment: %v, want %v", err, tc.want)
			}
			options.Stop.Close()
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if tc.want != nil {
				return
			}
			options.Stop = &ondisk.FailStop{}
			found, err := Read(options, 0)
			if err != nil {
				t.Fatal(err)
			}
			if got := found.Sorted(); len(got) != int(last) {
				t.Errorf("%d entries are in the log, %d were made durable", len(got), last)
			}
			options.Stop.Close()
			if err := found.Log().Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
