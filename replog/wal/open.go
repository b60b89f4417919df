package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

const (
	tornDir    = "torn"
	tornSuffix = ".torn"
	tornKept   = 8 // copies of cut tails that are kept
)

// Found is what reading the log gave; nothing is changed on disk yet.
type Found struct {
	wal       *Log
	entries   map[paxos.Slot]paxos.Entry // last record of each slot above base
	leftovers []string                   // temporary files of a crash
	torn      tail
	cut       bool // the torn tail is to be cut
	badLast   bool // the last block of the last segment holds bytes that lockd did not write
	last      *scanned
}

// Read reads all segments. base is a slot below which the entries' content
// is not wanted.
func Read(o Options, base paxos.Slot) (*Found, error) {
	names, err := o.FS.List(ondisk.LogDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the directory %s: %w", ondisk.LogDir, err)
	}
	found := &Found{
		wal:     newLog(o),
		entries: map[paxos.Slot]paxos.Entry{},
	}
	var numbers []uint64
	for _, name := range names {
		if n, ok := parseSegmentName(name); ok {
			numbers = append(numbers, n)
		} else if strings.HasSuffix(name, ondisk.TempSuffix) {
			found.leftovers = append(found.leftovers, ondisk.LogDir+"/"+name)
		} else {
			return nil, fmt.Errorf("the file %s/%s is none of the log's: take it away, then start again", ondisk.LogDir, name)
		}
	}
	if len(numbers) == 0 {
		return nil, &ondisk.DamagedError{File: ondisk.LogDir, What: "there is an identity, but no segment of the log"}
	}
	for i, n := range numbers {
		if i > 0 && n != numbers[i-1]+1 {
			return nil, &ondisk.DamagedError{File: segmentName(numbers[i-1] + 1), What: "this segment of the log is missing"}
		}
	}
	if err := found.readSegments(numbers, base); err != nil {
		return nil, errors.Join(err, found.wal.Close())
	}
	return found, nil
}

// Log returns the log, which repair makes fit for use.
func (f *Found) Log() *Log { return f.wal }

// Promised returns the highest promise in the log.
func (f *Found) Promised() paxos.Ballot { return f.wal.facts.promised }

// Chosen returns the highest slot up to which all is known to be chosen.
func (f *Found) Chosen() paxos.Slot { return f.wal.facts.chosen }

// Installed returns the slot of the last snapshot that took the log's place, 0 if
// none did.
func (f *Found) Installed() paxos.Slot { return f.wal.facts.installed }

// Configuration returns the newest chosen configuration, nil if there is none.
func (f *Found) Configuration() *paxos.Configuration { return f.wal.facts.config }

// Start returns the number and name of the first segment, and where its records
// begin.
func (f *Found) Start() (number uint64, file string, offset int64) {
	s := f.wal.segments[0]
	return s.number, segmentName(s.number), s.start
}

// Has reports whether a slot above base has a record.
func (f *Found) Has(slot paxos.Slot) bool {
	_, ok := f.entries[slot]
	return ok
}

// Settle has the log know that all up to base is chosen, since a snapshot holds it.
func (f *Found) Settle(base paxos.Slot) {
	f.wal.facts.settle(base)
	f.wal.first = f.wal.index.lowest(f.wal.facts.chosen)
}

// TakeConfiguration takes the configuration of a snapshot of slot base, unless the
// log has a newer one.
func (f *Found) TakeConfiguration(c *paxos.Configuration, base paxos.Slot) {
	if c != nil && f.wal.facts.configSlot <= base {
		f.wal.facts.config, f.wal.facts.configSlot = c, base
	}
}

func (f *Found) readSegments(numbers []uint64, base paxos.Slot) error {
	w := f.wal
	for _, n := range numbers {
		file, err := w.fs.Open(segmentName(n))
		if err != nil {
			return fmt.Errorf("opening %s: %w", segmentName(n), err)
		}
		s := &segment{number: n, file: file}
		w.segments = append(w.segments, s)
		sc, err := scanSegment(file, n, w.id, f.takeHeader, func(r *paxos.Record, at location) error {
			f.take(s, r, at, base)
			return nil
		})
		if err != nil {
			return err
		}
		if f.last != nil {
			if err := f.last.checkClosed(sc.header); err != nil {
				return err
			}
		}
		f.last = sc
		s.size, s.seed, s.start, s.end = sc.size+blockBytes, sc.seed, sc.start, sc.end
	}
	f.replaced()
	return f.readEnd()
}

// replaced forgets what stands at or below the snapshot that took the log's place
// last: in segments that a crash kept from being removed, and in records that
// came behind the installation from a leader of old. It need not be what was
// chosen there.
func (f *Found) replaced() {
	at := f.wal.facts.installed
	if invariant.Planted(invariant.BelievesBelowInstalled) {
		return
	}
	f.wal.index.dropBelow(at + 1)
	maps.DeleteFunc(f.entries, func(slot paxos.Slot, _ paxos.Entry) bool { return slot <= at })
}

func (f *Found) take(s *segment, r *paxos.Record, at location, base paxos.Slot) {
	f.wal.facts.take(r)
	f.wal.note(s, r.Entries, at)
	for _, e := range r.Entries {
		if e.Slot > base {
			f.entries[e.Slot] = e
		}
	}
}

// takeHeader takes what a header knows, before the segment's records.
func (f *Found) takeHeader(h *pb.SegmentHeader) error {
	facts := &f.wal.facts
	if b := codec.DecodeBallot(h.Promised); facts.promised.Less(b) {
		facts.promised = b
	}
	c, err := codec.DecodeConfiguration(h.Config)
	if err != nil {
		return &ondisk.DamagedError{File: segmentName(h.Segment), Offset: 0, What: err.Error()}
	}
	facts.installed = max(facts.installed, paxos.Slot(h.Installed))
	if c != nil && (facts.config == nil || paxos.Slot(h.ConfigSlot) > facts.configSlot) {
		facts.config, facts.configSlot = c, paxos.Slot(h.ConfigSlot)
	}
	facts.settle(paxos.Slot(h.Chosen))
	return nil
}

// readEnd judges what stands behind the last record.
func (f *Found) readEnd() error {
	w := f.wal
	active := w.segments[len(w.segments)-1]
	next, bad, err := f.last.successor(active.file)
	if err != nil {
		return fmt.Errorf("reading %s: %w", segmentName(active.number), err)
	}
	if next != 0 {
		return &ondisk.DamagedError{File: segmentName(next), What: fmt.Sprintf(
			"this segment of the log, the last, is missing: %s says that it was there, and perhaps more behind it", segmentName(active.number))}
	}
	f.badLast = bad
	if f.torn, err = f.last.readTail(active.file); err != nil {
		return fmt.Errorf("reading %s: %w", segmentName(active.number), err)
	}
	if f.cut, err = f.last.judge(f.torn); err != nil {
		return err
	}
	w.active = active
	w.flush = max(f.last.flush, f.last.best.flush, f.torn.laterFlush) + 1
	w.first = w.index.lowest(w.facts.chosen) // above what replaced has dropped
	return nil
}

// Repair cleans up behind a crash, once everything has been checked: it removes
// temporary files, cuts a torn tail, and makes durable what was found (it may
// have been in the page cache only, if just the process died).
func (f *Found) Repair() (notes []string, err error) {
	w := f.wal
	for _, name := range f.leftovers {
		if err := w.fs.Remove(name); err != nil {
			return nil, fmt.Errorf("removing the leftover %s: %w", name, err)
		}
		notes = append(notes, "removed "+name+", left by an earlier stop")
	}
	if err := w.fs.SyncDir(ondisk.LogDir); err != nil {
		return nil, fmt.Errorf("making %s durable: %w", ondisk.LogDir, err)
	}
	if f.cut {
		note, err := f.cutTail()
		if err != nil {
			return nil, err
		}
		notes = append(notes, note)
	}
	if f.badLast {
		s := w.active
		if err := s.file.WriteSync(vfs.AlignedBytes(blockBytes), s.room()); err != nil {
			return nil, w.stop.Fail("clearing the last block of "+segmentName(s.number), err)
		}
		notes = append(notes, fmt.Sprintf("cleared bad bytes in the last block of %s, which was not in use: the disk may be failing", segmentName(s.number)))
	}
	if err := f.noteSuccessor(); err != nil {
		return nil, err
	}
	return notes, f.writeAgain()
}

// noteSuccessor has the last segment but one say that the last one stands: a
// crash may have come between the two, or the kernel may show what it never
// wrote.
func (f *Found) noteSuccessor() error {
	w := f.wal
	if len(w.segments) < 2 {
		return nil
	}
	s := w.segments[len(w.segments)-2]
	_, err := s.file.WriteAt(successorBlock(s), s.room())
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		return w.stop.Fail("noting in "+segmentName(s.number)+" that a segment follows", err)
	}
	return nil
}

// writeAgain writes the last flush once more, byte for byte, and a mark behind it
// that names all that was found, and makes both durable. If an earlier process
// stopped because an fsync had failed, the kernel may show these bytes from its
// cache, take them for written, and never write them.
func (f *Found) writeAgain() error {
	w := f.wal
	s, best := w.active, f.last.best
	fail := func(err error) error {
		return w.stop.Fail("writing the last flush of "+segmentName(s.number)+" again", err)
	}
	win := &ondisk.Window{F: s.file, Size: s.end}
	from := min(best.start, s.end)
	if invariant.Planted(invariant.LastFlushNotWrittenAgain) {
		from = s.end
	}
	if from > s.start {
		from &^= blockBytes - 1 // the flush wrote the whole of its first block
	}
	for off := from; off < s.end; {
		b, err := win.At(off, ondisk.WindowBytes)
		if err != nil {
			return fmt.Errorf("reading the last flush of %s: %w", segmentName(s.number), err)
		}
		if _, err := s.file.WriteAt(b, off); err != nil {
			return fail(err)
		}
		off += int64(len(b))
	}
	// The best mark keeps its slot, so that it is there whatever becomes of this
	// write.
	m := placedMark{mark{flush: w.flush, start: min(best.start, s.end), end: s.end}, roundUp(s.end, blockBytes), 1 - best.slot}
	block := make([]byte, blockBytes)
	putMarkBlock(block, m.mark, best.mark, s.seed, m.at, m.slot)
	if _, err := s.file.WriteAt(block, m.at); err != nil {
		return fail(err)
	}
	if err := s.file.Sync(); err != nil {
		return fail(err)
	}
	w.flush++
	w.tail = tailBlock{newest: m}
	return nil
}

// cutTail overwrites a torn tail with zeros, durably, before anything new can
// be written there. A copy is kept.
func (f *Found) cutTail() (note string, err error) {
	s := f.wal.active
	name := segmentName(s.number)
	n := f.torn.last - s.end
	note = fmt.Sprintf("cut %d bytes of a torn last write from %s at byte %d (never acknowledged)", n, name, s.end)
	if copied, err := f.copyTail(); err != nil {
		note += fmt.Sprintf("; no copy of them could be kept: %v", err)
	} else {
		note += ", copy in " + copied
	}
	// The marks behind the last good record name it, and stay.
	marks := roundUp(s.end, blockBytes)
	behind := marks
	if f.torn.marked {
		behind += blockBytes
	}
	for _, part := range [][2]int64{{s.end, min(marks, f.torn.last)}, {behind, f.torn.last}} {
		for off := part[0]; off < part[1]; off += ondisk.WindowBytes {
			zeros := make([]byte, min(part[1]-off, ondisk.WindowBytes))
			if _, err := s.file.WriteAt(zeros, off); err != nil {
				return "", fmt.Errorf("cutting a torn write from %s: %w", name, err)
			}
		}
	}
	if err := s.file.Sync(); err != nil {
		return "", fmt.Errorf("cutting a torn write from %s: %w", name, err)
	}
	return note, nil
}

// copyTail keeps the torn bytes for whoever wants to look at them.
func (f *Found) copyTail() (name string, err error) {
	s, fsys := f.wal.active, f.wal.fs
	if err := fsys.MkdirAll(tornDir); err != nil {
		return "", err
	}
	old, err := fsys.List(tornDir)
	if err != nil {
		return "", err
	}
	for len(old) >= tornKept {
		if err := fsys.Remove(tornDir + "/" + old[0]); err != nil {
			return "", err
		}
		old = old[1:]
	}
	copied := fmt.Sprintf("%s/%016d-%010d-%d%s", tornDir, s.number, s.end, f.wal.flush, tornSuffix)
	out, err := fsys.Create(copied)
	if errors.Is(err, fs.ErrExist) {
		return copied, nil // an earlier start got as far as here
	} else if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = errors.Join(err, fsys.Remove(copied))
		}
	}()
	win := &ondisk.Window{F: s.file, Size: f.torn.last}
	for off := s.end; off < f.torn.last; {
		b, err := win.At(off, ondisk.WindowBytes)
		if err != nil {
			return "", err
		}
		if _, err := out.WriteAt(b, off-s.end); err != nil {
			return "", err
		}
		off += int64(len(b))
	}
	if err := out.Sync(); err != nil {
		return "", err
	}
	return copied, errors.Join(fsys.SyncDir(tornDir), fsys.SyncDir(""))
}

// Sorted gives the last record of each slot, ascending.
func (f *Found) Sorted() []paxos.Entry {
	slots := slices.Sorted(maps.Keys(f.entries))
	out := make([]paxos.Entry, len(slots))
	for i, slot := range slots {
		out[i] = f.entries[slot]
	}
	return out
}

// Unused reports whether the file is the first segment, under its
// temporary or final name, with nothing written behind its header.
func Unused(fsys vfs.FS, name string) (unused bool, err error) {
	if name == segmentName(1)+ondisk.TempSuffix {
		return true, nil
	}
	if name != segmentName(1) {
		return false, nil
	}
	f, err := fsys.Open(name)
	if err != nil {
		return false, fmt.Errorf("opening %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return false, fmt.Errorf("size of %s: %w", name, err)
	}
	w := &ondisk.Window{F: f, Size: size}
	h, n, err := readHeader(w, 1)
	if ondisk.IsBadFrame(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("reading %s: %w", name, err)
	}
	if size != h.Size || size < 3*blockBytes {
		return false, nil
	}
	s := &scanned{header: h, size: size - blockBytes, seed: ondisk.FrameSeed(h.Incarnation, 1), end: int64(n)}
	t, err := s.readTail(f)
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", name, err)
	}
	next, bad, err := s.successor(f)
	if err != nil {
		return false, fmt.Errorf("reading %s: %w", name, err)
	}
	return !t.dirty && next == 0 && !bad, nil
}
