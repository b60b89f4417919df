package replog

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
)

// scanned is what reading a segment from its header to the first byte that is
// no record gave.
type scanned struct {
	header *pb.SegmentHeader
	size   int64 // of the file
	seed   uint32
	start  int64  // of the first record
	end    int64  // behind the last good record
	flush  uint64 // of the last good record, or the header's
	stop   string // why no record stands at end

	marks     [markCount]mark
	markOK    [markCount]bool
	best      int  // slot of the newest good mark, -1 if none is good
	bestIsEnd bool // a record (or the header) ends where the best mark says
}

// location is where a record stands.
type location struct {
	segment uint64
	offset  uint32
	size    uint32
}

// scanSegment reads a segment. It gives every good record to visit, in order.
// What it finds at the end is for judge (the last segment) or checkClosed. An
// error is a *DamagedError, a *ForeignError, or one of reading.
func scanSegment(f File, number uint64, id *pb.Identity, visit func(*paxos.Record, location) error) (*scanned, error) {
	name := segmentName(number)
	damaged := func(off int64, format string, args ...any) error {
		return &DamagedError{File: name, Offset: off, What: fmt.Sprintf(format, args...)}
	}
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", name, err)
	}
	if size < headerAt+frameHeader {
		return nil, damaged(size, "the file ends here, before its header")
	}
	w := &window{f: f, size: size}
	h, headerSize, err := readHeader(w, number)
	if isBadFrame(err) {
		return nil, damaged(headerAt, "the segment's header is unreadable: %v", err)
	} else if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if err := checkHeader(h, size, id, damaged); err != nil {
		return nil, err
	}
	s := &scanned{
		header: h,
		size:   size,
		seed:   frameSeed(id.Incarnation, number),
		start:  headerAt + int64(headerSize),
		flush:  h.Flush,
	}
	if err := s.readMarks(w); err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	s.end = s.start
	for {
		s.noteEnd()
		rec, fr, err := readRecord(w, s.end, s.seed)
		if isBadFrame(err) {
			s.stop = err.Error()
			return s, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s, byte %d: %w", name, s.end, err)
		}
		if fr.sequence < s.flush || fr.sequence == h.Flush {
			return nil, damaged(s.end, "a record of flush %d follows flush %d", fr.sequence, s.flush)
		}
		if err := visit(rec, location{segment: number, offset: uint32(s.end), size: uint32(fr.size)}); err != nil {
			return nil, err
		}
		s.flush = fr.sequence
		s.end += int64(fr.size)
	}
}

func checkHeader(h *pb.SegmentHeader, size int64, id *pb.Identity, damaged func(int64, string, ...any) error) error {
	switch {
	case h.Format != formatVersion:
		return fmt.Errorf("%s has format %d, this version of lockd reads format %d: start the version that wrote it",
			segmentName(h.Segment), h.Format, formatVersion)
	case h.Cell != id.Cell || h.Replica != id.Replica || h.Incarnation != id.Incarnation:
		return &ForeignError{
			FoundCell: h.Cell, FoundReplica: h.Replica, FoundIncarnation: h.Incarnation,
			AskedCell: id.Cell, AskedReplica: id.Replica, Wanted: id.Incarnation,
		}
	case size < h.Size:
		return damaged(size, "the file ends here, but %d bytes were allocated for it", h.Size)
	case size > h.Size:
		return damaged(h.Size, "the file is %d bytes long, but only %d were allocated for it", size, h.Size)
	}
	return nil
}

// readRecord reads a log record. A record whose checksum is right and whose
// content is not understood is an error of its own: it is not damage.
func readRecord(w *window, off int64, seed uint32) (*paxos.Record, frame, error) {
	fr, err := w.frame(off, seed)
	if err != nil {
		return nil, frame{}, err
	}
	rec, err := decodeRecordFrame(fr)
	return rec, fr, err
}

func decodeRecordFrame(fr frame) (*paxos.Record, error) {
	if fr.kind != frameRecord {
		return nil, fmt.Errorf("an intact record of kind %d, which this version of lockd does not know", fr.kind)
	}
	p := &pb.LogRecord{}
	if err := p.Decode(fr.payload); err != nil {
		return nil, fmt.Errorf("an intact record that this version of lockd cannot decode: %w", err)
	}
	rec, err := DecodeRecord(p)
	if err != nil {
		return nil, fmt.Errorf("an intact record that this version of lockd cannot decode: %w", err)
	}
	return rec, nil
}

func (s *scanned) readMarks(w *window) error {
	s.best = -1
	for i := range s.marks {
		b, err := w.at(markOffset(i), markBytes)
		if err != nil {
			return err
		}
		s.marks[i], s.markOK[i] = decodeMark(b, s.seed, i)
		if s.markOK[i] && (s.best < 0 || s.marks[i].flush > s.marks[s.best].flush) {
			s.best = i
		}
	}
	return nil
}

func (s *scanned) noteEnd() {
	if s.best >= 0 && s.marks[s.best].end == s.end {
		s.bestIsEnd = true
	}
}

// tail is what stands behind the last good record of the last segment.
type tail struct {
	dirty bool  // not only zeros
	last  int64 // behind the last byte that is not zero
	// Of the good records behind the bad bytes: the highest flush, and where
	// the first one stands.
	laterFlush uint64
	laterAt    int64
}

var zeroBlock [4096]byte

// dataSeeker is offered by files that know where they hold nothing but zeros.
type dataSeeker interface {
	// NextData gives the first offset >= off that may hold something else.
	NextData(off int64) int64
}

// readTail looks at everything behind the last good record.
func (s *scanned) readTail(f File) (tail, error) {
	t := tail{last: s.end}
	w := &window{f: f, size: s.size}
	seeker, _ := f.(dataSeeker)
	for off := s.end; off < s.size; {
		if seeker != nil {
			if next := seeker.NextData(off); next > off {
				// Frames are aligned relative to the first; blocks are as well.
				off = min(s.size, next&^(frameAlign-1))
				if off >= s.size {
					break
				}
			}
		}
		b, err := w.at(off, len(zeroBlock))
		if err != nil {
			return t, err
		}
		if bytes.Equal(b, zeroBlock[:len(b)]) {
			off += int64(len(b))
			continue
		}
		t.dirty = true
		n := int64(len(b))
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != 0 {
				t.last = off + int64(i) + 1
				break
			}
		}
		if err := s.findFrames(w, off, n, &t); err != nil {
			return t, err
		}
		off += n
	}
	return t, nil
}

// findFrames looks for good records that begin in [off, off+n).
func (s *scanned) findFrames(w *window, off, n int64, t *tail) error {
	for at := off; at < off+n; at += frameAlign {
		h, err := w.at(at, 4)
		if err != nil {
			return err
		}
		if at == s.end || len(h) < 4 || binary.LittleEndian.Uint32(h) != frameMagic {
			continue
		}
		fr, err := w.frame(at, s.seed)
		if isBadFrame(err) {
			continue
		} else if err != nil {
			return err
		}
		if t.laterAt == 0 {
			t.laterAt = at
		}
		t.laterFlush = max(t.laterFlush, fr.sequence)
	}
	return nil
}

// judge decides what the end of the last segment means: nil and cut false, all
// is well; cut true, the tail is torn: it belongs to a flush that was never
// acknowledged and goes; else a *DamagedError.
//
// Invariant: what a successful Sync covered is never cut. A flush is
// acknowledged only after its mark was written under the same fdatasync, so
// bytes that no mark names were not acknowledged, and bytes that one names are
// never cut.
func (s *scanned) judge(t tail) (cut bool, err error) {
	damaged := func(off int64, doubtful bool, format string, args ...any) error {
		return &DamagedError{
			File: segmentName(s.header.Segment), Offset: off, Doubtful: doubtful,
			What: fmt.Sprintf(format, args...),
		}
	}
	if s.best < 0 {
		return false, damaged(0, false, "both flush marks are unreadable")
	}
	m := s.marks[s.best]
	switch {
	case m.end > s.size:
		return false, damaged(markOffset(s.best), false, "the mark of flush %d names an end behind the file's", m.flush)
	case s.end < m.start:
		return false, damaged(s.end, false, "%s, but flush %d from byte %d on was made durable later", s.stop, m.flush, m.start)
	case s.end < m.end && t.laterFlush > m.flush:
		return false, damaged(s.end, false, "%s, and good records of a later flush follow at byte %d", s.stop, t.laterAt)
	case s.end < m.end && !invariant.Planted(invariant.DoubtfulIsTorn):
		return false, damaged(s.end, true, "%s, but the mark of flush %d says that it reaches to byte %d", s.stop, m.flush, m.end)
	case !s.bestIsEnd && !invariant.Planted(invariant.DoubtfulIsTorn):
		return false, damaged(markOffset(s.best), false, "the mark of flush %d names byte %d, where no record ends", m.flush, m.end)
	case !t.dirty:
		return false, nil
	case t.laterFlush > m.flush+1:
		return false, damaged(s.end, false, "%s, and good records of a later flush follow at byte %d", s.stop, t.laterAt)
	}
	return true, nil
}

// checkClosed compares the end of a segment with what the header of the next
// one says: that one was made only after all of this one was durable.
func (s *scanned) checkClosed(next *pb.SegmentHeader) error {
	if s.end == next.PreviousEnd {
		return nil
	}
	return &DamagedError{
		File: segmentName(s.header.Segment), Offset: s.end,
		What: fmt.Sprintf("%s, but the segment after it says that its records end at byte %d", s.stop, next.PreviousEnd),
	}
}
