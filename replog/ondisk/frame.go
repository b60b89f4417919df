package ondisk

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
	// FrameMagic is what a frame begins with: "LkF1".
	FrameMagic = 0x31466b4c
	// FrameHeader is how many bytes of a frame stand before its payload.
	FrameHeader = 24
	// FrameAlign is what the places of all frames are multiples of.
	FrameAlign = 8
	// MaxFramePayload bounds what a length field may ask us to read.
	MaxFramePayload = 64 << 20
)

// FrameType says what a frame holds.
type FrameType uint8

// What a frame holds.
const (
	FrameRecord  FrameType = 1 + iota // pb.LogRecord
	FrameSegment                      // pb.SegmentHeader
	FrameMeta                         // pb.SnapshotMeta
	FrameChunk                        // piece of a zstd stream
	FrameTrailer                      // pb.SnapshotTrailer
)

// Castagnoli is the table of CRC-32C.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FrameSeed starts the checksum of every frame of a file with what the file
// is, so that bytes copied from another file, replica or life of this replica
// are never valid here.
func FrameSeed(owner, number uint64) uint32 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[0:], owner)
	binary.LittleEndian.PutUint64(b[8:], number)
	return crc32.Checksum(b[:], Castagnoli)
}

// FrameSize is the room that a payload of n bytes takes.
func FrameSize(n int) int {
	return (FrameHeader + n + FrameAlign - 1) &^ (FrameAlign - 1)
}

// FrameSum is the checksum of a whole frame (its padding too) at offset.
func FrameSum(seed uint32, offset int64, b []byte) uint32 {
	var at [8]byte
	binary.LittleEndian.PutUint64(at[:], uint64(offset))
	sum := crc32.Update(seed, Castagnoli, at[:])
	return crc32.Update(sum, Castagnoli, b[8:])
}

// BeginFrame makes room for a header behind buf; the payload is appended next,
// then EndFrame closes it.
func BeginFrame(buf []byte) []byte {
	var header [FrameHeader]byte
	return append(buf, header[:]...)
}

// EndFrame pads the frame that begins at start in buf. It has no checksum yet,
// since that depends on the place.
func EndFrame(buf []byte, start int, t FrameType, sequence uint64) []byte {
	payload := len(buf) - start - FrameHeader
	for len(buf)-start < FrameSize(payload) {
		buf = append(buf, 0)
	}
	h := buf[start:]
	binary.LittleEndian.PutUint32(h[0:], FrameMagic)
	binary.LittleEndian.PutUint32(h[8:], uint32(payload))
	h[12], h[13], h[14], h[15] = byte(t), 0, 0, 0
	binary.LittleEndian.PutUint64(h[16:], sequence)
	return buf
}

// SetSequence changes the sequence number of a frame that is not sealed yet.
func SetSequence(b []byte, sequence uint64) { binary.LittleEndian.PutUint64(b[16:], sequence) }

// SealFrame writes the checksum of a frame that will stand at offset.
func SealFrame(b []byte, seed uint32, offset int64) {
	binary.LittleEndian.PutUint32(b[4:], FrameSum(seed, offset, b))
}

// AppendFrame appends a whole frame that will stand at offset.
func AppendFrame(buf []byte, seed uint32, offset int64, t FrameType, sequence uint64, payload []byte) []byte {
	start := len(buf)
	buf = append(BeginFrame(buf), payload...)
	buf = EndFrame(buf, start, t, sequence)
	SealFrame(buf[start:], seed, offset)
	return buf
}

// Frame is a frame that was read and whose checksum is right.
type Frame struct {
	Kind     FrameType
	Sequence uint64
	Payload  []byte // valid until the next read from the window
	Size     int    // with header and padding
}

// BadFrame says why bytes are not a frame. It is not an error of reading.
type BadFrame struct{ What string }

func (e *BadFrame) Error() string { return e.What }

// IsBadFrame reports whether err says that bytes are no frame.
func IsBadFrame(err error) bool {
	_, ok := errors.AsType[*BadFrame](err)
	return ok
}

// FrameLength reads the size of a frame from its header, without believing it.
func FrameLength(h []byte) (int, error) {
	if len(h) < FrameHeader {
		return 0, &BadFrame{What: "the file ends within a header"}
	}
	if binary.LittleEndian.Uint32(h) != FrameMagic {
		return 0, &BadFrame{What: "no record begins here"}
	}
	n := binary.LittleEndian.Uint32(h[8:])
	if n > MaxFramePayload {
		return 0, &BadFrame{What: fmt.Sprintf("a record of %d bytes is not possible", n)}
	}
	return FrameSize(int(n)), nil
}

// ParseFrame checks a frame of exactly the size that FrameLength gave.
func ParseFrame(b []byte, seed uint32, offset int64) (Frame, error) {
	if size, err := FrameLength(b); err != nil {
		return Frame{}, err
	} else if size != len(b) {
		return Frame{}, &BadFrame{What: "the file ends within a record"}
	}
	if binary.LittleEndian.Uint32(b[4:]) != FrameSum(seed, offset, b) {
		return Frame{}, &BadFrame{What: "the checksum is wrong"}
	}
	n := int(binary.LittleEndian.Uint32(b[8:]))
	return Frame{
		Kind:     FrameType(b[12]),
		Sequence: binary.LittleEndian.Uint64(b[16:]),
		Payload:  b[FrameHeader : FrameHeader+n],
		Size:     len(b),
	}, nil
}

// Window reads a file through one buffer: sequential reads of small pieces
// cost few system calls, and no more memory than the largest piece.
type Window struct {
	F     io.ReaderAt
	Size  int64 // of the file
	buf   []byte
	start int64
	Ahead int // bytes to read at least; 0: more with each read, up to WindowBytes
	last  int // what was read last, if ahead is 0
}

// What is read at a time: much of a large file, and little of one that holds
// little.
const (
	// WindowBytes is much of a large file.
	WindowBytes      = 256 << 10
	firstWindowBytes = 8 << 10
)

// windowBuffers are kept for the next file that is read to its end.
var windowBuffers = sync.Pool{New: func() any { return new([]byte) }}

// OpenWindow returns a window of a kept buffer, and what gives that back: then
// nothing that was read is valid any more.
func OpenWindow(f io.ReaderAt, size int64) (w *Window, giveBack func()) {
	kept := windowBuffers.Get().(*[]byte)
	w = &Window{F: f, Size: size, buf: (*kept)[:0]}
	return w, func() {
		*kept, w.buf = w.buf, nil
		windowBuffers.Put(kept)
	}
}

// Reset has the window read another file, with the memory that it has.
func (w *Window) Reset(f io.ReaderAt, size int64, ahead int) {
	*w = Window{F: f, Size: size, buf: w.buf[:0], Ahead: ahead}
}

// At gives n bytes at off, fewer at the end of the file. They are valid until
// the next call.
func (w *Window) At(off int64, n int) ([]byte, error) {
	if off >= w.Size {
		return nil, nil
	}
	if int64(n) > w.Size-off {
		n = int(w.Size - off)
	}
	if off >= w.start && off+int64(n) <= w.start+int64(len(w.buf)) {
		return w.buf[off-w.start:][:n], nil
	}
	want := max(n, w.Ahead)
	if w.Ahead == 0 {
		w.last = min(max(2*w.last, firstWindowBytes), WindowBytes)
		want = max(n, w.last)
	}
	if int64(want) > w.Size-off {
		want = int(w.Size - off)
	}
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf = w.buf[:want]
	w.start = off
	got, err := w.F.ReadAt(w.buf, off)
	if got < want {
		w.buf = w.buf[:0]
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("reading %d bytes at %d: %w", want, off, err)
	}
	return w.buf[:n], nil
}

// Frame reads the frame at off: a *BadFrame if there is none, another error
// if the file cannot be read.
func (w *Window) Frame(off int64, seed uint32) (Frame, error) {
	h, err := w.At(off, FrameHeader)
	if err != nil {
		return Frame{}, err
	}
	size, err := FrameLength(h)
	if err != nil {
		return Frame{}, err
	}
	if int64(size) > w.Size-off {
		return Frame{}, &BadFrame{What: "a record reaches behind the end of the file"}
	}
	b, err := w.At(off, size)
	if err != nil {
		return Frame{}, err
	}
	return ParseFrame(b, seed, off)
}
