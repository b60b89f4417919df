package lane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// frame is what travels in the tests.
type frame struct {
	part    bool
	payload []byte
}

// pairing is a sender and the receivers of its two lanes, with all that is under
// way between them.
type pairing struct {
	now  time.Duration
	s    *Sender
	r    [lanes]*Receiver
	wire [lanes][]frame // towards the receiver
	acks [lanes][]uint64

	given     [lanes][]given
	delivered [lanes][]uint64 // numbers, in order
	under     [lanes][]int    // sizes of parts that are not acknowledged, counted apart
	ends      [lanes][]uint64 // and where they end in the stream
	at        [lanes]uint64   // position of the stream
}

// given is a message that was offered; its number is in its bytes.
type given struct {
	number uint64
	size   int
	bulk   bool
	rank   Rank
	lost   bool // it need not arrive
}

func newPairing(room int) *pairing {
	p := &pairing{s: NewSender(room)}
	for id := range p.r {
		p.connect(ID(id))
	}
	return p
}

func (p *pairing) connect(id ID) {
	p.s.Disconnected(id)
	p.s.Connected(id)
	p.r[id] = NewReceiver(1 << 20)
	p.wire[id], p.acks[id], p.under[id], p.ends[id], p.at[id] = nil, nil, nil, nil, 0
	for i := range p.given[id] {
		p.given[id][i].lost = true
	}
}

// content is what message number holds: bytes that depend on where they stand.
func content(number uint64, size int) []byte {
	b := make([]byte, size)
	binary.BigEndian.PutUint64(b, number)
	for i := 8; i < size; i++ {
		b[i] = byte(number + uint64(i)*7)
	}
	return b
}

func (p *pairing) offer(id ID, g given) (taken bool) {
	b := content(g.number, g.size)
	if p.s.Whole(id, g.size, g.bulk) {
		p.s.Sent(id, g.size)
		p.wire[id] = append(p.wire[id], frame{payload: b})
		p.at[id] += uint64(g.size)
		p.given[id] = append(p.given[id], g)
		return true
	}
	if p.s.Put(id, Message{Payload: b, Bulk: g.bulk, Rank: g.rank}) {
		p.given[id] = append(p.given[id], g)
		return true
	}
	return false
}

// pump lets go what may; an error: too much is under way.
func (p *pairing) pump() error {
	for {
		id, b := p.s.Next(p.now, nil)
		if b == nil {
			return nil
		}
		flight := len(b)
		for i := range p.under {
			for _, n := range p.under[i] {
				flight += n
			}
		}
		if window := p.s.Window(); flight > window && flight > len(b) {
			return fmt.Errorf("parts of %d bytes are under way, the window is %d", flight, window)
		}
		p.at[id] += uint64(len(b))
		p.under[id], p.ends[id] = append(p.under[id], len(b)), append(p.ends[id], p.at[id])
		p.wire[id] = append(p.wire[id], frame{part: true, payload: b})
	}
}

// arrive takes the oldest frame off a lane.
func (p *pairing) arrive(id ID) error {
	f := p.wire[id][0]
	p.wire[id] = p.wire[id][1:]
	message := f.payload
	if f.part {
		var err error
		if message, err = p.r[id].Part(f.payload); err != nil {
			return err
		}
	} else {
		p.r[id].Whole(len(f.payload))
	}
	if upTo, due := p.r[id].Ack(); due || f.part {
		p.r[id].Acked(upTo)
		p.acks[id] = append(p.acks[id], upTo)
	}
	if message == nil {
		return nil
	}
	number := binary.BigEndian.Uint64(message)
	for i := range p.given[id] {
		if g := &p.given[id][i]; g.number == number {
			if !bytes.Equal(message, content(number, g.size)) {
				return fmt.Errorf("message %d is not what was sent", number)
			}
			p.delivered[id] = append(p.delivered[id], number)
			return nil
		}
	}
	return fmt.Errorf("message %d was never given", number)
}

// acknowledge takes the oldest acknowledgement off a lane.
func (p *pairing) acknowledge(id ID) error {
	upTo, err := ParseAck(AppendAck(nil, p.acks[id][0]))
	if err != nil {
		return err
	}
	p.acks[id] = p.acks[id][1:]
	for len(p.ends[id]) > 0 && p.ends[id][0] <= upTo {
		p.under[id], p.ends[id] = p.under[id][1:], p.ends[id][1:]
	}
	return p.s.Acked(p.now, id, upTo)
}

// drain lets everything arrive.
func (p *pairing) drain() error {
	for moved := true; moved; {
		if err := p.pump(); err != nil {
			return err
		}
		p.now += time.Millisecond
		moved = false
		for id := range p.wire {
			for len(p.wire[id]) > 0 {
				if err := p.arrive(ID(id)); err != nil {
					return err
				}
				moved = true
			}
			for len(p.acks[id]) > 0 {
				if err := p.acknowledge(ID(id)); err != nil {
					return err
				}
				moved = true
			}
		}
	}
	return nil
}

// check demands that each message arrived once at most, once if it was not lost,
// and bulk ones in order.
func (p *pairing) check() error {
	for id := range p.delivered {
		seen := map[uint64]bool{}
		for _, n := range p.delivered[id] {
			if seen[n] {
				return fmt.Errorf("message %d arrived twice", n)
			}
			seen[n] = true
		}
		last := uint64(0)
		for _, n := range p.delivered[id] {
			for _, g := range p.given[id] {
				if g.number == n && g.bulk {
					if n < last {
						return fmt.Errorf("bulk message %d arrived behind %d", n, last)
					}
					last = n
				}
			}
		}
		for _, g := range p.given[id] {
			if !g.lost && !seen[g.number] {
				return fmt.Errorf("message %d of %d bytes did not arrive", g.number, g.size)
			}
		}
	}
	if n := p.s.Queued(); n != 0 {
		return fmt.Errorf("all has arrived, and %d bytes are said to be queued", n)
	}
	return nil
}

// run plays a random exchange.
func run(draw *rapid.T) error {
	p := newPairing(rapid.SampledFrom([]int{1 << 10, 300 << 10, 32 << 20}).Draw(draw, "room"))
	number := uint64(0)
	rank := Rank{Round: 1}
	told, reported := 0, false
	for range rapid.IntRange(1, 120).Draw(draw, "steps") {
		id := ID(rapid.IntRange(0, int(lanes)-1).Draw(draw, "lane"))
		switch rapid.IntRange(0, 9).Draw(draw, "what") {
		case 0, 1, 2:
			number++
			p.offer(id, given{number: number, bulk: rapid.Bool().Draw(draw, "bulk"), rank: rank,
				size: rapid.SampledFrom([]int{8, 100, 3000, 5000, 20000, 70000, 110000}).Draw(draw, "size")})
		case 3, 4:
			if err := p.pump(); err != nil {
				return err
			}
		case 5, 6:
			for k := rapid.IntRange(1, 20).Draw(draw, "frames"); k > 0 && len(p.wire[id]) > 0; k-- {
				if err := p.arrive(id); err != nil {
					return err
				}
			}
		case 7:
			for k := rapid.IntRange(1, 20).Draw(draw, "acks"); k > 0 && len(p.acks[id]) > 0; k-- {
				if err := p.acknowledge(id); err != nil {
					return err
				}
			}
		case 8:
			p.now += time.Duration(rapid.SampledFrom([]int{1, 40, 700, 30000}).Draw(draw, "ms")) * time.Millisecond
		case 9:
			if rapid.Bool().Draw(draw, "cut") {
				p.connect(id)
				continue
			}
			rank.Round++
			p.s.Supersede(rank)
			for id := range p.given {
				for i := range p.given[id] {
					p.given[id][i].lost = true
				}
			}
		}
		if n, again := p.s.Report(p.now); again {
			told, reported = n, true
		}
	}
	if err := p.drain(); err != nil {
		return err
	}
	if n, again := p.s.Report(p.now); again {
		told, reported = n, true
	}
	if reported && told != 0 {
		return fmt.Errorf("the last report is of %d bytes, and none is queued", told)
	}
	return p.check()
}

// Each message arrives whole, once, or not at all, whatever is lost with a
// connection or given up; what is not lost arrives, and parts wait for the window.
func TestMessagesArriveWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if err := run(t); err != nil {
			t.Fatal(err)
		}
	})
}

// Parts of an old connection, of another message, repeated or left out are no
// part of a message.
func TestPartOutOfPlace(t *testing.T) {
	part := func(number uint32, offset, size int, data string) []byte {
		return appendPart(nil, number, offset, size, []byte(data))
	}
	for name, frames := range map[string][][]byte{
		"no beginning":         {part(1, 3, 6, "def")},
		"a gap":                {part(1, 0, 9, "abc"), part(1, 6, 9, "ghi")},
		"repeated":             {part(1, 0, 9, "abc"), part(1, 0, 9, "abc")},
		"of another message":   {part(1, 0, 6, "abc"), part(2, 3, 6, "def")},
		"another size":         {part(1, 0, 6, "abc"), part(1, 3, 7, "defg")},
		"too long":             {part(1, 0, 4, "abc"), part(1, 3, 4, "def")},
		"behind the end":       {part(1, 0, 3, "abc"), part(1, 3, 3, "d")},
		"of an earlier one":    {part(2, 0, 3, "abc"), part(1, 0, 3, "abc")},
		"empty":                {part(1, 0, 3, "")},
		"over the limit":       {part(1, 0, 1<<20+1, "abc")},
		"shorter than its sum": {{1, 2, 3}},
	} {
		r := NewReceiver(1 << 20)
		var err error
		for _, f := range frames {
			if _, err = r.Part(f); err != nil {
				break
			}
		}
		if err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
}

// A bit that changes in a part or an acknowledgement is noticed.
func TestChangedFrame(t *testing.T) {
	part, ack := appendPart(nil, 1, 0, 100, make([]byte, 50)), AppendAck(nil, 77)
	for i := range part {
		part[i] ^= 4
		if _, err := NewReceiver(1000).Part(part); !errors.Is(err, errSum) {
			t.Fatalf("byte %d of a part: %v", i, err)
		}
		part[i] ^= 4
	}
	for i := range ack {
		ack[i] ^= 4
		if _, err := ParseAck(ack); !errors.Is(err, errSum) {
			t.Fatalf("byte %d of an acknowledgement: %v", i, err)
		}
		ack[i] ^= 4
	}
	s := NewSender(1000)
	s.Connected(Main)
	if err := s.Acked(0, Main, 1); !errors.Is(err, errAck) {
		t.Fatalf("an acknowledgement of what was not sent: %v", err)
	}
}

// A size that is claimed takes no memory; only bytes do.
func TestClaimedSizeTakesNoMemory(t *testing.T) {
	r := NewReceiver(64 << 20)
	number := uint32(0)
	n := testing.AllocsPerRun(1, func() {
		number++
		if _, err := r.Part(appendPart(nil, number, 0, 64<<20, []byte("x"))); err != nil {
			t.Fatal(err)
		}
	})
	if cap(r.buf) > 64 {
		t.Fatalf("one byte takes %d (%v allocations)", cap(r.buf), n)
	}
}

// Small messages pass without allocation.
func TestWholeMessagesCostNothing(t *testing.T) {
	s, r := NewSender(1<<20), NewReceiver(1<<20)
	s.Connected(Main)
	n := testing.AllocsPerRun(1000, func() {
		for _, bulk := range []bool{false, true} {
			if !s.Whole(Main, 400, bulk) {
				t.Fatal("a small message must wait")
			}
			s.Sent(Main, 400)
			r.Whole(400)
			if upTo, due := r.Ack(); due {
				r.Acked(upTo)
				if err := s.Acked(0, Main, upTo); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, again := s.Report(0); again {
			t.Fatal("a small message is reported")
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// What is given up leaves the link to what comes later.
func TestSupersede(t *testing.T) {
	p := newPairing(32 << 20)
	old, next := Rank{Round: 3, Replica: 1}, Rank{Round: 4, Replica: 2}
	p.offer(Main, given{number: 1, size: 900_000, bulk: true, rank: old, lost: true})
	p.offer(Main, given{number: 2, size: 90_000, bulk: true, rank: old, lost: true})
	if err := p.pump(); err != nil {
		t.Fatal(err)
	}
	if n := p.s.Supersede(next); n != 2 {
		t.Fatalf("%d messages were given up, want 2", n)
	}
	p.offer(Main, given{number: 3, size: 90_000, bulk: true, rank: next})
	if n := p.s.Supersede(next); n != 0 {
		t.Fatal("what is of the same rank was given up")
	}
	if err := p.drain(); err != nil {
		t.Fatal(err)
	}
	if err := p.check(); err != nil {
		t.Fatal(err)
	}
	if len(p.delivered[Main]) != 1 {
		t.Fatalf("%v arrived", p.delivered[Main])
	}
}

// TestLinks sends as much as takes half a minute on links of all kinds, with a
// heartbeat ten times a second between the parts. The heartbeats must wait for
// little, and the link must be made use of.
func TestLinks(t *testing.T) {
	for _, l := range []struct {
		name  string
		rate  float64 // bytes a second
		delay time.Duration
		used  float64 // at least
	}{
		{"1 Mbit, 300 ms", 125e3, 300 * time.Millisecond, 0.7},
		{"1 Mbit, 5 ms", 125e3, 5 * time.Millisecond, 0.9},
		{"12 Mbit, 5 ms", 1.5e6, 5 * time.Millisecond, 0.9},
		{"24 Mbit, 100 ms", 3e6, 100 * time.Millisecond, 0.8},
		{"100 Mbit, 20 ms", 12.5e6, 20 * time.Millisecond, 0.9},
		{"1 Gbit, 0.1 ms", 125e6, 100 * time.Microsecond, 0.95},
		{"10 Gbit, 0.02 ms", 1.25e9, 20 * time.Microsecond, 0.95},
		{"512 kbit, 500 ms", 64e3, 500 * time.Millisecond, 0.7},
		{"1 Gbit, 40 ms", 125e6, 40 * time.Millisecond, 0.3}, // most of the time the window grows
	} {
		t.Run(l.name, func(t *testing.T) {
			size := int(min(max(l.rate*25, 6e6), 100e6))
			took, worst := transfer(t, l.rate, l.delay, size)
			used := float64(size) / l.rate / took.Seconds()
			t.Logf("%d bytes took %v, %.0f %% of the link; a heartbeat waited %v at most", size, took, 100*used, worst)
			// The first window is sent into the unknown; when a queue shows, a round
			// trip's growth is under way already.
			if limit := 2*queueTarget + l.delay + time.Duration(2*firstWindow/l.rate*1e9); worst > limit {
				t.Errorf("a heartbeat waited %v, more than %v", worst, limit)
			}
			if used < l.used {
				t.Errorf("only %.0f %% of the link were used", 100*used)
			}
		})
	}
}

// transfer sends size bytes in messages of a quarter megabyte over a link and
// returns how long that took, and how long a heartbeat waited at most beyond the
// delay.
func transfer(t *testing.T, rate float64, delay time.Duration, size int) (took, worst time.Duration) {
	p := newPairing(32 << 20)
	type arrival struct {
		at    time.Duration
		sent  time.Duration
		frame frame
	}
	var wire []arrival
	type ack struct {
		at   time.Duration
		upTo uint64
	}
	var acks []ack
	free := time.Duration(0)
	put := func(f frame, n int) {
		free = max(free, p.now) + time.Duration(float64(n+8)/rate*1e9)
		wire = append(wire, arrival{at: free + delay, sent: p.now, frame: f})
	}
	nextBeat := time.Duration(0)
	given, got := 0, 0
	const piece = 256 << 10
	for got < size {
		for given < size && p.s.Queued() < 16<<20 {
			p.s.Put(Main, Message{Payload: make([]byte, min(piece, size-given)), Bulk: true})
			given += min(piece, size-given)
		}
		for {
			_, b := p.s.Next(p.now, nil)
			if b == nil {
				break
			}
			put(frame{part: true, payload: b}, len(b))
		}
		if p.now >= nextBeat {
			nextBeat += 100 * time.Millisecond
			p.s.Sent(Main, 40)
			put(frame{payload: make([]byte, 40)}, 40)
		}
		next := nextBeat
		if len(wire) > 0 {
			next = min(next, wire[0].at)
		}
		if len(acks) > 0 {
			next = min(next, acks[0].at)
		}
		p.now = max(p.now, next)
		for len(acks) > 0 && acks[0].at <= p.now {
			if err := p.s.Acked(p.now, Main, acks[0].upTo); err != nil {
				t.Fatal(err)
			}
			acks = acks[1:]
		}
		for len(wire) > 0 && wire[0].at <= p.now {
			a := wire[0]
			wire = wire[1:]
			if !a.frame.part {
				p.r[Main].Whole(40)
				worst = max(worst, p.now-a.sent-delay)
				continue
			}
			m, err := p.r[Main].Part(a.frame.payload)
			if err != nil {
				t.Fatal(err)
			}
			upTo, _ := p.r[Main].Ack()
			acks = append(acks, ack{p.now + delay, upTo})
			got += len(m)
		}
		if p.now > 10*time.Minute {
			t.Fatalf("%d of %d bytes have arrived in ten minutes, window %d", got, size, p.s.Window())
		}
	}
	return p.now, worst
}
