package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
)

// testDoor is a door whose loop is the test.
type testDoor struct {
	*door
	t     *testing.T
	queue []letter // taken from the mailbox and not looked at yet
}

func openDoor(t *testing.T, limits Limits) *testDoor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Limits: limits}.withDefaults()
	d := &testDoor{door: newDoor(l, c.Limits, newMailbox(), newShellMetrics(), slog.New(slog.DiscardHandler)), t: t}
	d.box.most = c.Limits.MaxWaiting
	d.start()
	t.Cleanup(d.stop)
	return d
}

// next waits for the next event.
func (d *testDoor) next() letter {
	d.t.Helper()
	for len(d.queue) == 0 {
		d.queue = d.box.swap(nil, mood{})
		if len(d.queue) == 0 {
			select {
			case <-d.box.wake:
			case <-time.After(20 * time.Second):
				d.t.Fatal("no event")
			}
		}
	}
	l := d.queue[0]
	d.queue = d.queue[1:]
	return l
}

// opened waits for a connection's opening.
func (d *testDoor) opened() *clientConn {
	d.t.Helper()
	l := d.next()
	if _, ok := l.event.(replica.ConnOpened); !ok {
		d.t.Fatalf("got %T, want the opening", l.event)
	}
	return l.conn
}

// closed waits for a connection's end and expects nothing before it.
func (d *testDoor) closed(id replica.ConnID) {
	d.t.Helper()
	if l := d.next(); l.event != (replica.ConnClosed{Conn: id}) {
		d.t.Fatalf("got %#v, want the end of %d", l.event, id)
	}
}

func (d *testDoor) dial() net.Conn {
	d.t.Helper()
	nc, err := net.Dial("tcp", d.listener.Addr().String())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// shake dials and shakes hands.
func (d *testDoor) shake() *wire.Conn {
	d.t.Helper()
	w := wire.NewConn(d.dial(), wire.Options{ReadTimeout: 20 * time.Second})
	d.t.Cleanup(func() { _ = w.Close() })
	if err := w.Handshake(context.Background()); err != nil {
		d.t.Fatal(err)
	}
	return w
}

// readServer reads one message of the service.
func readServer(w *wire.Conn) (*pb.ServerMessage, error) {
	kind, payload, err := w.Read()
	if err != nil {
		return nil, err
	}
	if kind != wire.KindServer {
		return nil, errors.New("not a message of the service")
	}
	m := new(pb.ServerMessage)
	return m, proto.Unmarshal(payload, m)
}

// wantFatal reads an error and then the end of the connection.
func wantFatal(t *testing.T, w *wire.Conn, code pb.ErrorCode, text string) {
	t.Helper()
	m, err := readServer(w)
	if err != nil {
		t.Fatalf("no last word: %v", err)
	}
	e := m.GetError()
	if e.GetCode() != code || !e.GetFatal() || !strings.Contains(e.GetText(), text) {
		t.Errorf("got %v, want a fatal %v that says %q", m, code, text)
	}
	if _, err := readServer(w); !errors.Is(err, io.EOF) {
		t.Errorf("after the last word: %v", err)
	}
}

func hello(client string) *pb.ClientMessage {
	return &pb.ClientMessage{Body: &pb.ClientMessage_Hello{Hello: &pb.Hello{VersionMin: 2, VersionMax: 2, Client: client}}}
}

func queue(t *testing.T, w *wire.Conn, m proto.Message) {
	t.Helper()
	if err := w.Queue(wire.KindClient, m); err != nil {
		t.Fatal(err)
	}
}

func TestDoorCarriesMessagesBothWays(t *testing.T) {
	d := openDoor(t, Limits{})
	w := d.shake()
	queue(t, w, hello("one"))
	if err := w.QueueBytes(77, []byte("a kind of a later version")); err != nil {
		t.Fatal(err)
	}
	if err := w.QueueBytes(wire.KindClient, []byte{0xfa, 0x3f, 0x00}); err != nil { // field 1023: a body of a later version
		t.Fatal(err)
	}
	queue(t, w, hello("two"))
	c := d.opened()
	for _, want := range []string{"one", "two"} {
		l := d.next()
		r, ok := l.event.(replica.ConnReceived)
		if !ok || r.Conn != c.id || r.Message.GetHello().GetClient() != want {
			t.Fatalf("got %#v, want hello of %s", l.event, want)
		}
		c.stepped(l.size)
	}
	if p := c.pending.Load(); p != 0 {
		t.Errorf("%d bytes pending with nothing waiting", p)
	}
	d.send(c, &pb.ServerMessage{Body: &pb.ServerMessage_Leaving{Leaving: &pb.Leaving{MasterAddress: "there"}}})
	d.end(c, "test")
	m, err := readServer(w)
	if err != nil || m.GetLeaving().GetMasterAddress() != "there" {
		t.Errorf("got %v, %v", m, err)
	}
	if _, err := readServer(w); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	d.closed(c.id)
}

func TestDoorCutsOffWhoDoesNotSpeakTheProtocol(t *testing.T) {
	d := openDoor(t, Limits{MaxFrame: 1000})
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "LKD2", "\x00\x00\x00\x00\x00"} {
		nc := d.dial()
		if _, err := io.WriteString(nc, garbage); err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(nc); len(got) > 0 {
			t.Errorf("%q was answered with %q", garbage, got)
		}
	}
	// Nothing of these reached the loop; the first event is that of:
	w := d.shake()
	if err := w.QueueBytes(wire.KindClient, []byte{0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	c := d.opened()
	wantFatal(t, w, pb.ErrorCode_BAD_MESSAGE, "cannot be decoded")
	d.closed(c.id)

	w = d.shake()
	queue(t, w, hello(strings.Repeat("x", 1000)))
	c = d.opened()
	wantFatal(t, w, pb.ErrorCode_FRAME_TOO_LARGE, "1000")
	d.closed(c.id)

	w = d.shake() // a replica
	if err := w.QueueBytes(wire.KindPeer, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	c = d.opened()
	wantFatal(t, w, pb.ErrorCode_BAD_MESSAGE, "--initial-cluster must name the other replicas' --listen-peer")
	d.closed(c.id)

	nc := d.dial()
	if _, err := io.WriteString(nc, wire.Preface+"\x00\x00\x00\x01\x01\xee\x00\x00x"); err != nil {
		t.Fatal(err)
	}
	c = d.opened()
	got, _ := io.ReadAll(nc)
	if !strings.HasPrefix(string(got), wire.Preface) || !strings.Contains(string(got), "format version") {
		t.Errorf("a bad header was answered with %q", got)
	}
	d.closed(c.id)
}

func TestDoorEndsConnectionsWithoutHello(t *testing.T) {
	d := openDoor(t, Limits{HelloTimeout: 50 * time.Millisecond})
	w := d.shake()
	c := d.opened()
	wantFatal(t, w, pb.ErrorCode_BAD_MESSAGE, "no Hello within 50ms")
	d.closed(c.id)
}

// A frame of a later version is no Hello: who sends nothing else has not longer
// than others, and a replica behind it is told that this is the wrong port.
func TestUnknownFrameIsNoHello(t *testing.T) {
	d := openDoor(t, Limits{HelloTimeout: 200 * time.Millisecond})
	for _, tc := range []struct {
		kind byte
		text string
	}{{77, "no Hello within 200ms"}, {wire.KindPeer, "this is the port for clients"}} {
		w := d.shake()
		for _, kind := range []byte{77, tc.kind} {
			if err := w.QueueBytes(kind, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		c := d.opened()
		wantFatal(t, w, pb.ErrorCode_BAD_MESSAGE, tc.text)
		_ = w.Close()
		d.closed(c.id)
	}
}

// What comes in pieces does not put off the time for the Hello.
func TestPiecesAreNoHello(t *testing.T) {
	d := openDoor(t, Limits{HelloTimeout: 200 * time.Millisecond})
	nc, theirs := net.Pipe() // a write ends when it has been read
	t.Cleanup(func() { _ = nc.Close() })
	d.admit(theirs)
	if _, err := io.WriteString(nc, wire.Preface); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(nc, make([]byte, len(wire.Preface))); err != nil {
		t.Fatal(err)
	}
	c := d.opened()
	frame := frameOf([]byte("x"))
	frame[4] = 77 // of a later version
	for _, piece := range [][]byte{frame[:3], frame[3:]} {
		if _, err := nc.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	got, err := io.ReadAll(nc)
	if err != nil || !strings.Contains(string(got), "no Hello within 200ms") {
		t.Errorf("told %q, %v", got, err)
	}
	d.closed(c.id)
}

func TestDoorRefusesTooManyConnections(t *testing.T) {
	d := openDoor(t, Limits{MaxConnections: 1})
	first := d.shake()
	c := d.opened()
	wantFatal(t, d.shake(), pb.ErrorCode_TOO_MANY, "1 connections")
	_ = first.Close()
	d.closed(c.id)
}

// A client that sends faster than the loop takes is not read further: the
// network holds it back, and what waits here stays bounded.
func TestDoorHoldsBackWhoSendsTooMuch(t *testing.T) {
	const limit = 10_000
	d := openDoor(t, Limits{MaxPending: limit})
	w := d.shake()
	const messages = 200
	name := strings.Repeat("x", 1000)
	for range messages {
		queue(t, w, hello(name))
	}
	c := d.opened()
	most := int64(limit + 1000 + 2*letterBytes)
	for range messages {
		l := d.next()
		if p := c.pending.Load(); p > most {
			t.Fatalf("%d bytes wait, the limit is %d", p, limit)
		}
		if _, ok := l.event.(replica.ConnReceived); !ok {
			t.Fatalf("got %T", l.event)
		}
		c.stepped(l.size)
	}
	// One that is held back can be ended too.
	for range messages {
		queue(t, w, hello(name))
	}
	d.next()
	d.end(c, "test")
	for {
		if _, ok := d.next().event.(replica.ConnClosed); ok {
			break
		}
	}
}

// A client that does not read is cut off when its queue is full.
func TestDoorCutsOffWhoDoesNotRead(t *testing.T) {
	d := openDoor(t, Limits{})
	w := d.shake()
	c := d.opened()
	big := &pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Text: strings.Repeat("x", 1<<20)}}}
	for i := 0; !c.ending; i++ {
		if i > 1000 {
			t.Fatal("a gigabyte was queued for a client that does not read")
		}
		d.send(c, big)
	}
	d.closed(c.id)
	_ = w.Close()
}
