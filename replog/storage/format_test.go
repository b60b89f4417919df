package storage

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/replogtest"
	"github.com/seed70370324/lockd/replog/snapfile"
	"github.com/seed70370324/lockd/replog/vfs"
	"github.com/seed70370324/lockd/replog/wal"
)

// Data of another format is refused by the name of the file, with what to do,
// and nothing in it is touched.
func TestOtherFormatsAreRefused(t *testing.T) {
	small := func(content []byte) func(uint32) ([]byte, error) {
		return func(uint32) ([]byte, error) { return content, nil }
	}
	segment, size := "log/0000000000000001.seg", wal.SegmentSize(0)
	header := func(format uint32) ([]byte, error) {
		payload, err := proto.Marshal(&pb.SegmentHeader{Format: format, Segment: 1, Size: size, Cell: "demo", Replica: "n1", Incarnation: 42})
		b := ondisk.AppendFrame(nil, ondisk.FrameSeed(0, 1), 0, ondisk.FrameSegment, 0, payload)
		return append(b, make([]byte, max(0, int(size)-len(b)))...), err
	}
	good, err := header(codec.FormatVersion)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]func(format uint32) ([]byte, error){
		ondisk.IdentityName: func(format uint32) ([]byte, error) {
			id := proto.CloneOf(replogtest.ID)
			id.Format = format
			return encodeIdentity(id), nil
		},
		segment: header,
		snapfile.Name(5): func(format uint32) ([]byte, error) {
			f := &replogtest.File{}
			_, err := snapfile.Write(f, &pb.SnapshotMeta{Format: format, Slot: 5, Cell: "demo"}, textState("state"))
			return f.B, err
		},
	} {
		for _, format := range []uint32{0, 1, 2, codec.FormatVersion + 1} {
			dir := t.TempDir()
			files := map[string]func(uint32) ([]byte, error){ondisk.IdentityName: small(encodeIdentity(replogtest.ID)), segment: small(good)}
			files[name] = content
			for file, content := range files {
				b, err := content(format)
				if err == nil {
					err = os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700)
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, file), b, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			before, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			fsys, err := vfs.NewOSFS(dir)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(Options{FS: fsys, Cell: "demo", Replica: "n1", NewIncarnation: func() uint64 { return 1 }})
			wanted := []string{name, fmt.Sprintf("has format %d,", format), "start the version that wrote it"}
			if format < codec.FormatVersion {
				wanted = append(wanted, "earlier", "found a new cell")
			}
			for _, want := range wanted {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s of format %d: %v, and %q is wanted", name, format, err, want)
				}
			}
			if after, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(before, after) {
				t.Errorf("%s of format %d was changed: %v", name, format, err)
			}
		}
	}
}

// textState is a state that is its own snapshot.
type textState string

func (s textState) WriteSnapshot(w io.Writer) error {
	_, err := io.WriteString(w, string(s))
	return err
}
