package fuzzing

import (
	"io"
	"net"
	"time"
)

// Conn is a connection on which In arrives, in pieces of at most Piece bytes,
// and then the end of the stream. What is written to it counts as sent.
type Conn struct {
	In    []byte
	Piece int // 0: no limit
	// Then is what reading ends with, io.EOF if nil.
	Then error
}

// Read gives the next piece.
func (c *Conn) Read(p []byte) (int, error) {
	if len(c.In) == 0 {
		if c.Then != nil {
			return 0, c.Then
		}
		return 0, io.EOF
	}
	if c.Piece > 0 {
		p = p[:min(len(p), c.Piece)]
	}
	n := copy(p, c.In)
	c.In = c.In[n:]
	return n, nil
}

// Write takes everything.
func (c *Conn) Write(p []byte) (int, error) { return len(p), nil }

// Close does nothing.
func (c *Conn) Close() error { return nil }

// LocalAddr is some address.
func (c *Conn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr is some address.
func (c *Conn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline does nothing: nothing here takes time.
func (c *Conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing.
func (c *Conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }
