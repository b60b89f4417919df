package wal

import (
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/vfs"
)

// tailBlock is what stands at the end of the active segment.
type tailBlock struct {
	newest placedMark // the mark of the last flush; its block is the one behind the end
	// open: the last block of records was begun by this process, and may be
	// written again with more of them behind. data is what it holds.
	open bool
	data [blockBytes]byte
}

// flight is a flush under way: its write, and what its end makes true.
type flight struct {
	on     bool
	image  []byte
	base   int64         // of the image
	file   vfs.AsyncFile // the write has begun there, and is to be waited for
	end    int64         // of the records
	mark   placedMark
	placed []placement
}

// Sync makes everything appended durable.
func (w *Log) Sync() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.stop.Check(); err != nil {
		return err
	}
	return w.flushPending()
}

// Start begins what sync does as far as that need not wait for the disk; finish
// does, or waits for, the rest. Nothing but read may be asked of the log between
// them.
func (w *Log) Start() (begun bool, err error) {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.stop.Check(); err != nil {
		return false, err
	}
	invariant.Assert(!w.flight.on, "a flush of the log is begun while another one is under way")
	f, ok := w.active.file.(vfs.AsyncFile)
	if !ok || len(w.pending) == 0 || w.place(int64(len(w.buf))) == 0 {
		return false, nil
	}
	if err := w.takeOff(); err != nil {
		return false, err
	}
	begun, err = f.StartWriteSync(w.flight.image, w.flight.base)
	if err != nil {
		return false, w.land(err)
	}
	if begun {
		w.flight.file = f
	}
	return begun, nil
}

// Await is for the goroutine that calls finish: see AwaitSync of storage.Async.
func (w *Log) Await() bool {
	f := w.asyncFile()
	return f != nil && f.AwaitWriteSync()
}

// Wake makes an await return: see WakeSync of storage.Async.
func (w *Log) Wake() {
	if f := w.asyncFile(); f != nil {
		f.WakeWriteSync()
	}
}

// asyncFile is the active segment's file, if its flushes can be begun.
func (w *Log) asyncFile() vfs.AsyncFile {
	w.writing.Lock()
	defer w.writing.Unlock()
	f, _ := w.active.file.(vfs.AsyncFile)
	return f
}

// Finish ends what start has begun.
func (w *Log) Finish() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	if f := w.flight.file; f != nil {
		return w.land(f.FinishWriteSync())
	}
	if err := w.stop.Check(); err != nil {
		return err
	}
	return w.flushPending()
}

// flushPending writes the pending records, and waits until they are durable.
func (w *Log) flushPending() error {
	invariant.Assert(w.flight.file == nil, "the log is to be flushed while a flush is under way")
	if !w.flight.on {
		if err := w.takeOff(); err != nil || !w.flight.on {
			return err
		}
	}
	return w.land(w.active.file.WriteSync(w.flight.image, w.flight.base))
}

// takeOff makes a flight of the pending records and the mark that names them,
// which will be written in one piece, durably.
//
// If they fit behind the last record, in its block, that block and the block of
// marks behind it are written again, the records before with the same bytes, and
// the mark before the new one with them. Else they begin in the block behind the
// marks.
//
// Invariant: no block of marks is ever overwritten with anything but marks, and
// no block of records with anything but what it holds and more behind. So
// whatever part of the write a power cut leaves, the last mark that it leaves
// names what was durable before; and if one of two blocks that were written again
// is lost as a whole, the other one tells that something was there.
func (w *Log) takeOff() error {
	invariant.Assert(!w.flight.on, "a flush of the log begins before the last one has ended")
	if len(w.pending) == 0 {
		return nil
	}
	off := w.place(int64(len(w.buf)))
	if off == 0 {
		// The old segment is durable: only the last can ever have a torn tail.
		if err := w.begin(int64(len(w.buf)), nil); err != nil {
			return err
		}
		off = w.place(int64(len(w.buf)))
	}
	s := w.active
	base := off &^ (blockBytes - 1)
	end := off + int64(len(w.buf))
	at := roundUp(end, blockBytes)
	if off == 0 || at+blockBytes > s.room() {
		invariant.Assert(false, "segment %d: %d bytes at %d do not fit", s.number, len(w.buf), off)
	}
	image := w.imageOf(int(at + blockBytes - base))
	copy(image, w.tail.data[:off-base])
	records := image[off-base:]
	copy(records, w.buf)
	placed := w.seal(records, off)
	clear(records[len(w.buf) : at-off])
	before := w.tail.newest
	m := placedMark{mark{flush: w.flush, start: s.end, end: end}, at, 1 - before.slot}
	putMarkBlock(image[at-base:], m.mark, before.mark, s.seed, at, m.slot)
	w.flight = flight{on: true, image: image, base: base, end: end, mark: m, placed: placed}
	clear(w.pending)
	w.pending, w.buf = w.pending[:0], w.buf[:0]
	if cap(w.buf) > 2*maxRecordPayload {
		w.buf = nil
	}
	return nil
}

// land ends the flight. A write that failed is never tried again.
func (w *Log) land(err error) error {
	s, f := w.active, w.flight
	w.flight = flight{}
	if err != nil {
		return w.stop.Fail("writing "+segmentName(s.number), err)
	}
	w.flush++
	w.tail.newest = f.mark
	w.tail.open = f.end < f.mark.at
	if last := f.mark.at - blockBytes; w.tail.open {
		copy(w.tail.data[:f.end-last], f.image[last-f.base:])
	}
	w.mu.Lock()
	s.end = f.end
	for _, p := range f.placed {
		w.note(s, p.entries, p.at)
	}
	w.mu.Unlock()
	clear(f.placed)
	if cap(w.image) > 2*maxRecordPayload {
		w.image = nil
	}
	w.prepareNext()
	return nil
}

// place gives where n bytes of records go; 0: the segment has no room for them
// and their mark.
func (w *Log) place(n int64) (off int64) {
	s := w.active
	if w.tail.open && s.end+n <= roundUp(s.end, blockBytes) {
		return s.end
	}
	if off = w.tail.newest.at + blockBytes; off+roundUp(n, blockBytes)+blockBytes <= s.room() {
		return off
	}
	return 0
}

// seal gives the pending records, which stand in frames and will stand at off,
// their flush and checksum. It is here that the log takes note of what they say:
// the header of a segment that is begun for them must not, since they may be
// lost while it is not.
func (w *Log) seal(frames []byte, off int64) []placement {
	placed := w.placed[:0]
	for _, p := range w.pending {
		frame := frames[p.start : p.start+p.size]
		ondisk.SetSequence(frame, w.flush)
		ondisk.SealFrame(frame, w.active.seed, off+int64(p.start))
		placed = append(placed, placement{
			at:      location{segment: w.active.number, offset: uint32(off + int64(p.start)), size: uint32(p.size)},
			entries: p.record.Entries,
		})
		w.facts.take(p.record)
	}
	w.placed = placed
	return placed
}

// imageOf gives n bytes to be filled, aligned in memory as direct writes want
// it.
func (w *Log) imageOf(n int) []byte {
	if cap(w.image) < n {
		w.image = vfs.AlignedBytes(max(n, 16*blockBytes))
	}
	return w.image[:n]
}
