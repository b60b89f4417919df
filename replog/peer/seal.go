package peer

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/seed70370324/lockd/replog/pb"
)

// Every message between replicas ends with the CRC-32C of its bytes, big-endian,
// and counts only if that is right. TCP's own sum has 16 bits, and covers no
// memory of a machine on the way; one bit of an accept or of a chosen slot that
// changes there would make replicas differ for good.

// sealBytes is the length of the seal behind a message.
const sealBytes = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errSeal = errors.New("a message was changed on its way: its checksum is wrong")

// sealed is a message with its seal, as the wire package encodes it.
type sealed struct{ *pb.PeerMessage }

func (s sealed) SizeVT() int { return s.PeerMessage.SizeVT() + sealBytes }

// MarshalToSizedBufferVT fills b, which must have the size of SizeVT.
func (s sealed) MarshalToSizedBufferVT(b []byte) (int, error) {
	end := len(b) - sealBytes
	n, err := s.PeerMessage.MarshalToSizedBufferVT(b[:end])
	if err != nil {
		return 0, err
	}
	binary.BigEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
	return n + sealBytes, nil
}

// unseal checks the seal and takes it off.
func unseal(b []byte) ([]byte, error) {
	end := len(b) - sealBytes
	if end < 0 || binary.BigEndian.Uint32(b[end:]) != crc32.Checksum(b[:end], castagnoli) {
		return nil, errSeal
	}
	return b[:end], nil
}
