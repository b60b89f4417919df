package wal

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

const (
	// blockBytes is the unit in which the log is written: the largest that a disk
	// is known to write or lose as a whole.
	blockBytes = 4096
	// A mark block has room for two marks, each in a sector of its own: the newest
	// and the one before it. So a write of it that is torn leaves one of them.
	markCount  = 2
	markApart  = blockBytes / markCount
	markMagic  = 0x6b72616d646b636c // "lckdmark"
	markBytes  = 40
	minSegment = 20 << 10
	// The last block of a segment is empty until the next one stands.
	successorMagic = 0x7478656e646b636c // "lckdnext"
	successorBytes = 24
)

// segment is one file of the log.
type segment struct {
	number uint64
	file   vfs.File
	size   int64  // of the file
	seed   uint32 // of its records and marks
	start  int64  // of the first record
	end    int64  // of the last one

	// Guarded by Log.mu.
	min, max paxos.Slot // slots of its entries; max 0: none
	refs     int        // reads under way
	dropped  bool       // close when refs is 0
}

// room is where the blocks of records and marks end: the last block is left to
// the note that the next segment stands.
func (s *segment) room() int64 { return s.size - blockBytes }

// successorBlock returns the last block of a segment once the next one stands,
// durable under its name. So the loss of a segment is noticed although none
// follows it.
func successorBlock(s *segment) []byte {
	block := vfs.AlignedBytes(blockBytes)
	binary.LittleEndian.PutUint64(block[0:], successorMagic)
	binary.LittleEndian.PutUint64(block[16:], s.number+1)
	binary.LittleEndian.PutUint32(block[8:], ondisk.FrameSum(s.seed, s.room(), block[8:successorBytes]))
	return block
}

// isSuccessorBlock reports whether block is the one that successorBlock makes
// for segment number, whose last block stands at offset at.
func isSuccessorBlock(block []byte, seed uint32, at int64, number uint64) bool {
	return len(block) == blockBytes && binary.LittleEndian.Uint64(block) == successorMagic &&
		binary.LittleEndian.Uint32(block[12:]) == 0 && binary.LittleEndian.Uint64(block[16:]) == number+1 &&
		binary.LittleEndian.Uint32(block[8:]) == ondisk.FrameSum(seed, at, block[8:successorBytes])
}

func segmentName(number uint64) string {
	return fmt.Sprintf("%s/%016d%s", ondisk.LogDir, number, ondisk.SegmentSuffix)
}

// parseSegmentName takes a name within LogDir.
func parseSegmentName(name string) (uint64, bool) {
	return ondisk.ParseNumberedName(name, ondisk.SegmentSuffix)
}

// covers notes that the segment holds an entry of slot.
func (s *segment) covers(slot paxos.Slot) {
	if s.max == 0 || slot < s.min {
		s.min = slot
	}
	if slot > s.max {
		s.max = slot
	}
}

// mark names a flush: it says that the records behind start, up to end, belong
// to it and were written with it, and all before start by earlier ones.
type mark struct {
	flush      uint64
	start, end int64
}

// placedMark is a mark where it was found.
type placedMark struct {
	mark
	at   int64 // of its block
	slot int
}

// encodeMark gives the mark for a slot of the mark block at offset at.
func encodeMark(m mark, seed uint32, at int64, slot int) []byte {
	b := make([]byte, markBytes)
	putMark(b, m, seed, at, slot)
	return b
}

// putMark writes a mark to b.
func putMark(b []byte, m mark, seed uint32, at int64, slot int) {
	binary.LittleEndian.PutUint64(b[0:], markMagic)
	binary.LittleEndian.PutUint32(b[12:], 0)
	binary.LittleEndian.PutUint64(b[16:], m.flush)
	binary.LittleEndian.PutUint64(b[24:], uint64(m.start))
	binary.LittleEndian.PutUint64(b[32:], uint64(m.end))
	binary.LittleEndian.PutUint32(b[8:], markSum(b, seed, at, slot))
}

// markSum covers where the mark stands too: one that was written elsewhere is
// none.
func markSum(b []byte, seed uint32, at int64, slot int) uint32 {
	var place [8]byte
	binary.LittleEndian.PutUint64(place[:], uint64(at)+uint64(slot))
	sum := crc32.Update(seed, ondisk.Castagnoli, b[0:8])
	sum = crc32.Update(sum, ondisk.Castagnoli, b[16:markBytes])
	return crc32.Update(sum, ondisk.Castagnoli, place[:])
}

// decodeMark reads the mark in a slot of the block at offset at. A mark stands
// in the block right behind the end that it names, or, the older of two, further
// back still.
func decodeMark(b []byte, seed uint32, at int64, slot int) (mark, bool) {
	if len(b) < markBytes || binary.LittleEndian.Uint64(b) != markMagic ||
		binary.LittleEndian.Uint32(b[12:]) != 0 ||
		binary.LittleEndian.Uint32(b[8:]) != markSum(b, seed, at, slot) {
		return mark{}, false
	}
	m := mark{
		flush: binary.LittleEndian.Uint64(b[16:]),
		start: int64(binary.LittleEndian.Uint64(b[24:])),
		end:   int64(binary.LittleEndian.Uint64(b[32:])),
	}
	return m, m.start >= 0 && m.start <= m.end && m.end <= at
}

// putMarkBlock fills a block that will stand at offset at with the mark of slot
// and the one before it in the other one; before.flush 0: there is none.
func putMarkBlock(b []byte, m, before mark, seed uint32, at int64, slot int) {
	clear(b)
	putMark(b[slot*markApart:], m, seed, at, slot)
	if before.flush != 0 {
		other := 1 - slot
		putMark(b[other*markApart:], before, seed, at, other)
	}
}

// readMarkBlock gives the good marks of the block at offset at.
func readMarkBlock(b []byte, seed uint32, at int64) (found []placedMark) {
	for slot := 0; slot < markCount && len(b) == blockBytes; slot++ {
		if m, ok := decodeMark(b[slot*markApart:], seed, at, slot); ok {
			found = append(found, placedMark{m, at, slot})
		}
	}
	return found
}

// headerSeed of a segment does not depend on the incarnation, so that a header
// of another replica's segment can be read and named.
func headerSeed(number uint64) uint32 { return ondisk.FrameSeed(0, number) }

// encodeHeader gives the header frame of a segment.
func encodeHeader(h *pb.SegmentHeader) ([]byte, error) {
	payload, err := proto.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encoding the header of segment %d: %w", h.Segment, err)
	}
	return ondisk.AppendFrame(nil, headerSeed(h.Segment), 0, ondisk.FrameSegment, 0, payload), nil
}

// readHeader reads and checks the header frame of segment number; size is the
// room that the frame takes.
func readHeader(w *ondisk.Window, number uint64) (h *pb.SegmentHeader, size int, err error) {
	f, err := w.Frame(0, headerSeed(number))
	if err != nil {
		return nil, 0, err
	}
	if f.Kind != ondisk.FrameSegment {
		return nil, 0, &ondisk.BadFrame{What: "the header is of another kind"}
	}
	h = &pb.SegmentHeader{}
	if err := proto.Unmarshal(f.Payload, h); err != nil {
		return nil, 0, &ondisk.BadFrame{What: "the header cannot be decoded"}
	}
	if h.Segment != number {
		return nil, 0, &ondisk.BadFrame{What: fmt.Sprintf("the header is that of segment %d", h.Segment)}
	}
	return h, f.Size, nil
}
