package storage_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// A segment of the log that is gone is noticed although none follows it, as soon
// as anything in it was acknowledged, and also if several are gone.
func TestLastSegmentGone(t *testing.T) {
	fsys := faultfs.New()
	o := open(t, fsys)
	lost := 0
	for slot := paxos.Slot(1); slot <= 40; slot++ {
		must(t, o.Storage.Append([]*paxos.Record{record(slot, 1500)}))
		must(t, o.Storage.Sync())
		names, err := fsys.List("log")
		must(t, err)
		for gone := 1; gone < len(names) && gone < 4; gone++ {
			after := fsys.CrashLost()
			for _, n := range names[len(names)-gone:] {
				must(t, after.Remove("log/"+n))
			}
			before := contents(t, after)
			_, err = storage.Open(options(after))
			var damaged *ondisk.DamagedError
			missing := "log/" + names[len(names)-gone]
			if !errors.As(err, &damaged) || damaged.Doubtful || damaged.File != missing || !strings.Contains(err.Error(), "missing") {
				t.Fatalf("slot %d, without the last %d of %d segments: %v", slot, gone, len(names), err)
			}
			if now := contents(t, after); now != before {
				t.Fatal("the start that was refused changed files")
			}
			lost++
		}
	}
	if lost < 40 {
		t.Errorf("only %d times was a segment gone", lost)
	}
}

// The same after a power cut at any operation, and a start that it left to do
// the rest.
func TestLastSegmentGoneAfterAPowerCut(t *testing.T) {
	story := func(fsys *faultfs.FS) error {
		o, err := storage.Open(options(fsys))
		for slot := paxos.Slot(1); slot <= 9 && err == nil; slot++ {
			if err = o.Storage.Append([]*paxos.Record{record(slot, 2500)}); err == nil {
				err = o.Storage.Sync()
			}
		}
		return err
	}
	whole := faultfs.New()
	must(t, story(whole))
	noticed := 0
	for k := range whole.Ops() {
		fsys := faultfs.New()
		fsys.StopAfter(k)
		if err := story(fsys); !errors.Is(err, faultfs.ErrStopped) {
			t.Fatalf("operation %d: %v", k, err)
		}
		for how, after := range map[string]*faultfs.FS{"power cut": fsys.CrashLost(), "end of the process": fsys.Kill()} {
			o, err := storage.Open(options(after))
			if err != nil {
				t.Fatalf("operation %d, %s: %v", k, how, err)
			}
			must(t, o.Storage.Append([]*paxos.Record{record(o.Paxos.Chosen+1, 10)}))
			must(t, o.Storage.Sync())
			after = after.CrashLost()
			names, err := after.List("log")
			must(t, err)
			if len(names) < 2 {
				continue
			}
			must(t, after.Remove("log/"+names[len(names)-1]))
			if _, err = storage.Open(options(after)); err == nil {
				t.Fatalf("operation %d, %s: the last of %d segments is gone, and nothing notices", k, how, len(names))
			}
			noticed++
		}
	}
	if noticed == 0 {
		t.Error("there was never a segment to lose")
	}
}

// Bytes that went bad in the last block of a segment that is being written lost
// nothing: they are cleared, and the operator is told.
func TestBadBytesInTheUnusedLastBlock(t *testing.T) {
	for _, at := range []int64{0, 8, 12, 20, 3000} {
		fsys := faultfs.New()
		o := open(t, fsys)
		write(t, o.Storage, 1, 3, 100)
		must(t, o.Storage.Close())
		must(t, fsys.Overwrite(firstSegment, 16<<10+at, []byte{0x6c, 0x63, 0x6b}))
		o = open(t, fsys)
		wantSlots(t, o, 3)
		if notes := fmt.Sprint(o.Notes); !strings.Contains(notes, "last block of "+firstSegment) {
			t.Errorf("byte %d: notes %s", at, notes)
		}
		must(t, o.Storage.Close())
		if o = open(t, fsys); len(o.Notes) > 0 {
			t.Errorf("byte %d: told again: %q", at, o.Notes)
		}
	}
}

// What was accepted and is not known to be chosen is a vote. Where it stands at
// the end of a segment behind which others follow, nothing but the header of the
// next one tells that it was there.
func TestLastVoteOfAClosedSegmentIsGone(t *testing.T) {
	fsys := faultfs.New()
	o := open(t, fsys)
	for slot := paxos.Slot(1); ; slot++ {
		r := record(slot, 1500)
		r.Chosen = 0
		must(t, o.Storage.Append([]*paxos.Record{r}))
		must(t, o.Storage.Sync())
		if names, err := fsys.List("log"); err != nil || len(names) > 2 {
			must(t, err)
			break
		}
	}
	end := recordsEnd(t, fsys, firstSegment)
	for what, spoil := range map[string]func(*faultfs.FS) error{
		"a byte of the last record is another": func(after *faultfs.FS) error {
			return after.Overwrite(firstSegment, end-20, []byte{0xa5})
		},
		"all behind it is empty as well": func(after *faultfs.FS) error {
			return after.Overwrite(firstSegment, end-1400, make([]byte, 16<<10-(end-1400)))
		},
	} {
		after := fsys.CrashLost()
		must(t, spoil(after))
		var damaged *ondisk.DamagedError
		if _, err := storage.Open(options(after)); !errors.As(err, &damaged) || damaged.File != firstSegment {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A block of records that shows what it held before the last write of it, while
// the marks behind it and a later flush are there: nothing that a mark names is
// passed over, although what is left looks whole.
func TestBlockThatShowsWhatItHeldBefore(t *testing.T) {
	fsys := faultfs.New()
	large := func(fsys *faultfs.FS) storage.Options {
		opts := options(fsys)
		opts.SegmentBytes = 64 << 10 // all of it goes into one
		return opts
	}
	o, err := storage.Open(large(fsys))
	must(t, err)
	vote := func(slot paxos.Slot, n int) {
		r := record(slot, n)
		r.Chosen = 0 // nothing else tells of it
		must(t, o.Storage.Append([]*paxos.Record{r}))
		must(t, o.Storage.Sync())
	}
	vote(1, 100)
	end := recordsEnd(t, fsys, firstSegment)
	content, err := fsys.ReadFile(firstSegment)
	must(t, err)
	block := end &^ 4095
	before := bytes.Clone(content[block : block+4096])
	vote(2, 100)
	if now := recordsEnd(t, fsys, firstSegment); now&^4095 != block {
		t.Fatalf("the second record ends at %d, the first one at %d: not in one block", now, end)
	}
	vote(3, 5000)
	after := fsys.CrashLost()
	must(t, after.Overwrite(firstSegment, block, before))
	var damaged *ondisk.DamagedError
	if o, err := storage.Open(large(after)); !errors.As(err, &damaged) || damaged.Doubtful {
		t.Errorf("%v, found %+v", err, o)
	}
}
