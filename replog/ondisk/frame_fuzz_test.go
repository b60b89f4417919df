package ondisk

import (
	"bytes"
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
)

// FuzzFrame: what is read as a frame is what was written at that place of that
// file, and nothing else is.
func FuzzFrame(f *testing.F) {
	fuzzing.Seed(f, "good", AppendFrame(nil, 1, 0, FrameRecord, 3, []byte("payload")), uint16(5))
	fuzzing.Seed(f, "none", []byte("LkF1 and then some more bytes that are none"), uint16(0))
	fuzzing.Seed(f, "long", append([]byte("LkF1\x00\x00\x00\x00\xff\xff\xff\x03"), make([]byte, 40)...), uint16(0))
	f.Fuzz(func(t *testing.T, content []byte, bit uint16) {
		read := func(b []byte, seed uint32) (fr Frame, err error) {
			fuzzing.Bounded(t, 4*uint64(len(b))+1<<20, func() {
				w := &Window{F: bytes.NewReader(b), Size: int64(len(b))}
				fr, err = w.Frame(0, seed)
			})
			if err != nil && !IsBadFrame(err) {
				t.Fatal(err)
			}
			return fr, err
		}
		if fr, err := read(content, 1); err == nil {
			if again := AppendFrame(nil, 1, 0, fr.Kind, fr.Sequence, fr.Payload); len(again) != fr.Size {
				t.Fatalf("a frame of %d bytes was read as one of %d", len(again), fr.Size)
			}
		}
		// The input as a payload.
		good := AppendFrame(nil, 1, 0, FrameChunk, uint64(bit), content)
		fr, err := read(good, 1)
		if err != nil || fr.Kind != FrameChunk || fr.Sequence != uint64(bit) || !bytes.Equal(fr.Payload, content) || fr.Size != len(good) {
			t.Fatalf("%+v, %v", fr, err)
		}
		if _, err := read(good, 2); err == nil {
			t.Fatal("a frame of another file is taken")
		}
		at := int(bit) % (8 * len(good))
		good[at/8] ^= 1 << (at % 8)
		if _, err := read(good, 1); err == nil {
			t.Fatalf("bit %d was flipped, and nobody sees it", at)
		}
	})
}
