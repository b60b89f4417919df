package wire

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"time"

	"google.golang.org/protobuf/proto"
)

const (
	// gatherBytes is about the most that one write takes, so that a write
	// timeout measures progress and not the length of the queue.
	gatherBytes = 1 << 20
	// lingerTime and lingerBytes bound how long CloseAfterFlush reads on: a
	// socket closed with unread input resets the connection, and the other side
	// would lose the last frames.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 16 << 20
)

// Queue queues a frame and never blocks; the connection's writer sends it.
// Frames leave in the order in which they were queued. The message may be
// changed or reused afterwards. The error is ErrQueueFull (nothing was queued),
// *FrameTooLargeError (over Options.MaxSend, likewise), ErrClosed, or says that
// the message cannot be encoded. Any goroutine may call it, also before
// Handshake is over.
func (c *Conn) Queue(kind byte, m proto.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.add(kind, m); err != nil {
		return err
	}
	c.signal()
	return nil
}

// Hold is Queue without waking the writer: the caller has more for this
// connection, and must call Flush when it has no more.
func (c *Conn) Hold(kind byte, m proto.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.add(kind, m)
}

// Send is Hold and Flush.
func (c *Conn) Send(kind byte, m proto.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.add(kind, m); err != nil {
		return err
	}
	c.flush()
	return nil
}

// fastMessage is what our own messages have: a generated codec that does
// without reflection.
type fastMessage interface {
	SizeVT() int
	// MarshalToSizedBufferVT fills the slice, which must have the right size.
	MarshalToSizedBufferVT(b []byte) (int, error)
}

// add encodes a message behind what is queued; mu is held.
func (c *Conn) add(kind byte, m proto.Message) error {
	fast, _ := m.(fastMessage)
	n := 0
	if fast != nil {
		n = fast.SizeVT()
	} else {
		n = proto.Size(m)
	}
	b, err := c.reserve(kind, n)
	if err != nil {
		return err
	}
	mark := len(b.b)
	var out []byte
	if fast != nil {
		room := b.b[mark : mark+n]
		var k int
		k, err = fast.MarshalToSizedBufferVT(room) // from its end
		out = b.b[:mark+k]
	} else {
		out, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b.b, m)
	}
	if err == nil && len(out)-mark != n {
		err = fmt.Errorf("its size changed from %d to %d bytes meanwhile", n, len(out)-mark)
	}
	if err != nil {
		b.b = b.b[:mark-headerBytes]
		c.queued -= headerBytes + n
		return fmt.Errorf("encode a frame: %w", err)
	}
	b.b = out
	return nil
}

// QueueBytes is Queue for a payload that is encoded already; it is copied.
func (c *Conn) QueueBytes(kind byte, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.addBytes(kind, payload); err != nil {
		return err
	}
	c.signal()
	return nil
}

// HoldBytes is Hold for a payload that is encoded already; it is copied.
func (c *Conn) HoldBytes(kind byte, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addBytes(kind, payload)
}

func (c *Conn) addBytes(kind byte, payload []byte) error {
	b, err := c.reserve(kind, len(payload))
	if err == nil {
		b.b = append(b.b, payload...)
	}
	return err
}

// Queued is how many bytes are queued or being written.
func (c *Conn) Queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queued
}

// reserve counts a frame of n bytes of payload, and writes its header into the
// buffer it returns, which has room for the payload.
func (c *Conn) reserve(kind byte, n int) (*buffer, error) {
	size := headerBytes + n
	switch {
	case c.closing:
		return nil, ErrClosed
	case n > math.MaxInt32 || c.o.MaxSend > 0 && n > c.o.MaxSend:
		return nil, &FrameTooLargeError{Kind: kind, Size: uint32(min(uint64(n), math.MaxUint32)), Limit: min(cmp.Or(c.o.MaxSend, math.MaxInt32), math.MaxInt32)}
	case c.queued > 0 && c.queued+size > c.o.QueueBytes:
		return nil, ErrQueueFull
	}
	c.queued += size
	var b *buffer
	if k := len(c.out); k > 0 {
		b = c.out[k-1]
	}
	if b == nil || cap(b.b)-len(b.b) < size {
		b = getBuffer(size)
		c.out = append(c.out, b)
	}
	b.b = appendHeader(b.b, kind, n)
	return b, nil
}

// signal wakes the writer if it sleeps; mu is held.
func (c *Conn) signal() {
	if c.idle {
		c.idle = false
		c.wake.Signal()
	}
}

// writeLoop writes all that is queued, again and again, until the connection
// ends.
func (c *Conn) writeLoop() {
	defer close(c.done)
	for {
		batch := c.nextBatch()
		if batch == nil {
			return
		}
		err := c.writeAll(batch)
		if err != nil {
			// Before others may write: a frame may have left in part.
			c.fail(fmt.Errorf("write to %s: %w", c.nc.RemoteAddr(), err))
		}
		c.mu.Lock()
		c.stopWriting()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *Conn) writeAll(batch []*buffer) error {
	for len(batch) > 0 {
		k, size := 0, 0
		for k < len(batch) && (k == 0 || size+len(batch[k].b) <= gatherBytes) {
			size += len(batch[k].b)
			k++
		}
		if err := c.write(batch[:k]); err != nil {
			return err
		}
		c.written(batch[:k], size)
		batch = batch[k:]
	}
	if c.o.WriteTimeout > 0 {
		// A deadline that passes while nothing is written would stop Flush.
		return c.nc.SetWriteDeadline(time.Time{})
	}
	return nil
}

// nextBatch waits for frames and takes all of them. nil: the connection ends.
func (c *Conn) nextBatch() []*buffer {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) == 0 || c.writing {
		if c.closing && !c.writing {
			return nil
		}
		c.idle = true
		c.wake.Wait()
	}
	if c.cause != nil {
		return nil
	}
	return c.takeQueued()
}

// takeQueued takes all frames to write them; mu is held, and nobody else
// writes until stopWriting.
func (c *Conn) takeQueued() []*buffer {
	batch := c.out
	c.out, c.spare = c.spare[:0], batch
	c.writing = true
	return batch
}

// stopWriting lets others write; mu is held.
func (c *Conn) stopWriting() {
	c.writing = false
	if c.closing {
		c.wake.Broadcast() // Close waits for it
	}
}

// Flush writes what is queued from here, as far as that goes without waiting;
// the rest is the writer's. It saves the hand-over to another goroutine, most
// of what a small frame costs. Any goroutine may call it; it never blocks.
func (c *Conn) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
}

// flush is Flush; mu is held, but for the time of the write.
func (c *Conn) flush() {
	if len(c.out) == 0 || c.writing {
		return // whoever writes looks again afterwards
	}
	if !c.started || c.closing || !c.now.can() {
		c.signal()
		return
	}
	batch := c.takeQueued()
	c.mu.Unlock()
	whole, part := c.now.write(batch)
	c.mu.Lock()
	rest := batch[whole:]
	for i, b := range batch[:whole] {
		c.queued -= len(b.b)
		putBuffer(b)
		batch[i] = nil
	}
	if len(rest) > 0 {
		// An error shows again in the writer, which ends the connection.
		c.queued -= part
		rest[0].b = rest[0].b[:copy(rest[0].b, rest[0].b[part:])]
		c.out = append(append([]*buffer(nil), rest...), c.out...)
		clear(rest)
	}
	c.stopWriting()
	if len(c.out) > 0 {
		c.signal()
	}
}

func (c *Conn) write(batch []*buffer) error {
	if c.o.WriteTimeout > 0 {
		if err := c.nc.SetWriteDeadline(time.Now().Add(c.o.WriteTimeout)); err != nil {
			return err
		}
	}
	if len(batch) == 1 {
		_, err := c.nc.Write(batch[0].b)
		return err
	}
	c.vec = net.Buffers(c.vecRoom[:0])
	for _, b := range batch {
		c.vec = append(c.vec, b.b)
	}
	_, err := c.vec.WriteTo(c.nc)
	c.vec = nil
	clear(c.vecRoom[:])
	return err
}

// written gives the buffers back and counts their bytes off.
func (c *Conn) written(batch []*buffer, size int) {
	for i, b := range batch {
		putBuffer(b)
		batch[i] = nil
	}
	c.mu.Lock()
	c.queued -= size
	if cap(c.spare) > 64 {
		c.spare = nil // an idle connection holds next to nothing
	}
	c.mu.Unlock()
}

// fail ends the connection for a reason.
func (c *Conn) fail(cause error) {
	c.mu.Lock()
	if c.cause == nil && !c.closing {
		c.cause = cause
	}
	c.closing = true
	c.mu.Unlock()
	_ = c.nc.Close() // the reader sees it
}

// Close ends the connection, drops what is queued and waits for the writer. It
// returns nil; the error is there for io.Closer.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closing = true
	if c.cause == nil && c.queued > 0 {
		c.cause = ErrClosed // the writer drops what is left
	}
	c.idle = false
	c.wake.Broadcast()
	started := c.started
	c.mu.Unlock()
	// Whatever an already broken socket answers, it is closed.
	_ = c.nc.Close()
	if started {
		<-c.done
	}
	c.mu.Lock()
	for c.writing {
		c.wake.Wait() // a Flush under way, which does not block
	}
	c.out, c.spare, c.queued = nil, nil, 0
	c.mu.Unlock()
	return nil
}

// CloseAfterFlush takes no more frames, writes what is queued, and closes; it
// gives up after timeout. Nobody needs to be reading; a Read under way returns
// an error. It blocks for at most timeout.
func (c *Conn) CloseAfterFlush(timeout time.Duration) error {
	end := time.Now().Add(timeout)
	c.mu.Lock()
	c.closing = true
	c.idle = false
	c.wake.Broadcast()
	started := c.started
	c.mu.Unlock()
	if started && timeout > 0 {
		t := time.NewTimer(timeout)
		select {
		case <-c.done:
			c.linger(end)
		case <-t.C:
		}
		t.Stop()
	}
	return c.Close()
}

// linger ends our half of the stream and reads on for a moment, until the
// other side has ended its half.
func (c *Conn) linger(end time.Time) {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	t := time.AfterFunc(min(time.Until(end), lingerTime), func() { _ = c.nc.Close() })
	defer t.Stop()
	b := getBuffer(16 << 10)
	defer putBuffer(b)
	for n := 0; n < lingerBytes; {
		m, err := c.nc.Read(b.b[:cap(b.b)])
		if err != nil {
			return // their end, or ours
		}
		n += m
	}
}
