package wal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
)

// maxReadSlots bounds how many slots one read looks up while others wait.
const maxReadSlots = 8192

// run is a record to be read, its segment, and the row of slots for which it
// is the last one.
type run struct {
	at       location
	segment  *segment
	from, to paxos.Slot
}

// First returns the slot from which on every chosen one can be read.
func (w *Log) First() paxos.Slot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first
}

// Read gives chosen entries from slot from on. It holds mu only to look up
// where they are.
func (w *Log) Read(from paxos.Slot, limit int, chosen paxos.Slot) (entries []paxos.Entry, trimmed bool, err error) {
	if err := w.stop.Check(); err != nil {
		return nil, false, err
	}
	runs, trimmed := w.lookUp(max(from, 1), limit, chosen)
	defer w.release(runs)
	if trimmed {
		return nil, true, nil
	}
	var win ondisk.Window
	var open *segment
	bytes := 0
	for _, r := range runs {
		if r.segment != open {
			open = r.segment
			win.Reset(open.file, open.size, min(max(limit, 1), ondisk.WindowBytes))
		}
		rec, err := readAt(&win, r)
		if err != nil {
			return nil, false, err
		}
		for slot := r.from; slot <= r.to && (bytes < limit || len(entries) == 0); slot++ {
			e := findSlot(rec.Entries, slot)
			invariant.Assert(e != nil, "the index says that slot %d is in a record in which it is not", slot)
			got := *e
			got.Chosen = true
			entries = append(entries, got)
			bytes += entryBytes(e)
		}
		if bytes >= limit {
			break
		}
	}
	return entries, false, nil
}

func readAt(win *ondisk.Window, r run) (*paxos.Record, error) {
	rec, fr, err := readRecord(win, int64(r.at.offset), r.segment.seed)
	if ondisk.IsBadFrame(err) || err == nil && fr.Size != int(r.at.size) {
		what := "the record was good and is now another"
		if err != nil {
			what = "the record was good and is now bad: " + err.Error()
		}
		return nil, &ondisk.DamagedError{File: segmentName(r.segment.number), Offset: int64(r.at.offset), What: what}
	} else if err != nil {
		return nil, fmt.Errorf("%s, byte %d: %w", segmentName(r.segment.number), r.at.offset, err)
	}
	sortEntries(rec.Entries)
	return rec, nil
}

// findSlot finds the last entry of a slot among entries whose slots ascend
// (they may repeat: sortEntries sees to it).
func findSlot(entries []paxos.Entry, slot paxos.Slot) *paxos.Entry {
	i := sort.Search(len(entries), func(i int) bool { return entries[i].Slot > slot }) - 1
	if i < 0 || entries[i].Slot != slot {
		return nil
	}
	return &entries[i]
}

// sortEntries makes the slots of a record ascend, which they almost always do
// already; entries of one slot keep their order.
func sortEntries(entries []paxos.Entry) {
	bySlot := func(a, b paxos.Entry) int { return cmp.Compare(a.Slot, b.Slot) }
	if !slices.IsSortedFunc(entries, bySlot) {
		slices.SortStableFunc(entries, bySlot)
	}
}

// lookUp finds the records that hold the slots from from on, as many as make
// about limit bytes, and keeps their segments open until release.
func (w *Log) lookUp(from paxos.Slot, limit int, chosen paxos.Slot) (runs []run, trimmed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if from < w.first {
		return nil, true
	}
	bytes := 0
	for slot := from; slot <= chosen && slot-from < maxReadSlots; slot++ {
		at, ok := w.index.get(slot)
		if !ok {
			break
		}
		if n := len(runs); n > 0 && runs[n-1].at == at {
			runs[n-1].to = slot
			continue
		} else if n > 0 && bytes >= limit {
			break
		}
		s := w.segmentOf(at.segment)
		s.refs++
		runs = append(runs, run{at: at, segment: s, from: slot, to: slot})
		bytes += int(at.size)
	}
	return runs, false
}

// segmentOf finds a segment by number; mu is held.
func (w *Log) segmentOf(number uint64) *segment {
	i := int(number - w.segments[0].number)
	invariant.Assert(i >= 0 && i < len(w.segments), "the index names segment %d, which is not there", number)
	return w.segments[i]
}

func (w *Log) release(runs []run) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range runs {
		if r.segment.refs--; r.segment.refs == 0 && r.segment.dropped {
			_ = r.segment.file.Close() // its name is gone; only the descriptor is left
		}
	}
}

// Trim removes the segments that hold nothing above slot, oldest first.
func (w *Log) Trim(slot paxos.Slot) error {
	w.cutting.Lock()
	defer w.cutting.Unlock()
	if err := w.stop.Check(); err != nil {
		return err
	}
	w.mu.Lock()
	n := 0
	for n < len(w.segments)-1 && w.segments[n].max <= slot {
		n++
	}
	gone := w.cutFront(n)
	w.mu.Unlock()
	return w.removeSegments(gone)
}

// cutFront takes the first n segments out of the list; mu is held.
func (w *Log) cutFront(n int) []*segment {
	gone := append([]*segment(nil), w.segments[:n]...)
	w.segments = append([]*segment(nil), w.segments[n:]...)
	for _, s := range gone {
		w.first = max(w.first, s.max+1)
	}
	w.index.dropBelow(w.first)
	return gone
}

// removeSegments removes files, oldest first, each durably before the next:
// whatever a crash leaves is a row without a gap that ends with the newest.
func (w *Log) removeSegments(gone []*segment) error {
	for _, s := range gone {
		name := segmentName(s.number)
		if err := w.fs.Remove(name); err != nil {
			return w.stop.Fail("removing "+name, err)
		}
		if err := w.fs.SyncDir(ondisk.LogDir); err != nil {
			return w.stop.Fail("making the removal of "+name+" durable", err)
		}
		w.mu.Lock()
		s.dropped = true
		idle := s.refs == 0
		w.mu.Unlock()
		if idle {
			if err := s.file.Close(); err != nil {
				return w.stop.Fail("closing "+name, err)
			}
		}
	}
	return nil
}

// Install begins a segment behind a snapshot of slot base and then forgets
// everything below it. What that means for records at or below base, those that
// are there and those that come behind, stands in the headers of the new segment
// and of all that follow it.
//
// Invariant: no accepted entry above the snapshot is forgotten. The new segment
// holds the last record of each such slot, and is durable under its name
// before an older segment goes.
func (w *Log) Install(base paxos.Slot, config *paxos.Configuration, promised paxos.Ballot, entries []paxos.Entry) error {
	w.cutting.Lock()
	defer w.cutting.Unlock()
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.stop.Check(); err != nil {
		return err
	}
	if err := w.flushPending(); err != nil {
		return err
	}
	given := slices.Clone(entries)
	sortEntries(given)
	kept, err := w.keptAbove(base, given)
	if err != nil {
		return err
	}
	f := &w.facts
	if f.promised.Less(promised) {
		f.promised = promised
	}
	if config != nil && f.configSlot <= base {
		f.config, f.configSlot = config, base
	}
	f.installed = base
	f.settle(base)
	record := &paxos.Record{Promised: f.promised, Chosen: f.chosen, Entries: kept}
	for i := range kept {
		f.entry(&kept[i])
	}
	f.settle(f.chosen)
	w.mu.Lock()
	n := len(w.segments)
	w.mu.Unlock()
	if err := w.begin(0, record); err != nil {
		return err
	}
	w.mu.Lock()
	w.first = max(w.first, base+1)
	w.index.dropBelow(w.first)
	gone := append([]*segment(nil), w.segments[:n]...)
	w.segments = append([]*segment(nil), w.segments[n:]...)
	w.mu.Unlock()
	return w.removeSegments(gone)
}

// keptAbove gives the entries above base that the log has, and of those given
// the ones that it does not have or that are newer.
func (w *Log) keptAbove(base paxos.Slot, given []paxos.Entry) ([]paxos.Entry, error) {
	w.mu.Lock()
	slots := w.index.above(base)
	runs := make([]run, 0, len(slots))
	for _, slot := range slots {
		at, _ := w.index.get(slot)
		s := w.segmentOf(at.segment)
		s.refs++
		runs = append(runs, run{at: at, segment: s})
	}
	w.mu.Unlock()
	defer w.release(runs)
	kept := make([]paxos.Entry, 0, len(slots))
	var win ondisk.Window
	var rec *paxos.Record
	for i, r := range runs {
		if i == 0 || runs[i-1].at != r.at {
			var err error
			win.Reset(r.segment.file, r.segment.size, 1)
			if rec, err = readAt(&win, r); err != nil {
				return nil, w.stop.Fail("carrying accepted entries over", err)
			}
		}
		e := findSlot(rec.Entries, slots[i])
		if e == nil {
			return nil, w.stop.Fail("carrying accepted entries over", errors.New("the log lost an entry"))
		}
		kept = append(kept, *e)
	}
	return mergeEntries(kept, given, base), nil
}

// mergeEntries merges two ascending lists of entries above base; of two of a
// slot the newer counts: one known chosen, else that of the higher ballot.
func mergeEntries(have, given []paxos.Entry, base paxos.Slot) []paxos.Entry {
	out := make([]paxos.Entry, 0, len(have)+len(given))
	for len(have) > 0 || len(given) > 0 {
		switch {
		case len(given) > 0 && given[0].Slot <= base:
			given = given[1:]
		case len(given) == 0 || len(have) > 0 && have[0].Slot < given[0].Slot:
			out, have = append(out, have[0]), have[1:]
		case len(have) == 0 || given[0].Slot < have[0].Slot:
			out, given = append(out, given[0]), given[1:]
		default:
			e := have[0]
			if g := given[0]; g.Chosen && !e.Chosen || g.Chosen == e.Chosen && e.Ballot.Less(g.Ballot) {
				e = g
			}
			out, have, given = append(out, e), have[1:], given[1:]
		}
	}
	return out
}
