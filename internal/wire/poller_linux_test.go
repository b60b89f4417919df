package wire

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds every wait for a poller; on a good day nothing takes a
// hundredth of it.
const patience = 60 * time.Second

// told is what came of reading a connection that a poller has told of: a frame,
// or an error.
type told struct {
	from int // the connection's place
	text string
	err  error
}

// errPart stands for a frame of which a part has arrived.
var errPart = errors.New("a frame in part")

// keyOf makes a connection's key of its place, so that all of a key matters.
const keyOf = 1<<32 + 1

// watcher reads all connections that its poller tells of, where it is told.
type watcher struct {
	*Poller
	t     *testing.T
	conns []*Conn
	told  chan told
	done  chan error // what Run has returned
	mu    sync.Mutex // a connection changes hands under it
}

// newWatcher makes a poller for these connections; the test calls add and run.
func newWatcher(t *testing.T, conns ...*Conn) *watcher {
	t.Helper()
	p, err := NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return &watcher{Poller: p, t: t, conns: conns, told: make(chan told, 1<<16), done: make(chan error, 1)}
}

func (w *watcher) add(place int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.Add(w.conns[place], uint64(place)*keyOf); err != nil {
		w.t.Fatal(err)
	}
}

func (w *watcher) run() {
	go func() {
		w.done <- w.Run(func(all []Arrival) {
			for _, a := range all {
				w.read(a)
			}
		})
	}()
}

func (w *watcher) read(a Arrival) {
	w.mu.Lock()
	defer w.mu.Unlock()
	place := int(a.Key / keyOf)
	c := w.conns[place]
	c.Arrived()
	for {
		_, payload, ok, err := c.ReadArrived()
		switch {
		case ok || err != nil:
		case a.Ended:
			_, payload, err = c.Read() // it need not wait
		case c.Buffered():
			err = errPart
		default:
			return
		}
		w.told <- told{place, string(payload), err}
		if err != nil {
			return
		}
	}
}

// look waits for what is read next.
func (w *watcher) look() told {
	w.t.Helper()
	select {
	case x := <-w.told:
		return x
	case <-time.After(patience):
		w.t.Fatal("the poller tells of nothing")
		return told{}
	}
}

// next is look for something whole, or the end.
func (w *watcher) next() told {
	w.t.Helper()
	for {
		if x := w.look(); x.err != errPart {
			return x
		}
	}
}

// want demands what is read next on a connection.
func (w *watcher) want(from int, texts ...string) {
	w.t.Helper()
	for i, text := range texts {
		if x := w.next(); x.from != from || x.err != nil || x.text != text {
			w.t.Fatalf("frame %d is of connection %d and %d bytes (%v), want %d bytes of %d", i, x.from, len(x.text), x.err, len(text), from)
		}
	}
}

// wantPart demands that a part of a frame is read next.
func (w *watcher) wantPart() {
	w.t.Helper()
	if x := w.look(); x.err != errPart {
		w.t.Fatalf("got %d bytes (%v), want a part", len(x.text), x.err)
	}
}

// ends returns the other end of a connection and ours, which is to be watched.
func ends(t *testing.T, o Options) (other, c *Conn) {
	t.Helper()
	o.PrefaceTimeout = patience
	return pair(t, Options{PrefaceTimeout: patience}, o)
}

// frames are the bytes of frames with these payloads.
func frames(payloads ...string) (b []byte) {
	for _, p := range payloads {
		b = append(appendHeader(b, KindClient, len(p)), p...)
	}
	return b
}

// write writes past the framing. What cannot be written will be missed.
func write(c *Conn, b []byte) { _, _ = c.nc.Write(b) }

// What has arrived before a connection is added, or before Run, is told like what
// comes later, on more connections than are told of at a time.
func TestPollerTellsOfManyConnections(t *testing.T) {
	const connections = 3*arrivalsAtOnce + 1
	var others, conns []*Conn
	for range connections {
		x, y := ends(t, Options{})
		others, conns = append(others, x), append(conns, y)
	}
	w := newWatcher(t, conns...)
	for k, o := range others {
		if k%2 == 0 {
			w.add(k)
		}
		write(o, frames("0", "1"))
		if k%2 == 1 {
			w.add(k)
		}
	}
	next := make([]int, connections)
	take := func(each int) {
		t.Helper()
		for range connections * each {
			x := w.next()
			if x.err != nil || x.text != fmt.Sprint(next[x.from]) {
				t.Fatalf("connection %d: got %q (%v), want %d", x.from, x.text, x.err, next[x.from])
			}
			next[x.from]++
		}
	}
	w.run()
	take(2)
	for _, o := range others {
		write(o, frames("2"))
	}
	take(1)
}

// Nothing is lost and nothing comes twice, however the streams are cut into
// pieces, and whatever arrives while others are read.
func TestPollerLosesNothing(t *testing.T) {
	const connections, each = 7, 200
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var conns []*Conn
	sent := make([][]string, connections)
	send := make([]func(), connections)
	for k := range connections {
		x, y := ends(t, Options{})
		conns = append(conns, y)
		r := rand.New(rand.NewPCG(seed, uint64(k)))
		for i := range each {
			size := []int{r.IntN(20), r.IntN(20), idleBytes - 20 + r.IntN(20), r.IntN(5000), r.IntN(100_000)}[r.IntN(5)]
			sent[k] = append(sent[k], fmt.Sprint(i, strings.Repeat("x", size)))
		}
		rest := frames(sent[k]...)
		send[k] = func() {
			for len(rest) > 0 {
				n := min(1+r.IntN([]int{20, idleBytes, 5000, 200_000}[r.IntN(4)]), len(rest))
				write(x, rest[:n])
				rest = rest[n:]
				runtime.Gosched()
			}
		}
	}
	w := newWatcher(t, conns...)
	w.run()
	for k := range connections {
		go send[k]()
		w.add(k)
	}
	for range connections * each {
		x := w.next()
		if s := sent[x.from]; x.err != nil || len(s) == 0 || x.text != s[0] {
			t.Fatalf("connection %d: got %.9q, %d bytes (%v), where %d frames are to come", x.from, x.text, len(x.text), x.err, len(s))
		}
		sent[x.from] = sent[x.from][1:]
	}
}

// Whatever the sizes, all frames are read, nobody waits for more where none are,
// an arrival afterwards is told again, and an idle connection holds no buffer.
func TestArrivalsOfEverySize(t *testing.T) {
	x := func(n int) string { return strings.Repeat("x", n) }
	const exact = idleBytes - headerBytes
	for name, texts := range map[string][]string{
		"small":                {"a", "", "b", "c"},
		"the small buffer":     {x(exact)},
		"one more":             {x(exact + 1)},
		"the busy buffer":      {x(busyBytes - headerBytes)},
		"large":                {x(1 << 20)},
		"small and large":      {"a", x(70_000), "b", x(5000), ""},
		"the first buffer and": {x(exact - headerBytes), "", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			o, c := ends(t, Options{})
			p, d := ends(t, Options{})
			w := newWatcher(t, c, d)
			w.run()
			w.add(0)
			w.add(1)
			go write(o, frames(texts...))
			w.want(0, texts...)
			write(p, frames("another"))
			w.want(1, "another")
			w.mu.Lock() // it is done with the first one
			if c.big != nil || c.Buffered() {
				t.Errorf("%d bytes are still held", len(c.rbuf))
			}
			w.mu.Unlock()
			write(o, frames("later"))
			w.want(0, "later")
		})
	}
}

// A frame of which a part was read is read on: when the poller tells of the rest,
// or by Read, which waits for it, but not for ever.
func TestArrivalOfAPart(t *testing.T) {
	o, c := ends(t, Options{FrameTimeout: 50 * time.Millisecond})
	w := newWatcher(t, c)
	w.run()
	w.add(0)
	f := frames("whole", strings.Repeat("x", 5000), "next")
	for _, part := range []int{1, headerBytes - 1, headerBytes, headerBytes + 1} {
		write(o, f[:13+part])
		w.want(0, "whole")
		w.wantPart()
		write(o, f[13+part:13+headerBytes+4999])
		w.wantPart()
		write(o, f[13+headerBytes+4999:])
		w.want(0, strings.Repeat("x", 5000), "next")
	}
	write(o, f[:13+100])
	w.want(0, "whole")
	w.wantPart()
	w.Remove(c)
	if _, _, err := c.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a frame in part ends with %v", err)
	}
}

// The end of a stream is told, also right behind frames and with a frame in part.
func TestArrivalOfTheEnd(t *testing.T) {
	half := func(c *Conn) { _ = c.nc.(*net.TCPConn).CloseWrite() }
	whole := func(c *Conn) { _ = c.nc.Close() }
	for name, tc := range map[string]struct {
		texts []string
		part  string
		end   func(*Conn)
		want  error
	}{
		"silence":                {nil, "", half, io.EOF},
		"frames":                 {[]string{"a", "b"}, "", half, io.EOF},
		"frames, and all closed": {[]string{"a", "b"}, "", whole, io.EOF},
		"a full buffer":          {[]string{strings.Repeat("x", idleBytes-headerBytes)}, "", half, io.EOF},
		"large":                  {[]string{"a", strings.Repeat("x", 70_000)}, "", half, io.EOF},
		"a part":                 {[]string{"a"}, "\x00", half, io.ErrUnexpectedEOF},
		"reset":                  {[]string{"a"}, "", func(c *Conn) { _ = c.nc.(*net.TCPConn).SetLinger(0); whole(c) }, unix.ECONNRESET},
	} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/before=%v", name, before), func(t *testing.T) {
				o, c := ends(t, Options{})
				w := newWatcher(t, c)
				send := func() { write(o, append(frames(tc.texts...), tc.part...)) }
				if before {
					send()
					if tc.want != unix.ECONNRESET { // which takes back what was not read
						tc.end(o)
					}
				}
				w.run()
				w.add(0)
				if !before {
					send()
				}
				w.want(0, tc.texts...)
				tc.end(o)
				if x := w.next(); !errors.Is(x.err, tc.want) {
					t.Errorf("it ends with %q, %v, want %v", x.text, x.err, tc.want)
				}
			})
		}
	}
}

// What is wrong with a frame ReadArrived says after the frames before it, and
// Read says it again.
func TestArrivalOfABadFrame(t *testing.T) {
	var large *FrameTooLargeError
	var header *HeaderError
	for bad, as := range map[string]any{"\x00\x00\x03\xe9\x01\x01\x00\x00": &large, "\x00\x00\x00\x00\x01\x02\x00\x00": &header} {
		o, c := ends(t, Options{MaxFrame: 1000})
		w := newWatcher(t, c)
		w.run()
		w.add(0)
		write(o, append(frames("a", "b"), bad...))
		w.want(0, "a", "b")
		if x := w.next(); !errors.As(x.err, as) {
			t.Errorf("ReadArrived of %x: %q, %v", bad, x.text, x.err)
		}
		c.SetReadTimeout(patience)
		if _, _, err := c.Read(); !errors.As(err, as) {
			t.Errorf("Read of %x: %v", bad, err)
		}
	}
}

func TestPollerAddRefuses(t *testing.T) {
	w := newWatcher(t)
	refused := func(what string, c *Conn) {
		t.Helper()
		if w.Add(c, 1) == nil {
			t.Errorf("a connection is watched that %s", what)
		}
	}
	o, c := ends(t, Options{})
	write(o, frames("a", "b"))
	if _, _, err := c.Read(); err != nil {
		t.Fatal(err)
	}
	refused("has something buffered", c)
	if _, p, err := c.Read(); err != nil || string(p) != "b" {
		t.Fatalf("got %q, %v", p, err)
	}
	c.SetReadTimeout(time.Hour)
	refused("has a read timeout", c)
	c.SetReadTimeout(0)
	if err := w.Add(c, 1); err != nil {
		t.Errorf("a connection is refused that is ready: %v", err)
	}
	refused("is watched already", c)
	_ = c.Close()
	refused("is closed", c)
	_, p := net.Pipe()
	pipe := NewConn(p, Options{})
	refused("is no socket", pipe)
	_ = pipe.Close()
}

// The deadline of a frame that came in part does not pass while the connection is
// watched.
func TestPollerAddClearsTheDeadline(t *testing.T) {
	o, c := ends(t, Options{})
	c.limited = true
	if err := c.nc.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	w := newWatcher(t, c)
	w.run()
	w.add(0)
	write(o, frames("a"))
	w.want(0, "a")
}

// Of a connection that was removed or closed nothing is told any more, also when
// another one has its descriptor; what arrives in between is told when it is added
// again.
func TestPollerRemove(t *testing.T) {
	var others, conns []*Conn
	open := func() {
		x, y := ends(t, Options{})
		others, conns = append(others, x), append(conns, y)
	}
	for range 3 {
		open()
	}
	w := newWatcher(t, conns...)
	for k := range conns {
		w.add(k)
	}
	w.Remove(conns[0])
	_ = conns[1].Close()
	w.Remove(conns[1])
	open()
	w.conns = conns
	w.add(3)
	for _, k := range []int{0, 3, 2} {
		write(others[k], frames(fmt.Sprint(k)))
	}
	w.run()
	// They are told of in the order in which they have arrived.
	w.want(3, "3")
	w.want(2, "2")
	w.add(0)
	w.want(0, "0")
}

// Close waits for the f under way, and makes Run return nil.
func TestPollerClose(t *testing.T) {
	for _, amid := range []bool{false, true} {
		o, c := ends(t, Options{})
		w := newWatcher(t, c)
		w.add(0)
		entered, closed := make(chan struct{}), make(chan struct{})
		go func() {
			w.done <- w.Run(func([]Arrival) {
				close(entered)
				for amid && w.raw.Control(func(uintptr) {}) == nil {
					runtime.Gosched() // until Close is under way
				}
				select {
				case <-closed:
					t.Error("Close has not waited")
				default:
				}
			})
		}()
		if amid {
			write(o, frames("a"))
			<-entered
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		close(closed)
		select {
		case err := <-w.done:
			if err != nil {
				t.Errorf("Run has returned %v (amid a round: %v)", err, amid)
			}
		case <-time.After(patience):
			t.Fatal("Run goes on")
		}
	}
}

// When the kernel fails Run says so.
func TestPollerRunFails(t *testing.T) {
	w := newWatcher(t)
	none, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = none.Close() }()
	if err := w.raw.Control(func(fd uintptr) { err = unix.Dup3(int(none.Fd()), int(fd), unix.O_CLOEXEC) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(func([]Arrival) {}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Run has returned %v", err)
	}
}
