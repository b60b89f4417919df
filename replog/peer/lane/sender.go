package lane

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// ID names a lane.
type ID uint8

// The lanes.
const (
	Main ID = iota
	Bulk
	lanes
)

// Rank orders the ballots that messages belong to; the zero Rank is none.
type Rank struct{ Round, Replica uint64 }

// Less reports whether r comes before o.
func (r Rank) Less(o Rank) bool {
	return r.Round < o.Round || r.Round == o.Round && r.Replica < o.Replica
}

// Message is a message that goes in parts.
type Message struct {
	Payload []byte // never changed once given
	Bulk    bool   // it carries values; one that does not goes before those that do
	Rank    Rank   // see Sender.Supersede; zero: is never superseded
}

// bulkTurn: when both lanes have parts, every so many goes by Bulk.
const bulkTurn = 4

// reportEvery is the least time between two reports of a queue that is not
// empty.
const reportEvery = 20 * time.Millisecond

// Sender decides what leaves when on the lanes to one peer. A message that
// Whole lets go leaves at once, in one frame, and is counted by Sent; any other
// is given to Put, and leaves in the parts that Next gives, one after the
// other, as acknowledgements come in.
type Sender struct {
	room   int // bytes that may be queued on each lane
	window window
	lanes  [lanes]sending
	turn   int

	told   int // as last reported
	toldAt time.Duration
}

// sending is the sending half of one connection.
type sending struct {
	up    bool
	sent  uint64 // bytes of frames that have left
	acked uint64 // of these, how many have arrived
	parts uint64 // sent, as of the last part
	marks []mark // of parts that are not acknowledged, oldest first

	urgent, bulk []Message
	current      *Message // of which a part has left, and another is to
	offset       int
	number       uint32 // of current
	waiting      int    // bytes of messages that have not left
}

// NewSender makes a sender that queues at most room bytes on each lane; a
// message that is larger is taken when nothing else waits.
func NewSender(room int) *Sender {
	return &Sender{room: room, window: window{size: firstWindow}}
}

// Connected begins a lane anew, on a new connection.
func (s *Sender) Connected(id ID) { s.lanes[id] = sending{up: true} }

// Disconnected ends a lane: what was queued or under way is lost.
func (s *Sender) Disconnected(id ID) { s.lanes[id] = sending{} }

// Whole reports whether a message of n bytes may leave in one frame now.
func (s *Sender) Whole(id ID, n int, bulk bool) bool {
	if n <= s.window.part() && !bulk {
		return true
	}
	// It must overtake no other, and leave room for parts.
	return n <= s.window.whole() && s.lanes[id].idle() && s.lanes[Main].idle() && s.flight()+n <= s.window.size/2
}

// idle reports whether nothing waits on the lane.
func (l *sending) idle() bool { return l.current == nil && len(l.urgent) == 0 && len(l.bulk) == 0 }

// Sent counts a frame of n bytes that has left whole.
func (s *Sender) Sent(id ID, n int) { s.lanes[id].sent += uint64(n) }

// Put queues a message to leave in parts; false: the lane is down, or there is
// no room.
func (s *Sender) Put(id ID, m Message) bool {
	l := &s.lanes[id]
	if !l.up || len(m.Payload) == 0 || l.waiting > 0 && l.waiting+len(m.Payload) > s.room {
		return false
	}
	l.waiting += len(m.Payload)
	if m.Bulk {
		l.bulk = append(l.bulk, m)
	} else {
		l.urgent = append(l.urgent, m)
	}
	return true
}

// Supersede drops messages of lower rank that have not left, or in part only: a
// replica that speaks in a higher ballot has no use for votes in a lower one,
// and its successor none for a link full of them.
func (s *Sender) Supersede(r Rank) (dropped int) {
	for i := range s.lanes {
		l := &s.lanes[i]
		old := func(m *Message) bool { return m.Rank != Rank{} && m.Rank.Less(r) }
		if l.current != nil && old(l.current) {
			// The peer drops what it has when the next message begins.
			l.waiting -= len(l.current.Payload) - l.offset
			l.current = nil
			dropped++
		}
		for _, q := range []*[]Message{&l.urgent, &l.bulk} {
			kept := (*q)[:0]
			for _, m := range *q {
				if old(&m) {
					l.waiting -= len(m.Payload)
					dropped++
					continue
				}
				kept = append(kept, m)
			}
			clear((*q)[len(kept):])
			*q = kept
		}
	}
	return dropped
}

// flight is how many bytes of frames are not acknowledged.
func (s *Sender) flight() int {
	n := 0
	for i := range s.lanes {
		n += int(s.lanes[i].sent - s.lanes[i].acked)
	}
	return n
}

// partsUnderWay reports whether a part is not acknowledged, on either lane.
func (s *Sender) partsUnderWay() bool {
	return s.lanes[Main].partUnderWay() || s.lanes[Bulk].partUnderWay()
}

func (l *sending) partUnderWay() bool { return l.acked < l.parts }

// Waits reports whether an acknowledgement is to come on the lane: of a part, or
// of so much that went whole that one is due.
func (s *Sender) Waits(id ID) bool {
	l := &s.lanes[id]
	return l.partUnderWay() || l.sent-l.acked >= 2*ackEvery
}

// Next gives the next part to leave now, nil: none. The payload of the frame is
// appended to room.
func (s *Sender) Next(now time.Duration, room []byte) (id ID, frame []byte) {
	id = Main
	if s.lanes[Main].idle() || s.turn >= bulkTurn && !s.lanes[Bulk].idle() {
		id = Bulk
	}
	l := &s.lanes[id]
	if l.idle() {
		return id, nil
	}
	clean := !s.partsUnderWay()
	if !clean && s.window.stale(now) {
		return id, nil // until what is under way has arrived
	}
	if l.current == nil {
		l.begin()
	}
	m := l.current
	n := min(len(m.Payload)-l.offset, s.window.part())
	if clean {
		n = min(n, minPart) // its round trip may be the base: it is not to count its own length
	}
	size := partOverhead + n
	if !clean && s.flight()+size > s.window.size && !invariant.Planted(invariant.PartsWithoutWindow) {
		return id, nil
	}
	frame = appendPart(room, l.number, l.offset, len(m.Payload), m.Payload[l.offset:l.offset+n])
	s.left(l, now, size, clean)
	l.waiting -= n
	if l.offset += n; l.offset == len(m.Payload) {
		l.current = nil
	}
	if s.turn++; id == Bulk {
		s.turn = 0
	}
	return id, frame
}

// left counts a part that leaves.
// Invariant: what is under way when a part leaves is no more than the window, or
// that part is the only one.
func (s *Sender) left(l *sending, now time.Duration, size int, alone bool) {
	l.sent += uint64(size)
	l.parts = l.sent
	flight := s.flight()
	if !alone && flight > s.window.size && !invariant.Planted(invariant.PartsWithoutWindow) {
		invariant.Assert(false, "%d bytes are under way to a peer, its window is %d", flight, s.window.size)
	}
	// A mark for each quarter of a part is enough: small messages are many.
	if k := len(l.marks); k == 0 || l.sent-l.marks[k-1].end >= uint64(s.window.part()/4) {
		l.marks = append(l.marks, mark{end: l.sent, at: now, flight: flight, clean: alone})
	}
}

// begin takes the next message.
func (l *sending) begin() {
	q := &l.bulk
	if len(l.urgent) > 0 {
		q = &l.urgent
	}
	m := (*q)[0]
	(*q)[0] = Message{}
	if *q = (*q)[1:]; len(*q) == 0 {
		*q = nil
	}
	l.current, l.offset = &m, 0
	l.number++
}

var errAck = errors.New("the other side acknowledges what was not sent")

// Acked takes an acknowledgement of all frames up to a position of the
// connection's stream.
func (s *Sender) Acked(now time.Duration, id ID, upTo uint64) error {
	l := &s.lanes[id]
	if !l.up || upTo > l.sent {
		return fmt.Errorf("%w: %d of %d bytes", errAck, upTo, l.sent)
	}
	before := l.acked
	l.acked = max(l.acked, upTo)
	k := 0
	for k < len(l.marks) && l.marks[k].end <= l.acked {
		s.window.acked(now, l.marks[k], int(l.marks[k].end-min(before, l.marks[k].end)))
		before = max(before, l.marks[k].end)
		k++
	}
	if l.marks = l.marks[k:]; len(l.marks) == 0 {
		l.marks = nil
	}
	return nil
}

// Queued is how many bytes of messages in parts the peer's end has not
// acknowledged, those that have not left included.
func (s *Sender) Queued() int {
	n := 0
	for i := range s.lanes {
		l := &s.lanes[i]
		n += l.waiting
		if l.partUnderWay() {
			n += int(l.parts - l.acked)
		}
	}
	return n
}

// Report returns Queued, and whether the node, which has the last report, needs
// another: it has changed, and that is some time ago, or it is 0 now or was.
func (s *Sender) Report(now time.Duration) (queued int, again bool) {
	queued = s.Queued()
	if queued == s.told || queued != 0 && s.told != 0 && now-s.toldAt < reportEvery {
		return queued, false
	}
	s.told, s.toldAt = queued, now
	return queued, true
}

// Window is how many bytes of parts may be under way.
func (s *Sender) Window() int { return s.window.size }

// RoundTrip is the shortest that was measured, 0: none was.
func (s *Sender) RoundTrip() time.Duration { return s.window.base }
