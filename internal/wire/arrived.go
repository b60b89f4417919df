package wire

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Arrival is a connection on which something has arrived.
type Arrival struct {
	Key uint64 // given to Poller.Add
	// Ended: the other side has ended its stream, or the connection is broken.
	// What is left to be read comes first; then Read tells how it ended.
	Ended bool
}

// Buffered reports whether a frame, or a part of one, has arrived that Read has
// not returned yet. Who may call Read may call it.
func (c *Conn) Buffered() bool { return c.w > c.r }

// Ended is closed when the connection has ended, from here or by an error of a
// write, at the latest when Close returns. An end of the other side alone is
// seen by reading.
func (c *Conn) Ended() <-chan struct{} { return c.done }

// rest prepares the connection for a Poller: no deadline may be set, since it
// would pass for reads that do not wait.
func (c *Conn) rest() error {
	switch {
	case !c.reader.can():
		return errors.New("watch a connection: it is no socket")
	case c.Buffered() || c.timeout.Load() > 0:
		return errors.New("watch a connection: something is buffered, or it has a read timeout")
	}
	c.shrink()
	if !c.limited {
		return nil
	}
	c.limited = false
	if err := c.nc.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("watch a connection: %w", err)
	}
	return nil
}

// Arrived is called when a Poller tells of the connection, before ReadArrived.
func (c *Conn) Arrived() { c.drained = false }

// ReadArrived is Read without waiting: ok is false when no further whole frame
// has arrived, and everything has been read that had. With a part of a frame
// Buffered is true then; how long the rest may take is for Read to see to.
// It must be called until ok is false, or Read in its place, before the Poller
// tells of the connection again. After an error Read fails too.
func (c *Conn) ReadArrived() (kind byte, payload []byte, ok bool, err error) {
	c.shrink()
	need := headerBytes
	for {
		for c.w-c.r < need {
			if more, err := c.readArrived(need); !more || err != nil {
				return 0, nil, false, err
			}
		}
		kind, size, err := parseHeader(c.rbuf[c.r:], c.o.MaxFrame)
		if err != nil {
			return 0, nil, false, err
		}
		if need = headerBytes + size; c.w-c.r >= need {
			from := c.r + headerBytes
			c.r = from + size
			c.frameEnd = time.Time{}
			return kind, c.rbuf[from:c.r:c.r], true, nil
		}
	}
}

// readArrived reads once, for a frame of n bytes; false: there is nothing more.
func (c *Conn) readArrived(n int) (more bool, err error) {
	if c.drained {
		c.shrink()
		return false, nil
	}
	c.makeRoom(n)
	m, err := c.reader.readNow(c.rbuf[c.w:])
	c.w += m
	c.full = c.w == len(c.rbuf)
	// Less than there was room for: that was all. What comes later is told again.
	// (Not so at a mark of urgent data, which nobody sends here: who does waits for
	// what is behind it until he sends more.)
	c.drained = !c.full
	switch {
	case err == io.EOF:
		return false, c.readError(io.EOF)
	case err != nil:
		return false, c.readError(err)
	case m == 0:
		c.shrink()
		return false, nil
	}
	return true, nil
}
