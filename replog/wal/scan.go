package wal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

// scanned is what reading a segment from its header to the first byte that is
// no record gave.
type scanned struct {
	header *pb.SegmentHeader
	size   int64 // of the blocks of records and marks: the file but its last block
	seed   uint32
	start  int64  // behind the header, or of the first record
	end    int64  // behind the last good record
	flush  uint64 // of the last good record, or the header's
	stop   string // why no record follows
	stopAt int64  // where that was found

	best placedMark // the newest good mark; flush 0: there is none
	// ends is where records end that stand behind the last mark passed.
	ends []int64
}

// location is where a record stands.
type location struct {
	segment uint64
	offset  uint32
	size    uint32
}

// scanSegment reads a segment. It gives its header to begin, and then every good
// record to visit, in order.
// What it finds at the end is for judge (the last segment) or checkClosed. An
// error is a *ondisk.DamagedError, a *ondisk.ForeignError, or one of reading.
func scanSegment(f vfs.File, number uint64, id *pb.Identity, begin func(*pb.SegmentHeader) error, visit func(*paxos.Record, location) error) (*scanned, error) {
	name := segmentName(number)
	damaged := func(off int64, format string, args ...any) error {
		return &ondisk.DamagedError{File: name, Offset: off, What: fmt.Sprintf(format, args...)}
	}
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", name, err)
	}
	if size < ondisk.FrameHeader {
		return nil, damaged(size, "the file ends here, before its header")
	}
	w, giveBack := ondisk.OpenWindow(f, size)
	defer giveBack()
	h, headerSize, err := readHeader(w, number)
	if ondisk.IsBadFrame(err) {
		return nil, damaged(0, "the segment's header is unreadable: %v", err)
	} else if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if err := checkHeader(h, size, id, damaged); err != nil {
		return nil, err
	}
	if err := begin(h); err != nil {
		return nil, err
	}
	w.Size = size - blockBytes
	s := &scanned{
		header: h,
		size:   w.Size,
		seed:   ondisk.FrameSeed(id.Incarnation, number),
		start:  int64(headerSize),
		flush:  h.Flush,
	}
	s.end = s.start
	s.ends = append(s.ends, s.end)
	for {
		at, rec, fr, err := s.next(w)
		if ondisk.IsBadFrame(err) {
			s.stop, s.stopAt = err.Error(), at
			return s, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s, byte %d: %w", name, at, err)
		}
		if fr.Sequence < s.flush || fr.Sequence == h.Flush {
			return nil, damaged(at, "a record of flush %d follows flush %d", fr.Sequence, s.flush)
		}
		if err := visit(rec, location{segment: number, offset: uint32(at), size: uint32(fr.Size)}); err != nil {
			return nil, err
		}
		s.flush = fr.Sequence
		s.end = at + int64(fr.Size)
		s.ends = append(s.ends, s.end)
	}
}

// next reads the record behind the last one: right there, or, where a flush has
// ended and the rest of its block is zeros, behind the block of marks that
// follows. A *BadFrame: there is none.
//
// Invariant: the block of marks is passed only if one of its marks is good, none
// of them names more than has been read, and the record behind it belongs to a
// later flush. So nothing that a mark names is passed over.
func (s *scanned) next(w *ondisk.Window) (at int64, rec *paxos.Record, fr ondisk.Frame, err error) {
	at = s.end
	if rec, fr, err = readRecord(w, at, s.seed); !ondisk.IsBadFrame(err) {
		return at, rec, fr, err
	}
	marks := roundUp(at, blockBytes)
	rest, readErr := w.At(at, int(marks-at))
	if readErr != nil {
		return at, nil, ondisk.Frame{}, readErr
	}
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return at, nil, ondisk.Frame{}, err
	}
	block, readErr := w.At(marks, blockBytes)
	if readErr != nil {
		return at, nil, ondisk.Frame{}, readErr
	}
	found := readMarkBlock(block, s.seed, marks)
	pass := len(found) > 0
	for _, m := range found {
		s.mark(m)
		pass = pass && m.end <= s.end
	}
	if !pass {
		return at, nil, ondisk.Frame{}, &ondisk.BadFrame{What: "no record and no mark stands here"}
	}
	at = marks + blockBytes
	rec, fr, err = readRecord(w, at, s.seed)
	if err == nil && fr.Sequence <= s.flush {
		err = &ondisk.BadFrame{What: "a record of an old flush stands here"}
	}
	if err == nil {
		s.ends = append(s.ends[:0], s.end)
	}
	return at, rec, fr, err
}

// mark takes note of a good mark.
func (s *scanned) mark(m placedMark) {
	if m.flush > s.best.flush {
		s.best = m
	}
}

func checkHeader(h *pb.SegmentHeader, size int64, id *pb.Identity, damaged func(int64, string, ...any) error) error {
	switch {
	case h.Format != codec.FormatVersion:
		return ondisk.CheckFormat(segmentName(h.Segment), h.Format)
	case h.Cell != id.Cell || h.Replica != id.Replica || h.Incarnation != id.Incarnation:
		return &ondisk.ForeignError{
			FoundCell: h.Cell, FoundReplica: h.Replica, FoundIncarnation: h.Incarnation,
			AskedCell: id.Cell, AskedReplica: id.Replica, Wanted: id.Incarnation,
		}
	case h.Installed > h.Chosen:
		return damaged(0, "the header says that a snapshot of slot %d was installed and only slot %d was chosen", h.Installed, h.Chosen)
	case h.Size%blockBytes != 0 || h.Size < 3*blockBytes:
		return damaged(0, "the header says that the file has %d bytes, which is not possible", h.Size)
	case size < h.Size:
		return damaged(size, "the file ends here, but %d bytes were allocated for it", h.Size)
	case size > h.Size:
		return damaged(h.Size, "the file is %d bytes long, but only %d were allocated for it", size, h.Size)
	}
	return nil
}

// readRecord reads a log record. A record whose checksum is right and whose
// content is not understood is an error of its own: it is not damage.
func readRecord(w *ondisk.Window, off int64, seed uint32) (*paxos.Record, ondisk.Frame, error) {
	fr, err := w.Frame(off, seed)
	if err != nil {
		return nil, ondisk.Frame{}, err
	}
	rec, err := decodeRecordFrame(fr)
	return rec, fr, err
}

func decodeRecordFrame(fr ondisk.Frame) (*paxos.Record, error) {
	if fr.Kind != ondisk.FrameRecord {
		return nil, fmt.Errorf("an intact record of kind %d, which this version of lockd does not know", fr.Kind)
	}
	p := &pb.LogRecord{}
	if err := p.Decode(fr.Payload); err != nil {
		return nil, fmt.Errorf("an intact record that this version of lockd cannot decode: %w", err)
	}
	rec, err := codec.DecodeRecord(p)
	if err != nil {
		return nil, fmt.Errorf("an intact record that this version of lockd cannot decode: %w", err)
	}
	return rec, nil
}

// tail is what stands behind the last good record of the last segment.
type tail struct {
	dirty bool  // not only zeros and marks that belong there
	last  int64 // behind the last byte that is neither
	// marked: the block behind the last good record's has a good mark.
	marked bool
	// Of the good records behind the bad bytes: the highest flush, and where
	// the first one stands.
	laterFlush uint64
	laterAt    int64
}

var zeroBlock [blockBytes]byte

// dataSeeker is offered by files that know where they hold nothing but zeros.
type dataSeeker interface {
	// NextData gives the first offset >= off that may hold something else.
	NextData(off int64) int64
}

// readTail looks at everything behind the last good record, and takes note of
// the marks there.
func (s *scanned) readTail(f vfs.File) (tail, error) {
	t := tail{last: s.end}
	w, giveBack := ondisk.OpenWindow(f, s.size)
	defer giveBack()
	seeker, _ := f.(dataSeeker)
	marks := roundUp(s.end, blockBytes)
	for off := s.end; off < s.size; {
		if seeker != nil {
			if next := seeker.NextData(off); next > off {
				// Marks are aligned to blocks, frames within them.
				off = min(s.size, max(off, next&^(blockBytes-1)))
				if off >= s.size {
					break
				}
			}
		}
		n := min(blockBytes-off%blockBytes, s.size-off)
		b, err := w.At(off, int(n))
		if err != nil {
			return t, err
		}
		if bytes.Equal(b, zeroBlock[:len(b)]) {
			off += n
			continue
		}
		found := readMarkBlock(b, s.seed, off)
		for _, m := range found {
			s.mark(m)
		}
		if off == marks && len(found) > 0 {
			t.marked = true
			off += n
			continue
		}
		t.dirty = true
		t.last = off + int64(len(bytes.TrimRight(b, "\x00")))
		if err := s.findFrames(w, off, n, &t); err != nil {
			return t, err
		}
		off += n
	}
	return t, nil
}

// findFrames looks for good records that begin in [off, off+n).
func (s *scanned) findFrames(w *ondisk.Window, off, n int64, t *tail) error {
	for at := off; at < off+n; at += ondisk.FrameAlign {
		h, err := w.At(at, 4)
		if err != nil {
			return err
		}
		if at == s.end || len(h) < 4 || binary.LittleEndian.Uint32(h) != ondisk.FrameMagic {
			continue
		}
		fr, err := w.Frame(at, s.seed)
		if ondisk.IsBadFrame(err) {
			continue
		} else if err != nil {
			return err
		}
		if t.laterAt == 0 {
			t.laterAt = at
		}
		t.laterFlush = max(t.laterFlush, fr.Sequence)
	}
	return nil
}

// judge decides what the end of the last segment means: nil and cut false, all
// is well; cut true, the tail is torn: it belongs to a flush that was never
// acknowledged and goes; else a *ondisk.DamagedError.
//
// Invariant: what a successful Sync covered is never cut. A flush is
// acknowledged only after its mark was durable, by the same write, so
// bytes that no mark names were not acknowledged, and bytes that one names are
// never cut.
func (s *scanned) judge(t tail) (cut bool, err error) {
	damaged := func(off int64, doubtful bool, format string, args ...any) error {
		return &ondisk.DamagedError{
			File: segmentName(s.header.Segment), Offset: off, Doubtful: doubtful,
			What: fmt.Sprintf(format, args...),
		}
	}
	m := s.best
	// Where the next record ought to stand: right behind the last, or, if the mark
	// names nothing there, behind the marks.
	at := s.end
	if s.stopAt > s.end && m.end > roundUp(s.end, blockBytes) {
		at = s.stopAt
	}
	if m.flush == 0 {
		return false, damaged(roundUp(s.end, blockBytes), false, "no flush mark is readable")
	}
	switch {
	case s.end < m.start:
		return false, damaged(at, false, "%s, but flush %d from byte %d on was made durable later", s.stop, m.flush, m.start)
	case s.end < m.end && t.laterFlush > m.flush:
		return false, damaged(at, false, "%s, and good records of a later flush follow at byte %d", s.stop, t.laterAt)
	case s.end < m.end && !invariant.Planted(invariant.DoubtfulIsTorn):
		return false, damaged(at, true, "%s, but the mark of flush %d says that it reaches to byte %d", s.stop, m.flush, m.end)
	case m.end >= s.ends[0] && !slices.Contains(s.ends, m.end) && !invariant.Planted(invariant.DoubtfulIsTorn):
		return false, damaged(m.at, false, "the mark of flush %d names byte %d, where no record ends", m.flush, m.end)
	case s.flush > m.flush+1 && !(invariant.Planted(invariant.LostMarkTolerated) && s.flush == m.flush+2):
		return false, damaged(roundUp(s.end, blockBytes), false, "the marks that belong here, behind flush %d, are unreadable: the newest that is good is of flush %d",
			s.flush, m.flush)
	case !t.dirty:
		return false, nil
	case t.laterFlush > m.flush+1:
		return false, damaged(at, false, "%s, and good records of a later flush follow at byte %d", s.stop, t.laterAt)
	}
	return true, nil
}

// successor reads the last block of the segment's file: the number of the next
// segment if it says that one stands, 0 if it does not. Bad: it is neither
// that nor empty.
func (s *scanned) successor(f vfs.File) (next uint64, bad bool, err error) {
	w := &ondisk.Window{F: f, Size: s.size + blockBytes, Ahead: blockBytes}
	block, err := w.At(s.size, blockBytes)
	if err != nil {
		return 0, false, err
	}
	if bytes.Equal(block, zeroBlock[:len(block)]) {
		return 0, false, nil
	}
	if !isSuccessorBlock(block, s.seed, s.size, s.header.Segment) {
		return 0, true, nil
	}
	return s.header.Segment + 1, false, nil
}

// checkClosed compares the end of a segment with what the header of the next
// one says: that one was made only after all of this one was durable.
func (s *scanned) checkClosed(next *pb.SegmentHeader) error {
	if s.end == next.PreviousEnd {
		return nil
	}
	return &ondisk.DamagedError{
		File: segmentName(s.header.Segment), Offset: s.end,
		What: fmt.Sprintf("%s, but the segment after it says that its records end at byte %d", s.stop, next.PreviousEnd),
	}
}
