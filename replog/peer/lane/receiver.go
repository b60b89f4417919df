package lane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/seed70370324/lockd/internal/invariant"
)

// A part is number (4 bytes), offset (4), size of the message (4), bytes,
// CRC-32C of all before; an ack is a position (8) and its CRC-32C. All numbers are big-endian.
const (
	partHeader   = 12
	sumBytes     = 4
	partOverhead = partHeader + sumBytes
	ackBytes     = 8 + sumBytes
	// ackEvery is how many bytes of whole messages are acknowledged together.
	ackEvery = 4 << 10
	// keepRoom is the largest room for reassembly that is kept for the next
	// message.
	keepRoom = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errSum  = errors.New("a frame was changed on its way: its checksum is wrong")
	errPart = errors.New("a part of a message does not belong where it stands")
)

func appendSum(b []byte, from int) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[from:], castagnoli))
}

func checkSum(b []byte) ([]byte, error) {
	end := len(b) - sumBytes
	if end < 0 || binary.BigEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli) {
		return nil, errSum
	}
	return b[:end], nil
}

func appendPart(b []byte, number uint32, offset, size int, data []byte) []byte {
	from := len(b)
	b = binary.BigEndian.AppendUint32(b, number)
	b = binary.BigEndian.AppendUint32(b, uint32(offset))
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	b = append(b, data...)
	return appendSum(b, from)
}

// AppendAck appends the payload of an ack.
func AppendAck(b []byte, upTo uint64) []byte {
	from := len(b)
	return appendSum(binary.BigEndian.AppendUint64(b, upTo), from)
}

// ParseAck reads the payload of an ack.
func ParseAck(b []byte) (upTo uint64, err error) {
	if len(b) != ackBytes {
		return 0, fmt.Errorf("an acknowledgement of %d bytes", len(b))
	}
	if b, err = checkSum(b); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

// Receiver puts the messages of one connection together.
type Receiver struct {
	limit    int // largest message
	received uint64
	acked    uint64

	number uint32 // of the message in reassembly, or the last one
	size   int    // 0: none is in reassembly
	buf    []byte
}

// NewReceiver makes a receiver of messages of at most limit bytes.
func NewReceiver(limit int) *Receiver { return &Receiver{limit: limit} }

// Whole counts a frame of n bytes that is a message of its own.
func (r *Receiver) Whole(n int) { r.received += uint64(n) }

// Part takes a part; message is not nil if it was the last of one, and valid
// until the next Part.
// Invariant: a message is given only when every byte of it has come, in order,
// by this connection.
func (r *Receiver) Part(frame []byte) (message []byte, err error) {
	r.received += uint64(len(frame))
	body, err := checkSum(frame)
	if err != nil {
		return nil, err
	}
	if len(body) <= partHeader {
		return nil, fmt.Errorf("%w: it is empty", errPart)
	}
	number, offset, size := binary.BigEndian.Uint32(body), int(binary.BigEndian.Uint32(body[4:])), int(binary.BigEndian.Uint32(body[8:]))
	data := body[partHeader:]
	switch {
	case size > r.limit:
		return nil, fmt.Errorf("a message of %d bytes is over the limit of %d bytes", size, r.limit)
	case offset == 0 && int32(number-r.number) > 0:
		r.number, r.size = number, size // one before that is not whole was given up
		if r.buf = r.buf[:0]; cap(r.buf) > keepRoom {
			r.buf = nil
		}
	case r.size == 0 || number != r.number || size != r.size || offset != len(r.buf):
		if !invariant.Planted(invariant.PartsOutOfPlace) {
			return nil, fmt.Errorf("%w: message %d, byte %d of %d; expected message %d, byte %d of %d",
				errPart, number, offset, size, r.number, len(r.buf), r.size)
		}
	}
	if len(r.buf)+len(data) > size {
		return nil, fmt.Errorf("%w: it goes beyond the end of the message", errPart)
	}
	// Room at most doubles with what has really arrived: a claimed size takes none.
	r.buf = append(r.buf, data...)
	if len(r.buf) < size {
		return nil, nil
	}
	r.size = 0
	return r.buf, nil
}

// Ack returns the position to acknowledge. due: the next message that leaves
// should carry it. After a Part the link sends it at once, due or not.
func (r *Receiver) Ack() (upTo uint64, due bool) { return r.received, r.received-r.acked >= ackEvery }

// Acked notes that upTo has been acknowledged.
func (r *Receiver) Acked(upTo uint64) { r.acked = upTo }
