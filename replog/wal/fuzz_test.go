package wal

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/replogtest"
)

func anyHeader(*pb.SegmentHeader) error { return nil }

// segmentOf puts a segment together from what is not zero in it.
func segmentOf(used []byte) []byte {
	return append(slices.Clone(used), make([]byte, max(0, 2*minSegment-len(used)))...)
}

// FuzzSegment reads whatever stands in a segment.
func FuzzSegment(f *testing.F) {
	seed := func(name string, content []byte) {
		fuzzing.Seed(f, name, bytes.TrimRight(content, "\x00"))
	}
	good := testSegment(f, 3)
	seed("good", good)
	torn := slices.Clone(good)
	torn[firstArea+300] ^= 1
	seed("torn", torn)
	short := slices.Clone(good)
	clear(short[firstArea+250 : firstArea+blockBytes])
	seed("lost", short)
	seed("areas", testSegment(f, 90))
	seed("empty", testSegment(f, 0))
	f.Fuzz(func(t *testing.T, used []byte) {
		content := segmentOf(used)
		file := &replogtest.File{B: content}
		var s *scanned
		var err error
		fuzzing.Bounded(t, 16*uint64(len(content))+1<<20, func() {
			s, err = scanSegment(file, 1, replogtest.ID, anyHeader, func(*paxos.Record, location) error { return nil })
		})
		if err != nil {
			replogtest.Typed(t, err)
			return
		}
		if s.end < s.start || s.end > int64(len(content)) {
			t.Fatalf("records from %d to %d in %d bytes", s.start, s.end, len(content))
		}
		tail, err := s.readTail(file)
		if err != nil {
			t.Fatal(err)
		}
		cut, err := s.judge(tail)
		if cut && (err != nil || tail.last <= s.end) {
			t.Fatalf("cut from %d to %d, %v", s.end, tail.last, err)
		}
		if err != nil {
			replogtest.Typed(t, err)
		}
	})
}

// FuzzSegmentDamage writes a log and spoils it. Whatever happens to a file, no
// record is read that was not written there. If the marks are whole, nothing
// that a flush covered is missing without a word; and bytes that no flush
// covered, and a last flush of which any part is missing but its mark, never
// keep a replica from starting.
func FuzzSegmentDamage(f *testing.F) {
	fuzzing.Seed(f, "none", []byte{3, 130, 7, 200, 9}, uint32(0), []byte{})
	fuzzing.Seed(f, "torn", []byte{130, 131, 5, 127, 127, 127, 127, 127}, uint32(0b1011), []byte{})
	fuzzing.Seed(f, "mark-alone", []byte{130, 131, 5, 6}, uint32(0b0101), []byte{})
	fuzzing.Seed(f, "in-the-last-write", []byte{130, 131, 5, 6}, uint32(0xff), []byte{33, 200, 1, 4, 33, 255, 0, 9})
	fuzzing.Seed(f, "in-the-middle", []byte{130, 131, 132}, uint32(0), []byte{32, 200, 1, 4})
	fuzzing.Seed(f, "in-an-old-area", bytes.Repeat([]byte{255}, 40), uint32(0), []byte{32, 200, 1, 4})
	fuzzing.Seed(f, "of-a-mark", []byte{130, 131, 132}, uint32(0), []byte{48, 16, 1, 1})
	fuzzing.Seed(f, "of-the-header", []byte{130}, uint32(0), []byte{0, 3, 0, 30})
	f.Fuzz(func(t *testing.T, writes []byte, lost uint32, damage []byte) {
		l := writeFuzzed(t, writes)
		// The last flush never ended: of what it wrote, some sectors are lost.
		before, whole, unmarked := slices.Clone(l.file.B), len(l.written), false
		if whole > l.flushed {
			if err := l.w.Sync(); err != nil {
				t.Fatal(err)
			}
			unmarked = l.lose(before, lost)
		}
		marks, covered := l.spoil(damage)

		read := 0
		s, err := scanSegment(l.file, 1, replogtest.ID, anyHeader, func(r *paxos.Record, _ location) error {
			if read >= len(l.written) || !reflect.DeepEqual(*r, l.written[read]) {
				t.Fatalf("record %d was never written: %+v", read, r)
			}
			read++
			return nil
		})
		var cut bool
		if err == nil {
			var tail tail
			if tail, err = s.readTail(l.file); err != nil {
				t.Fatal(err)
			}
			cut, err = s.judge(tail)
		}
		if err != nil {
			replogtest.Typed(t, err)
			if !marks && !covered && (unmarked || whole == l.flushed) {
				t.Fatalf("what no flush covered is spoiled, and the replica does not start: %v", err)
			}
			return
		}
		if !marks && read < l.flushed {
			t.Fatalf("%d of %d flushed records are gone (cut %v), and nothing was said", l.flushed-read, l.flushed, cut)
		}
	})
}

// fuzzedLog is a segment that was written, and what was written.
type fuzzedLog struct {
	file       *replogtest.File
	w          *Log
	written    []paxos.Record
	flushed    int            // so many of them
	flushedEnd int64          // and so many bytes
	marks      map[int64]bool // the blocks of marks
}

// writeFuzzed writes a record for each byte: its length, and whether it is
// flushed.
func writeFuzzed(t *testing.T, writes []byte) *fuzzedLog {
	l := &fuzzedLog{file: &replogtest.File{}, marks: map[int64]bool{}}
	l.w = &Log{fs: replogtest.OneFile{F: l.file}, stop: &ondisk.FailStop{}, id: replogtest.ID, segmentBytes: 16 * minSegment, index: newSlotIndex(), first: 1, flush: 1}
	if err := l.w.begin(0, nil); err != nil {
		t.Fatal(err)
	}
	l.flushedEnd = l.w.active.end
	l.marks[l.w.tail.newest.at] = true
	for i, b := range writes[:min(len(writes), 64)] {
		r := paxos.Record{Promised: paxos.Ballot{Round: 2, Replica: 1}, Chosen: paxos.Slot(i), Entries: []paxos.Entry{{
			Slot: paxos.Slot(i + 1), Ballot: paxos.Ballot{Round: 2, Replica: 1},
			Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{bytes.Repeat([]byte{b}, 8*int(b&127)+1)}},
		}}}
		if err := l.w.Append([]*paxos.Record{&r}); err != nil {
			t.Fatal(err)
		}
		l.written = append(l.written, r)
		if b >= 128 {
			if err := l.w.Sync(); err != nil {
				t.Fatal(err)
			}
			l.flushed, l.flushedEnd = len(l.written), l.w.active.end
			l.marks[l.w.tail.newest.at] = true
		}
	}
	return l
}

// lose takes back some of the sectors that the last flush changed, as the bits
// of lost say, by turns; it tells whether the flush's mark is among them.
func (l *fuzzedLog) lose(before []byte, lost uint32) (unmarked bool) {
	const sector = 512
	newest := l.w.tail.newest
	l.marks[newest.at] = true
	for at, n := 0, 0; at < len(before); at += sector {
		now, was := l.file.B[at:at+sector], before[at:at+sector]
		if bytes.Equal(now, was) {
			continue
		}
		if lost>>(n%32)&1 != 0 {
			copy(now, was)
			unmarked = unmarked || int64(at) == newest.at+int64(newest.slot)*markApart
		}
		n++
	}
	return unmarked
}

// spoil changes bytes as damage says: four bytes each, place (two), kind and
// length. It tells whether anything that changed lies in the blocks of marks, or
// in what was flushed.
func (l *fuzzedLog) spoil(damage []byte) (marks, covered bool) {
	content := l.file.B
	for len(damage) >= 4 {
		at := (int(damage[0])<<8 + int(damage[1])) % len(content)
		for n := range int(damage[3]) + 1 {
			if at+n >= len(content) {
				break
			}
			b := &content[at+n]
			was := *b
			switch damage[2] % 4 {
			case 0:
				*b = 0
			case 1:
				*b ^= damage[2] | 1
			case 2:
				*b = 0xff
			case 3: // what stands elsewhere in the file
				*b = content[(at+n+len(content)-int(damage[2])*8)%len(content)]
			}
			if *b != was {
				mark := l.marks[int64(at+n)&^(blockBytes-1)]
				marks = marks || mark
				covered = covered || !mark && int64(at+n) < l.flushedEnd
			}
		}
		damage = damage[4:]
	}
	return marks, covered
}

// FuzzSegmentHeader: a header whose checksum is right may hold anything.
func FuzzSegmentHeader(f *testing.F) {
	header := func(h *pb.SegmentHeader) []byte {
		b, err := proto.Marshal(h)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	fuzzing.Seed(f, "plain", header(&pb.SegmentHeader{Format: codec.FormatVersion, Segment: 1, Size: 2 * minSegment, Cell: "demo", Replica: "n1", Incarnation: 42}))
	fuzzing.Seed(f, "full", header(&pb.SegmentHeader{Format: codec.FormatVersion, Segment: 1, Size: 2 * minSegment, Cell: "demo", Replica: "n1", Incarnation: 42,
		Flush: 7, Chosen: 5, Promised: &pb.Ballot{Round: 3, Replica: 2}, ConfigSlot: 1, PreviousEnd: 9000,
		Config: codec.EncodeConfiguration(&paxos.Configuration{Cell: "demo", Members: []paxos.Member{{ID: 1, Name: "n1", Voter: true}}})}))
	f.Fuzz(func(t *testing.T, payload []byte) {
		content := segmentOf(ondisk.AppendFrame(nil, headerSeed(1), 0, ondisk.FrameSegment, 0, payload))
		s, err := scanSegment(&replogtest.File{B: content}, 1, replogtest.ID, anyHeader, func(*paxos.Record, location) error { return nil })
		if err != nil {
			replogtest.Typed(t, err)
			return
		}
		found := &Found{wal: &Log{}}
		if err := found.takeHeader(s.header); err != nil {
			replogtest.Typed(t, err)
			return
		}
		facts := found.wal.facts
		if facts.chosen != paxos.Slot(s.header.Chosen) || facts.promised != codec.DecodeBallot(s.header.Promised) {
			t.Fatalf("%v gives %+v", s.header, facts)
		}
	})
}

func FuzzMark(f *testing.F) {
	fuzzing.Seed(f, "good", encodeMark(mark{flush: 9, start: 8192, end: 9000}, 77, 12288, 1), uint8(1))
	fuzzing.Seed(f, "backwards", encodeMark(mark{flush: 9, start: 9000, end: 8192}, 77, 12288, 0), uint8(0))
	fuzzing.Seed(f, "ahead", encodeMark(mark{flush: 9, start: 9000, end: 12289}, 77, 12288, 0), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		slot := int(n)
		m, ok := decodeMark(b, 77, 12288, slot)
		if !ok {
			return
		}
		if !bytes.Equal(encodeMark(m, 77, 12288, slot), b[:markBytes]) {
			t.Fatalf("%x was read as %+v", b, m)
		}
		if m.end > 12288 {
			t.Fatalf("%+v stands before its end", m)
		}
		if _, ok := decodeMark(b, 77, 12288, slot^1); ok {
			t.Fatal("it counts as the other mark too")
		}
		if _, ok := decodeMark(b, 77, 16384, slot); ok {
			t.Fatal("it counts in another block too")
		}
		if _, ok := decodeMark(b, 78, 12288, slot); ok {
			t.Fatal("it counts in another segment too")
		}
	})
}

// FuzzLogRecord: a record that can be decoded is the same after it has been
// encoded again.
func FuzzLogRecord(f *testing.F) {
	for name, r := range map[string]*paxos.Record{
		"promise": {Promised: paxos.Ballot{Round: 3, Replica: 2}, Chosen: 3},
		"batch": {Chosen: 3, Entries: []paxos.Entry{{Slot: 4, Ballot: paxos.Ballot{Round: 1, Replica: 1},
			Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{[]byte("a"), []byte("bc")}}}}},
		"lead": {Entries: []paxos.Entry{{Slot: 1, Chosen: true, Value: paxos.Value{Kind: paxos.Lead, Leader: paxos.Ballot{Round: 9, Replica: 3}}}, {Slot: 2}}},
		"config": {Entries: []paxos.Entry{{Slot: 1, Value: paxos.Value{Kind: paxos.Config, Config: &paxos.Configuration{
			Cell: "demo", CellIdentity: 5, RevisionFloor: 7, Members: []paxos.Member{{ID: 1, Name: "n1", Incarnation: 42, PeerAddress: "a:1", ClientAddress: "a:2", Voter: true}}}}}}},
	} {
		b, err := proto.Marshal(codec.EncodeRecord(r))
		if err != nil {
			f.Fatal(err)
		}
		fuzzing.Seed(f, name, b)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var r *paxos.Record
		var err error
		fuzzing.Bounded(t, 512*uint64(len(payload))+1<<20, func() {
			r, err = decodeRecordFrame(ondisk.Frame{Kind: ondisk.FrameRecord, Payload: payload})
		})
		if err != nil {
			replogtest.Typed(t, err)
			return
		}
		b, err := proto.Marshal(codec.EncodeRecord(r))
		if err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		again, err := decodeRecordFrame(ondisk.Frame{Kind: ondisk.FrameRecord, Payload: b})
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("%+v comes back as %+v, %v", r, again, err)
		}
	})
}

func FuzzSegmentName(f *testing.F) {
	fuzzing.Seed(f, "good", "0000000000000012.seg")
	fuzzing.Seed(f, "long", "12345678901234567890.seg")
	fuzzing.Seed(f, "zero", "0000000000000000.seg")
	fuzzing.Seed(f, "temporary", "0000000000000012.seg.tmp")
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := parseSegmentName(name)
		if ok && segmentName(n) != ondisk.LogDir+"/"+name {
			t.Fatalf("%q is taken for segment %d", name, n)
		}
	})
}
