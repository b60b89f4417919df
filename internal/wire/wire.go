// Package wire is the framing under every protocol of lockd: length-prefixed
// frames on a stream, gathered writes, bounded queues, deadlines, size limits.
//
// Each side first sends the four bytes of the preface, then frames: an 8-byte
// header (payload length, big-endian, 4 bytes; kind; format version 1; two
// zero bytes) and the payload. pb/lockd.proto describes the same for those
// who write a client in another language.
//
// A Conn has one writer goroutine, which it owns, and leaves reading to its
// user. What is queued while a write is under way leaves with the next one, in
// one system call.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Preface is what each side sends first.
const Preface = "LKD1"

// The kinds of frame.
const (
	KindClient = 1 // pb.ClientMessage
	KindServer = 2 // pb.ServerMessage
	KindPeer   = 3 // replog's PeerMessage
	// Between replicas, see replog/peer/lane.
	KindPeerPart = 4 // a part of a PeerMessage
	KindPeerAck  = 5 // how much has arrived
)

const (
	headerBytes = 8
	version     = 1
)

// Defaults of Options.
const (
	DefaultMaxFrame       = 2<<20 + 64<<10
	DefaultQueueBytes     = 8 << 20
	DefaultPrefaceTimeout = 5 * time.Second
)

// ErrQueueFull is returned by Queue when the other side reads too slowly for
// what is queued. The frame was not queued; the connection is still good.
var ErrQueueFull = errors.New("output queue is full: the other side reads too slowly")

// ErrClosed is returned by every method of a connection that has ended here.
// Err tells why it ended.
var ErrClosed = errors.New("connection is closed")

// ErrInterrupted is returned by a Read that Interrupt has ended. The connection
// is still good.
var ErrInterrupted = errors.New("read was interrupted")

// PrefaceError says that the other side does not speak this protocol.
type PrefaceError struct {
	Got []byte // what it sent instead, at most four bytes
}

func (e *PrefaceError) Error() string {
	return fmt.Sprintf("the other side does not speak lockd's protocol: it began with %q and not with %q (wrong port?)",
		e.Got, Preface)
}

// FrameTooLargeError says that a frame is over the limit. Nothing of its
// payload was read or allocated, and the stream cannot be read on.
type FrameTooLargeError struct {
	Kind  byte
	Size  uint32 // of the payload, in bytes
	Limit int
}

func (e *FrameTooLargeError) Error() string {
	return fmt.Sprintf("frame of %d bytes is over the limit of %d bytes: send less at a time", e.Size, e.Limit)
}

// HeaderError says that a frame header is not one of this format.
type HeaderError struct {
	Header [headerBytes]byte
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("frame header %x is not one of format version %d: the other side is newer, or the stream is broken",
		e.Header[:], version)
}

// Options of a Conn. Zero values are replaced by defaults.
type Options struct {
	// Accepted is set on the side that accepted the connection: it says nothing
	// before it has seen the other side's preface.
	Accepted bool
	// MaxFrame limits the payload of a frame that is read, in bytes. Default
	// 2 MiB + 64 KiB.
	MaxFrame int
	// MaxSend limits the payload of a frame that is queued, in bytes. 0: none.
	MaxSend int
	// QueueBytes bounds what is queued and not yet written, in bytes, headers
	// included. A frame that is larger than that is still taken when nothing
	// else is queued. Default 8 MiB.
	QueueBytes int
	// WriteTimeout ends the connection when a write (at most about 1 MiB) takes
	// longer. 0: never.
	WriteTimeout time.Duration
	// ReadTimeout ends a Read during which nothing at all arrived for so long, or
	// up to a fifth less. 0: never. SetReadTimeout changes it.
	ReadTimeout time.Duration
	// FrameTimeout ends a Read when a frame that has begun to arrive is not
	// whole after so long, however slowly it comes: what has arrived of it is
	// memory that the other side holds here. 0: never.
	FrameTimeout time.Duration
	// PrefaceTimeout limits the handshake. Default 5 s.
	PrefaceTimeout time.Duration
}

func (o *Options) setDefaults() {
	if o.MaxFrame <= 0 {
		o.MaxFrame = DefaultMaxFrame
	}
	if o.QueueBytes <= 0 {
		o.QueueBytes = DefaultQueueBytes
	}
	if o.PrefaceTimeout <= 0 {
		o.PrefaceTimeout = DefaultPrefaceTimeout
	}
}

// appendHeader appends the header of a frame.
func appendHeader(b []byte, kind byte, size int) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	return append(b, kind, version, 0, 0)
}

// parseHeader reads a header and checks it against the limit.
func parseHeader(h []byte, limit int) (kind byte, size int, err error) {
	n := binary.BigEndian.Uint32(h)
	if h[5] != version || h[6] != 0 || h[7] != 0 {
		return 0, 0, &HeaderError{Header: [headerBytes]byte(h[:headerBytes])}
	}
	if uint64(n) > uint64(limit) {
		return 0, 0, &FrameTooLargeError{Kind: h[4], Size: n, Limit: limit}
	}
	return h[4], int(n), nil
}
