package storage_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

var errIO error = syscall.EIO

const filled = 24 // slots of a filled disk, in several segments

// fill makes a disk with several segments and two snapshots, all of it durable.
func fill(t testing.TB) (*faultfs.FS, *storage.Opened) {
	t.Helper()
	fsys := faultfs.New()
	o := open(t, fsys)
	write(t, o.Storage, 1, filled, 1500)
	for _, slot := range []paxos.Slot{5, 12} {
		must(t, o.Storage.SaveSnapshot(&pb.SnapshotMeta{Slot: uint64(slot)}, state{slot, 3000}))
	}
	return fsys, o
}

// wantFilled checks that nothing of a filled disk is lost.
func wantFilled(t testing.TB, what string, o *storage.Opened) {
	t.Helper()
	p := o.Paxos
	if p.Chosen < filled-1 || p.Promised != ballot || p.Applied < 5 || len(p.Entries) == 0 || p.Entries[len(p.Entries)-1].Slot < filled {
		t.Fatalf("%s: found chosen %d, applied %d, promised %v, %d entries", what, p.Chosen, p.Applied, p.Promised, len(p.Entries))
	}
	for slot := p.First; slot < filled; slot++ {
		entries, _, err := o.Storage.Read(slot, 1, p.Chosen)
		if err != nil || len(entries) == 0 || entries[0].Value.Commands[0][0] != byte(slot) {
			t.Fatalf("%s: slot %d: %v, %v", what, slot, entries, err)
		}
	}
}

// files lists the files of a disk.
func files(t testing.TB, fsys *faultfs.FS) (names []string) {
	t.Helper()
	for _, dir := range []string{"log", "snap"} {
		in, err := fsys.List(dir)
		must(t, err)
		for _, n := range in {
			names = append(names, dir+"/"+n)
		}
	}
	return append(names, "identity")
}

// An operation of the disk that fails under one of the storage's is told by its
// file and the disk's own error, stops the log if it was the log's, and loses
// nothing: the next process finds all that was acknowledged.
func TestFailedOperations(t *testing.T) {
	append1 := func(slot paxos.Slot) func(st *storage.Storage) error {
		return func(st *storage.Storage) error {
			return errors.Join(st.Append([]*paxos.Record{record(slot, 9000)}), st.Sync())
		}
	}
	save := func(st *storage.Storage) error {
		return st.SaveSnapshot(&pb.SnapshotMeta{Slot: 20}, state{20, 3000})
	}
	trim := func(st *storage.Storage) error { return st.Trim(5) }
	found := func(st *storage.Storage) error { return st.SetFounded(3) }
	for _, c := range []struct {
		what  string
		op    faultfs.Op
		do    func(*storage.Storage) error
		names string // what the error names
		stops bool
	}{
		{"resize for a new segment", faultfs.Resize, append1(filled + 1), "log/", true},
		{"create of a new segment", faultfs.Create, append1(filled + 1), "log/", true},
		{"rename of a new segment", faultfs.Rename, append1(filled + 1), "log/", true},
		{"sync of the directory of a new segment", faultfs.SyncDir, append1(filled + 1), "log", true},
		{"write of a flush", faultfs.Write, append1(filled + 1), "log/", true},
		{"sync of a flush", faultfs.Sync, append1(filled + 1), "log/", true},
		{"removal of an old segment", faultfs.Remove, trim, "log/0000000000000001.seg", true},
		{"sync of a removal", faultfs.SyncDir, trim, "log/0000000000000001.seg", true},
		{"removal of an old snapshot", faultfs.Remove, save, "snap/0000000000000005.snap", true},
		{"rename of a snapshot", faultfs.Rename, save, "snap/0000000000000020.snap", true},
		{"create of a snapshot", faultfs.Create, save, "slot 20", false},
		{"write of a snapshot", faultfs.Write, save, "slot 20", false},
		{"sync of a snapshot", faultfs.Sync, save, "slot 20", false},
		{"create of the identity", faultfs.Create, found, "identity", true},
		{"rename of the identity", faultfs.Rename, found, "identity", true},
	} {
		fsys, o := fill(t)
		fsys.FailFrom(c.op, 1, errIO)
		err := c.do(o.Storage)
		if !errors.Is(err, errIO) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%s: %v", c.what, err)
		}
		fsys.Fail(c.op, 0, nil)
		before := fsys.Ops()
		again := errors.Join(o.Storage.Append([]*paxos.Record{record(filled+1, 10)}), o.Storage.Sync())
		if c.stops && (!errors.Is(again, errIO) || fsys.Ops() != before) {
			t.Errorf("%s: the log goes on: %v", c.what, again)
		}
		if !c.stops && again != nil {
			t.Errorf("%s: the log does not go on: %v", c.what, again)
		}
		for how, after := range map[string]*faultfs.FS{"kill": fsys.Kill(), "power cut": fsys.CrashLost()} {
			o, err := storage.Open(options(after))
			if err != nil {
				t.Errorf("%s, %s: %v", c.what, how, err)
				continue
			}
			wantFilled(t, c.what+", "+how, o)
		}
	}
}

// A start that cannot remove, rename, write or sync what it has to says which
// file, and changes nothing that a later start needs.
func TestStartOnAFailingDisk(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.Remove, faultfs.Write, faultfs.Sync, faultfs.SyncDir, faultfs.Rename} {
		base, _ := fill(t)
		fsys := base.CrashLost()
		must(t, fsys.WriteFile("log/0000000000000099.seg.tmp", []byte("x")))
		must(t, fsys.WriteFile("snap/incoming.part", []byte("x")))
		must(t, fsys.Flip("snap/0000000000000012.snap", 200, 1)) // which is put aside
		for n := 1; ; n++ {
			after := fsys.Kill()
			after.FailFrom(op, n, errIO)
			o, err := storage.Open(options(after))
			if err == nil {
				wantFilled(t, fmt.Sprint(op), o)
				if n == 1 {
					t.Errorf("no %v is made at all", op)
				}
				break
			}
			if !errors.Is(err, errIO) || !strings.Contains(err.Error(), op.String()) {
				t.Errorf("%v %d: %v", op, n, err)
			}
			o, err = storage.Open(options(after.CrashLost()))
			must(t, err)
			wantFilled(t, fmt.Sprint(op, " later"), o)
		}
	}
}

// A place of the disk that cannot be read is no damage, for it may be read the
// next time: the start is refused with the file's name and the disk's error, and
// nothing is changed, nor lost.
func TestUnreadablePlaces(t *testing.T) {
	base, _ := fill(t)
	for _, name := range files(t, base) {
		content, err := base.ReadFile(name)
		must(t, err)
		for at := int64(0); at < int64(len(content)); at += 2048 {
			fsys := base.CrashLost()
			must(t, fsys.FailRead(name, at, -1, errIO))
			before := contents(t, fsys)
			o, err := storage.Open(options(fsys))
			if err == nil {
				wantFilled(t, name, o) // a place that holds nothing
				continue
			}
			var damaged *ondisk.DamagedError
			if !errors.Is(err, errIO) || !strings.Contains(err.Error(), name) || errors.As(err, &damaged) {
				t.Fatalf("%s, byte %d: %v", name, at, err)
			}
			if contents(t, fsys) != before {
				t.Fatalf("%s, byte %d: the start that failed changed files", name, at)
			}
			if _, err := storage.Open(options(fsys.CrashLost())); !errors.Is(err, errIO) {
				t.Fatalf("%s, byte %d: the bad place is forgotten: %v", name, at, err)
			}
			must(t, fsys.MendReads(name))
			o, err = storage.Open(options(fsys))
			must(t, err)
			wantFilled(t, name, o)
		}
	}
}

// The same while it runs: what a reader asked for fails, the log goes on, and the
// next reader is served.
func TestUnreadableWhileRunning(t *testing.T) {
	fsys, o := fill(t)
	must(t, fsys.FailRead("log/0000000000000001.seg", 8192, 1, errIO))
	if _, _, err := o.Storage.Read(1, 1, filled-1); !errors.Is(err, errIO) || !strings.Contains(err.Error(), "log/0000000000000001.seg") {
		t.Errorf("reading a slot: %v", err)
	}
	must(t, fsys.FailRead("snap/0000000000000012.snap", 0, 1, errIO))
	if _, err := o.Storage.ReadSnapshot(0, 0, 1<<20); !errors.Is(err, errIO) || !strings.Contains(err.Error(), "snap/0000000000000012.snap") {
		t.Errorf("reading a snapshot: %v", err)
	}
	must(t, errors.Join(o.Storage.Append([]*paxos.Record{record(filled+1, 10)}), o.Storage.Sync()))
	if entries, _, err := o.Storage.Read(1, 1, filled-1); err != nil || len(entries) != 1 {
		t.Errorf("reading it again: %v, %v", entries, err)
	}
	if _, err := o.Storage.ReadSnapshot(0, 0, 1<<20); err != nil {
		t.Errorf("reading it again: %v", err)
	}
	// What an installation has to carry over must be read; else the replica stops.
	donor := open(t, faultfs.New())
	must(t, donor.Storage.SaveSnapshot(meta(filled), state{filled, 10}))
	c, err := donor.Storage.ReadSnapshot(0, 0, 1<<20)
	must(t, err)
	meta, _, err := o.Storage.ReceiveSnapshot(c)
	must(t, err)
	names, err := fsys.List("log")
	must(t, err)
	last := "log/" + names[len(names)-1]
	for at := int64(0); at < 20480; at += 8 {
		must(t, fsys.FailRead(last, at, 1, errIO))
	}
	if err := o.Storage.InstallSnapshot(meta, ballot, nil); !errors.Is(err, errIO) {
		t.Fatalf("installing without the votes above the snapshot: %v", err)
	}
	if err := o.Storage.Sync(); !errors.Is(err, errIO) {
		t.Errorf("the log goes on: %v", err)
	}
	o = open(t, fsys.CrashLost())
	if e := o.Paxos.Entries; o.Paxos.Applied != filled || len(e) != 1 || e[0].Slot != filled+1 {
		t.Errorf("after a restart: applied %d, %v", o.Paxos.Applied, e)
	}
}

// A file that has vanished is missed by name if it is needed; if not (one of two
// snapshots) nothing is lost.
func TestVanishedFiles(t *testing.T) {
	base, _ := fill(t)
	for _, name := range files(t, base) {
		fsys := base.CrashLost()
		must(t, fsys.Vanish(name))
		o, err := storage.Open(options(fsys))
		if strings.HasPrefix(name, "snap/") {
			must(t, err)
			wantFilled(t, name, o)
			continue
		}
		var damaged *ondisk.DamagedError
		var foreign *ondisk.ForeignError
		switch {
		case name == "identity" && errors.As(err, &foreign):
		case name == firstSegment && err == nil:
			wantFilled(t, name, o) // as if it had been trimmed: the older snapshot holds more than it did
		case errors.As(err, &damaged) && damaged.File == name:
		default:
			t.Errorf("without %s: %v", name, err)
		}
	}
	// Without both, and the log cut behind the older one, nothing is left to go on
	// from.
	fsys, o := fill(t)
	must(t, o.Storage.Trim(12))
	for _, n := range []string{"snap/0000000000000005.snap", "snap/0000000000000012.snap"} {
		must(t, fsys.Vanish(n))
	}
	if _, err := storage.Open(options(fsys.CrashLost())); err == nil {
		t.Error("the log is cut, both snapshots are gone, and it starts")
	}
}

// Several bits that went bad within a sector: whichever they are, the start finds
// them or they are of no consequence; nothing acknowledged is lost in silence.
func TestSeveralBitsWithinASector(t *testing.T) {
	base, _ := fill(t)
	names := files(t, base)
	refused := 0
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(names).Draw(t, "file")
		content, err := base.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sector := int64(rapid.IntRange(0, (len(content)-1)/512).Draw(t, "sector")) * 512
		bits := rapid.IntRange(2, 40).Draw(t, "bits")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		fsys := base.CrashLost()
		if err := fsys.FlipBits(rng, name, sector, min(sector+512, int64(len(content))), bits); err != nil {
			t.Fatal(err)
		}
		o, err := storage.Open(options(fsys))
		var damaged *ondisk.DamagedError
		if errors.As(err, &damaged) {
			refused++
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		p := o.Paxos
		if p.Chosen < filled-1 || p.Promised != ballot || p.Applied < 5 {
			t.Fatalf("found chosen %d, applied %d, promised %v", p.Chosen, p.Applied, p.Promised)
		}
		for slot := p.First; slot <= filled; slot++ {
			at := slices.IndexFunc(p.Entries, func(e paxos.Entry) bool { return e.Slot == slot })
			if at < 0 && slot > p.Applied || at >= 0 && p.Entries[at].Value.Commands[0][0] != byte(slot) {
				t.Fatalf("slot %d is lost (notes %q)", slot, o.Notes)
			}
		}
	})
	if refused == 0 {
		t.Error("no damage was ever found")
	}
}

// A temporary file that was given up and could not be removed is in the way of no
// later one of its name.
func TestTemporaryFileThatStaysIsNotInTheWay(t *testing.T) {
	pieces := transfer(t, open(t, twoSnapshots(t)).Storage, 100_000)
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	fsys.FailFrom(faultfs.Remove, 1, errIO)
	if _, _, err := st.ReceiveSnapshot(pieces[0]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := st.ReceiveSnapshot(&pb.SnapshotChunk{Slot: pieces[0].Slot, Gone: true}); !errors.Is(err, errIO) {
		t.Fatalf("what has come of a snapshot that is gone cannot be removed: %v", err)
	}
	fsys.Fail(faultfs.Remove, 0, nil)
	for i, p := range pieces {
		if m, _, err := st.ReceiveSnapshot(p); err != nil || (m != nil) != (i == len(pieces)-1) {
			t.Fatalf("piece %d: %v %v", i, m, err)
		}
	}

	fsys, o := fill(t)
	save := func() error { return o.Storage.SaveSnapshot(&pb.SnapshotMeta{Slot: 20}, state{20, 3000}) }
	fsys.FailFrom(faultfs.Remove, 1, errIO)
	fsys.FailFrom(faultfs.Write, 1, errIO)
	if err := save(); !errors.Is(err, errIO) {
		t.Fatalf("a snapshot that cannot be written is saved: %v", err)
	}
	fsys.Fail(faultfs.Remove, 0, nil)
	fsys.Fail(faultfs.Write, 0, nil)
	if err := save(); err != nil {
		t.Errorf("the next snapshot of the slot: %v", err)
	}
}
