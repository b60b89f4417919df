package storage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

const firstSegment = "log/0000000000000001.seg"

var ballot = paxos.Ballot{Round: 7, Replica: 2}

// record holds one slot with a command of n bytes.
func record(slot paxos.Slot, n int) *paxos.Record {
	command := bytes.Repeat([]byte{byte(slot)}, n)
	return &paxos.Record{Promised: ballot, Chosen: slot - 1, Entries: []paxos.Entry{{
		Slot: slot, Ballot: ballot, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{command}},
	}}}
}

func open(t testing.TB, fsys vfs.FS) *storage.Opened {
	t.Helper()
	o, err := storage.Open(options(fsys))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// write appends slots from to to, a flush each.
func write(t testing.TB, st *storage.Storage, from, to paxos.Slot, n int) {
	t.Helper()
	for slot := from; slot <= to; slot++ {
		must(t, st.Append([]*paxos.Record{record(slot, n)}))
		must(t, st.Sync())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// used gives the length of a file without the zeros at its end.
func used(t testing.TB, fsys *faultfs.FS, name string) int64 {
	t.Helper()
	content, err := fsys.ReadFile(name)
	must(t, err)
	return int64(len(bytes.TrimRight(content, "\x00")))
}

// recordsEnd gives the end of the last record of a segment.
func recordsEnd(t testing.TB, fsys *faultfs.FS, name string) int64 {
	t.Helper()
	content, err := fsys.ReadFile(name)
	must(t, err)
	at := bytes.LastIndex(content, []byte("LkF1"))
	if at < 0 {
		t.Fatalf("%s has no record", name)
	}
	length := int64(binary.LittleEndian.Uint32(content[at+8:]))
	return (int64(at) + 24 + length + 7) &^ 7
}

// unfinished syncs a storage and lets the power go between the write and its
// end: all of it is there, and it was not acknowledged. Without mark, the block
// of marks is as it was before.
func unfinished(t testing.TB, fsys *faultfs.FS, st *storage.Storage, withMark bool) *faultfs.FS {
	t.Helper()
	fsys.StopAfter(1)
	if err := st.Sync(); !errors.Is(err, faultfs.ErrStopped) {
		t.Fatalf("the flush that was to be interrupted: %v", err)
	}
	marks := (recordsEnd(t, fsys, firstSegment) + 4095) &^ 4095
	return fsys.CrashKeep(func(_ string, offset int64) bool { return withMark || offset < marks })
}

func wantSlots(t *testing.T, o *storage.Opened, n paxos.Slot) {
	t.Helper()
	if len(o.Paxos.Entries) != int(n) {
		t.Fatalf("%d entries, %d expected (notes %q)", len(o.Paxos.Entries), n, o.Notes)
	}
	for i, e := range o.Paxos.Entries {
		if e.Slot != paxos.Slot(i+1) || e.Value.Commands[0][0] != byte(e.Slot) {
			t.Fatalf("entry %d is of slot %d", i, e.Slot)
		}
	}
}

// spoils are the ways in which a test spoils a file from a byte on.
var spoils = map[string]func(fsys *faultfs.FS, name string, at, end int64) error{
	"flip": func(fsys *faultfs.FS, name string, at, _ int64) error { return fsys.Flip(name, at, uint(at)) },
	"zero the rest": func(fsys *faultfs.FS, name string, at, end int64) error {
		return fsys.Overwrite(name, at, make([]byte, end-at))
	},
	"garble the rest": func(fsys *faultfs.FS, name string, at, end int64) error {
		return fsys.Overwrite(name, at, bytes.Repeat([]byte{0xa5}, int(end-at)))
	},
}

// The last record, spoiled at any byte: torn and cut if its flush was never
// finished, in doubt if it was. A shorter file is damaged either way.
func TestLastRecordSpoiledAtAnyByte(t *testing.T) {
	for _, synced := range []bool{false, true} {
		base := faultfs.New()
		o := open(t, base)
		write(t, o.Storage, 1, 3, 40)
		start := recordsEnd(t, base, firstSegment)
		must(t, o.Storage.Append([]*paxos.Record{record(4, 60)}))
		base = unfinished(t, base, o.Storage, synced)
		content, err := base.ReadFile(firstSegment)
		must(t, err)
		end := int64(len(bytes.TrimRight(content[:recordsEnd(t, base, firstSegment)], "\x00")))
		for way, spoil := range spoils {
			for at := start; at < end; at++ {
				fsys := base.Kill()
				must(t, spoil(fsys, firstSegment, at, end))
				o, err := storage.Open(options(fsys))
				what := fmt.Sprintf("%s at byte %d, synced %v", way, at-start, synced)
				if synced {
					var damaged *ondisk.DamagedError
					if !errors.As(err, &damaged) || !damaged.Doubtful || damaged.Offset != start || damaged.File != firstSegment {
						t.Fatalf("%s: %v", what, err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				wantSlots(t, o, 3)
				checkCut(t, what, fsys, o, at > start || way != "zero the rest", start)
			}
		}
		for _, size := range []int64{0, 100, start, end - 1, 16<<10 - 1} {
			fsys := base.Kill()
			must(t, fsys.Cut(firstSegment, size))
			_, err := storage.Open(options(fsys))
			var damaged *ondisk.DamagedError
			if !errors.As(err, &damaged) || damaged.Doubtful {
				t.Fatalf("cut to %d bytes: %v", size, err)
			}
		}
	}
}

// checkCut wants the note and the copy of a cut tail, and then to write in its
// place.
func checkCut(t *testing.T, what string, fsys *faultfs.FS, o *storage.Opened, cut bool, start int64) {
	t.Helper()
	noted := slices.ContainsFunc(o.Notes, func(n string) bool { return strings.HasPrefix(n, "cut ") })
	if noted != cut {
		t.Fatalf("%s: notes %q", what, o.Notes)
	}
	if copies, err := fsys.List("torn"); cut != (err == nil && len(copies) == 1) {
		t.Fatalf("%s: copies %q, %v", what, copies, err)
	}
	if end := recordsEnd(t, fsys.CrashLost(), firstSegment); end > start {
		t.Fatalf("%s: the log was cut at %d, but bytes up to %d are not zeroed durably", what, start, end)
	}
	write(t, o.Storage, 4, 5, 10)
	must(t, o.Storage.Close())
	o = open(t, fsys)
	wantSlots(t, o, 5)
	if len(o.Notes) > 0 {
		t.Fatalf("%s: the second start notes %q", what, o.Notes)
	}
}

// A bit that flips anywhere in what was made durable never makes the log
// shorter: the start is refused, or everything is there.
func TestFlippedBitNeverShortensTheLog(t *testing.T) {
	base := faultfs.New()
	o := open(t, base)
	write(t, o.Storage, 1, 8, 50)
	end, whole := recordsEnd(t, base, firstSegment), used(t, base, firstSegment)
	refused := 0
	for at := int64(0); at < whole; at++ {
		fsys := base.Kill()
		must(t, fsys.Flip(firstSegment, at, uint(at*5)))
		o, err := storage.Open(options(fsys))
		if err == nil {
			wantSlots(t, o, 8)
			continue
		}
		refused++
		var damaged *ondisk.DamagedError
		if !errors.As(err, &damaged) {
			t.Fatalf("byte %d: %v", at, err)
		}
		if damaged.Doubtful && damaged.Offset < end-120 {
			t.Fatalf("byte %d is before the last flush, and in doubt: %v", at, err)
		}
	}
	if want := int(end - 8192); refused < want {
		t.Errorf("refused %d times, %d expected: every byte of the records counts", refused, want)
	}
}

func TestMiddleOfTheLogDamaged(t *testing.T) {
	base := faultfs.New()
	o := open(t, base)
	write(t, o.Storage, 1, 40, 1500)
	names, err := base.List("log")
	must(t, err)
	if len(names) < 4 {
		t.Fatalf("only %q", names)
	}
	second := "log/" + names[1]
	end := recordsEnd(t, base, second)
	for what, spoil := range map[string]func(*faultfs.FS) error{
		"flipped bit in an old segment":   func(f *faultfs.FS) error { return f.Flip(second, end-500, 3) },
		"end of an old segment zeroed":    func(f *faultfs.FS) error { return f.Overwrite(second, end-900, make([]byte, 900)) },
		"old segment short":               func(f *faultfs.FS) error { return f.Cut(second, 16_000) },
		"old segment long":                func(f *faultfs.FS) error { return f.Cut(second, 20_000) },
		"old segment empty":               func(f *faultfs.FS) error { return f.Cut(second, 0) },
		"old segment gone":                func(f *faultfs.FS) error { return f.Remove(second) },
		"first segment gone":              func(f *faultfs.FS) error { return f.Remove(firstSegment) },
		"last segment empty":              func(f *faultfs.FS) error { return f.Cut("log/"+names[len(names)-1], 0) },
		"last segment with half a header": func(f *faultfs.FS) error { return f.Cut("log/"+names[len(names)-1], 40) },
		"no segment at all": func(f *faultfs.FS) error {
			for _, n := range names {
				if err := f.Remove("log/" + n); err != nil {
					return err
				}
			}
			return nil
		},
		"identity garbled": func(f *faultfs.FS) error { return f.Flip("identity", 30, 1) },
		"identity empty":   func(f *faultfs.FS) error { return f.Cut("identity", 0) },
	} {
		fsys := base.Kill()
		must(t, spoil(fsys))
		before := contents(t, fsys)
		_, err := storage.Open(options(fsys))
		var damaged *ondisk.DamagedError
		if !errors.As(err, &damaged) || damaged.Doubtful {
			t.Errorf("%s: %v", what, err)
		}
		if after := contents(t, fsys); after != before {
			t.Errorf("%s: the start that was refused changed files:\n%s\n%s", what, before, after)
		}
	}
}

// contents sums up all files.
func contents(t testing.TB, fsys *faultfs.FS) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{"", "log", "snap", "torn"} {
		names, err := fsys.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		for _, n := range names {
			if content, err := fsys.ReadFile(strings.TrimPrefix(dir+"/"+n, "/")); err == nil {
				fmt.Fprintf(&b, "%s/%s %d %x\n", dir, n, len(content), hash(content))
			}
		}
	}
	return b.String()
}

func hash(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func TestLeftoversOfACrashAreRemoved(t *testing.T) {
	fsys := faultfs.New()
	o := open(t, fsys)
	write(t, o.Storage, 1, 3, 40)
	must(t, o.Storage.Close())
	left := []string{"identity.tmp", "log/0000000000000002.seg.tmp", "snap/0000000000000009.snap.tmp", "snap/incoming.part"}
	for _, n := range left {
		must(t, fsys.WriteFile(n, []byte("x")))
	}
	o = open(t, fsys)
	wantSlots(t, o, 3)
	for _, n := range left {
		if _, err := fsys.ReadFile(n); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", n, err)
		}
		if !slices.ContainsFunc(o.Notes, func(note string) bool { return strings.Contains(note, n) }) {
			t.Errorf("no note about %s in %q", n, o.Notes)
		}
	}
}

func TestFailStop(t *testing.T) {
	broken := errors.New("input/output error")
	newSegment := func(st *storage.Storage) error {
		if err := st.Append([]*paxos.Record{record(5, 12_000)}); err != nil {
			return err
		}
		return st.Sync()
	}
	for op, provoke := range map[faultfs.Op]func(*storage.Storage) error{
		faultfs.Sync:    func(st *storage.Storage) error { return st.Sync() },
		faultfs.Write:   func(st *storage.Storage) error { return st.Sync() },
		faultfs.Create:  newSegment,
		faultfs.Resize:  newSegment,
		faultfs.Rename:  newSegment,
		faultfs.SyncDir: newSegment,
	} {
		fsys := faultfs.New()
		st := open(t, fsys).Storage
		write(t, st, 1, 3, 40)
		must(t, st.Append([]*paxos.Record{record(4, 40)}))
		fsys.Fail(op, 1, broken)
		first := provoke(st)
		if !errors.Is(first, broken) {
			t.Fatalf("%v fails, and the storage says %v", op, first)
		}
		ops := fsys.Ops()
		_, _, readErr := st.Read(1, 100, 3)
		_, snapErr := st.ReadSnapshot(0, 0, 10)
		_, _, receiveErr := st.ReceiveSnapshot(nil)
		for i, err := range []error{
			st.Sync(), st.Append([]*paxos.Record{record(6, 10)}), st.Trim(1), st.SetFounded(3), readErr, snapErr, receiveErr,
			st.SaveSnapshot(meta(3), state{slot: 3}),
		} {
			if !errors.Is(err, broken) {
				t.Errorf("after %v failed, call %d says %v", op, i, err)
			}
		}
		if fsys.Ops() != ops {
			t.Errorf("after %v failed, the storage went on writing", op)
		}
		must(t, st.Close())
		after := open(t, fsys.CrashLost())
		if n := len(after.Paxos.Entries); n < 3 || n > 4 {
			t.Errorf("after %v failed and the power went: %d entries", op, n)
		}
	}
}

// A full disk stops the replica; a start on the full disk works, also with a
// torn tail to cut, and goes on when there is room again.
func TestFullDisk(t *testing.T) {
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	write(t, st, 1, 2, 1000)
	fsys.Limit(1000)
	write(t, st, 3, 3, 1000)
	must(t, st.Append([]*paxos.Record{record(4, 6000)}))
	if err := st.Sync(); !errors.Is(err, faultfs.ErrNoSpace) {
		t.Fatalf("on a full disk: %v", err)
	}
	fsys = fsys.Kill()
	end := recordsEnd(t, fsys, firstSegment)
	must(t, fsys.Overwrite(firstSegment, end+8, []byte("torn")))
	fsys.Limit(0)
	o := open(t, fsys)
	if n := len(o.Paxos.Entries); n != 3 {
		t.Fatalf("%d entries, notes %q", n, o.Notes)
	}
	if !slices.ContainsFunc(o.Notes, func(n string) bool { return strings.Contains(n, "no copy of them could be kept") }) {
		t.Errorf("notes %q", o.Notes)
	}
	if names, _ := fsys.List("torn"); len(names) > 0 {
		t.Errorf("half a copy is left: %q", names)
	}
	fsys.Limit(-1)
	write(t, o.Storage, 4, 20, 1000)
	must(t, o.Storage.Close())
	wantSlots(t, open(t, fsys), 20)
}

// A record longer than a segment, and longer than a frame, comes back whole.
func TestLongRecord(t *testing.T) {
	fsys := faultfs.New()
	o := open(t, fsys)
	r := &paxos.Record{Promised: ballot, Chosen: 9}
	for slot := paxos.Slot(1); slot <= 9; slot++ {
		r.Entries = append(r.Entries, record(slot, 1<<20).Entries...)
	}
	must(t, o.Storage.Append([]*paxos.Record{record(1, 10), r}))
	must(t, o.Storage.Sync())
	o = open(t, fsys.CrashLost())
	wantSlots(t, o, 9)
	if o.Paxos.Chosen != 9 || len(o.Paxos.Entries[0].Value.Commands[0]) != 1<<20 {
		t.Errorf("chosen %d, first entry has %d bytes", o.Paxos.Chosen, len(o.Paxos.Entries[0].Value.Commands[0]))
	}
	entries, _, err := o.Storage.Read(2, 1<<20, 9)
	must(t, err)
	if len(entries) < 1 || len(entries) > 2 || entries[0].Slot != 2 || !entries[0].Chosen {
		t.Errorf("reading a megabyte gives %d entries", len(entries))
	}
}

// A good record in a place where it was not written is none.
func TestRecordInAnotherPlaceIsNone(t *testing.T) {
	fsys := faultfs.New()
	o := open(t, fsys)
	write(t, o.Storage, 1, 2, 40)
	start := recordsEnd(t, fsys, firstSegment)
	write(t, o.Storage, 3, 3, 40)
	end := recordsEnd(t, fsys, firstSegment)
	content, err := fsys.ReadFile(firstSegment)
	must(t, err)
	fsys = fsys.Kill()
	must(t, fsys.Overwrite(firstSegment, end, content[start:end]))
	o = open(t, fsys)
	wantSlots(t, o, 3)
	if len(o.Notes) != 1 || !strings.HasPrefix(o.Notes[0], "cut ") {
		t.Errorf("notes %q", o.Notes)
	}
}

// Bad bytes that no mark names, with a record of a later flush behind them: the
// mark was lost as well, for the later flush began only after the earlier one
// was durable.
func TestBadFlushBeforeALaterOne(t *testing.T) {
	base := faultfs.New()
	o := open(t, base)
	write(t, o.Storage, 1, 3, 40)
	third := recordsEnd(t, base, firstSegment)
	write(t, o.Storage, 4, 4, 40)
	fourth := recordsEnd(t, base, firstSegment) - 20 // in the last record so far
	must(t, o.Storage.Append([]*paxos.Record{record(5, 40)}))
	marks := (third + 4095) &^ 4095
	refused := func(what string, fsys *faultfs.FS, doubtful bool, text string) {
		t.Helper()
		_, err := storage.Open(options(fsys))
		var damaged *ondisk.DamagedError
		if !errors.As(err, &damaged) || damaged.Doubtful != doubtful || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The mark of flush 5 never came; the one of flush 4 did, and flush 4 is bad.
	fsys := unfinished(t, base, o.Storage, false)
	must(t, fsys.Flip(firstSegment, third+50, 2))
	refused("bad bytes in flush 4, its mark, a record of flush 5 behind it", fsys, false, "a later flush follow")
	// Without that mark too, the older one that stands beside it tells.
	for _, slot := range []int64{0, 2048} {
		fsys := fsys.Kill()
		must(t, fsys.Flip(firstSegment, marks+slot+20, 2))
		refused(fmt.Sprintf("and the mark at %d bad", slot), fsys, false, "a later flush follow")
	}
	for _, slot := range []int64{0, 2048} {
		must(t, fsys.Flip(firstSegment, marks+slot+20, 2))
	}
	refused("and both marks bad", fsys, false, "are unreadable")
	// With the mark of flush 5, a bad flush 4 is no matter of doubt.
	base = faultfs.New()
	o = open(t, base)
	write(t, o.Storage, 1, 5, 40)
	must(t, base.Flip(firstSegment, fourth, 2))
	refused("bad bytes in flush 4, the mark of flush 5", base.Kill(), false, "was made durable later")
}

// A flush that does not fit behind the last record begins behind the marks; one
// of any size is read again, and whatever block of it a power cut loses, the log
// is as it was before or the loss is found.
func TestFlushesOfAllSizes(t *testing.T) {
	for _, n := range []int{1, 3000, 3900, 3990, 4000, 4010, 4096, 8000, 8192, 12_000} {
		base := faultfs.New()
		o := open(t, base)
		write(t, o.Storage, 1, 2, 40)
		before := recordsEnd(t, base, firstSegment)
		must(t, o.Storage.Append([]*paxos.Record{record(3, n), record(4, n/2+1)}))
		must(t, o.Storage.Append([]*paxos.Record{record(5, 1)}))
		names, err := base.List("log")
		must(t, err)
		base.StopAfter(1)
		err = o.Storage.Sync()
		if !errors.Is(err, faultfs.ErrStopped) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		if more, _ := base.List("log"); len(more) > len(names) {
			continue // the power went while the next segment was made
		}
		end := used(t, base, firstSegment)
		marks := (recordsEnd(t, base, firstSegment) + 4095) &^ 4095
		for lost := before &^ 4095; lost < end; lost += 4096 {
			fsys := base.CrashKeep(func(_ string, offset int64) bool { return offset&^4095 != lost })
			o, err := storage.Open(options(fsys))
			var damaged *ondisk.DamagedError
			switch {
			case lost == marks:
				must(t, err)
				wantSlots(t, o, 5)
			case errors.As(err, &damaged):
				if !damaged.Doubtful {
					t.Errorf("%d bytes, block %d lost: %v", n, lost, err)
				}
			case err != nil:
				t.Errorf("%d bytes, block %d lost: %v", n, lost, err)
			default:
				wantSlots(t, o, 5) // nothing stood in that block
			}
		}
		o = open(t, base.CrashKeep(func(string, int64) bool { return true }))
		wantSlots(t, o, 5)
		write(t, o.Storage, 6, 30, 700)
		must(t, o.Storage.Close())
	}
}

// A flush whose mark a device has lost is believed if the one before it is the
// newest that the marks know: it may have been under way. Two are not: the
// second began only once the mark of the first was durable.
func TestOneLostMarkIsBelievedAndNoMore(t *testing.T) {
	for lost := 1; lost <= 5; lost++ {
		fsys := faultfs.New()
		o := open(t, fsys)
		write(t, o.Storage, 1, 3, 40)
		marks := (recordsEnd(t, fsys, firstSegment) + 4095) &^ 4095
		content, err := fsys.ReadFile(firstSegment)
		must(t, err)
		old := bytes.Clone(content[marks : marks+4096])
		last := paxos.Slot(3 + lost)
		write(t, o.Storage, 4, last, 40) // in the same block, with its marks behind it
		must(t, fsys.Overwrite(firstSegment, marks, old))
		o, err = storage.Open(options(fsys.CrashLost()))
		if lost == 1 {
			must(t, err)
			wantSlots(t, o, last)
			continue
		}
		var damaged *ondisk.DamagedError
		if !errors.As(err, &damaged) || damaged.Doubtful {
			t.Errorf("the marks of the last %d flushes are lost: %v", lost, err)
		}
	}
}
