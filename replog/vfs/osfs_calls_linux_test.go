//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Recorder lists the calls by which a directory is changed, as the kernel gets
// them. Neighbouring calls of one kind for one file count as one.
type Recorder struct {
	dir    string
	Ignore string // calls about this file are left out

	mu    sync.Mutex
	calls []string
}

// RecordCalls puts a recorder between OSFS and the kernel until the test ends.
func RecordCalls(t *testing.T, dir string) *Recorder {
	r := &Recorder{dir: dir}
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

func (r *Recorder) name(path string) string {
	rel, err := filepath.Rel(r.dir, path)
	if err != nil || strings.HasPrefix(rel, "..") {
		return "parent"
	}
	return strings.NewReplacer("00000000000000", "").Replace(rel)
}

func (r *Recorder) file(fd int) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err.Error()
	}
	return r.name(path)
}

func (r *Recorder) add(words ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	call := strings.Join(words, " ")
	if r.Ignore != "" && strings.Contains(call, r.Ignore) {
		return
	}
	if n := len(r.calls); n == 0 || r.calls[n-1] != call {
		r.calls = append(r.calls, call)
	}
}

// Of returns the calls that do makes.
func (r *Recorder) Of(t *testing.T, do func() error) []string {
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

// WithoutDirect has fsys write through the page cache alone, if none is true.
func WithoutDirect(fsys *OSFS, none bool) { fsys.direct.none = none }

// CanBeDirect returns a directory on a file system that direct writes are made
// on, "" if there is none on this machine.
func CanBeDirect(t *testing.T) string {
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
