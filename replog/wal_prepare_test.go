package replog

import (
	"errors"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/seed70370324/lockd/paxos"
)

// fillTo writes records until so much of the first segment is used.
func fillTo(t *testing.T, st *Storage, last *paxos.Slot, part float64) {
	t.Helper()
	for w := st.log; float64(w.active.end) < part*float64(w.active.size); {
		*last++
		r := &paxos.Record{Entries: []paxos.Entry{{Slot: *last, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, 100<<10)}}}}}
		if err := errors.Join(st.Append([]*paxos.Record{r}), st.Sync()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPreparation: the next segment's file is begun at half of this one, hurried
// on at three quarters, and given up, with no trace, when the log is closed.
func TestPreparation(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, until := range []float64{0.55, 0.8} {
		dir := t.TempDir()
		fsys, err := NewOSFS(dir)
		if err != nil {
			t.Fatal(err)
		}
		o, err := Open(StorageOptions{FS: fsys, Cell: "demo", Replica: "n1", SegmentBytes: 8 << 20, NewIncarnation: func() uint64 { return 1 }})
		if err != nil {
			t.Fatal(err)
		}
		w := o.Storage.log
		var last paxos.Slot
		fillTo(t, o.Storage, &last, 0.4)
		if w.next != nil {
			t.Error("the next segment is begun too early")
		}
		fillTo(t, o.Storage, &last, until)
		if w.next == nil || w.next.hurried != (until > 0.75) {
			t.Errorf("at %v of the segment the preparation is %+v", until, w.next)
		}
		if err := o.Storage.Close(); err != nil {
			t.Fatal(err)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "log", "*"+tempSuffix)); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}
