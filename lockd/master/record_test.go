package master

import (
	"fmt"
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
// while the master does that it does not lead. The bound is far above what it takes,
// and far below what it takes to look through all changes for each of them.
func TestManyDeletionsAreRecordedInOnePass(t *testing.T) {
	changes := manyDeletions()
	begun := time.Now()
	recordAll(changes)
	if took := time.Since(begun); took > 5*time.Second {
		t.Fatalf("%d changes were recorded in %v", len(changes), took)
	}
}

// What a watch of everything costs when a command deletes as many nodes as one may.
func BenchmarkRecordManyDeletions(b *testing.B) {
	changes := manyDeletions()
	for b.Loop() {
		recordAll(changes)
	}
}
