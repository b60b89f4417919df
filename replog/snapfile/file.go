package snapfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

const (
	damagedSuffix   = ".damaged"
	snapMagic       = "lckdsnap"
	chunkBytes      = 256 << 10
	snapSyncBytes   = 8 << 20 // made durable piece by piece: a large fsync at the end would hold up the log's
	snapWindow      = 1 << 20 // of the compressor
	snapMaxWindow   = 16 << 20
	snapshotMarker  = 0x736e6170 // owner in the seed of a snapshot's frames
	maxSnapshotMeta = 1 << 20
)

// Name returns the name of the file of the snapshot of a slot.
func Name(slot paxos.Slot) string {
	return fmt.Sprintf("%s/%016d%s", ondisk.SnapDir, uint64(slot), ondisk.SnapSuffix)
}

// snapshotSeed does not depend on the replica: the file is handed on as it is.
func snapshotSeed() uint32 { return ondisk.FrameSeed(snapshotMarker, 0) }

// chunkWriter cuts a stream into checksummed chunks.
type chunkWriter struct {
	f       vfs.File
	off     int64 // of the next frame
	synced  int64
	buf     []byte // frame header and the chunk so far
	frames  uint64
	trailer pb.SnapshotTrailer
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if len(c.buf) == 0 {
			c.buf = ondisk.BeginFrame(c.buf)
		}
		take := min(len(p), chunkBytes-(len(c.buf)-ondisk.FrameHeader))
		c.buf = append(c.buf, p[:take]...)
		p = p[take:]
		if len(c.buf)-ondisk.FrameHeader == chunkBytes {
			if err := c.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (c *chunkWriter) flush() error {
	if len(c.buf) == 0 {
		return nil
	}
	c.trailer.Chunks++
	c.trailer.Compressed += uint64(len(c.buf) - ondisk.FrameHeader)
	c.buf = ondisk.EndFrame(c.buf, 0, ondisk.FrameChunk, c.frames)
	return c.writeFrame()
}

// frame writes a frame of its own (meta, trailer).
func (c *chunkWriter) frame(t ondisk.FrameType, m proto.Message) error {
	var err error
	if c.buf, err = (proto.MarshalOptions{}).MarshalAppend(ondisk.BeginFrame(c.buf[:0]), m); err != nil {
		return err
	}
	c.buf = ondisk.EndFrame(c.buf, 0, t, c.frames)
	return c.writeFrame()
}

func (c *chunkWriter) writeFrame() error {
	ondisk.SealFrame(c.buf, snapshotSeed(), c.off)
	if _, err := c.f.WriteAt(c.buf, c.off); err != nil {
		return err
	}
	c.off += int64(len(c.buf))
	c.frames++
	c.buf = c.buf[:0]
	if c.off-c.synced >= snapSyncBytes {
		c.synced = c.off
		return c.f.Sync()
	}
	return nil
}

// counter counts what goes into the compressor.
type counter struct {
	w io.Writer
	n uint64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += uint64(n)
	return n, err
}

// compressor is what it takes to compress a snapshot: a megabyte of tables,
// which is kept for the next one.
type compressor struct {
	enc    *zstd.Encoder
	buffer *bufio.Writer
}

var compressors = sync.Pool{New: func() any {
	// One goroutine only: this must be the same in every run, and the cores
	// have other work.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithWindowSize(snapWindow), zstd.WithLowerEncoderMem(true))
	invariant.Assert(err == nil, "the options of the compressor are constants and do not fit: %v", err)
	return &compressor{enc: enc, buffer: bufio.NewWriterSize(nil, 64<<10)}
}}

// decompressors are kept for the next snapshot, too.
var decompressors = sync.Pool{New: func() any {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(snapMaxWindow))
	invariant.Assert(err == nil, "the options of the decompressor are constants and do not fit: %v", err)
	return dec
}}

// Write writes a whole snapshot file and makes its content durable. It
// gives the file's size.
func Write(f vfs.File, meta *pb.SnapshotMeta, s Snapshot) (int64, error) {
	if _, err := f.WriteAt([]byte(snapMagic), 0); err != nil {
		return 0, err
	}
	c := &chunkWriter{f: f, off: int64(len(snapMagic))}
	if err := c.frame(ondisk.FrameMeta, meta); err != nil {
		return 0, err
	}
	z := compressors.Get().(*compressor)
	defer func() {
		z.enc.Reset(nil) // it must not keep the file
		compressors.Put(z)
	}()
	z.enc.Reset(c)
	in := &counter{w: z.enc}
	z.buffer.Reset(in)
	err := s.WriteSnapshot(z.buffer)
	if err == nil {
		err = z.buffer.Flush()
	}
	if err = errors.Join(err, z.enc.Close()); err != nil {
		return 0, err
	}
	if err := c.flush(); err != nil {
		return 0, err
	}
	c.trailer.Raw = in.n
	if err := c.frame(ondisk.FrameTrailer, &c.trailer); err != nil {
		return 0, err
	}
	return c.off, f.Sync()
}

// snapReader reads the frames of a snapshot file in order.
type snapReader struct {
	name    string
	w       ondisk.Window
	off     int64
	frames  uint64
	rest    []byte // of the current chunk
	seen    pb.SnapshotTrailer
	trailer *pb.SnapshotTrailer // once the end is reached
}

func (r *snapReader) damaged(format string, args ...any) error {
	return &ondisk.DamagedError{File: r.name, Offset: r.off, What: fmt.Sprintf(format, args...)}
}

func (r *snapReader) next() (ondisk.Frame, error) {
	fr, err := r.w.Frame(r.off, snapshotSeed())
	if ondisk.IsBadFrame(err) {
		return ondisk.Frame{}, r.damaged("a piece of the snapshot is bad: %v", err)
	} else if err != nil {
		return ondisk.Frame{}, fmt.Errorf("reading %s: %w", r.name, err)
	}
	if fr.Sequence != r.frames {
		return ondisk.Frame{}, r.damaged("piece %d of the snapshot stands where piece %d belongs", fr.Sequence, r.frames)
	}
	r.frames++
	r.off += int64(fr.Size)
	return fr, nil
}

// openSnapshot reads the head of a snapshot file.
func openSnapshot(f vfs.File, name string) (*snapReader, *pb.SnapshotMeta, error) {
	size, err := f.Size()
	if err != nil {
		return nil, nil, fmt.Errorf("size of %s: %w", name, err)
	}
	r := &snapReader{name: name, w: ondisk.Window{F: f, Size: size}}
	magic, err := r.w.At(0, len(snapMagic))
	if err != nil {
		return nil, nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if string(magic) != snapMagic {
		return nil, nil, r.damaged("no snapshot begins here")
	}
	r.off = int64(len(snapMagic))
	fr, err := r.next()
	if err != nil {
		return nil, nil, err
	}
	meta := &pb.SnapshotMeta{}
	if fr.Kind != ondisk.FrameMeta || proto.Unmarshal(fr.Payload, meta) != nil || meta.Slot == 0 {
		return nil, nil, r.damaged("the snapshot's head cannot be decoded")
	}
	if err := ondisk.CheckFormat(name, meta.Format); err != nil {
		return nil, nil, err
	}
	return r, meta, nil
}

// chunk gives the next piece of the compressed stream, io.EOF at the end.
func (r *snapReader) chunk() ([]byte, error) {
	if r.trailer != nil {
		return nil, io.EOF
	}
	fr, err := r.next()
	if err != nil {
		return nil, err
	}
	switch fr.Kind {
	case ondisk.FrameChunk:
		r.seen.Chunks++
		r.seen.Compressed += uint64(len(fr.Payload))
		return fr.Payload, nil
	case ondisk.FrameTrailer:
		t := &pb.SnapshotTrailer{}
		if err := proto.Unmarshal(fr.Payload, t); err != nil {
			return nil, r.damaged("the snapshot's end cannot be decoded")
		}
		if t.Chunks != r.seen.Chunks || t.Compressed != r.seen.Compressed {
			return nil, r.damaged("the snapshot has %d pieces of %d bytes, its end says %d of %d",
				r.seen.Chunks, r.seen.Compressed, t.Chunks, t.Compressed)
		}
		if r.off != r.w.Size {
			return nil, r.damaged("%d bytes follow the snapshot's end", r.w.Size-r.off)
		}
		r.trailer = t
		return nil, io.EOF
	}
	return nil, r.damaged("a piece of kind %d in a snapshot", fr.Kind)
}

// Read gives the compressed stream.
func (r *snapReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.chunk(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// verifySnapshot reads a whole snapshot file and checks every checksum in it.
// raw is how many bytes the file says its content has.
func verifySnapshot(f vfs.File, name string) (meta *pb.SnapshotMeta, raw uint64, err error) {
	r, meta, err := openSnapshot(f, name)
	if err != nil {
		return nil, 0, err
	}
	for {
		if _, err := r.chunk(); errors.Is(err, io.EOF) {
			return meta, r.trailer.Raw, nil
		} else if err != nil {
			return nil, 0, err
		}
	}
}

// decodeSnapshot decodes a snapshot file that verifySnapshot found good, whose
// content has raw bytes. An error then means that the content is not
// understood.
func decodeSnapshot(f vfs.File, name string, raw uint64, decode Decode) (any, error) {
	if decode == nil {
		return nil, fmt.Errorf("there is a snapshot %s, but nothing to decode it with", name)
	}
	r, _, err := openSnapshot(f, name)
	if err != nil {
		return nil, err
	}
	dec := decompressors.Get().(*zstd.Decoder)
	defer func() {
		if dec.Reset(nil) == nil { // it must not keep the file
			decompressors.Put(dec)
		}
	}()
	if err := dec.Reset(r); err != nil {
		return nil, fmt.Errorf("decompressing %s: %w", name, err)
	}
	out := &exactReader{r: dec, size: raw}
	state, err := decode(out)
	if err != nil {
		return nil, fmt.Errorf("the snapshot %s is intact, but cannot be decoded (was it written by a newer version?): %w", name, err)
	}
	if extra, err := io.Copy(io.Discard, out); err != nil {
		return nil, fmt.Errorf("decompressing %s: %w", name, err)
	} else if extra > 0 {
		return nil, fmt.Errorf("the snapshot %s is intact, but %d bytes of it were not understood (was it written by a newer version?)", name, extra)
	}
	if out.n != raw {
		return nil, fmt.Errorf("the snapshot %s is intact, but decompresses to %d bytes, and its end says %d", name, out.n, raw)
	}
	return state, nil
}

// exactReader gives no more than size bytes: a few bytes of a compressed stream
// can stand for any number, and what is decoded of them is memory.
type exactReader struct {
	r       io.Reader
	n, size uint64
}

func (e *exactReader) Read(p []byte) (int, error) {
	if left := e.size - e.n; uint64(len(p)) > left {
		// One more, to see whether there is one.
		p = p[:left+1]
	}
	n, err := e.r.Read(p)
	if uint64(n) > e.size-e.n {
		return 0, fmt.Errorf("it decompresses to more than the %d bytes that its end says", e.size)
	}
	e.n += uint64(n)
	return n, err
}
