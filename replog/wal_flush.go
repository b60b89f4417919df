package replog

import (
	"github.com/seed70370324/lockd/internal/invariant"
)

// tailBlock is what stands at the end of the active segment.
type tailBlock struct {
	newest placedMark // the mark of the last flush; its block is the one behind the end
	// open: the last block of records was begun by this process, and may be
	// written again with more of them behind. data is what it holds.
	open bool
	data [blockBytes]byte
}

// sync makes everything appended durable.
func (w *wal) sync() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.stop.check(); err != nil {
		return err
	}
	return w.flushPending()
}

// flushPending writes the pending records and the mark that names them in one
// piece, durably. A write or fsync that failed is never tried again.
//
// If they fit behind the last record, in its block, that block and the block of
// marks behind it are written again, the records before with the same bytes, and
// the mark before the new one with them. Else they begin in the block behind the
// marks.
//
// Invariant: no block of marks is ever overwritten with anything but marks, and
// no block of records with anything but what it holds and more behind. So
// whatever part of the write a power cut leaves, the last mark that it leaves
// names what was durable before; and if a block that was written again is lost
// as a whole, the marks say, or their own loss does, that something was there.
func (w *wal) flushPending() error {
	if len(w.pending) == 0 {
		return nil
	}
	off, err := w.room(int64(len(w.buf)))
	if err != nil {
		return err
	}
	s := w.active
	base := off &^ (blockBytes - 1)
	end := off + int64(len(w.buf))
	at := roundUp(end, blockBytes)
	invariant.Assert(at+blockBytes <= s.size, "segment %d: %d bytes at %d do not fit", s.number, len(w.buf), off)
	image := w.imageOf(int(at + blockBytes - base))
	copy(image, w.tail.data[:off-base])
	records := image[off-base:]
	copy(records, w.buf)
	placed := w.seal(records, off)
	clear(records[len(w.buf) : at-off])
	m := mark{flush: w.flush, start: s.end, end: end}
	before := w.tail.newest
	slot := 1 - before.slot
	putMarkBlock(image[at-base:], m, before.mark, s.seed, at, slot)
	if err := s.file.WriteSync(image, base); err != nil {
		return w.stop.fail("writing "+segmentName(s.number), err)
	}
	w.tail.newest = placedMark{m, at, slot}
	w.tail.open = end < at
	if last := at - blockBytes - base; w.tail.open {
		copy(w.tail.data[:end-(at-blockBytes)], image[last:])
	}
	w.flush++
	w.mu.Lock()
	s.end = end
	for _, p := range placed {
		w.note(s, p.entries, p.at)
	}
	w.mu.Unlock()
	w.flushed()
	w.prepareNext()
	return nil
}

// room gives where n bytes of records go, in a new segment if this one has no
// room for them and their mark. The old one is durable: only the last segment
// can ever have a torn tail.
func (w *wal) room(n int64) (off int64, err error) {
	s := w.active
	if w.tail.open && s.end+n <= roundUp(s.end, blockBytes) {
		return s.end, nil
	}
	if off = w.tail.newest.at + blockBytes; off+roundUp(n, blockBytes)+blockBytes <= s.size {
		return off, nil
	}
	if err := w.begin(n, nil); err != nil {
		return 0, err
	}
	return w.tail.newest.at + blockBytes, nil
}

// seal gives the pending records, which stand in frames and will stand at off,
// their flush and checksum. It is here that the log takes note of what they say:
// the header of a segment that is begun for them must not, since they may be
// lost while it is not.
func (w *wal) seal(frames []byte, off int64) []placement {
	placed := w.placed[:0]
	for _, p := range w.pending {
		frame := frames[p.start : p.start+p.size]
		setSequence(frame, w.flush)
		sealFrame(frame, w.active.seed, off+int64(p.start))
		placed = append(placed, placement{
			at:      location{segment: w.active.number, offset: uint32(off + int64(p.start)), size: uint32(p.size)},
			entries: p.record.Entries,
		})
		w.facts.take(p.record)
	}
	w.placed = placed
	return placed
}

// flushed forgets what is written, and does not keep more than a few large
// records' memory for the next.
func (w *wal) flushed() {
	clear(w.pending)
	clear(w.placed)
	w.pending, w.placed, w.buf = w.pending[:0], w.placed[:0], w.buf[:0]
	if cap(w.buf) > 2*maxRecordPayload {
		w.buf = nil
	}
	if cap(w.image) > 2*maxRecordPayload {
		w.image = nil
	}
}

// imageOf gives n bytes to be filled, aligned in memory as direct writes want
// it.
func (w *wal) imageOf(n int) []byte {
	if cap(w.image) < n {
		w.image = alignedBytes(max(n, 16*blockBytes))
	}
	return w.image[:n]
}
