package master

import (
	"fmt"
	"math"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	"pgregory.net/rapid"
)

// Where a path is told, and whether anybody can have seen it, does not depend on
// how many changes the command has.
func TestTellingOfFewAndOfMany(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := []store.ChangeKind{store.ChangeCreated, store.ChangeContent, store.ChangeDeleted, store.ChangeLock, store.ChangeSessionEvent}
		changes := make([]store.Change, rapid.IntRange(0, 12).Draw(t, "changes"))
		first := make(map[string]store.ChangeKind)
		for i := range changes {
			c := &changes[i]
			c.Kind, c.Path = rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.SampledFrom([]string{"/a", "/b"}).Draw(t, "path")
			if _, had := first[c.Path]; !had {
				first[c.Path] = c.Kind
			}
		}
		all := tellingChanges(changes)
		for path, kind := range first {
			few := telling(changes, nil, path)
			if many := telling(changes, all, path); few != many || few.made != (kind == store.ChangeCreated) {
				t.Fatalf("%s of %v: %+v one by one, %+v in one pass", path, changes, few, many)
			}
		}
	})
}

// manyDeletions are the changes of a command that deletes as many nodes as one may,
// and sends those away that wait for their locks.
func manyDeletions() (changes []store.Change) {
	for i := range store.DeleteMax {
		path := fmt.Sprintf("/below/n%05d", i)
		for range 8 {
			changes = append(changes, store.Change{Kind: store.ChangeLock, Path: path, Revision: 9},
				store.Change{Kind: store.ChangeSessionEvent, Revision: 9})
		}
		changes = append(changes, store.Change{Kind: store.ChangeDeleted, Path: path, Revision: 9})
	}
	return changes
}

// recordAll has a watch of everything take the changes of a command.
func recordAll(changes []store.Change) {
	m := New(Options{}, store.New(), 0)
	m.watches.join(&watch{key: topicKey{path: "/", scope: wirepb.WatchScope_SUBTREE}})
	m.watches.record(m, changes)
}

// The changes of a large command are recorded in about as many steps as there are:
// while the master does that it does not lead. Four times as many take about four
// times as long, and not sixteen: by the best of three, on a machine of any speed.
func TestManyDeletionsAreRecordedInOnePass(t *testing.T) {
	took := func(changes []store.Change) time.Duration {
		best := time.Duration(math.MaxInt64)
		for range 3 {
			begun := time.Now()
			recordAll(changes)
			best = min(best, time.Since(begun))
		}
		return best
	}
	all := manyDeletions()
	if few, many := took(all[:len(all)/4]), took(all); many > 10*few {
		t.Fatalf("%d changes are recorded in %v, a quarter of them in %v", len(all), many, few)
	}
}

// What a watch of everything costs when a command deletes as many nodes as one may.
func BenchmarkRecordManyDeletions(b *testing.B) {
	changes := manyDeletions()
	for b.Loop() {
		recordAll(changes)
	}
}
