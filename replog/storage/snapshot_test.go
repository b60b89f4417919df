package storage_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

func meta(slot paxos.Slot) *pb.SnapshotMeta {
	return &pb.SnapshotMeta{Slot: uint64(slot), Config: codec.EncodeConfiguration(&paxos.Configuration{
		Members: []paxos.Member{{ID: 1, Name: "n1", Incarnation: 4711, Voter: true}}, Cell: "demo", CellIdentity: 5,
	})}
}

const newestSnap, olderSnap = "snap/0000000000000020.snap", "snap/0000000000000010.snap"

// twoSnapshots has slots 1 to 30, snapshots of 10 and 20, and the log cut as
// far as it may be.
func twoSnapshots(t *testing.T) *faultfs.FS {
	t.Helper()
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	write(t, st, 1, 10, 1500)
	must(t, st.SaveSnapshot(meta(10), state{slot: 10, size: 5000}))
	must(t, st.Trim(10))
	if names, _ := fsys.List("log"); names[0] != "0000000000000001.seg" {
		t.Fatal("the log was cut with nothing to fall back on")
	}
	write(t, st, 11, 20, 1500)
	must(t, st.SaveSnapshot(meta(20), state{slot: 20, size: 600_000}))
	write(t, st, 21, 30, 1500)
	must(t, st.Trim(25))
	must(t, st.Close())
	return fsys
}

func TestLogIsKeptFromTheOlderSnapshot(t *testing.T) {
	fsys := twoSnapshots(t)
	o := open(t, fsys)
	if o.Paxos.Applied != 20 || o.State.(state).slot != 20 || len(o.Paxos.Entries) != 10 {
		t.Fatalf("snapshot of slot %d, %d entries", o.Paxos.Applied, len(o.Paxos.Entries))
	}
	if o.Paxos.First > 11 || o.Paxos.First < 3 {
		t.Errorf("the log begins at slot %d: it must go back to 11, and old segments must be gone", o.Paxos.First)
	}
	if o.Configuration == nil || o.Configuration.CellIdentity != 5 {
		t.Errorf("configuration %+v", o.Configuration)
	}
	if _, trimmed, err := o.Storage.Read(1, 100, 30); !trimmed || err != nil {
		t.Errorf("reading a trimmed slot: trimmed %v, %v", trimmed, err)
	}
}

func TestDamagedSnapshotFallsBackToTheOlder(t *testing.T) {
	base := twoSnapshots(t)
	content, err := base.ReadFile(newestSnap)
	must(t, err)
	for at := int64(0); at < int64(len(content)); at += 1 + int64(len(content))/300 {
		fsys := base.Kill()
		must(t, fsys.Flip(newestSnap, at, 4))
		o := open(t, fsys)
		if o.Paxos.Applied != 10 || o.State.(state).slot != 10 || len(o.Paxos.Entries) != 20 || o.Paxos.Chosen < 20 {
			t.Fatalf("byte %d: snapshot of slot %d, %d entries", at, o.Paxos.Applied, len(o.Paxos.Entries))
		}
		if !slices.ContainsFunc(o.Notes, func(n string) bool { return strings.Contains(n, newestSnap) }) {
			t.Fatalf("notes %q", o.Notes)
		}
		if _, err := fsys.ReadFile(newestSnap + ".damaged"); err != nil {
			t.Fatalf("the damaged one was not kept: %v", err)
		}
	}
}

func TestSnapshotsAndLogThatDoNotSuffice(t *testing.T) {
	base := twoSnapshots(t)
	for what, spoil := range map[string]func(*faultfs.FS) error{
		"both damaged": func(f *faultfs.FS) error {
			return errors.Join(f.Flip(newestSnap, 1000, 1), f.Flip(olderSnap, 1000, 1))
		},
		"both cut short": func(f *faultfs.FS) error { return errors.Join(f.Cut(newestSnap, 3), f.Cut(olderSnap, 0)) },
		"both gone":      func(f *faultfs.FS) error { return errors.Join(f.Remove(newestSnap), f.Remove(olderSnap)) },
		"newest damaged and older gone": func(f *faultfs.FS) error {
			return errors.Join(f.Flip(newestSnap, 1000, 1), f.Remove(olderSnap))
		},
		"newest damaged and the log behind the older one gone": func(f *faultfs.FS) error {
			names, err := f.List("log")
			return errors.Join(err, f.Flip(newestSnap, 1000, 1), f.Remove("log/"+names[0]), f.Remove("log/"+names[1]))
		},
	} {
		fsys := base.Kill()
		must(t, spoil(fsys))
		before := contents(t, fsys)
		_, err := storage.Open(options(fsys))
		var damaged *ondisk.DamagedError
		if !errors.As(err, &damaged) {
			t.Errorf("%s: %v", what, err)
		}
		if contents(t, fsys) != before {
			t.Errorf("%s: files were changed", what)
		}
	}
}

func TestOnlySnapshotDamagedAndLogWhole(t *testing.T) {
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	write(t, st, 1, 10, 1500)
	must(t, st.SaveSnapshot(meta(10), state{slot: 10, size: 5000}))
	must(t, st.Close())
	must(t, fsys.Flip(olderSnap, 2000, 1))
	o := open(t, fsys)
	if o.Paxos.Applied != 0 || len(o.Paxos.Entries) != 10 || o.Paxos.Chosen != 9 {
		t.Errorf("snapshot of slot %d, %d entries, chosen %d", o.Paxos.Applied, len(o.Paxos.Entries), o.Paxos.Chosen)
	}
}

func TestNewestTwoSnapshotsAreKept(t *testing.T) {
	fsys := twoSnapshots(t)
	st := open(t, fsys).Storage
	if c, err := st.ReadSnapshot(10, 0, 100); err != nil || c.Gone || c.Last {
		t.Fatalf("%v %v", c, err)
	}
	must(t, st.SaveSnapshot(meta(30), state{slot: 30}))
	if c, err := st.ReadSnapshot(10, 100, 100); err != nil || c.Gone {
		t.Fatalf("the snapshot under transfer went away: %v %v", c, err)
	}
	write(t, st, 31, 50, 100)
	must(t, st.SaveSnapshot(meta(40), state{slot: 40}))
	must(t, st.SaveSnapshot(meta(50), state{slot: 50}))
	names, err := fsys.List("snap")
	must(t, err)
	if !slices.Equal(names, []string{"0000000000000040.snap", "0000000000000050.snap"}) {
		t.Errorf("kept %q", names)
	}
	if c, err := st.ReadSnapshot(10, 200, 100); err != nil || !c.Gone {
		t.Errorf("a snapshot that is gone: %v %v", c, err)
	}
	if c, err := st.ReadSnapshot(0, 0, 10); err != nil || c.Slot != 50 || c.Size == 0 {
		t.Errorf("the newest: %v %v", c, err)
	}
}

func TestFailedSnapshotChangesNothing(t *testing.T) {
	fsys := twoSnapshots(t)
	st := open(t, fsys).Storage
	before, err := fsys.List("snap")
	must(t, err)
	full := errors.New("no space left")
	for _, op := range []faultfs.Op{faultfs.Create, faultfs.Write, faultfs.Sync} {
		fsys.Fail(op, 1, full)
		if err := st.SaveSnapshot(meta(30), state{slot: 30, size: 100}); !errors.Is(err, full) {
			t.Fatalf("%v fails: %v", op, err)
		}
		if after, _ := fsys.List("snap"); !slices.Equal(before, after) {
			t.Errorf("%v fails: %q becomes %q", op, before, after)
		}
	}
	write(t, st, 31, 32, 100)
	must(t, st.SaveSnapshot(meta(30), state{slot: 30, size: 100}))
}

// transfer gives the pieces of the newest snapshot of a storage.
func transfer(t *testing.T, st *storage.Storage, limit int) []*pb.SnapshotChunk {
	t.Helper()
	var out []*pb.SnapshotChunk
	for at := int64(0); ; {
		c, err := st.ReadSnapshot(0, at, limit)
		must(t, err)
		if c.Gone || len(c.Data) == 0 {
			t.Fatalf("piece at %d: %v", at, c)
		}
		out = append(out, c)
		if at += int64(len(c.Data)); c.Last {
			return out
		}
	}
}

func TestSnapshotTransfer(t *testing.T) {
	pieces := transfer(t, open(t, twoSnapshots(t)).Storage, 50_000)
	if len(pieces) < 5 {
		t.Fatalf("only %d pieces", len(pieces))
	}
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	write(t, st, 1, 25, 100)
	// Pieces repeated, one left out, started over after a while: all of it
	// ends well.
	if _, _, err := st.ReceiveSnapshot(pieces[1]); err == nil {
		t.Error("a second piece without the first was accepted")
	}
	for _, i := range []int{0, 1, 1, 0, 1, 2, 1} {
		if m, _, err := st.ReceiveSnapshot(pieces[i]); m != nil || err != nil {
			t.Fatalf("piece %d: %v %v", i, m, err)
		}
	}
	if _, _, err := st.ReceiveSnapshot(pieces[4]); err == nil {
		t.Error("a piece was left out, and nothing said")
	}
	var got *pb.SnapshotMeta
	var decoded any
	for _, p := range pieces[3:] {
		var err error
		got, decoded, err = st.ReceiveSnapshot(p)
		must(t, err)
	}
	if got.GetSlot() != 20 || decoded.(state).slot != 20 {
		t.Fatalf("received %v, %v", got, decoded)
	}
	must(t, st.InstallSnapshot(got, paxos.Ballot{Round: 9, Replica: 3}, nil))
	check := func(o *storage.Opened) {
		t.Helper()
		if o.Paxos.Applied != 20 || o.Paxos.First != 21 || len(o.Paxos.Entries) != 5 || o.Paxos.Promised.Round != 9 ||
			o.Configuration == nil {
			t.Fatalf("after the installation: %+v", o.Paxos)
		}
	}
	check(open(t, fsys.CrashLost()))
	names, err := fsys.List("log")
	must(t, err)
	if !slices.Equal(names, []string{"0000000000000002.seg"}) {
		t.Errorf("segments %q", names)
	}
	write(t, st, 26, 30, 100)
	if entries, trimmed, err := st.Read(21, 1<<20, 29); err != nil || trimmed || len(entries) != 9 {
		t.Errorf("reading behind the snapshot: %d entries, %v, %v", len(entries), trimmed, err)
	}
}

func TestSpoiledTransferIsRefused(t *testing.T) {
	pieces := transfer(t, open(t, twoSnapshots(t)).Storage, 100_000)
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	spoiled := &pb.SnapshotChunk{Slot: pieces[2].Slot, Offset: pieces[2].Offset, Size: pieces[2].Size, Data: slices.Clone(pieces[2].Data)}
	spoiled.Data[77] ^= 4
	for i, p := range pieces {
		if i == 2 {
			p = spoiled
		}
		m, _, err := st.ReceiveSnapshot(p)
		if last := i == len(pieces)-1; m != nil || last != (err != nil) {
			t.Fatalf("piece %d: %v %v", i, m, err)
		}
	}
	if names, _ := fsys.List("snap"); len(names) > 0 {
		t.Errorf("left %q", names)
	}
	for _, p := range []*pb.SnapshotChunk{nil, {}, {Slot: 1}, {Slot: 1, Size: 5}, {Slot: 1, Size: 5, Offset: 9, Data: []byte("x")},
		{Slot: 1, Size: 2, Data: []byte("long")}, {Slot: 1, Size: 1 << 60, Data: []byte("x")}} {
		if _, _, err := st.ReceiveSnapshot(p); err == nil {
			t.Errorf("the piece %v was accepted", p)
		}
	}
	other := options(faultfs.New())
	other.Cell = "other"
	o, err := storage.Open(other)
	must(t, err)
	for i, p := range pieces {
		if _, _, err = o.Storage.ReceiveSnapshot(p); err != nil && i < len(pieces)-1 {
			t.Fatal(err)
		}
	}
	if err == nil {
		t.Error("a snapshot of another cell was accepted")
	}
}

func TestReceivedSnapshotIsOfThisCell(t *testing.T) {
	pieces := transfer(t, open(t, twoSnapshots(t)).Storage, 100_000)
	for _, own := range []uint64{0, 5, 6} {
		fsys := faultfs.New()
		st := open(t, fsys).Storage
		if own != 0 {
			must(t, st.SetFounded(own))
		}
		var err error
		for _, p := range pieces {
			_, _, err = st.ReceiveSnapshot(p)
		}
		names, _ := fsys.List("snap")
		if refused := own == 6; refused != (err != nil) || refused != (len(names) == 0) {
			t.Errorf("identity %d, the snapshot is of 5: %v, files %q", own, err, names)
		}
	}
}

// A snapshot that is refused must leave no file: it would take the log's place at
// the next start.
func TestReceivedSnapshotHasThisReplica(t *testing.T) {
	fsys := twoSnapshots(t)
	pieces := transfer(t, open(t, fsys).Storage, 100_000)
	for what, change := range map[string]func(o *storage.Options){
		"another replica": func(o *storage.Options) { o.Replica = "n2" },
		"another disk":    func(o *storage.Options) { o.NewIncarnation = func() uint64 { return 4712 } },
	} {
		opt := options(faultfs.New())
		change(&opt)
		o, err := storage.Open(opt)
		must(t, err)
		for _, p := range pieces {
			_, _, err = o.Storage.ReceiveSnapshot(p)
		}
		if names, _ := opt.FS.List("snap"); err == nil || len(names) != 0 {
			t.Errorf("%s: %v, files %q", what, err, names)
		}
		must(t, o.Storage.Close())
	}
}

// Crashes behind the naming of a received snapshot, at each step of its
// installation: what the log holds below the snapshot's slot was accepted, and
// need not be chosen.
func TestStaleEntriesBelowAReceivedSnapshotAreNeverChosen(t *testing.T) {
	pieces := transfer(t, open(t, twoSnapshots(t)).Storage, 100_000)
	for steps, done := 0, false; !done; steps++ {
		fsys := faultfs.New()
		st := open(t, fsys).Storage
		for slot := paxos.Slot(1); slot <= 25; slot++ {
			r := record(slot, 100)
			r.Chosen = min(r.Chosen, 15)
			must(t, st.Append([]*paxos.Record{r}))
		}
		must(t, st.Sync())
		var got *pb.SnapshotMeta
		for _, p := range pieces {
			var err error
			got, _, err = st.ReceiveSnapshot(p)
			must(t, err)
		}
		fsys.StopAfter(steps)
		done = st.InstallSnapshot(got, ballot, nil) == nil
		fsys = fsys.CrashLost()
		for entries := 5; entries <= 6; entries++ {
			o := open(t, fsys)
			if o.Paxos.Applied != 20 || o.Paxos.First != 21 || len(o.Paxos.Entries) != entries || o.Paxos.Promised != ballot {
				t.Fatalf("step %d: first %d, %d entries, %+v", steps, o.Paxos.First, len(o.Paxos.Entries), o.Notes)
			}
			if given, trimmed, err := o.Storage.Read(16, 1<<20, 20); !trimmed || err != nil {
				t.Fatalf("step %d: %d entries are given for chosen, %v", steps, len(given), err)
			}
			write(t, o.Storage, 26, 26, 10)
			must(t, o.Storage.Close())
			fsys = fsys.CrashLost()
		}
	}
}

// Reading, snapshots and cutting run beside the writing.
func TestEverythingAtOnce(t *testing.T) {
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	write(t, st, 1, 20, 200)
	const end = 400
	var written sync.Map
	written.Store("slot", paxos.Slot(20))
	at := func() paxos.Slot { v, _ := written.Load("slot"); return v.(paxos.Slot) }
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(done)
		for slot := paxos.Slot(21); slot <= end; slot++ {
			if err := errors.Join(st.Append([]*paxos.Record{record(slot, 200)}), st.Sync()); err != nil {
				t.Error(err)
				return
			}
			written.Store("slot", slot)
		}
	})
	until := func(do func() error) {
		wg.Go(func() {
			for {
				if err := do(); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	from := paxos.Slot(1)
	until(func() error {
		entries, trimmed, err := st.Read(from, 3000, at())
		for _, e := range entries {
			if e.Slot != from {
				t.Errorf("slot %d where %d belongs", e.Slot, from)
			}
			from++
		}
		if trimmed {
			from += 10
		}
		return err
	})
	until(func() error {
		slot := at()
		return errors.Join(st.SaveSnapshot(meta(slot), state{slot: slot, size: 100}), st.Trim(slot))
	})
	until(func() error { _, err := st.ReadSnapshot(0, 0, 100); return err })
	wg.Wait()
	must(t, st.Close())
	o := open(t, fsys)
	if last := o.Paxos.Applied + paxos.Slot(len(o.Paxos.Entries)); last != end {
		t.Errorf("snapshot of slot %d and %d entries", o.Paxos.Applied, len(o.Paxos.Entries))
	}
}
