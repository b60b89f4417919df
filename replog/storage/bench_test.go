package storage_test

import (
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// A follower 100,000 slots behind is served in pieces of 1 MiB.
func BenchmarkReadCatchUp(b *testing.B) {
	const slots = 100_000
	o := openOS(b, b.TempDir(), 0)
	for slot := paxos.Slot(1); slot <= slots; slot++ {
		must(b, o.Storage.Append([]*paxos.Record{record(slot, 200)}))
	}
	must(b, o.Storage.Sync())
	for b.Loop() {
		for from := paxos.Slot(1); from <= slots; {
			entries, trimmed, err := o.Storage.Read(from, 1<<20, slots)
			if err != nil || trimmed || len(entries) == 0 {
				b.Fatal(len(entries), trimmed, err)
			}
			from += paxos.Slot(len(entries))
		}
	}
	b.ReportMetric(slots*float64(b.N)/b.Elapsed().Seconds(), "slots/s")
	must(b, o.Storage.Close())
}

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	o := openOS(b, dir, 0)
	for slot := paxos.Slot(1); slot <= 100_000; slot++ {
		must(b, o.Storage.Append([]*paxos.Record{record(slot, 200)}))
	}
	must(b, o.Storage.Sync())
	must(b, o.Storage.Close())
	for b.Loop() {
		must(b, openOS(b, dir, 0).Storage.Close())
	}
}

// What a roll-over costs: a segment made, zeroed, and durable under its name.
func BenchmarkNewSegment(b *testing.B) {
	o := openOS(b, b.TempDir(), 0)
	slot := paxos.Slot(0)
	for b.Loop() {
		slot++
		must(b, o.Storage.SaveSnapshot(meta(slot), state{slot: slot}))
		must(b, o.Storage.InstallSnapshot(meta(slot), ballot, nil))
	}
	must(b, o.Storage.Close())
}

func BenchmarkSaveSnapshot(b *testing.B) {
	st := open(b, faultfs.New()).Storage
	slot := paxos.Slot(0)
	b.ReportAllocs()
	for b.Loop() {
		slot++
		must(b, st.SaveSnapshot(meta(slot), state{slot: slot, size: 10_000}))
	}
}
