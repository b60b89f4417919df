package server

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// reactorDoor is a testDoor for several connections: what is told of one of them
// waits while the test looks at another.
type reactorDoor struct {
	*testDoor
	inbox map[replica.ConnID][]letter
}

func openReactors(t *testing.T, limits Limits) *reactorDoor {
	t.Helper()
	d := &reactorDoor{openDoor(t, limits), map[replica.ConnID][]letter{}}
	if len(d.reactors) == 0 {
		t.Skip("no reactor on this system")
	}
	return d
}

// visitor is a client and the service's side of it. What it sends is written to
// its socket as it is.
type visitor struct {
	*clientConn
	w *wire.Conn // reads
	s net.Conn
}

// write writes to the socket. What cannot be written will be missed.
func (v *visitor) write(b []byte) { _, _ = v.s.Write(b) }

// frameOf are the bytes of a frame with a message, or with bytes that are none.
func frameOf(m any) []byte {
	payload, ok := m.([]byte)
	if !ok {
		var err error
		if payload, err = proto.Marshal(m.(proto.Message)); err != nil {
			panic(err)
		}
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	return append(append(b, wire.KindClient, 1, 0, 0), payload...)
}

// hellos are the bytes of several frames.
func hellos(clients ...string) (b []byte) {
	for _, c := range clients {
		b = append(b, frameOf(hello(c))...)
	}
	return b
}

// join lets a client in and takes its first message.
func (d *reactorDoor) join() *visitor {
	d.t.Helper()
	v := &visitor{s: d.dial()}
	v.w = wire.NewConn(v.s, wire.Options{ReadTimeout: patience, PrefaceTimeout: patience})
	d.t.Cleanup(func() { _ = v.w.Close() })
	if err := v.w.Handshake(context.Background()); err != nil {
		d.t.Fatal(err)
	}
	v.write(hellos("first"))
	for v.clientConn == nil {
		l := d.next()
		if _, ok := l.event.(replica.ConnOpened); ok {
			v.clientConn = l.conn
		} else {
			d.inbox[l.conn.id] = append(d.inbox[l.conn.id], l)
		}
	}
	d.wantReceived(v, "first")
	return v
}

// joinParked is join for several, all of which a reactor reads in the end.
func (d *reactorDoor) joinParked(n int) (all []*visitor) {
	d.t.Helper()
	for range n {
		all = append(all, d.join())
	}
	for _, v := range all {
		d.wantParked(v)
	}
	return all
}

// from is the next letter of a client.
func (d *reactorDoor) from(v *visitor) letter {
	d.t.Helper()
	for len(d.inbox[v.id]) == 0 {
		l := d.next()
		d.inbox[l.conn.id] = append(d.inbox[l.conn.id], l)
	}
	l := d.inbox[v.id][0]
	d.inbox[v.id] = d.inbox[v.id][1:]
	return l
}

// wantReceived demands the next messages of a client, and takes them.
func (d *reactorDoor) wantReceived(v *visitor, clients ...string) {
	d.t.Helper()
	for i, want := range clients {
		l := d.from(v)
		r, ok := l.event.(replica.ConnReceived)
		if got := r.Message.GetHello().GetClient(); !ok || got != want {
			d.t.Fatalf("message %d of connection %d is %T %.20q, %d bytes, want %.20q, %d bytes", i, v.id, l.event, got, len(got), want, len(want))
		}
		v.stepped(l.size)
	}
}

// wantClosed demands that a client's end is the next that is told of it, and that
// all of the connection goes away.
func (d *reactorDoor) wantClosed(v *visitor) {
	d.t.Helper()
	if l := d.from(v); l.event != (replica.ConnClosed{Conn: v.id}) {
		d.t.Fatalf("got %#v, want the end of %d", l.event, v.id)
	}
	if d.parked(v) {
		d.t.Errorf("connection %d has ended and is parked", v.id)
	}
}

func (d *reactorDoor) reactorOf(v *visitor) *reactor {
	return d.reactors[uint64(v.id)%uint64(len(d.reactors))]
}

func (d *reactorDoor) parked(v *visitor) bool {
	r := d.reactorOf(v)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns[v.id] == v.clientConn
}

func (d *reactorDoor) wantParked(v *visitor) {
	d.t.Helper()
	waitFor(d.t, "a reactor reads the connection", func() bool { return d.parked(v) })
}

func (d *reactorDoor) wantBack(v *visitor) {
	d.t.Helper()
	waitFor(d.t, "its own goroutine reads the connection", func() bool { return !d.parked(v) })
}

// amidARound runs f while each reactor is in the middle of a round: it has read
// something, and cannot put it. What arrives during f is told in the next round.
// The connections at which the reactors are have sent "now" and then "later".
func (d *reactorDoor) amidARound(f func()) (busy []*visitor) {
	d.t.Helper()
	busy = d.joinParked(len(d.reactors)) // one at each, for they are numbered
	d.box.mu.Lock()
	defer d.box.mu.Unlock()
	for _, v := range busy {
		v.write(hellos("now"))
	}
	for _, v := range busy {
		waitFor(d.t, "the reactor is busy", func() bool { return v.pending.Load() > 0 })
		v.write(hellos("later"))
	}
	f()
	for _, v := range busy {
		if r := d.reactorOf(v); r.mu.TryLock() {
			r.mu.Unlock()
			d.t.Error("a connection may be given back before what was read from it is put")
		}
	}
	return busy
}

// What arrives on many connections at once is read by the reactor, which keeps
// them, each in order, and so is what comes later.
func TestReactorReadsManyConnections(t *testing.T) {
	d := openReactors(t, Limits{})
	all := d.joinParked(150 * len(d.reactors))
	busy := d.amidARound(func() {
		for _, v := range all {
			v.write(hellos("1", "2", "3"))
		}
	})
	for _, v := range busy {
		d.wantReceived(v, "now", "later")
	}
	for _, v := range all {
		d.wantReceived(v, "1", "2", "3")
	}
	for _, v := range all {
		v.write(hellos("4"))
		if !d.parked(v) {
			t.Errorf("connection %d went back for nothing", v.id)
		}
	}
	for _, v := range all {
		d.wantReceived(v, "4")
	}
}

// Whatever the sizes and the number of the messages, all arrive in order, and the
// connection is parked afterwards.
func TestReactorMessagesOfEverySize(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	d := openReactors(t, Limits{})
	v := d.join()
	for _, tc := range []struct {
		name  string
		texts []string
	}{
		{"several at once", []string{"a", "", "b"}},
		{"as many as are read at once", strings.Split(x(framesAtOnce-1), "")},
		{"many more", strings.Split(x(3*framesAtOnce), "")},
		{"larger than the small buffer", []string{x(5000)}},
		{"larger than the large one", []string{"a", x(100_000), "b"}},
		{"larger than a round", []string{x(300_000), x(2 * roundBytes), x(1 << 20), "a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d.wantParked(v)
			go v.write(hellos(tc.texts...))
			d.wantReceived(v, tc.texts...)
		})
	}
	d.wantParked(v)
}

// Messages of random sizes, frames of later versions among them, in random
// pieces, from clients that end their streams behind the last: all are told in
// order, once, and then the end, within the limits of what may wait, whoever
// reads the connections.
func TestReactorLosesNothing(t *testing.T) {
	limits := Limits{MaxPending: 20_000, MaxWaiting: 60_000}
	none := func(t *testing.T) *reactorDoor {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Limits: limits}.withDefaults()
		d := &testDoor{door: newDoor(l, c.Limits, newMailbox(), newShellMetrics(), slog.New(slog.DiscardHandler)), t: t}
		d.box.most = c.Limits.MaxWaiting
		d.wg.Go(d.accept)
		t.Cleanup(d.stop)
		return &reactorDoor{d, map[replica.ConnID][]letter{}}
	}
	of := func(processors int) func(*testing.T) *reactorDoor {
		return func(t *testing.T) *reactorDoor {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
			return openReactors(t, limits)
		}
	}
	nothing := func(*reactor) {}
	for _, tc := range []struct {
		name        string
		open        func(*testing.T) *reactorDoor
		first, amid func(*reactor)
	}{
		{"one reactor", of(1), nothing, nothing},
		{"three reactors", of(6), nothing, nothing},
		{"no reactor", none, nothing, nothing},
		{"reactors that can watch nothing", of(2), func(r *reactor) { _ = r.poller.Close() }, nothing},
		{"reactors that give up", of(4), nothing, (*reactor).giveUp},
	} {
		t.Run(tc.name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			d := tc.open(t)
			for _, r := range d.reactors {
				tc.first(r)
			}
			const clients, each = 8, 100
			all := make([]*visitor, clients)
			for k := range all {
				all[k] = d.join()
			}
			sent := map[replica.ConnID][]string{}
			for k, v := range all {
				r := rand.New(rand.NewPCG(seed, uint64(k)))
				var rest []byte
				for i := range each {
					size := []int{r.IntN(20), r.IntN(20), r.IntN(1000), r.IntN(30_000)}[r.IntN(4)]
					text := fmt.Sprint(i, strings.Repeat("x", size))
					sent[v.id] = append(sent[v.id], text)
					rest = append(rest, hellos(text)...)
					if r.IntN(5) == 0 {
						rest = append(rest, 0, 0, 0, 1, 77, 1, 0, 0, 'x')
					}
				}
				go func() {
					for len(rest) > 0 {
						n := min(1+r.IntN([]int{20, 600, 5000, 100_000}[r.IntN(4)]), len(rest))
						v.write(rest[:n])
						rest = rest[n:]
						runtime.Gosched()
					}
					_ = v.s.(*net.TCPConn).CloseWrite()
				}()
			}
			for n := range clients * (each + 1) {
				if n == clients*each/2 {
					for _, r := range d.reactors {
						tc.amid(r)
					}
				}
				l := d.next()
				c, rest := l.conn, sent[l.conn.id]
				if p := c.pending.Load(); p > 20_000+30_000+2*letterBytes {
					t.Fatalf("%d bytes of connection %d wait", p, c.id)
				}
				switch ev := l.event.(type) {
				case replica.ConnReceived:
					if got := ev.Message.GetHello().GetClient(); len(rest) == 0 || got != rest[0] {
						t.Fatalf("connection %d: got %.9q, %d bytes, with %d messages to come", c.id, got, len(got), len(rest))
					}
					sent[c.id] = rest[1:]
					c.stepped(l.size)
				case replica.ConnClosed:
					if len(rest) > 0 {
						t.Fatalf("connection %d has ended with %d messages to come", c.id, len(rest))
					}
				}
			}
			for _, v := range all {
				if p := v.pending.Load(); p != 0 {
					t.Errorf("connection %d: %d bytes pending with nothing waiting", v.id, p)
				}
			}
		})
	}
}

// A frame that has come in part is its own goroutine's, until it is whole.
func TestReactorGivesBackAPart(t *testing.T) {
	d := openReactors(t, Limits{})
	v := d.joinParked(1)[0]
	f := hellos("one", strings.Repeat("x", 5000), "three")
	for _, at := range []int{1, 8, 13, len(hellos("one")) + 1, len(hellos("one")) + 3000, len(f) - 1} {
		v.write(f[:at])
		d.wantBack(v)
		v.write(f[at:])
		d.wantReceived(v, "one", strings.Repeat("x", 5000), "three")
		d.wantParked(v)
	}
}

// It has its time to become whole, also behind whole ones.
func TestReactorPartForEver(t *testing.T) {
	for _, before := range [][]string{nil, {"one", "two"}} {
		d := openReactors(t, Limits{FrameTimeout: 100 * time.Millisecond})
		v := d.joinParked(1)[0]
		v.write(append(hellos(before...), hellos("x")[:9]...))
		d.wantReceived(v, before...)
		wantFatal(t, v.w, pb.ErrorCode_BAD_MESSAGE, "not whole 100ms after")
		d.wantClosed(v)
		d.counted(limitFrameTime, 1)
	}
}

// The end of a stream is seen that came together with the last messages, and so
// told once, or alone.
func TestReactorSeesTheEnd(t *testing.T) {
	half := func(v *visitor) { _ = v.s.(*net.TCPConn).CloseWrite() }
	whole := func(v *visitor) { _ = v.s.Close() }
	d := openReactors(t, Limits{})
	for _, end := range []func(*visitor){half, whole} {
		silent, part, one, many := d.join(), d.join(), d.join(), d.join()
		all := []*visitor{silent, part, one, many}
		for _, v := range all {
			d.wantParked(v)
		}
		lots := strings.Split(strings.Repeat("x", 2*framesAtOnce), "")
		d.amidARound(func() {
			part.write(append(hellos("a"), 0))
			one.write(hellos("a"))
			many.write(hellos(lots...))
			for _, v := range all {
				end(v)
			}
		})
		d.wantReceived(part, "a")
		d.wantReceived(one, "a")
		d.wantReceived(many, lots...)
		for _, v := range all {
			d.wantClosed(v)
		}
	}
	waitFor(t, "their places are free", func() bool { return d.open.Load() == int64(2*len(d.reactors)) })
}

// Who sends something bad is told so, after what was good has been taken.
func TestReactorBadFrames(t *testing.T) {
	d := openReactors(t, Limits{MaxFrame: 100_000})
	for _, tc := range []struct {
		name string
		bad  []byte
		code pb.ErrorCode
		text string
	}{
		{"header", []byte("\x00\x00\x00\x01\x01\xee\x00\x00x"), pb.ErrorCode_BAD_MESSAGE, "format version"},
		{"too large", []byte("\x00\x01\x86\xa1\x01\x01\x00\x00"), pb.ErrorCode_FRAME_TOO_LARGE, "100001 bytes is over the limit of 100000"},
		{"undecodable", frameOf([]byte{0xff, 0xff, 0xff}), pb.ErrorCode_BAD_MESSAGE, "cannot be decoded"},
		{"too many parts", frameOf(&pb.ClientMessage{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: &storepb.Command{
			Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: make([]*storepb.MultiOp, manyParts+1)}}}}}}),
			pb.ErrorCode_TOO_MANY, "16385 operations"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, good := range [][]string{nil, {"a", "b"}} {
				v := d.joinParked(1)[0]
				v.write(append(hellos(good...), tc.bad...))
				d.wantReceived(v, good...)
				wantFatal(t, v.w, tc.code, tc.text)
				_ = v.w.Close()
				d.wantClosed(v)
			}
		})
	}
}

// A parked connection that is ended from here goes away, and others stay.
func TestReactorLosesAConnection(t *testing.T) {
	for name, end := range map[string]func(*reactorDoor, *visitor){
		"cut": func(d *reactorDoor, v *visitor) { d.cut(v.clientConn) },
		"end": func(d *reactorDoor, v *visitor) {
			d.end(v.clientConn, "test")
			_, _ = io.Copy(io.Discard, v.s) // it is over when we have closed too
			_ = v.s.Close()
		},
		"goodbye": func(d *reactorDoor, v *visitor) {
			d.goodbye(v.clientConn)
			wantFatal(d.t, v.w, pb.ErrorCode_SHUTTING_DOWN, "stopping")
			_ = v.s.Close()
		},
		"a write fails": func(d *reactorDoor, v *visitor) {
			for i := 0; v.wire.Queued() < 1<<20; i++ {
				if i > 1000 {
					d.t.Fatal("the network takes everything")
				}
				d.send(v.clientConn, large(1<<20))
				d.flush()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openReactors(t, Limits{WriteTimeout: 200 * time.Millisecond})
			all := d.joinParked(2 * len(d.reactors))
			gone, other := all[0], all[len(d.reactors)]
			end(d, gone)
			d.wantClosed(gone)
			waitFor(t, "its place is free", func() bool { return d.open.Load() == int64(len(all)-1) })
			other.write(hellos("a"))
			d.wantReceived(other, "a")
		})
	}
}

// turnIn has f run in the place of the loop's turn when the next letter is put, by
// the goroutine that puts it: a reactor amid its round.
func (d *reactorDoor) turnIn(f func()) {
	var once sync.Once
	d.box.mu.Lock()
	defer d.box.mu.Unlock()
	d.box.kick = func() {
		once.Do(f)
		d.box.signal()
	}
}

// No goroutine has its connection back before what a reactor has read of it is in
// the mailbox: it might put more, or the end, in front of that.
func TestReactorPutsBeforeItGivesBack(t *testing.T) {
	d := openReactors(t, Limits{})
	v := d.joinParked(1)[0]
	back := make(chan bool, 1)
	d.turnIn(func() { back <- d.reactorOf(v).conns[v.id] != v.clientConn })
	many := strings.Split(strings.Repeat("x", 2*framesAtOnce), "")
	v.write(hellos(many...))
	d.wantReceived(v, many...)
	if <-back {
		t.Error("it was given back before")
	}
}

// The loop's turn that a reactor takes may end connections, that which was read
// and those that are to be read next.
func TestReactorTakesTheLoopsTurn(t *testing.T) {
	d := openReactors(t, Limits{})
	n := len(d.reactors)
	all := d.joinParked(4 * n)
	read, cut, ended, other := all[0], all[n], all[2*n], all[3*n] // at one reactor
	d.turnIn(func() {
		for _, v := range []*visitor{cut, ended, other} {
			v.write(hellos("b"))
		}
		d.cut(read.clientConn)
		d.cut(cut.clientConn)
		d.end(ended.clientConn, "test")
		d.send(other.clientConn, large(1))
		d.flush()
	})
	read.write(hellos("a"))
	d.wantReceived(read, "a")
	d.wantClosed(read)
	d.wantClosed(cut)
	_ = ended.s.Close()
	d.wantReceived(other, "b")
	if m, err := readServer(other.w); err != nil || m.GetWatch() == nil {
		t.Errorf("got %v, %v", m, err)
	}
	for { // its message may be taken or left
		if l := d.from(ended); l.event == (replica.ConnClosed{Conn: ended.id}) {
			return
		}
	}
}

// A connection that is ended reads on for a moment, on its own. No reactor has it
// by then, which would wait for that, and with it all the others.
func TestReactorLetsGoOfWhatIsEnded(t *testing.T) {
	d := openReactors(t, Limits{})
	v := d.joinParked(1)[0]
	d.amidARound(func() {
		d.end(v.clientConn, "test")
		select {
		case <-v.wire.Ended():
			t.Error("it ends while a reactor may read it")
		case <-time.After(100 * time.Millisecond): // as if for ever
		}
	})
	if d.reactorOf(v).take(v.clientConn) {
		t.Error("it is taken again")
	}
	_, _ = io.Copy(io.Discard, v.s)
	_ = v.s.Close()
	d.wantClosed(v)
}

// A connection of which too much waits goes back, and nothing more is read until
// that is taken.
func TestReactorHoldsBackWhoSendsTooMuch(t *testing.T) {
	const limit, size = 3000, 1000
	d := openReactors(t, Limits{MaxPending: limit})
	v := d.joinParked(1)[0]
	var texts []string
	for i := range 20 {
		texts = append(texts, fmt.Sprintf("%0*d", size, i))
	}
	v.write(hellos(texts...))
	d.wantBack(v)
	for _, text := range texts {
		if p := v.pending.Load(); p > limit+size+2*letterBytes {
			t.Fatalf("%d bytes wait, the limit is %d", p, limit)
		}
		d.wantReceived(v, text)
	}
	d.wantParked(v)
}

// While the mailbox is full nobody is read, and everybody afterwards.
func TestReactorReadsNothingWhileTheMailboxIsFull(t *testing.T) {
	d := openReactors(t, Limits{MaxWaiting: 1000})
	all := d.joinParked(2 * len(d.reactors))
	a, b := all[0], all[len(d.reactors)] // at one reactor
	long := strings.Repeat("x", 2000)
	a.write(hellos(long))
	d.wantBack(a)
	b.write(hellos("b"))
	d.wantBack(b)
	if p := b.pending.Load(); p != 0 {
		t.Errorf("%d bytes were read into a full mailbox", p)
	}
	d.wantReceived(a, long)
	d.wantReceived(b, "b")
	d.wantRead(a)
	d.wantRead(b)
	d.wantParked(a)
	d.wantParked(b)
}

// What a reactor reads before it puts it is bounded, from however many connections
// it comes.
func TestReactorRoundIsBounded(t *testing.T) {
	const limit, size = 128_000, 1000
	d := openReactors(t, Limits{MaxWaiting: limit})
	all := d.joinParked(40 * len(d.reactors))
	d.amidARound(func() {
		for _, v := range all {
			v.write(hellos(strings.Split(strings.Repeat(strings.Repeat("x", size)+" ", 10), " ")...))
		}
	})
	for _, v := range all {
		d.wantBack(v)
	}
	d.box.mu.Lock()
	defer d.box.mu.Unlock()
	if most := limit + len(d.reactors)*(d.reactors[0].roundBytes+size+2*letterBytes); d.box.bytes > most {
		t.Errorf("%d bytes wait, the limit is %d, want %d at most", d.box.bytes, limit, most)
	}
}

// wantRead demands that a connection is read.
func (d *reactorDoor) wantRead(v *visitor) {
	d.t.Helper()
	v.write(hellos("again"))
	d.wantReceived(v, "again")
}

// Connections that a reactor cannot read any longer are read by their goroutines.
func TestReactorGivesUp(t *testing.T) {
	d := openReactors(t, Limits{})
	v := d.joinParked(1)[0]
	for _, r := range d.reactors {
		r.giveUp()
	}
	if d.parked(v) {
		t.Error("it is parked still")
	}
	if d.reactorOf(v).take(v.clientConn) {
		t.Error("it is taken again")
	}
	d.wantRead(v)
	d.wantRead(v)
	d.wantRead(d.join())
}

// When the door is stopped every connection ends, whatever it is at.
func TestReactorStops(t *testing.T) {
	d := openReactors(t, Limits{MaxPending: 1000})
	all := d.joinParked(3 * len(d.reactors))
	full := all[0]
	full.write(hellos(strings.Repeat("x", 2000)))
	all[1].write(hellos("part")[:9])
	d.wantBack(full)
	d.wantBack(all[1])
	stopped := make(chan struct{})
	go func() { defer close(stopped); d.stop() }()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("the door does not stop")
	}
	d.from(full)
	for _, v := range all {
		d.wantClosed(v)
	}
}
