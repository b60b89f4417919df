//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package replog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
)

// recorder lists the calls by which a directory is changed, as the kernel gets
// them. Neighbouring calls of one kind for one file count as one.
type recorder struct {
	dir    string
	ignore string // calls about this file are left out

	mu    sync.Mutex
	calls []string
}

// recordCalls puts a recorder between OSFS and the kernel until the test ends.
func recordCalls(t *testing.T, dir string) *recorder {
	r := &recorder{dir: dir}
	open, rename, remove, mkdir, write, truncate, syncDir, fdatasync :=
		callOpen, callRename, callRemove, callMkdirAll, callWriteAt, callTruncate, callSyncDir, callFdatasync
	submit, getEvents := callSubmit, callGetEvents
	t.Cleanup(func() {
		callOpen, callRename, callRemove, callMkdirAll, callWriteAt, callTruncate, callSyncDir, callFdatasync =
			open, rename, remove, mkdir, write, truncate, syncDir, fdatasync
		callSubmit, callGetEvents = submit, getEvents
	})

	callOpen = func(path string, flags int, mode os.FileMode) (*os.File, error) {
		f, err := open(path, flags, mode)
		if err == nil && flags&os.O_CREATE != 0 {
			r.add("create", r.file(int(f.Fd())))
		}
		return f, err
	}
	callRename = func(from, to string) error {
		r.add("rename", r.name(from), r.name(to))
		return rename(from, to)
	}
	callRemove = func(path string) error {
		r.add("remove", r.name(path))
		return remove(path)
	}
	callMkdirAll = func(path string, mode os.FileMode) error {
		r.add("mkdir", r.name(path))
		return mkdir(path, mode)
	}
	callWriteAt = func(f *os.File, p []byte, off int64) (int, error) {
		r.add("write", r.file(int(f.Fd())))
		return write(f, p, off)
	}
	callTruncate = func(f *os.File, size int64) error {
		r.add("truncate", r.file(int(f.Fd())))
		return truncate(f, size)
	}
	callSyncDir = func(f *os.File) error {
		r.add("fsync", r.file(int(f.Fd())))
		return syncDir(f)
	}
	callFdatasync = func(fd int) error {
		r.add("fdatasync", r.file(fd))
		return fdatasync(fd)
	}
	callSubmit = func(ring uintptr, list *[1]*iocb) (uintptr, syscall.Errno) {
		b := list[0]
		how := "not durable"
		if b.rwFlags == unix.RWF_DSYNC && b.opcode == iocbCmdPwrite {
			how = "durable"
		}
		flags, err := unix.FcntlInt(uintptr(b.fildes), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_DIRECT == 0 {
			how += ", through the page cache"
		}
		r.add("submit", r.file(int(b.fildes)), how)
		return submit(ring, list)
	}
	callGetEvents = func(ring, least uintptr, event *ioEvent, within *unix.Timespec) (uintptr, syscall.Errno) {
		n, errno := getEvents(ring, least, event, within)
		if n > 0 {
			r.add("written")
		}
		return n, errno
	}
	return r
}

func (r *recorder) name(path string) string {
	rel, err := filepath.Rel(r.dir, path)
	if err != nil || strings.HasPrefix(rel, "..") {
		return "parent"
	}
	return strings.NewReplacer("00000000000000", "").Replace(rel)
}

func (r *recorder) file(fd int) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err.Error()
	}
	return r.name(path)
}

func (r *recorder) add(words ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := strings.Join(words, " ")
	if r.ignore != "" && strings.Contains(call, r.ignore) {
		return
	}
	if n := len(r.calls); n == 0 || r.calls[n-1] != call {
		r.calls = append(r.calls, call)
	}
}

// of returns the calls that do makes.
func (r *recorder) of(t *testing.T, do func() error) []string {
	t.Helper()
	r.mu.Lock()
	r.calls = nil
	r.mu.Unlock()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// tinyState is the content of a snapshot.
type tinyState struct{}

func (tinyState) WriteSnapshot(w io.Writer) error {
	_, err := io.WriteString(w, "state")
	return err
}

// recorded is a storage on the real file system, with a recorder below it.
type recorded struct {
	t   *testing.T
	r   *recorder
	dir string
	o   *Opened
}

// openRecorded opens the storage in dir; direct says whether it may write past
// the page cache.
func (c *recorded) open(direct bool) func() error {
	return func() error {
		fsys, err := NewOSFS(c.dir)
		if err != nil {
			return err
		}
		fsys.direct.none = !direct
		c.o, err = Open(StorageOptions{FS: fsys, Cell: "demo", Replica: "n1", SegmentBytes: 64 << 10,
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

// canBeDirect returns a directory on a file system that direct writes are made
// on, "" if there is none on this machine.
func canBeDirect(t *testing.T) string {
	for _, dir := range directDirs(t) {
		d, err := openDirect(preallocated(t, dir, 4*directAlign))
		if err != nil {
			continue
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	return ""
}

// Each operation of the storage, with the calls that it makes before it reports
// that something is durable. What stands here is what the durability of the
// product rests on: files are synced before they get their names, names before
// anything counts on them, and a flush ends with its write.
func TestDurableCalls(t *testing.T) {
	parent := canBeDirect(t)
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
			c.r = recordCalls(t, c.dir)
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
	c.want("first start", r.of(t, c.open(direct)),
		[]string{"mkdir .", "fsync parent", "mkdir log", "mkdir snap", "fsync ."},
		newFile(one, "log"), newFile("identity", "."))
	var turn []string
	if direct {
		turn = durably(direct, one) // shows that direct writes get through
	}
	c.want("first flush", r.of(t, c.flush(1, 100, false)), turn, durably(direct, one))
	c.want("flush", r.of(t, c.flush(2, 100, false)), durably(direct, one))
	c.want("flush in two steps", r.of(t, c.flush(3, 100, true)), durably(direct, one))
	c.want("founded", r.of(t, func() error { return c.o.Storage.SetFounded(9) }), newFile("identity", "."))
	r.ignore = "log/03.seg.tmp" // prepared beside all else
	if direct {
		turn = durably(direct, two)
	}
	c.want("flush that begins a segment", r.of(t, c.flush(4, 80<<10, false)),
		newFile(two, "log"), durably(direct, one), turn, durably(direct, two))
	c.want("snapshot", r.of(t, c.save(3)), newFile("snap/03.snap", "snap"))
	c.want("second snapshot", r.of(t, c.save(4)), newFile("snap/04.snap", "snap"))
	c.want("trim", r.of(t, func() error { return c.o.Storage.Trim(4) }), []string{"remove " + one, "fsync log"})
	if err := c.o.Storage.Close(); err != nil {
		t.Fatal(err)
	}
	r.ignore = ""
	c.want("start", r.of(t, c.open(direct)),
		[]string{"mkdir .", "fsync parent", "remove identity.tmp", "fsync .", "fsync snap", "fsync log", "write " + two, "fdatasync " + two})
	c.install(direct, two)
}

// install receives a snapshot and installs it.
func (c *recorded) install(direct bool, two string) {
	t, r := c.t, c.r
	f := &bytesFile{}
	size, err := writeSnapshot(f, &pb.SnapshotMeta{Format: formatVersion, Slot: 9, Cell: "demo",
		Config: EncodeConfiguration(&paxos.Configuration{Cell: "demo", CellIdentity: 9,
			Members: []paxos.Member{{ID: 1, Name: "n1", Incarnation: 7, Voter: true}}})}, tinyState{})
	if err != nil {
		t.Fatal(err)
	}
	var meta *pb.SnapshotMeta
	c.want("received snapshot", r.of(t, func() (err error) {
		meta, _, err = c.o.Storage.ReceiveSnapshot(&pb.SnapshotChunk{Slot: 9, Size: uint64(size), Data: f.b, Last: true})
		return err
	}), []string{"create snap/incoming.part", "write snap/incoming.part", "fdatasync snap/incoming.part",
		"rename snap/incoming.part snap/09.snap", "fsync snap"})
	three := "log/03.seg"
	noted := durably(direct, two)
	if direct {
		noted = append(noted, noted...)
	}
	c.want("installed snapshot", r.of(t, func() error {
		return c.o.Storage.InstallSnapshot(meta, paxos.Ballot{Round: 2, Replica: 1}, nil)
	}), newFile(three, "log"), noted, []string{"remove " + two, "fsync log"},
		[]string{"remove snap/03.snap", "remove snap/04.snap", "fsync snap"})
	var turn []string
	if direct {
		turn = durably(direct, three)
	}
	c.want("flush behind it", r.of(t, c.flush(10, 100, true)), turn, durably(direct, three))
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
	got := r.of(t, c.open(direct))
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

// The calls that the recorder takes the place of are those of the kernel: each
// gives the kernel's error for what cannot be done.
func TestCallsAreTheKernels(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := callOpen(file, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, written := callWriteAt(f, []byte("x"), 0)
	truncated := callTruncate(f, 5)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	_, opened := callOpen(missing, os.O_RDWR, 0)
	errno := func(_ uintptr, e syscall.Errno) error { return e }
	var event ioEvent
	for what, got := range map[string]struct{ err, want error }{
		"open":         {opened, fs.ErrNotExist},
		"rename":       {callRename(missing, file), fs.ErrNotExist},
		"remove":       {callRemove(missing), fs.ErrNotExist},
		"mkdir":        {callMkdirAll(filepath.Join(file, "below"), 0o700), unix.ENOTDIR},
		"write":        {written, unix.EBADF},
		"truncate":     {truncated, unix.EINVAL},
		"fsync":        {callSyncDir(f), fs.ErrClosed},
		"fdatasync":    {callFdatasync(-1), unix.EBADF},
		"io_submit":    {errno(callSubmit(0, &[1]*iocb{{}})), unix.EINVAL},
		"io_getevents": {errno(callGetEvents(0, 0, &event, &unix.Timespec{})), unix.EINVAL},
	} {
		if !errors.Is(got.err, got.want) {
			t.Errorf("%s: %v, want %v", what, got.err, got.want)
		}
	}
}

// The names of all directories that are made for the data are durable, and not
// that of the last alone: a power cut would take all below with it.
func TestDirectoriesAboveTheDataAreDurable(t *testing.T) {
	top := t.TempDir()
	var synced []string
	old := callSyncDir
	defer func() { callSyncDir = old }()
	callSyncDir = func(d *os.File) error {
		synced = append(synced, d.Name())
		return old(d)
	}
	data := filepath.Join(top, "a", "b", "data")
	for _, want := range [][]string{{top, filepath.Join(top, "a"), filepath.Join(top, "a", "b")}, {filepath.Join(top, "a", "b")}} {
		synced = nil
		if _, err := NewOSFS(data); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(synced, want) {
			t.Errorf("synced were %v, want %v", synced, want)
		}
	}
}
