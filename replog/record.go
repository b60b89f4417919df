package replog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
)

// A frame is the unit of everything checksummed: log records, segment headers,
// pieces of a snapshot. See the package comment for the drawing.
const (
	frameMagic  = 0x31466b4c // "LkF1"
	frameHeader = 24
	frameAlign  = 8
	// maxFramePayload bounds what a length field may ask us to read.
	maxFramePayload = 64 << 20
)

type frameType uint8

const (
	frameRecord  frameType = 1 + iota // pb.LogRecord
	frameSegment                      // pb.SegmentHeader
	frameMeta                         // pb.SnapshotMeta
	frameChunk                        // piece of a zstd stream
	frameTrailer                      // pb.SnapshotTrailer
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frameSeed starts the checksum of every frame of a file with what the file
// is, so that bytes copied from another file, replica or life of this replica
// are never valid here.
func frameSeed(owner, number uint64) uint32 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[0:], owner)
	binary.LittleEndian.PutUint64(b[8:], number)
	return crc32.Checksum(b[:], castagnoli)
}

// frameSize is the room that a payload of n bytes takes.
func frameSize(n int) int {
	return (frameHeader + n + frameAlign - 1) &^ (frameAlign - 1)
}

// frameSum is the checksum of a whole frame (its padding too) at offset.
func frameSum(seed uint32, offset int64, b []byte) uint32 {
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(offset))
	sum := crc32.Update(seed, castagnoli, at[:])
	return crc32.Update(sum, castagnoli, b[8:])
}

// beginFrame makes room for a header behind buf; the payload is appended next,
// then endFrame closes it.
func beginFrame(buf []byte) []byte {
	var header [frameHeader]byte
	return append(buf, header[:]...)
}

// endFrame pads the frame that begins at start in buf. It has no checksum yet,
// since that depends on the place.
func endFrame(buf []byte, start int, t frameType, sequence uint64) []byte {
	payload := len(buf) - start - frameHeader
	for len(buf)-start < frameSize(payload) {
		buf = append(buf, 0)
	}
	h := buf[start:]
	binary.LittleEndian.PutUint32(h[0:], frameMagic)
	binary.LittleEndian.PutUint32(h[8:], uint32(payload))
	h[12], h[13], h[14], h[15] = byte(t), 0, 0, 0
	binary.LittleEndian.PutUint64(h[16:], sequence)
	return buf
}

// setSequence changes the sequence number of a frame that is not sealed yet.
func setSequence(b []byte, sequence uint64) { binary.LittleEndian.PutUint64(b[16:], sequence) }

// sealFrame writes the checksum of a frame that will stand at offset.
func sealFrame(b []byte, seed uint32, offset int64) {
	binary.LittleEndian.PutUint32(b[4:], frameSum(seed, offset, b))
}

// appendFrame appends a whole frame that will stand at offset.
func appendFrame(buf []byte, seed uint32, offset int64, t frameType, sequence uint64, payload []byte) []byte {
	start := len(buf)
	buf = append(beginFrame(buf), payload...)
	buf = endFrame(buf, start, t, sequence)
	sealFrame(buf[start:], seed, offset)
	return buf
}

// frame is a frame that was read and whose checksum is right.
type frame struct {
	kind     frameType
	sequence uint64
	payload  []byte // valid until the next read from the window
	size     int    // with header and padding
}

// badFrame says why bytes are not a frame. It is not an error of reading.
type badFrame struct{ what string }

func (e *badFrame) Error() string { return e.what }

func isBadFrame(err error) bool {
	_, ok := errors.AsType[*badFrame](err)
	return ok
}

// frameLength reads the size of a frame from its header, without believing it.
func frameLength(h []byte) (int, error) {
	if len(h) < frameHeader {
		return 0, &badFrame{"the file ends within a header"}
	}
	if binary.LittleEndian.Uint32(h) != frameMagic {
		return 0, &badFrame{"no record begins here"}
	}
	n := binary.LittleEndian.Uint32(h[8:])
	if n > maxFramePayload {
		return 0, &badFrame{fmt.Sprintf("a record of %d bytes is not possible", n)}
	}
	return frameSize(int(n)), nil
}

// parseFrame checks a frame of exactly the size that frameLength gave.
func parseFrame(b []byte, seed uint32, offset int64) (frame, error) {
	if size, err := frameLength(b); err != nil {
		return frame{}, err
	} else if size != len(b) {
		return frame{}, &badFrame{"the file ends within a record"}
	}
	if binary.LittleEndian.Uint32(b[4:]) != frameSum(seed, offset, b) {
		return frame{}, &badFrame{"the checksum is wrong"}
	}
	n := int(binary.LittleEndian.Uint32(b[8:]))
	return frame{
		kind:     frameType(b[12]),
		sequence: binary.LittleEndian.Uint64(b[16:]),
		payload:  b[frameHeader : frameHeader+n],
		size:     len(b),
	}, nil
}

// window reads a file through one buffer: sequential reads of small pieces
// cost few system calls, and no more memory than the largest piece.
type window struct {
	f     io.ReaderAt
	size  int64 // of the file
	buf   []byte
	start int64
	ahead int // bytes to read at least; 0: more with each read, up to windowBytes
	last  int // what was read last, if ahead is 0
}

// What is read at a time: much of a large file, and little of one that holds
// little.
const (
	windowBytes      = 256 << 10
	firstWindowBytes = 8 << 10
)

// windowBuffers are kept for the next file that is read to its end.
var windowBuffers = sync.Pool{New: func() any { return new([]byte) }}

// openWindow returns a window of a kept buffer, and what gives that back: then
// nothing that was read is valid any more.
func openWindow(f io.ReaderAt, size int64) (w *window, giveBack func()) {
	kept := windowBuffers.Get().(*[]byte)
	w = &window{f: f, size: size, buf: (*kept)[:0]}
	return w, func() {
		*kept, w.buf = w.buf, nil
		windowBuffers.Put(kept)
	}
}

// at gives n bytes at off, fewer at the end of the file. They are valid until
// the next call.
func (w *window) at(off int64, n int) ([]byte, error) {
	if off >= w.size {
		return nil, nil
	}
	if int64(n) > w.size-off {
		n = int(w.size - off)
	}
	if off >= w.start && off+int64(n) <= w.start+int64(len(w.buf)) {
		return w.buf[off-w.start:][:n], nil
	}
	want := max(n, w.ahead)
	if w.ahead == 0 {
		w.last = min(max(2*w.last, firstWindowBytes), windowBytes)
		want = max(n, w.last)
	}
	if int64(want) > w.size-off {
		want = int(w.size - off)
	}
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf = w.buf[:want]
	w.start = off
	got, err := w.f.ReadAt(w.buf, off)
	if got < want {
		w.buf = w.buf[:0]
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("reading %d bytes at %d: %w", want, off, err)
	}
	return w.buf[:n], nil
}

// frame reads the frame at off: a *badFrame if there is none, another error
// if the file cannot be read.
func (w *window) frame(off int64, seed uint32) (frame, error) {
	h, err := w.at(off, frameHeader)
	if err != nil {
		return frame{}, err
	}
	size, err := frameLength(h)
	if err != nil {
		return frame{}, err
	}
	if int64(size) > w.size-off {
		return frame{}, &badFrame{"a record reaches behind the end of the file"}
	}
	b, err := w.at(off, size)
	if err != nil {
		return frame{}, err
	}
	return parseFrame(b, seed, off)
}
