package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// idleBytes is the room for reading that a connection keeps while it is
	// idle; busyBytes that of a connection on which much arrives.
	idleBytes = 512
	busyBytes = 64 << 10
)

// Conn is a framed connection. Handshake comes first; then one goroutine may
// Read while any number Queue. Close may be called at any time, also twice.
type Conn struct {
	nc net.Conn
	o  Options

	// Reading: used by the caller of Handshake and Read alone. rbuf[r:w] is
	// what has arrived; the frame returned last ends at r.
	small   [idleBytes]byte
	big     *buffer // nil: rbuf is small
	rbuf    []byte
	r, w    int
	full    bool         // the last read filled rbuf: more is waiting
	drained bool         // ReadArrived has read all that had arrived
	timeout atomic.Int64 // read timeout, ns
	// frameEnd is when the frame that has arrived in part must be whole, zero
	// if none has; limited: the deadline of the network connection is that.
	frameEnd time.Time
	limited  bool
	// interrupted: Interrupt has set a deadline, which no Read has met yet.
	// interrupting is held while both are set, or one is taken back.
	interrupting sync.Mutex
	interrupted  atomic.Bool
	// renewed is when the deadline was last set for a read timeout, of
	// renewedFor.
	renewed    time.Time
	renewedFor time.Duration

	// Writing, see write.go.
	mu      sync.Mutex
	wake    sync.Cond
	idle    bool      // the writer waits on wake
	out     []*buffer // queued, in order
	spare   []*buffer // out's other half, empty
	queued  int       // bytes queued or being written
	writing bool      // somebody has taken frames and writes them
	started bool      // the writer runs
	closing bool      // nothing more is queued; the writer ends when out is empty
	cause   error     // why the connection ended; set once
	now     directWriter
	reader  directReader
	vec     net.Buffers
	vecRoom [16][]byte
	done    chan struct{} // closed when the writer has ended
}

// NewConn makes a framed connection of nc and owns it from now on. Close must
// be called in the end, whatever happens.
func NewConn(nc net.Conn, o Options) *Conn {
	o.setDefaults()
	c := &Conn{nc: nc, o: o, done: make(chan struct{})}
	c.wake.L = &c.mu
	c.rbuf = c.small[:]
	c.timeout.Store(int64(o.ReadTimeout))
	if t, ok := nc.(interface{ SetNoDelay(bool) error }); ok {
		// Frames are gathered here; the kernel must not wait for more. A
		// failure shows at the first write.
		_ = t.SetNoDelay(true)
	}
	c.now.init(nc)
	c.reader.init(nc)
	return c
}

// RemoteAddr is the other side's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Handshake exchanges prefaces and starts the writer. It ends with ctx or
// after PrefaceTimeout. Garbage gives a *PrefaceError. After an error the
// connection is good for Close only.
func (c *Conn) Handshake(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if err := c.nc.SetDeadline(time.Now().Add(c.o.PrefaceTimeout)); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetDeadline(longAgo) })
	err := c.prefaces()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if cerr := ctx.Err(); cerr != nil {
			err = cerr
		}
		return fmt.Errorf("handshake: %w", err)
	}
	if err := c.nc.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return fmt.Errorf("handshake: %w", ErrClosed)
	}
	c.started = true
	go c.writeLoop()
	return nil
}

// prefaces sends ours and checks theirs. The accepting side is silent until it
// has seen a good one.
func (c *Conn) prefaces() error {
	if !c.o.Accepted {
		if _, err := io.WriteString(c.nc, Preface); err != nil {
			return err
		}
	}
	var got [len(Preface)]byte
	for n := 0; n < len(got); {
		m, err := c.nc.Read(got[n:])
		n += m
		if string(got[:n]) != Preface[:n] {
			return &PrefaceError{Got: append([]byte(nil), got[:n]...)}
		}
		if err != nil && n < len(got) {
			if errors.Is(err, io.EOF) && n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	if c.o.Accepted {
		if _, err := io.WriteString(c.nc, Preface); err != nil {
			return err
		}
	}
	return nil
}

// SetReadTimeout changes Options.ReadTimeout, also for a Read under way. It
// may be called by any goroutine.
func (c *Conn) SetReadTimeout(d time.Duration) {
	c.timeout.Store(int64(d))
	// An error means that the connection is closed, which Read reports.
	_ = c.nc.SetReadDeadline(deadline(d))
}

func deadline(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}

// Interrupt makes the Read under way, or else the next one, return
// ErrInterrupted, unless a frame has arrived for it. Nothing is lost: the next
// Read goes on. Any goroutine may call it.
func (c *Conn) Interrupt() {
	c.interrupting.Lock()
	defer c.interrupting.Unlock()
	c.interrupted.Store(true)
	// An error means that the connection is closed, which Read reports.
	_ = c.nc.SetReadDeadline(longAgo)
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// Read returns the next frame. The payload is valid until the next Read. The
// error is io.EOF when the other side ended the stream between two frames,
// *FrameTooLargeError, *HeaderError, ErrClosed after Close, or wraps that of
// the network (os.ErrDeadlineExceeded after the read timeout). After an error
// the stream cannot be read on; Queue still works until Close.
func (c *Conn) Read() (kind byte, payload []byte, err error) {
	c.shrink()
	if err := c.fill(headerBytes); err != nil {
		return 0, nil, err
	}
	kind, size, err := parseHeader(c.rbuf[c.r:], c.o.MaxFrame)
	if err != nil {
		return 0, nil, err
	}
	if err := c.fill(headerBytes + size); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("read a frame: %w", io.ErrUnexpectedEOF)
		}
		return 0, nil, err
	}
	from := c.r + headerBytes
	c.r = from + size
	c.frameEnd = time.Time{}
	return kind, c.rbuf[from:c.r:c.r], nil
}

// fill reads until n bytes have arrived behind r. Room grows with what really
// arrives, so that a header alone cannot make us allocate.
func (c *Conn) fill(n int) error {
	for c.w-c.r < n {
		c.makeRoom(n)
		if err := c.limitRead(); err != nil {
			return c.readError(err)
		}
		m, err := c.readSome(c.rbuf[c.w:])
		c.w += m
		c.full = c.w == len(c.rbuf)
		if err != nil && c.w-c.r < n {
			return c.readError(err)
		}
	}
	return nil
}

func (c *Conn) readSome(b []byte) (int, error) {
	if c.reader.can() {
		return c.reader.read(b)
	}
	return c.nc.Read(b)
}

// limitRead sets the deadline of the next read from the network. A read
// timeout is renewed when a fifth of it has gone by: moving a deadline with
// each frame costs more than reading it.
func (c *Conn) limitRead() error {
	timeout := time.Duration(c.timeout.Load())
	var end time.Time
	if timeout > 0 {
		now := time.Now()
		if !c.limited && c.w == c.r && timeout == c.renewedFor && now.Sub(c.renewed) < timeout/5 {
			return nil
		}
		end = now.Add(timeout)
		c.renewed, c.renewedFor = now, timeout
	}
	partly := c.o.FrameTimeout > 0 && c.w > c.r
	if partly {
		if c.frameEnd.IsZero() {
			c.frameEnd = time.Now().Add(c.o.FrameTimeout)
		}
		if end.IsZero() || c.frameEnd.Before(end) {
			end = c.frameEnd
		}
	}
	if end.IsZero() && !c.limited {
		return nil // the usual case of a client: no system call for it
	}
	c.limited = partly
	if err := c.nc.SetReadDeadline(end); err != nil {
		return err
	}
	if c.interrupted.Load() {
		return c.nc.SetReadDeadline(longAgo) // it may have been set just before
	}
	return nil
}

func (c *Conn) readError(err error) error {
	c.mu.Lock()
	closed := c.closing
	c.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded) && c.wasInterrupted():
		c.limited = true // the next Read sets the deadline that it should have
		return ErrInterrupted
	case errors.Is(err, io.EOF) && c.w == c.r:
		return io.EOF
	case errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read a frame: %w", err)
}

// wasInterrupted reports whether Interrupt was called, once for each time. Its
// deadline is set by then: a Read that comes later meets none that is old.
func (c *Conn) wasInterrupted() bool {
	c.interrupting.Lock()
	defer c.interrupting.Unlock()
	return c.interrupted.Swap(false)
}

// makeRoom sees to it that something can be read, for a frame of n bytes.
func (c *Conn) makeRoom(n int) {
	have, room := c.w-c.r, len(c.rbuf)
	switch {
	case c.full && room < busyBytes:
		c.grow(min(max(4*room, 16<<10), busyBytes))
	case have == room:
		// What has arrived at most doubles the room.
		c.grow(min(2*room, max(n, 16<<10)))
	case c.r > 0 && (have == 0 || c.r+n > room):
		copy(c.rbuf, c.rbuf[c.r:c.w])
		c.r, c.w = 0, have
	}
}

// grow takes a larger buffer from the pool.
func (c *Conn) grow(size int) {
	next := getBuffer(size)
	next.b = next.b[:cap(next.b)]
	c.w = copy(next.b, c.rbuf[c.r:c.w])
	c.r = 0
	if c.big != nil {
		putBuffer(c.big)
	}
	c.big, c.rbuf = next, next.b
}

// shrink gives a pooled buffer back when nothing more waits in it.
func (c *Conn) shrink() {
	if c.r != c.w {
		return
	}
	// A buffer filled by the last read stays: more is on its way.
	if c.big != nil && (!c.full || len(c.rbuf) > busyBytes) {
		putBuffer(c.big)
		c.big, c.rbuf = nil, c.small[:]
	}
	c.r, c.w = 0, 0
}

// Err tells why the connection ended: nil while it has not (or was closed by
// Close with nothing wrong).
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}
