package snapfile

import (
	"bytes"
	"encoding/binary"
	"io"
	"io/fs"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/replogtest"
	"github.com/seed70370324/lockd/replog/vfs"
)

// text is a state that is written as it is.
type text string

func (s text) WriteSnapshot(w io.Writer) error {
	_, err := io.WriteString(w, string(s))
	return err
}

func snapshotFile(tb testing.TB, s Snapshot) []byte {
	file := &replogtest.File{}
	if _, err := Write(file, &pb.SnapshotMeta{Format: codec.FormatVersion, Slot: 3, Cell: "demo"}, s); err != nil {
		tb.Fatal(err)
	}
	return file.B
}

// sealedSnapshot is a snapshot file of good frames: any stream, any trailer.
func sealedSnapshot(tb testing.TB, stream []byte, raw uint64) []byte {
	file := &replogtest.File{}
	if _, err := file.WriteAt([]byte(snapMagic), 0); err != nil {
		tb.Fatal(err)
	}
	c := &chunkWriter{f: file, off: int64(len(snapMagic))}
	c.trailer.Raw = raw
	if err := c.frame(ondisk.FrameMeta, &pb.SnapshotMeta{Format: codec.FormatVersion, Slot: 3, Cell: "demo"}); err != nil {
		tb.Fatal(err)
	}
	if _, err := c.Write(stream); err != nil {
		tb.Fatal(err)
	}
	if err := c.flush(); err != nil {
		tb.Fatal(err)
	}
	if err := c.frame(ondisk.FrameTrailer, &c.trailer); err != nil {
		tb.Fatal(err)
	}
	return file.B
}

// FuzzSnapshotFile: what verifySnapshot does not find whole is not decoded, and
// a spoiled file is never decoded to something else.
func FuzzSnapshotFile(f *testing.F) {
	good := snapshotFile(f, text("some state"))
	fuzzing.Seed(f, "good", good, uint16(0), uint8(0))
	fuzzing.Seed(f, "spoiled", good, uint16(70), uint8(1))
	fuzzing.Seed(f, "short", good[:20], uint16(0), uint8(0))
	fuzzing.Seed(f, "no-stream", sealedSnapshot(f, []byte("no stream"), 9), uint16(0), uint8(0))
	f.Fuzz(func(t *testing.T, content []byte, at uint16, flip uint8) {
		decode := func(b []byte) (any, error) {
			var state any
			var verifyErr, err error
			fuzzing.Bounded(t, 16*uint64(len(b))+2*snapMaxWindow+8<<20, func() {
				file := &replogtest.File{B: b}
				var raw uint64
				if _, raw, verifyErr = verifySnapshot(file, "x"); verifyErr != nil {
					replogtest.Typed(t, verifyErr)
				}
				state, err = decodeSnapshot(file, "x", raw, func(r io.Reader) (any, error) {
					b, err := io.ReadAll(io.LimitReader(r, 1<<20))
					return string(b), err
				})
			})
			if err == nil && (verifyErr != nil || state == nil) {
				t.Fatalf("decoded, but not verified: %v", verifyErr)
			}
			return state, err
		}
		_, _ = decode(content) // an error is as good as a state
		spoiled := bytes.Clone(good)
		spoiled[int(at)%len(spoiled)] ^= flip
		if state, err := decode(spoiled); (err == nil) != (flip == 0) || err == nil && state != "some state" {
			t.Fatalf("with byte %d changed by %#x: %v, %v", at, flip, state, err)
		}
	})
}

// FuzzSnapshotStream gives the decompressor whatever a file with good checksums
// holds: it costs memory as bounded as that of a good one, and what comes out
// is no more than the file's end says.
func FuzzSnapshotStream(f *testing.F) {
	compress := func(b []byte, options ...zstd.EOption) []byte {
		enc, err := zstd.NewWriter(nil, append(options, zstd.WithEncoderConcurrency(1))...)
		if err != nil {
			f.Fatal(err)
		}
		return enc.EncodeAll(b, nil)
	}
	fuzzing.Seed(f, "good", compress([]byte("some state")), uint64(10))
	fuzzing.Seed(f, "longer-than-said", compress(make([]byte, 8<<20)), uint64(10))
	fuzzing.Seed(f, "shorter-than-said", compress([]byte("some state")), uint64(1<<40))
	fuzzing.Seed(f, "bomb", compress(make([]byte, 64<<20)), uint64(64<<20))
	fuzzing.Seed(f, "window", compress(bytes.Repeat([]byte("abc"), 20<<20), zstd.WithWindowSize(64<<20)), uint64(60<<20))
	fuzzing.Seed(f, "two-frames", append(compress([]byte("some ")), compress([]byte("state"))...), uint64(10))
	fuzzing.Seed(f, "skippable", append([]byte("\x50\x2a\x4d\x18\xff\xff\xff\xff"), compress([]byte("state"))...), uint64(5))
	f.Fuzz(func(t *testing.T, stream []byte, raw uint64) {
		file := &replogtest.File{B: sealedSnapshot(t, stream, raw)}
		_, said, err := verifySnapshot(file, "x")
		if err != nil || said != raw {
			t.Fatalf("%d bytes, %v", said, err)
		}
		var out, most uint64
		fuzzing.Bounded(t, 64*uint64(len(stream))+3*snapMaxWindow+8<<20, func() {
			_, err = decodeSnapshot(file, "x", said, func(r io.Reader) (any, error) {
				var room [64 << 10]byte
				for {
					n, err := r.Read(room[:])
					out += uint64(n)
					if most = max(most, out); out > 256<<20 {
						return nil, io.ErrShortBuffer // long enough for this test
					}
					if err == io.EOF {
						return "", nil
					} else if err != nil {
						return nil, err
					}
				}
			})
		})
		if err == nil && out != raw {
			t.Fatalf("%d bytes came out, the file's end says %d", out, raw)
		}
		if most > raw {
			t.Fatalf("%d bytes were given out of a file that says it holds %d", most, raw)
		}
	})
}

// FuzzSnapshotReceive: pieces in any order, spoiled, of other snapshots, of
// other sizes. A snapshot is taken only if it is the one that was sent.
func FuzzSnapshotReceive(f *testing.F) {
	big := make([]byte, 3000)
	for i := range big {
		big[i] = byte(i * i >> 3)
	}
	good := snapshotFile(f, text(big))
	step := func(what byte, at, n uint16) []byte {
		return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16([]byte{what}, at), n)
	}
	fuzzing.Seed(f, "whole", step(0, 0, uint16(len(good))))
	fuzzing.Seed(f, "pieces", append(step(0, 0, 1000), step(0, 1000, 60000)...))
	fuzzing.Seed(f, "gap", append(step(0, 0, 1000), step(0, 1001, 60000)...))
	fuzzing.Seed(f, "spoiled", append(step(1, 0, 1000), step(0, 1000, 60000)...))
	fuzzing.Seed(f, "another", append(step(2, 0, 1000), step(0, 1000, 60000)...))
	fuzzing.Seed(f, "again", append(step(0, 0, 1000), append(step(0, 500, 1000), step(0, 1500, 60000)...)...))
	f.Fuzz(func(t *testing.T, steps []byte) {
		fsys := &memoryFiles{files: map[string]*replogtest.File{}}
		s := &Store{fs: fsys, stop: &ondisk.FailStop{}, id: replogtest.ID, cellIdentity: func() uint64 { return 0 },
			decode: func(r io.Reader) (any, error) {
				b, err := io.ReadAll(io.LimitReader(r, 1<<20))
				return string(b), err
			}}
		for n := 0; len(steps) >= 5 && n < 64; n++ {
			what, at, size := steps[0], int(binary.BigEndian.Uint16(steps[1:])), int(binary.BigEndian.Uint16(steps[3:]))
			steps = steps[5:]
			at = min(at, len(good))
			c := &pb.SnapshotChunk{Slot: 3, Offset: uint64(at), Size: uint64(len(good)), Data: bytes.Clone(good[at:min(at+size, len(good))])}
			switch what % 8 {
			case 1:
				if len(c.Data) > 0 {
					c.Data[size%len(c.Data)] ^= what | 1
				}
			case 2:
				c.Slot += uint64(what)
			case 3:
				c.Size = uint64(at + size)
			case 4:
				c.Offset = uint64(at) << (what >> 3)
			case 5:
				c.Gone = true
			}
			meta, state, err := s.Receive(c)
			if err == nil && meta == nil {
				continue
			}
			if (err == nil) != (state == string(big)) {
				t.Fatalf("received %v, %.20q, %v", meta, state, err)
			}
			if err == nil {
				if f := fsys.files[Name(paxos.Slot(meta.Slot))]; f == nil || !bytes.Equal(f.B, good) {
					t.Fatal("what was received is not what is kept")
				}
			}
		}
		for name, f := range fsys.files {
			if len(f.B) > 2*65536+len(good) {
				t.Fatalf("%s takes %d bytes", name, len(f.B))
			}
		}
	})
}

// memoryFiles is a file system without directories.
type memoryFiles struct{ files map[string]*replogtest.File }

func (m *memoryFiles) Open(name string) (vfs.File, error) {
	if f := m.files[name]; f != nil {
		return f, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
func (m *memoryFiles) Create(name string) (vfs.File, error) {
	f := &replogtest.File{}
	m.files[name] = f
	return f, nil
}
func (m *memoryFiles) Rename(from, to string) error {
	f := m.files[from]
	if f == nil {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	delete(m.files, from)
	m.files[to] = f
	return nil
}
func (m *memoryFiles) Remove(name string) error {
	if m.files[name] == nil {
		return &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	delete(m.files, name)
	return nil
}
func (m *memoryFiles) List(string) ([]string, error) { return nil, nil }
func (m *memoryFiles) MkdirAll(string) error         { return nil }
func (m *memoryFiles) SyncDir(string) error          { return nil }
