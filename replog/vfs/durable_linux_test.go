//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package vfs_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// tinyState is the content of a snapshot.
type tinyState struct{}

func (tinyState) WriteSnapshot(w io.Writer) error {
	_, err := io.WriteString(w, "state")
	return err
}

// recorded is a storage on the real file system, with a recorder below it.
type recorded struct {
	t   *testing.T
	r   *vfs.Recorder
	dir string
	o   *storage.Opened
}

// openRecorded opens the storage in dir; direct says whether it may write past
// the page cache.
func (c *recorded) open(direct bool) func() error {
	return func() error {
		fsys, err := vfs.NewOSFS(c.dir)
		if err != nil {
			return err
		}
		vfs.WithoutDirect(fsys, !direct)
		c.o, err = storage.Open(storage.Options{FS: fsys, Cell: "demo", Replica: "n1", SegmentBytes: 64 << 10,
			NewIncarnation: func() uint64 { return 7 },
			Decode:         func(r io.Reader) (any, error) { return io.ReadAll(r) }})
		return err
	}
}

// flush appends a slot with a command of n bytes and makes it durable, in one
// call or in two.
func (c *recorded) flush(slot paxos.Slot, n int, inTwo bool) func() error {
	return func() error {
		st := c.o.Storage
		err := st.Append([]*paxos.Record{{Promised: paxos.Ballot{Round: 1, Replica: 1}, Chosen: slot, Entries: []paxos.Entry{{
			Slot: slot, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, n)}}}}}})
		if err != nil || !inTwo {
			return errors.Join(err, st.Sync())
		}
		if _, err := st.StartSync(); err != nil {
			return err
		}
		return st.FinishSync()
	}
}

func (c *recorded) save(slot paxos.Slot) func() error {
	return func() error { return c.o.Storage.SaveSnapshot(&pb.SnapshotMeta{Slot: uint64(slot)}, tinyState{}) }
}

// Each operation of the storage, with the calls that it makes before it reports
// that something is durable. What stands here is what the durability of the
// product rests on: files are synced before they get their names, names before
// anything counts on them, and a flush ends with its write.
func TestDurableCalls(t *testing.T) {
	parent := vfs.CanBeDirect(t)
	for _, direct := range []bool{true, false} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			if direct && parent == "" {
				t.Skip("no file system on this machine makes direct writes durable")
			}
			if parent == "" {
				parent = t.TempDir()
			}
			dir, err := os.MkdirTemp(parent, "calls")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			c := &recorded{t: t, dir: filepath.Join(dir, "data")}
			c.r = vfs.RecordCalls(t, c.dir)
			c.story(direct)
		})
	}
}

// newFile is how a file comes under its name.
func newFile(name, dir string) []string {
	return []string{"create " + name + ".tmp", "write " + name + ".tmp", "fdatasync " + name + ".tmp",
		"rename " + name + ".tmp " + name, "fsync " + dir}
}

// durably is how bytes come into a file that stands.
func durably(direct bool, name string) []string {
	if direct {
		return []string{"submit " + name + " durable", "written"}
	}
	return []string{"write " + name, "fdatasync " + name}
}

func (c *recorded) want(what string, got []string, want ...[]string) {
	c.t.Helper()
	if all := slices.Concat(want...); !slices.Equal(got, all) {
		c.t.Errorf("%s: the calls were\n\t%s\nand not\n\t%s", what, strings.Join(got, "\n\t"), strings.Join(all, "\n\t"))
	}
}

func (c *recorded) story(direct bool) {
	t, r := c.t, c.r
	one, two := "log/01.seg", "log/02.seg"
	c.want("first start", r.Of(t, c.open(direct)),
		[]string{"mkdir .", "fsync parent", "mkdir log", "mkdir snap", "fsync ."},
		newFile(one, "log"), newFile("identity", "."))
	var turn []string
	if direct {
		turn = durably(direct, one) // shows that direct writes get through
	}
	c.want("first flush", r.Of(t, c.flush(1, 100, false)), turn, durably(direct, one))
	c.want("flush", r.Of(t, c.flush(2, 100, false)), durably(direct, one))
	c.want("flush in two steps", r.Of(t, c.flush(3, 100, true)), durably(direct, one))
	c.want("founded", r.Of(t, func() error { return c.o.Storage.SetFounded(9) }), newFile("identity", "."))
	r.Ignore = "log/03.seg.tmp" // prepared beside all else
	if direct {
		turn = durably(direct, two)
	}
	c.want("flush that begins a segment", r.Of(t, c.flush(4, 80<<10, false)),
		newFile(two, "log"), durably(direct, one), turn, durably(direct, two))
	c.want("snapshot", r.Of(t, c.save(3)), newFile("snap/03.snap", "snap"))
	c.want("second snapshot", r.Of(t, c.save(4)), newFile("snap/04.snap", "snap"))
	c.want("trim", r.Of(t, func() error { return c.o.Storage.Trim(4) }), []string{"remove " + one, "fsync log"})
	if err := c.o.Storage.Close(); err != nil {
		t.Fatal(err)
	}
	r.Ignore = ""
	c.want("start", r.Of(t, c.open(direct)),
		[]string{"mkdir .", "fsync parent", "remove identity.tmp", "fsync .", "fsync snap", "fsync log", "write " + two, "fdatasync " + two})
	c.install(direct, two)
}

// wholeSnapshot returns a snapshot of tinyState, as another replica gives it.
func wholeSnapshot(t *testing.T, meta *pb.SnapshotMeta) *pb.SnapshotChunk {
	o, err := storage.Open(storage.Options{FS: faultfs.New(), Cell: "demo", Replica: "n2", NewIncarnation: func() uint64 { return 8 }})
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Storage.SaveSnapshot(meta, tinyState{}); err != nil {
		t.Fatal(err)
	}
	c, err := o.Storage.ReadSnapshot(0, 0, 1<<20)
	if err := errors.Join(err, o.Storage.Close()); err != nil || !c.Last {
		t.Fatalf("reading the snapshot: %v", err)
	}
	return c
}

// install receives a snapshot and installs it.
func (c *recorded) install(direct bool, two string) {
	t, r := c.t, c.r
	snapshot := wholeSnapshot(t, &pb.SnapshotMeta{Slot: 9, Cell: "demo",
		Config: codec.EncodeConfiguration(&paxos.Configuration{Cell: "demo", CellIdentity: 9,
			Members: []paxos.Member{{ID: 1, Name: "n1", Incarnation: 7, Voter: true}}})})
	var meta *pb.SnapshotMeta
	c.want("received snapshot", r.Of(t, func() (err error) {
		meta, _, err = c.o.Storage.ReceiveSnapshot(snapshot)
		return err
	}), []string{"create snap/incoming.part", "write snap/incoming.part", "fdatasync snap/incoming.part",
		"rename snap/incoming.part snap/09.snap", "fsync snap"})
	three := "log/03.seg"
	noted := durably(direct, two)
	if direct {
		noted = append(noted, noted...)
	}
	c.want("installed snapshot", r.Of(t, func() error {
		return c.o.Storage.InstallSnapshot(meta, paxos.Ballot{Round: 2, Replica: 1}, nil)
	}), newFile(three, "log"), noted, []string{"remove " + two, "fsync log"},
		[]string{"remove snap/03.snap", "remove snap/04.snap", "fsync snap"})
	var turn []string
	if direct {
		turn = durably(direct, three)
	}
	c.want("flush behind it", r.Of(t, c.flush(10, 100, true)), turn, durably(direct, three))
	if err := c.o.Storage.Close(); err != nil {
		t.Fatal(err)
	}
	c.tornStart(direct, three)
}

// tornStart is a start that cuts a torn tail: it is gone, durably, before the
// storage is given out.
func (c *recorded) tornStart(direct bool, name string) {
	t, r := c.t, c.r
	path := filepath.Join(c.dir, "log/0000000000000003.seg")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("torn"), 48<<10); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	got := r.Of(t, c.open(direct))
	at := slices.IndexFunc(got, func(call string) bool { return strings.HasPrefix(call, "create torn/") })
	if at < 0 {
		t.Fatalf("no copy of the torn tail is made: %q", got)
	}
	copied := strings.TrimPrefix(got[at], "create ")
	c.want("start that cuts a torn tail", got,
		[]string{"mkdir .", "fsync parent", "remove identity.tmp", "fsync .", "fsync snap", "fsync log", "mkdir torn"},
		[]string{"create " + copied, "write " + copied, "fdatasync " + copied, "fsync torn", "fsync ."},
		durably(false, name), durably(false, name))
	if err := c.o.Storage.Close(); err != nil {
		t.Fatal(err)
	}
}
