package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sockets returns the two ends of a TCP connection over loopback.
func sockets(t testing.TB) (dialed, accepted net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			c = nil
		}
		got <- c
	}()
	dialed, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted = <-got
	if accepted == nil {
		t.Fatal("accept failed")
	}
	return dialed, accepted
}

// pair returns two framed ends after their handshake.
func pair(t testing.TB, a, b Options) (*Conn, *Conn) {
	t.Helper()
	d, acc := sockets(t)
	b.Accepted = true
	x, y := NewConn(d, a), NewConn(acc, b)
	t.Cleanup(func() { x.Close(); y.Close() })
	errs := make(chan error, 1)
	go func() { errs <- y.Handshake(context.Background()) }()
	if err := x.Handshake(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	return x, y
}

func hello(client string) *pb.ClientMessage {
	return &pb.ClientMessage{Body: &pb.ClientMessage_Hello{Hello: &pb.Hello{Client: client}}}
}

func TestFramesArriveInOrderWithEverySize(t *testing.T) {
	x, y := pair(t, Options{}, Options{})
	sizes := []int{0, 1, 100, 490, 504, 505, 4000, 16 << 10, 70000, 1 << 20, 3, 2 << 20, 0, 17}
	go func() {
		for i, n := range sizes {
			if err := x.Queue(KindClient, hello(strings.Repeat(string(rune('a'+i)), n))); err != nil {
				t.Error(err)
			}
		}
	}()
	for i, n := range sizes {
		kind, p, err := y.Read()
		if err != nil {
			t.Fatal(err)
		}
		var m pb.ClientMessage
		if err := proto.Unmarshal(p, &m); err != nil {
			t.Fatal(err)
		}
		if kind != KindClient || m.GetHello().GetClient() != strings.Repeat(string(rune('a'+i)), n) {
			t.Fatalf("frame %d (%d bytes) arrived as kind %d, %d bytes", i, n, kind, len(p))
		}
	}
	if err := x.CloseAfterFlush(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if _, _, err := y.Read(); err != io.EOF {
		t.Fatalf("after the end: %v, want io.EOF", err)
	}
}

func TestGarbageInsteadOfPreface(t *testing.T) {
	for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00", "LKD2", "LKX", "\x16\x03\x01\x02\x00\x01"} {
		d, acc := sockets(t)
		c := NewConn(acc, Options{Accepted: true})
		if _, err := io.WriteString(d, garbage); err != nil {
			t.Fatal(err)
		}
		var pe *PrefaceError
		if err := c.Handshake(context.Background()); !errors.As(err, &pe) {
			t.Fatalf("%q: %v, want a PrefaceError", garbage, err)
		}
		if len(pe.Got) == 0 || !strings.HasPrefix(garbage, string(pe.Got)) {
			t.Fatalf("%q: the error names %q", garbage, pe.Got)
		}
		c.Close()
		if got, _ := io.ReadAll(d); len(got) != 0 {
			t.Fatalf("%q was answered with %q", garbage, got)
		}
		d.Close()
	}
}

func TestSilentPeerEndsTheHandshake(t *testing.T) {
	d, acc := sockets(t)
	defer d.Close()
	c := NewConn(acc, Options{Accepted: true, PrefaceTimeout: time.Millisecond})
	defer c.Close()
	if err := c.Handshake(context.Background()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%v, want a deadline", err)
	}
}

func TestContextEndsTheHandshake(t *testing.T) {
	d, acc := sockets(t)
	defer d.Close()
	c := NewConn(acc, Options{Accepted: true, PrefaceTimeout: time.Hour})
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(time.Millisecond, cancel)
	if err := c.Handshake(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v, want Canceled", err)
	}
}

func TestOversizedFrame(t *testing.T) {
	x, y := pair(t, Options{}, Options{MaxFrame: 1000})
	if err := x.QueueBytes(KindClient, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := x.QueueBytes(KindClient, make([]byte, 1001)); err != nil {
		t.Fatal(err)
	}
	if _, p, err := y.Read(); err != nil || len(p) != 1000 {
		t.Fatalf("a frame of the largest size: %d bytes, %v", len(p), err)
	}
	var tl *FrameTooLargeError
	if _, _, err := y.Read(); !errors.As(err, &tl) || tl.Size != 1001 || tl.Limit != 1000 {
		t.Fatalf("%v, want a FrameTooLargeError of 1001 over 1000", err)
	}
	// The refusal still gets through, although the offender goes on sending.
	for i := 0; i < 50; i++ {
		if err := x.QueueBytes(KindClient, make([]byte, 1001)); err != nil {
			t.Fatal(err)
		}
	}
	if err := y.QueueBytes(KindServer, []byte("too large")); err != nil {
		t.Fatal(err)
	}
	end := make(chan struct{})
	go func() { defer close(end); y.CloseAfterFlush(10 * time.Second) }()
	if _, p, err := x.Read(); err != nil || string(p) != "too large" {
		t.Fatalf("the refusal arrived as %q, %v", p, err)
	}
	x.Close()
	<-end
}

func TestHugeHeaderAllocatesNothing(t *testing.T) {
	d, acc := sockets(t)
	defer d.Close()
	c := NewConn(acc, Options{Accepted: true, MaxFrame: 1 << 30})
	defer c.Close()
	h := appendHeader([]byte(Preface), KindPeer, 1<<29)
	if _, err := d.Write(append(h, "little"...)); err != nil {
		t.Fatal(err)
	}
	if err := c.Handshake(context.Background()); err != nil {
		t.Fatal(err)
	}
	d.(*net.TCPConn).CloseWrite()
	if _, _, err := c.Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("%v, want ErrUnexpectedEOF", err)
	}
	if len(c.rbuf) > busyBytes {
		t.Fatalf("%d bytes of room for a frame of which 6 came", len(c.rbuf))
	}
}

func TestBadHeader(t *testing.T) {
	for _, h := range [][]byte{{0, 0, 0, 0, 1, 2, 0, 0}, {0, 0, 0, 0, 1, 1, 1, 0}, {0, 0, 0, 0, 1, 1, 0, 9}} {
		d, acc := sockets(t)
		c := NewConn(acc, Options{Accepted: true})
		if _, err := d.Write(append([]byte(Preface), h...)); err != nil {
			t.Fatal(err)
		}
		if err := c.Handshake(context.Background()); err != nil {
			t.Fatal(err)
		}
		var he *HeaderError
		if _, _, err := c.Read(); !errors.As(err, &he) || !bytes.Equal(he.Header[:], h) {
			t.Fatalf("%x: %v, want a HeaderError", h, err)
		}
		c.Close()
		d.Close()
	}
}

func TestSlowReaderHitsTheBound(t *testing.T) {
	const bound = 1 << 20
	x, y := pair(t, Options{QueueBytes: bound}, Options{})
	payload := make([]byte, 10000)
	queued := 0
	for {
		err := x.QueueBytes(KindClient, payload)
		if errors.Is(err, ErrQueueFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if queued++; queued > 100000 {
			t.Fatal("no bound was hit")
		}
		if n := x.Queued(); n > bound {
			t.Fatalf("%d bytes queued, bound %d", n, bound)
		}
	}
	// What was taken arrives; then there is room again.
	for i := 0; i < queued; i++ {
		if _, p, err := y.Read(); err != nil || len(p) != len(payload) {
			t.Fatalf("frame %d of %d: %d bytes, %v", i, queued, len(p), err)
		}
	}
	// The last frame is counted off after it was written, so wait for an echo
	// of nothing: a frame that is larger than the bound goes alone.
	for {
		err := x.QueueBytes(KindClient, make([]byte, bound+1))
		if err == nil {
			break
		}
		if !errors.Is(err, ErrQueueFull) {
			t.Fatal(err)
		}
	}
	if _, p, err := y.Read(); err != nil || len(p) != bound+1 {
		t.Fatalf("%d bytes, %v", len(p), err)
	}
}

func TestCloseWithAFullQueueDoesNotHang(t *testing.T) {
	x, y := pair(t, Options{QueueBytes: 4 << 20}, Options{})
	for x.QueueBytes(KindClient, make([]byte, 100000)) == nil {
	}
	x.Close()
	if err := x.Queue(KindClient, hello("")); !errors.Is(err, ErrClosed) {
		t.Fatalf("Queue after Close: %v", err)
	}
	if _, _, err := x.Read(); !errors.Is(err, ErrClosed) {
		t.Fatalf("Read after Close: %v", err)
	}
	x.Close()
	y.Close()
}

func TestFlushGivesUpInTime(t *testing.T) {
	x, _ := pair(t, Options{QueueBytes: 64 << 20}, Options{})
	for i := 0; i < 600; i++ { // more than the socket's buffers hold
		if err := x.QueueBytes(KindClient, make([]byte, 100000)); err != nil {
			t.Fatal(err)
		}
	}
	x.CloseAfterFlush(time.Millisecond)
}

func TestWriteTimeoutEndsTheConnection(t *testing.T) {
	x, _ := pair(t, Options{QueueBytes: 64 << 20, WriteTimeout: time.Millisecond}, Options{})
	for i := 0; i < 600; i++ {
		if err := x.QueueBytes(KindClient, make([]byte, 100000)); err != nil {
			break // ended already
		}
	}
	if _, _, err := x.Read(); !errors.Is(err, ErrClosed) {
		t.Fatalf("Read: %v, want ErrClosed", err)
	}
	if err := x.Err(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("Err: %v, want the write's deadline", err)
	}
}

func TestReadTimeout(t *testing.T) {
	x, _ := pair(t, Options{}, Options{})
	end := make(chan error, 1)
	go func() { _, _, err := x.Read(); end <- err }()
	x.SetReadTimeout(time.Millisecond) // also wakes a Read under way
	if err := <-end; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%v, want a deadline", err)
	}
}

// A frame that trickles in is not waited for for ever; silence between frames
// is no fault.
func TestFrameTimeout(t *testing.T) {
	d, acc := sockets(t)
	y := NewConn(acc, Options{Accepted: true, FrameTimeout: 100 * time.Millisecond})
	defer y.Close()
	defer d.Close()
	errs := make(chan error, 1)
	go func() {
		if err := y.Handshake(context.Background()); err != nil {
			errs <- err
			return
		}
		for {
			if _, _, err := y.Read(); err != nil {
				errs <- err
				return
			}
		}
	}()
	write := func(b []byte) {
		t.Helper()
		if _, err := d.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	whole := []byte{0, 0, 0, 1, KindClient, 1, 0, 0, 'x'}
	write([]byte(Preface))
	write(whole)
	select {
	case err := <-errs:
		t.Fatalf("silence between frames ended the connection: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	write(whole)
	// Each byte comes in time, the frame does not.
	trickle := time.NewTicker(20 * time.Millisecond)
	defer trickle.Stop()
	frame := append([]byte{0, 0, 1, 0, KindClient, 1, 0, 0}, make([]byte, 256)...)
	for _, b := range frame {
		select {
		case err := <-errs:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("a trickling frame ended with %v", err)
			}
			return
		case <-trickle.C:
			if _, err := d.Write([]byte{b}); err != nil {
				return // the other side has closed
			}
		}
	}
	t.Fatal("a frame that trickles in was waited for")
}

func TestConcurrentQueue(t *testing.T) {
	const writers, each = 8, 500
	x, y := pair(t, Options{QueueBytes: 64 << 20}, Options{})
	var wg sync.WaitGroup
	for w := 0; w < writers; w++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; i < each; i++ {
				// Frames keep their order whoever writes them: the connection's
				// writer, or this goroutine.
				how := []func(byte, proto.Message) error{x.Queue, x.Send, x.Hold}[i%3]
				if err := how(KindClient, hello(fmt.Sprintf("%d %d %s", w, i, strings.Repeat("x", i*7%3000)))); err != nil {
					t.Error(err)
				}
			}
			x.Flush()
		}()
	}
	var next [writers]int
	for n := 0; n < writers*each; n++ {
		_, p, err := y.Read()
		if err != nil {
			t.Fatal(err)
		}
		var m pb.ClientMessage
		if err := proto.Unmarshal(p, &m); err != nil {
			t.Fatal(err)
		}
		var w, i int
		if _, err := fmt.Sscanf(m.GetHello().GetClient(), "%d %d", &w, &i); err != nil || next[w] != i {
			t.Fatalf("%.20q: %v, want %d of writer %d", m.GetHello().GetClient(), err, next[w], w)
		}
		next[w]++
	}
	wg.Wait()
}

func TestIdleConnectionHoldsNoBuffers(t *testing.T) {
	x, y := pair(t, Options{}, Options{})
	for _, n := range []int{1 << 20, 10} {
		if err := x.QueueBytes(KindClient, make([]byte, n)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := y.Read(); err != nil {
			t.Fatal(err)
		}
	}
	x.Close()
	if _, _, err := y.Read(); err != io.EOF {
		t.Fatal(err)
	}
	if y.big != nil {
		t.Fatalf("%d bytes are still held", len(y.rbuf))
	}
}

func BenchmarkEcho(b *testing.B) {
	for _, window := range []int{1, 64} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			x, y := pair(b, Options{}, Options{})
			go func() {
				for {
					kind, p, err := y.Read()
					if err != nil || y.QueueBytes(kind, p) != nil {
						return
					}
				}
			}()
			m := hello(strings.Repeat("x", 250))
			b.ReportAllocs()
			sent := 0
			for got := 0; got < b.N; got++ {
				for ; sent < b.N && sent-got < window; sent++ {
					if err := x.Send(KindClient, m); err != nil {
						b.Fatal(err)
					}
				}
				if _, _, err := x.Read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// changing is a message that another goroutine makes smaller while it is
// encoded.
type changing struct{ *pb.ServerMessage }

func (c changing) SizeVT() int { return c.ServerMessage.SizeVT() + 1 }

func TestMessageThatChangesMeanwhile(t *testing.T) {
	x, y := pair(t, Options{}, Options{})
	m := &pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Text: "whole"}}}
	if err := x.Queue(KindServer, changing{m}); err == nil {
		t.Error("a frame whose size changed was queued")
	}
	if n := x.Queued(); n != 0 {
		t.Errorf("%d bytes are queued", n)
	}
	if err := x.Send(KindServer, m); err != nil {
		t.Fatal(err)
	}
	_, payload, err := y.Read()
	got := &pb.ServerMessage{}
	if err != nil || got.Decode(payload) != nil || got.GetError().GetText() != "whole" {
		t.Errorf("got %v, %v", got, err)
	}
}
