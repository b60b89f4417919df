package storage

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/replogtest"
)

// FuzzIdentity: what is read as an identity is what is written, to the byte.
func FuzzIdentity(f *testing.F) {
	good := encodeIdentity(replogtest.ID)
	fuzzing.Seed(f, "good", good)
	fuzzing.Seed(f, "capitals", bytes.ToUpper(good))
	fuzzing.Seed(f, "short", []byte("lockd-identity 1\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		id, err := decodeIdentity(content)
		if err == nil && !bytes.Equal(encodeIdentity(id), content) {
			t.Fatalf("%q was accepted, but is not what is written", content)
		}
		if _, err := readIdentity(replogtest.OneFile{F: &replogtest.File{B: content}}); err != nil {
			replogtest.Typed(t, err)
		}
		// The input as names.
		cell, replica, _ := bytes.Cut(content, []byte("\n"))
		given := &pb.Identity{Format: codec.FormatVersion, Cell: string(cell), Replica: string(replica), Incarnation: uint64(len(content)), CellIdentity: 7}
		if back, err := decodeIdentity(encodeIdentity(given)); err != nil || !proto.Equal(back, given) {
			t.Fatalf("%v comes back as %v, %v", given, back, err)
		}
	})
}
