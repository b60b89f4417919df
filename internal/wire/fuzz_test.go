package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
)

// FuzzRead: what is read is what stands in the stream, however it is cut; a
// header alone costs no memory, and an error says what is wrong.
func FuzzRead(f *testing.F) {
	fuzzing.Seed(f, "preface", []byte(Preface), uint8(1))
	fuzzing.Seed(f, "frame", append(appendHeader([]byte(Preface), KindPeer, 3), "abc"...), uint8(2))
	fuzzing.Seed(f, "cut-short", append(appendHeader([]byte(Preface), KindPeer, 3000), "and so on"...), uint8(200))
	fuzzing.Seed(f, "too-large", appendHeader([]byte(Preface), KindPeer, 1<<30), uint8(9))
	fuzzing.Seed(f, "largest", appendHeader([]byte(Preface), KindPeer, 64<<10), uint8(9))
	fuzzing.Seed(f, "two", append(append(appendHeader([]byte(Preface), KindClient, 1), 'x'), appendHeader(nil, KindServer, 0)...), uint8(0))
	fuzzing.Seed(f, "http", []byte("GET / HTTP/1.1\r\n\r\n"), uint8(3))
	fuzzing.Seed(f, "newer", []byte(Preface+"\x00\x00\x00\x01\x01\x02\x00\x00x"), uint8(3))
	f.Fuzz(func(t *testing.T, in []byte, piece uint8) {
		fuzzing.Bounded(t, 16*uint64(len(in))+1<<20, func() { readAll(t, in, int(piece)+1) })
	})
}

func readAll(t *testing.T, in []byte, piece int) {
	const limit = 64 << 10
	c := NewConn(&fuzzing.Conn{In: in, Piece: piece}, Options{Accepted: true, MaxFrame: limit})
	defer c.Close()
	if err := c.Handshake(context.Background()); err != nil {
		var preface *PrefaceError
		if !errors.As(err, &preface) && !bytes.HasPrefix([]byte(Preface), in) {
			t.Fatalf("%q is refused with %v", in, err)
		}
		return
	}
	rest := in[len(Preface):]
	for {
		kind, p, err := c.Read()
		if err != nil {
			var large *FrameTooLargeError
			var header *HeaderError
			switch {
			case err == io.EOF:
				if len(rest) != 0 {
					t.Fatalf("a clean end with %d bytes left over", len(rest))
				}
			case errors.Is(err, io.ErrUnexpectedEOF):
				if len(rest) == 0 {
					t.Fatal("it ends where a frame ends, and that is called unexpected")
				}
			case errors.As(err, &large):
				if n := binary.BigEndian.Uint32(rest); n <= limit || n != large.Size {
					t.Fatalf("%x: %v", rest[:headerBytes], err)
				}
			case errors.As(err, &header):
				if rest[5] == version && rest[6] == 0 && rest[7] == 0 {
					t.Fatalf("%x: %v", rest[:headerBytes], err)
				}
			default:
				t.Fatalf("an error of no known kind: %v", err)
			}
			return
		}
		// What was read is what stands there, by a reading of its own.
		n := int(binary.BigEndian.Uint32(rest))
		if n > limit || rest[5] != version || kind != rest[4] || !bytes.Equal(p, rest[headerBytes:headerBytes+n]) {
			t.Fatalf("frame %d %x from %x", kind, p, rest)
		}
		rest = rest[headerBytes+n:]
	}
}
