package replog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/faultfs"
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

func open(t testing.TB, fsys replog.FS) *replog.Opened {
	t.Helper()
	o, err := replog.Open(options(fsys))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// write appends slots from to to, a flush each.
func write(t testing.TB, st *replog.Storage, from, to paxos.Slot, n int) {
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

func wantSlots(t *testing.T, o *replog.Opened, n paxos.Slot) {
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
		start := used(t, base, firstSegment)
		start = (start + 7) &^ 7
		must(t, o.Storage.Append([]*paxos.Record{record(4, 60)}))
		if synced {
			must(t, o.Storage.Sync())
		}
		end := used(t, base, firstSegment)
		for way, spoil := range spoils {
			for at := start; at < end; at++ {
				fsys := base.Kill()
				must(t, spoil(fsys, firstSegment, at, end))
				o, err := replog.Open(options(fsys))
				what := fmt.Sprintf("%s at byte %d, synced %v", way, at-start, synced)
				if synced {
					var damaged *replog.DamagedError
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
			_, err := replog.Open(options(fsys))
			var damaged *replog.DamagedError
			if !errors.As(err, &damaged) || damaged.Doubtful {
				t.Fatalf("cut to %d bytes: %v", size, err)
			}
		}
	}
}

// checkCut wants the note and the copy of a cut tail, and then to write in its
// place.
func checkCut(t *testing.T, what string, fsys *faultfs.FS, o *replog.Opened, cut bool, start int64) {
	t.Helper()
	noted := slices.ContainsFunc(o.Notes, func(n string) bool { return strings.HasPrefix(n, "cut ") })
	if noted != cut {
		t.Fatalf("%s: notes %q", what, o.Notes)
	}
	if copies, err := fsys.List("torn"); cut != (err == nil && len(copies) == 1) {
		t.Fatalf("%s: copies %q, %v", what, copies, err)
	}
	if end := used(t, fsys.CrashLost(), firstSegment); end > start {
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
	end := used(t, base, firstSegment)
	refused := 0
	for at := int64(0); at < end; at++ {
		if at > 64 && at < 4096 || at > 4096+64 && at < 8192 {
			continue // nothing is ever written or read there
		}
		fsys := base.Kill()
		must(t, fsys.Flip(firstSegment, at, uint(at*5)))
		o, err := replog.Open(options(fsys))
		if err == nil {
			wantSlots(t, o, 8)
			continue
		}
		refused++
		var damaged *replog.DamagedError
		if !errors.As(err, &damaged) {
			t.Fatalf("byte %d: %v", at, err)
		}
		if damaged.Doubtful && damaged.Offset < end-120 {
			t.Fatalf("byte %d is before the last flush, and in doubt: %v", at, err)
		}
	}
	if want := int(end - 8192); refused < want {
		t.Errorf("refused %d times, %d expected: every byte of header and records counts", refused, want)
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
	for what, spoil := range map[string]func(*faultfs.FS) error{
		"flipped bit in an old segment":   func(f *faultfs.FS) error { return f.Flip(second, 10_000, 3) },
		"end of an old segment zeroed":    func(f *faultfs.FS) error { return f.Overwrite(second, 14_000, make([]byte, 2384)) },
		"old segment short":               func(f *faultfs.FS) error { return f.Cut(second, 16_000) },
		"old segment long":                func(f *faultfs.FS) error { return f.Cut(second, 20_000) },
		"old segment empty":               func(f *faultfs.FS) error { return f.Cut(second, 0) },
		"old segment gone":                func(f *faultfs.FS) error { return f.Remove(second) },
		"first segment gone":              func(f *faultfs.FS) error { return f.Remove(firstSegment) },
		"last segment empty":              func(f *faultfs.FS) error { return f.Cut("log/"+names[len(names)-1], 0) },
		"last segment with half a header": func(f *faultfs.FS) error { return f.Cut("log/"+names[len(names)-1], 8200) },
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
		_, err := replog.Open(options(fsys))
		var damaged *replog.DamagedError
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
	for op, provoke := range map[faultfs.Op]func(*replog.Storage) error{
		faultfs.Sync:    func(st *replog.Storage) error { return st.Sync() },
		faultfs.Write:   func(st *replog.Storage) error { return st.Append([]*paxos.Record{record(5, 10)}) },
		faultfs.Create:  func(st *replog.Storage) error { return st.Append([]*paxos.Record{record(5, 12_000)}) },
		faultfs.Resize:  func(st *replog.Storage) error { return st.Append([]*paxos.Record{record(5, 12_000)}) },
		faultfs.Rename:  func(st *replog.Storage) error { return st.Append([]*paxos.Record{record(5, 12_000)}) },
		faultfs.SyncDir: func(st *replog.Storage) error { return st.Append([]*paxos.Record{record(5, 12_000)}) },
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
	write(t, st, 1, 3, 1000)
	fsys.Limit(1000)
	if err := st.Append([]*paxos.Record{record(4, 2000), record(5, 6000)}); !errors.Is(err, faultfs.ErrNoSpace) {
		t.Fatalf("on a full disk: %v", err)
	}
	fsys = fsys.Kill()
	end := used(t, fsys, firstSegment)
	must(t, fsys.Overwrite(firstSegment, end+8, []byte("torn")))
	fsys.Limit(0)
	o := open(t, fsys)
	if n := len(o.Paxos.Entries); n != 4 {
		t.Fatalf("%d entries, notes %q", n, o.Notes)
	}
	if !slices.ContainsFunc(o.Notes, func(n string) bool { return strings.Contains(n, "no copy of them could be kept") }) {
		t.Errorf("notes %q", o.Notes)
	}
	if names, _ := fsys.List("torn"); len(names) > 0 {
		t.Errorf("half a copy is left: %q", names)
	}
	fsys.Limit(-1)
	write(t, o.Storage, 5, 20, 1000)
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
	start := (used(t, fsys, firstSegment) + 7) &^ 7
	write(t, o.Storage, 3, 3, 40)
	end := (used(t, fsys, firstSegment) + 7) &^ 7
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
	third := (used(t, base, firstSegment) + 7) &^ 7
	write(t, o.Storage, 4, 4, 40)
	fourth := used(t, base, firstSegment) - 20 // in the last record so far
	must(t, o.Storage.Append([]*paxos.Record{record(5, 40)}))
	refused := 0
	for _, mark := range []int64{0, 4096} {
		fsys := base.Kill()
		must(t, fsys.Flip(firstSegment, third+50, 2))
		must(t, fsys.Flip(firstSegment, mark+20, 2))
		_, err := replog.Open(options(fsys))
		var damaged *replog.DamagedError
		if !errors.As(err, &damaged) {
			t.Fatalf("mark at %d and the flush behind it are bad: %v", mark, err)
		}
		if !damaged.Doubtful && strings.Contains(err.Error(), "a later flush follow") {
			refused++
		}
	}
	if refused == 0 {
		t.Error("the later flush was never the reason")
	}
	// With both marks good, the bad flush is no matter of doubt: a later one
	// had begun.
	fsys := base.Kill()
	must(t, fsys.Flip(firstSegment, fourth, 2))
	_, err := replog.Open(options(fsys))
	var damaged *replog.DamagedError
	if !errors.As(err, &damaged) || damaged.Doubtful {
		t.Errorf("bad bytes in flush 4, a record of flush 5 behind it: %v", err)
	}
}
