package wal

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

// maxRecordPayload is where a record's entries are divided into several
// frames. A record need not be whole: every prefix of what was written since
// the last flush is a state that a crash may leave.
const maxRecordPayload = 4 << 20

// Log is the log: a row of segments, the last of which is written.
type Log struct {
	fs           vfs.FS
	stop         *ondisk.FailStop
	id           *pb.Identity
	segmentBytes int64

	// Of who writes; held while writing and flushing.
	writing sync.Mutex
	active  *segment
	pending []pendingRecord // of the flush that is being filled
	buf     []byte          // their frames, without checksum and place
	flush   uint64          // its number
	tail    tailBlock       // of the active segment
	placed  []placement     // of flushPending, kept for its memory
	image   []byte          // what a flush writes; aligned
	flight  flight          // the flush under way
	facts   facts
	next    *preparation // of the next segment; nil while there is none

	cutting sync.Mutex // one at a time removes segments

	mu       sync.Mutex
	segments []*segment // ascending, the last is active
	index    *slotIndex
	// From first on every chosen slot can be read.
	//
	// Invariant: first is above facts.installed. An entry at or below that may have
	// come from a leader of old while the snapshot was on its way, and another value
	// may have been chosen in its slot. The headers of the segments carry this over
	// a restart.
	first paxos.Slot
}

// Options say where a log is, and whose.
type Options struct {
	FS           vfs.FS
	Stop         *ondisk.FailStop
	Identity     *pb.Identity
	SegmentBytes int64 // of a segment, as SegmentSize gives it
}

func newLog(o Options) *Log {
	return &Log{fs: o.FS, stop: o.Stop, id: o.Identity, segmentBytes: o.SegmentBytes, index: newSlotIndex()}
}

// Create makes the first segment of a new log, in a directory that is there.
func Create(o Options) (*Log, error) {
	w := newLog(o)
	w.first, w.flush = 1, 1
	if err := w.begin(0, nil); err != nil {
		return nil, err
	}
	return w, nil
}

// SegmentSize returns the size of the segments of a log that is asked for segments of
// n bytes: whole blocks, and room for what each needs.
func SegmentSize(n int64) int64 { return roundUp(max(n, minSegment), blockBytes) }

// pendingRecord is a record whose frame stands in buf.
type pendingRecord struct {
	record      *paxos.Record
	start, size int // in buf
}

// placement is a record that has its place in a segment.
type placement struct {
	at      location
	entries []paxos.Entry
}

// facts is what the header of a segment repeats.
type facts struct {
	promised   paxos.Ballot
	chosen     paxos.Slot
	config     *paxos.Configuration
	configSlot paxos.Slot
	// The slot of the last snapshot that took the log's place, 0: none did.
	installed paxos.Slot
	// Accepted configurations that are not known to be chosen, by slot; there
	// is seldom more than one.
	open []paxos.Entry
}

func (f *facts) take(r *paxos.Record) {
	if f.promised.Less(r.Promised) {
		f.promised = r.Promised
	}
	for i := range r.Entries {
		f.entry(&r.Entries[i])
	}
	f.settle(r.Chosen)
}

func (f *facts) entry(e *paxos.Entry) {
	for i := range f.open {
		if f.open[i].Slot == e.Slot {
			f.open = append(f.open[:i], f.open[i+1:]...)
			break
		}
	}
	if e.Value.Kind == paxos.Config {
		f.open = append(f.open, *e)
	}
}

// settle takes the open configurations at or below chosen for chosen.
func (f *facts) settle(chosen paxos.Slot) {
	f.chosen = max(f.chosen, chosen)
	kept := f.open[:0]
	for _, e := range f.open {
		switch {
		case e.Slot > f.chosen:
			kept = append(kept, e)
		case e.Slot > f.configSlot:
			f.config, f.configSlot = e.Value.Config, e.Slot
		}
	}
	f.open = kept
}

// Append takes records for the next flush. sync writes them.
func (w *Log) Append(records []*paxos.Record) error {
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.stop.Check(); err != nil {
		return err
	}
	for _, r := range records {
		if err := w.encode(r); err != nil {
			return err
		}
	}
	return nil
}

// encode puts a record into buf, divided if it is long.
func (w *Log) encode(r *paxos.Record) error {
	for entries, last := range pieces(r.Entries) {
		piece := paxos.Record{Promised: r.Promised, Entries: entries}
		if last {
			// The chosen index stands in the last piece: it counts on the
			// entries before it.
			piece.Chosen = r.Chosen
		}
		if err := w.frame(&piece); err != nil {
			return err
		}
	}
	return nil
}

// pieces divides entries into such as fit a frame: at least one piece, even if
// it is empty.
func pieces(entries []paxos.Entry) iter.Seq2[[]paxos.Entry, bool] {
	return func(yield func([]paxos.Entry, bool) bool) {
		for {
			n, bytes := 0, 0
			for n < len(entries) && (n == 0 || bytes+entryBytes(&entries[n]) <= maxRecordPayload) {
				bytes += entryBytes(&entries[n])
				n++
			}
			last := n == len(entries)
			if !yield(entries[:n], last) || last {
				return
			}
			entries = entries[n:]
		}
	}
}

// frame encodes one frame behind buf.
func (w *Log) frame(r *paxos.Record) error {
	start := len(w.buf)
	buf, err := appendMessage(ondisk.BeginFrame(w.buf), codec.EncodeRecord(r))
	if err != nil {
		return w.stop.Fail("encoding a log record", err)
	}
	if len(buf)-start-ondisk.FrameHeader > ondisk.MaxFramePayload {
		return w.stop.Fail("encoding a log record", fmt.Errorf("an entry of %d bytes is too long", len(buf)-start))
	}
	w.buf = ondisk.EndFrame(buf, start, ondisk.FrameRecord, 0)
	w.pending = append(w.pending, pendingRecord{record: r, start: start, size: len(w.buf) - start})
	return nil
}

// appendMessage appends an encoded record.
func appendMessage(b []byte, m *pb.LogRecord) ([]byte, error) {
	from, n := len(b), m.SizeVT()
	b = slices.Grow(b, n)[:from+n]
	_, err := m.MarshalToSizedBufferVT(b[from:])
	return b, err
}

// note puts entries into the index; mu is held.
func (w *Log) note(s *segment, entries []paxos.Entry, at location) {
	for i := range entries {
		s.covers(entries[i].Slot)
		w.index.set(entries[i].Slot, at)
	}
}

// begin makes the next segment and makes it the active one; first is written
// into it before it gets its name. Room is what must fit behind the header
// besides.
//
// Invariant: before any flush in the new segment is reported, the segment before
// says, durably, that the new one stands.
func (w *Log) begin(room int64, first *paxos.Record) error {
	number := uint64(1)
	h := w.header()
	if w.active != nil {
		number = w.active.number + 1
		h.PreviousEnd = w.active.end
	}
	h.Segment = number
	s, entries, err := w.create(h, room, first)
	if err != nil {
		return w.stop.Fail("making "+segmentName(number), err)
	}
	if before := w.active; before != nil && !invariant.Planted(invariant.SuccessorNotNoted) {
		if err := before.file.WriteSync(successorBlock(before), before.room()); err != nil {
			return w.stop.Fail("noting in "+segmentName(before.number)+" that "+segmentName(number)+" follows", err)
		}
	}
	w.active = s
	w.mu.Lock()
	defer w.mu.Unlock()
	w.segments = append(w.segments, s)
	for _, p := range entries {
		w.note(s, p.entries, p.at)
	}
	return nil
}

func (w *Log) header() *pb.SegmentHeader {
	return &pb.SegmentHeader{
		Format:      codec.FormatVersion,
		Promised:    codec.EncodeBallot(w.facts.promised),
		Chosen:      uint64(w.facts.chosen),
		Config:      codec.EncodeConfiguration(w.facts.config),
		ConfigSlot:  uint64(w.facts.configSlot),
		Installed:   uint64(w.facts.installed),
		Cell:        w.id.Cell,
		Replica:     w.id.Replica,
		Incarnation: w.id.Incarnation,
		Flush:       w.flush,
	}
}

// create makes a segment's file: complete under a temporary name, made
// durable, renamed, and the name made durable. So a file under a segment's
// name always has its header and its length, whenever the power goes.
func (w *Log) create(h *pb.SegmentHeader, room int64, first *paxos.Record) (*segment, []placement, error) {
	s := &segment{number: h.Segment, seed: ondisk.FrameSeed(h.Incarnation, h.Segment)}
	body, placed, err := w.firstRecords(h, first)
	if err != nil {
		return nil, nil, err
	}
	h.Size = 1 << 62 // the longest it can be, to know the room that is needed
	header, err := encodeHeader(h)
	if err != nil {
		return nil, nil, err
	}
	used := roundUp(int64(len(header)+len(body)), blockBytes) + blockBytes
	h.Size = max(w.segmentBytes, used+roundUp(room, blockBytes)+2*blockBytes)
	if header, err = encodeHeader(h); err != nil {
		return nil, nil, err
	}
	s.size = h.Size
	s.start = int64(len(header))
	s.end = s.start
	for i := range placed {
		frame := body[placed[i].at.offset:][:placed[i].at.size]
		ondisk.SealFrame(frame, s.seed, s.end)
		placed[i].at.offset = uint32(s.end)
		s.end += int64(len(frame))
	}
	temp := segmentName(s.number) + ondisk.TempSuffix
	if s.file, err = w.takeFile(s.number); err != nil {
		return nil, nil, err
	}
	if err := w.fill(s, append(header, body...), h.Flush); err != nil {
		return nil, nil, errors.Join(err, s.file.Close())
	}
	if err := w.fs.Rename(temp, segmentName(s.number)); err != nil {
		return nil, nil, errors.Join(err, s.file.Close())
	}
	if err := w.fs.SyncDir(ondisk.LogDir); err != nil {
		return nil, nil, errors.Join(err, s.file.Close())
	}
	return s, placed, nil
}

// firstRecords encodes the record that a segment begins with; the places in it
// are relative until the header's length is known.
func (w *Log) firstRecords(h *pb.SegmentHeader, first *paxos.Record) (body []byte, placed []placement, err error) {
	if first == nil {
		return nil, nil, nil
	}
	w.flush++
	for entries, last := range pieces(first.Entries) {
		r := &paxos.Record{Promised: first.Promised, Entries: entries}
		if last {
			r.Chosen = first.Chosen
		}
		start := len(body)
		body, err = proto.MarshalOptions{}.MarshalAppend(ondisk.BeginFrame(body), codec.EncodeRecord(r))
		if err != nil {
			return nil, nil, err
		}
		body = ondisk.EndFrame(body, start, ondisk.FrameRecord, w.flush)
		placed = append(placed, placement{
			at:      location{segment: h.Segment, offset: uint32(start), size: uint32(len(body) - start)},
			entries: entries,
		})
	}
	return body, placed, nil
}

// fill writes a new segment's content, with its first mark, and makes it
// durable. No flush touches its blocks again.
func (w *Log) fill(s *segment, content []byte, flush uint64) error {
	if err := s.file.Preallocate(s.size); err != nil {
		return err
	}
	if _, err := s.file.WriteAt(content, 0); err != nil {
		return err
	}
	m := mark{flush: flush, start: s.start, end: s.end}
	if s.end > s.start {
		m.flush++
	}
	at := roundUp(s.end, blockBytes)
	block := make([]byte, blockBytes)
	putMarkBlock(block, m, mark{}, s.seed, at, 0)
	if _, err := s.file.WriteAt(block, at); err != nil {
		return err
	}
	if err := s.file.Sync(); err != nil {
		return err
	}
	w.flush = m.flush + 1
	w.tail = tailBlock{newest: placedMark{m, at, 0}}
	return nil
}

// Close waits for writers that are under way, and gives back the files. The fail
// stop is closed before, so that no other writer begins.
func (w *Log) Close() error {
	w.cutting.Lock()
	defer w.cutting.Unlock()
	w.writing.Lock()
	defer w.writing.Unlock()
	return errors.Join(w.dropNext(), w.closeFiles())
}

func (w *Log) closeFiles() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var err error
	for _, s := range w.segments {
		s.dropped = true
		if s.refs == 0 {
			err = errors.Join(err, s.file.Close())
		}
	}
	w.segments = nil
	return err
}

// entryBytes is about what an entry takes.
func entryBytes(e *paxos.Entry) int {
	n := 48
	for _, c := range e.Value.Commands {
		n += len(c) + 4
	}
	if e.Value.Config != nil {
		n += 64
		for i := range e.Value.Config.Members {
			m := &e.Value.Config.Members[i]
			n += 48 + len(m.Name) + len(m.PeerAddress) + len(m.ClientAddress)
		}
	}
	return n
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
