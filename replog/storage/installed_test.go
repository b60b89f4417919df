package storage_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// installation is a random story of one received snapshot: what the log held
// before, what came behind it. Entries that were chosen say so; others that
// stand in the same slots must never be taken for chosen.
type installation struct {
	chosen paxos.Slot // known to be before the snapshot came
	base   paxos.Slot // slot of the snapshot
	early  []paxos.Slot
	behind []behind
	donor  *pb.SnapshotChunk
}

// behind is one thing that is done behind the installation.
type behind struct {
	what string // append, sync, reopen, save
	slot paxos.Slot
	n    int
}

func drawInstallation(t *rapid.T) *installation {
	i := &installation{chosen: paxos.Slot(rapid.IntRange(0, 4).Draw(t, "chosen"))}
	i.base = i.chosen + paxos.Slot(rapid.IntRange(1, 5).Draw(t, "ahead"))
	near := rapid.Custom(func(t *rapid.T) paxos.Slot {
		return i.chosen + paxos.Slot(rapid.IntRange(1, int(i.base-i.chosen)+3).Draw(t, "slot"))
	})
	i.early = rapid.SliceOfN(near, 0, 4).Draw(t, "early")
	i.behind = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) behind {
		return behind{
			what: rapid.SampledFrom([]string{"append", "append", "sync", "reopen", "save"}).Draw(t, "what"),
			slot: near.Draw(t, "at"),
			n:    rapid.SampledFrom([]int{20, 3000, 9000}).Draw(t, "bytes"),
		}
	}), 1, 8).Draw(t, "behind")
	return i
}

func (i *installation) entry(slot paxos.Slot, n int) paxos.Entry {
	text := make([]byte, n)
	copy(text, "stale")
	if slot > i.base || slot <= i.chosen {
		copy(text, "right")
	}
	return paxos.Entry{Slot: slot, Ballot: ballot, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{text}}}
}

// play lets the story happen until the power goes.
func (i *installation) play(fsys *faultfs.FS) error {
	o, err := storage.Open(options(fsys))
	if err != nil {
		return err
	}
	st := o.Storage
	add := func(chosen paxos.Slot, entries ...paxos.Entry) error {
		return st.Append([]*paxos.Record{{Promised: ballot, Chosen: chosen, Entries: entries}})
	}
	for slot := paxos.Slot(1); slot <= i.chosen; slot++ {
		err = errors.Join(err, add(slot, i.entry(slot, 100)))
	}
	for _, slot := range i.early {
		err = errors.Join(err, add(i.chosen, i.entry(slot, 100)))
	}
	if err = errors.Join(err, st.Sync()); err != nil {
		return err
	}
	meta, _, err := st.ReceiveSnapshot(i.donor)
	if err == nil {
		err = st.InstallSnapshot(meta, ballot, nil)
	}
	if err != nil {
		return err
	}
	chosen, last := i.base, i.base
	for _, b := range i.behind {
		switch b.what {
		case "append":
			slot := b.slot
			if slot > i.base {
				slot = last + 1
				last++
			}
			// The record says less than the header: paxos may not know yet.
			err = add(i.chosen, i.entry(slot, b.n))
		case "sync":
			if last > chosen {
				chosen = last
				err = add(chosen)
			}
			err = errors.Join(err, st.Sync())
		case "save":
			if chosen > i.base {
				err = errors.Join(st.Sync(), st.SaveSnapshot(&pb.SnapshotMeta{Slot: uint64(chosen)}, state{chosen, 10}), st.Trim(chosen))
			}
		case "reopen":
			if err = errors.Join(st.Sync(), st.Close()); err != nil {
				return err
			}
			if o, err = storage.Open(options(fsys)); err != nil {
				return err
			}
			st = o.Storage
		}
		if err == nil {
			err = i.check(st, o.Paxos.First, max(chosen, i.base))
		}
		if err != nil {
			return err
		}
	}
	return st.Close()
}

// check reads every slot that a peer may be told to be chosen.
func (i *installation) check(st *storage.Storage, first, chosen paxos.Slot) error {
	for slot := paxos.Slot(1); slot <= chosen; slot++ {
		entries, trimmed, err := st.Read(slot, 1, chosen)
		switch {
		case err != nil:
			return err
		case trimmed && slot >= first && slot > i.base:
			return fmt.Errorf("slot %d is said to be cut off, the log begins at slot %d", slot, first)
		}
		for _, e := range entries {
			if got := string(e.Value.Commands[0][:5]); got != "right" {
				return fmt.Errorf("slot %d, at or below the snapshot of slot %d, is read as chosen: %q", e.Slot, i.base, got)
			}
		}
	}
	return nil
}

// However the power goes around the installation of a snapshot, and whatever is
// appended at or below its slot before and behind it: nothing there is ever
// given for chosen, and a log whose snapshot was installed begins above it.
func TestNothingBelowAnInstalledSnapshotIsBelieved(t *testing.T) {
	installed := 0
	rapid.Check(t, func(t *rapid.T) {
		i := drawInstallation(t)
		donor, err := storage.Open(options(faultfs.New()))
		if err == nil {
			err = donor.Storage.SaveSnapshot(meta(i.base), state{i.base, 10})
		}
		if err == nil {
			i.donor, err = donor.Storage.ReadSnapshot(0, 0, 1<<20)
		}
		if err != nil {
			t.Fatal(err)
		}
		whole := faultfs.New()
		if err := i.play(whole); err != nil {
			t.Fatal(err)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		for k := int(seed % 6); k <= whole.Ops(); k += 6 {
			fsys := faultfs.New()
			fsys.StopAfter(k)
			if err := i.play(fsys); err != nil && !errors.Is(err, faultfs.ErrStopped) {
				t.Fatalf("operation %d: %v", k, err)
			}
			after := []func() *faultfs.FS{fsys.CrashLost, fsys.Kill, func() *faultfs.FS {
				return fsys.CrashOrdered(rand.New(rand.NewPCG(seed, uint64(k))))
			}}[k%3]()
			o, err := storage.Open(options(after))
			if err != nil {
				t.Fatalf("operation %d: %v", k, err)
			}
			if o.Paxos.Applied >= i.base {
				installed++
				if o.Paxos.First <= i.base {
					t.Fatalf("operation %d: the log begins at slot %d, the snapshot is of slot %d", k, o.Paxos.First, i.base)
				}
			}
			if err := i.check(o.Storage, o.Paxos.First, o.Paxos.Chosen); err != nil {
				t.Fatalf("operation %d: %v", k, err)
			}
		}
	})
	if installed == 0 {
		t.Error("no snapshot was ever installed")
	}
}

// A configuration that an entry at or below an installed snapshot holds is not
// the cell's, whatever is chosen behind it.
func TestConfigurationBelowAnInstalledSnapshot(t *testing.T) {
	config := func(identity uint64) *paxos.Configuration {
		return &paxos.Configuration{Cell: "demo", CellIdentity: identity, Members: []paxos.Member{{ID: 1, Name: "n1", Incarnation: 4711, Voter: true}}}
	}
	donor := open(t, faultfs.New())
	must(t, donor.Storage.SaveSnapshot(&pb.SnapshotMeta{Slot: 6, Config: codec.EncodeConfiguration(config(5))}, state{6, 10}))
	chunk, err := donor.Storage.ReadSnapshot(0, 0, 1<<20)
	must(t, err)
	stale := func(slot paxos.Slot) []*paxos.Record {
		return []*paxos.Record{{Promised: ballot, Entries: []paxos.Entry{{
			Slot: slot, Ballot: ballot, Value: paxos.Value{Kind: paxos.Config, Config: config(666)}}}}}
	}
	fsys := faultfs.New()
	o := open(t, fsys)
	must(t, o.Storage.Append(stale(4)))
	must(t, o.Storage.Sync())
	meta, _, err := o.Storage.ReceiveSnapshot(chunk)
	must(t, err)
	must(t, o.Storage.InstallSnapshot(meta, ballot, nil))
	must(t, o.Storage.Append(stale(5)))
	write(t, o.Storage, 7, 20, 3000) // several segments
	o = open(t, fsys.CrashLost())
	if got := o.Configuration.CellIdentity; got != 5 {
		t.Errorf("the configuration is that of cell %d", got)
	}
}

// An installation removes the snapshots before it; if the power goes before it
// has, the next start does.
func TestOlderSnapshotsGoWithAnInstallation(t *testing.T) {
	donor := open(t, faultfs.New())
	must(t, donor.Storage.SaveSnapshot(meta(9), state{9, 10}))
	chunk, err := donor.Storage.ReadSnapshot(0, 0, 1<<20)
	must(t, err)
	for k := 0; ; k++ {
		fsys := faultfs.New()
		o := open(t, fsys)
		write(t, o.Storage, 1, 4, 40)
		must(t, o.Storage.SaveSnapshot(&pb.SnapshotMeta{Slot: 2}, state{2, 10}))
		must(t, o.Storage.SaveSnapshot(&pb.SnapshotMeta{Slot: 3}, state{3, 10}))
		meta, _, err := o.Storage.ReceiveSnapshot(chunk)
		must(t, err)
		fsys.StopAfter(k)
		stopped := o.Storage.InstallSnapshot(meta, ballot, nil)
		after := fsys.CrashLost()
		o = open(t, after)
		names, err := after.List("snap")
		must(t, err)
		if len(names) != 1 || o.Paxos.Applied != 9 || o.Paxos.First != 10 {
			t.Fatalf("after %d operations: %q, applied %d, the log begins at slot %d", k, names, o.Paxos.Applied, o.Paxos.First)
		}
		if stopped == nil {
			return
		}
	}
}
