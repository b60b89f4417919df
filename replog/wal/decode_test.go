package wal

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/replogtest"
)

// firstArea is where the records of a small segment begin: behind the header's
// block and its marks.
const firstArea = 2 * blockBytes

// testSegment gives the content of a segment with some records.
func testSegment(tb testing.TB, slots int) []byte {
	f := &replogtest.File{}
	w := &Log{fs: replogtest.OneFile{F: f}, stop: &ondisk.FailStop{}, id: replogtest.ID, segmentBytes: 2 * minSegment, index: newSlotIndex(), first: 1, flush: 1}
	if err := w.begin(0, nil); err != nil {
		tb.Fatal(err)
	}
	for s := range slots {
		r := &paxos.Record{Promised: paxos.Ballot{Round: 2, Replica: 1}, Chosen: paxos.Slot(s), Entries: []paxos.Entry{{
			Slot: paxos.Slot(s + 1), Ballot: paxos.Ballot{Round: 2, Replica: 1},
			Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{[]byte("command")}},
		}}}
		if err := errors.Join(w.Append([]*paxos.Record{r}), w.Sync()); err != nil {
			tb.Fatal(err)
		}
	}
	return f.B
}

// What the index says is what a plain map would say.
func TestSlotIndexIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, model := newSlotIndex(), map[paxos.Slot]location{}
		slot := rapid.Custom(func(t *rapid.T) paxos.Slot {
			return paxos.Slot(rapid.SampledFrom([]uint64{1, 500, 512, 1024, 1 << 40}).Draw(t, "near") + rapid.Uint64Range(0, 30).Draw(t, "off"))
		})
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			s := slot.Draw(t, "slot")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				x.dropBelow(s)
				for k := range model {
					if k < s {
						delete(model, k)
					}
				}
			default:
				at := location{segment: uint64(i + 1)}
				x.set(s, at)
				model[s] = at
			}
			var above []paxos.Slot
			for k := range model {
				if k > s {
					above = append(above, k)
				}
				if at, ok := x.get(k); !ok || at != model[k] {
					t.Fatalf("slot %d: %v, %v", k, at, ok)
				}
			}
			slices.Sort(above)
			if got := x.above(s); !slices.Equal(got, above) {
				t.Fatalf("above %d: %v, not %v", s, got, above)
			}
			lowest := s + 1
			for lowest > 1 && model[lowest-1] != (location{}) {
				lowest--
			}
			if got := x.lowest(s); got != lowest {
				t.Fatalf("lowest from %d: %d, not %d", s, got, lowest)
			}
		}
	})
}

func TestMergeKeepsTheNewer(t *testing.T) {
	entry := func(slot paxos.Slot, round uint64, chosen bool) paxos.Entry {
		return paxos.Entry{Slot: slot, Ballot: paxos.Ballot{Round: round}, Chosen: chosen}
	}
	have := []paxos.Entry{entry(6, 3, false), entry(7, 3, false), entry(8, 3, true), entry(10, 3, false)}
	given := []paxos.Entry{entry(4, 9, false), entry(6, 4, false), entry(7, 2, false), entry(8, 9, false), entry(9, 1, true), entry(10, 1, true)}
	want := []paxos.Entry{have[0], have[1], have[2], given[4], given[5]}
	want[0] = given[1]
	got := mergeEntries(have, given, 5)
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i := range want {
		if got[i].Slot != want[i].Slot || got[i].Ballot != want[i].Ballot || got[i].Chosen != want[i].Chosen {
			t.Errorf("entry %d: %+v, not %+v", i, got[i], want[i])
		}
	}
}

// A long record is divided; an empty one is one piece.
func TestPieces(t *testing.T) {
	var entries []paxos.Entry
	for s := paxos.Slot(1); s <= 9; s++ {
		entries = append(entries, paxos.Entry{Slot: s, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, 1<<20)}}})
	}
	for n, want := range map[int][]int{0: {0}, 1: {1}, 3: {3}, 4: {3, 1}, 9: {3, 3, 3}} {
		var got []int
		for piece, last := range pieces(entries[:n]) {
			got = append(got, len(piece))
			if last != (len(got) == len(want)) {
				t.Errorf("%d entries, piece %d: last is %v", n, len(got), last)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d entries make pieces of %v, not %v", n, got, want)
		}
	}
}
