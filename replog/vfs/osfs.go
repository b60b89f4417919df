package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// OSFS is the real file system, rooted in a directory.
type OSFS struct {
	dir    string
	direct directWriter
}

var (
	_ FS         = (*OSFS)(nil)
	_ Locker     = (*OSFS)(nil)
	_ Background = (*OSFS)(nil)
	_ AsyncFile  = (*osFile)(nil)
	_ Gradual    = (*osFile)(nil)
)

// NewOSFS makes the directory if it is not there (readable by the owner only).
func NewOSFS(dir string) (*OSFS, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	parents := parentsToSync(abs)
	if err := callMkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("making the data directory %s: %w", abs, err)
	}
	// The directory's own name must be durable before anything in it counts, and so
	// must those of the directories that are made for it.
	for _, dir := range parents {
		if err := syncPath(dir); err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("making the data directory %s durable: %w", abs, err)
		}
	}
	return &OSFS{dir: abs}, nil
}

// parentsToSync gives the directory that dir is in, and as long as that is not
// there yet the one that it is in, highest first.
func parentsToSync(dir string) []string {
	parent := filepath.Dir(dir)
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) && parent != dir {
		return append(parentsToSync(parent), parent)
	}
	return []string{parent}
}

// String is the directory.
func (o *OSFS) String() string { return o.dir }

func (o *OSFS) path(name string) (string, error) {
	local := filepath.FromSlash(name)
	if name != "" && !filepath.IsLocal(local) {
		return "", fmt.Errorf("the name %q leaves the data directory", name)
	}
	return filepath.Join(o.dir, local), nil
}

// Create implements FS.
func (o *OSFS) Create(name string) (File, error) {
	return o.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// Open implements FS.
func (o *OSFS) Open(name string) (File, error) { return o.open(name, os.O_RDWR) }

func (o *OSFS) open(name string, flags int) (File, error) {
	path, err := o.path(name)
	if err != nil {
		return nil, err
	}
	f, err := callOpen(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f, fs: o}, nil
}

// Rename implements FS.
func (o *OSFS) Rename(from, to string) error {
	a, err := o.path(from)
	if err != nil {
		return err
	}
	b, err := o.path(to)
	if err != nil {
		return err
	}
	return callRename(a, b)
}

// Remove implements FS.
func (o *OSFS) Remove(name string) error {
	path, err := o.path(name)
	if err != nil {
		return err
	}
	return callRemove(path)
}

// List implements FS.
func (o *OSFS) List(dir string) ([]string, error) {
	path, err := o.path(dir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// MkdirAll implements FS.
func (o *OSFS) MkdirAll(dir string) error {
	path, err := o.path(dir)
	if err != nil {
		return err
	}
	return callMkdirAll(path, 0o700)
}

// SyncDir implements FS.
func (o *OSFS) SyncDir(dir string) error {
	path, err := o.path(dir)
	if err != nil {
		return err
	}
	return syncPath(path)
}

func syncPath(path string) (err error) {
	if invariant.Planted(invariant.DirectoriesNotSynced) {
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return callSyncDir(d)
}

// Background implements Background. The log waits for what it has begun.
func (o *OSFS) Background(work func()) { go work() }

// Lock implements Locker: the lock is on the file LOCK, goes with the process
// however it ends, and the file tells its pid.
func (o *OSFS) Lock() (release func() error, err error) {
	path := filepath.Join(o.dir, LockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the data directory: %w", err)
	}
	held, err := lockFile(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	if held {
		return nil, errors.Join(&InUseError{Dir: o.dir, PID: readPID(f)}, f.Close())
	}
	// Only a help for who finds the directory in use: no reason not to start.
	// A LOCK of another program's stays as it is.
	if info, err := f.Stat(); err == nil && (info.Size() == 0 || readPID(f) != 0) && f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return func() error { return errors.Join(o.direct.close(), f.Close()) }, nil
}

func readPID(f *os.File) int {
	var b [32]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

const (
	// zerosBeside is how many bytes of zeros are written between two syncs, and
	// two rests, while flushes go on beside: each waits for so much at most.
	// zerosAlone is that where none do.
	zerosBeside = 256 << 10
	zerosAlone  = 8 << 20
	// restTimes is how long a rest is, in times of what the zeros before it took,
	// and restMost in all.
	restTimes = 2
	restMost  = 50 * time.Millisecond
)

// osFile is an open file.
type osFile struct {
	f  *os.File
	fs *OSFS
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error)  { return f.f.ReadAt(p, off) }
func (f *osFile) WriteAt(p []byte, off int64) (int, error) { return callWriteAt(f.f, p, off) }
func (f *osFile) Truncate(size int64) error                { return callTruncate(f.f, size) }
func (f *osFile) Close() error                             { return f.f.Close() }
func (f *osFile) Sync() error                              { return syncData(f.f) }

func (f *osFile) WriteSync(p []byte, off int64) error {
	if begun, err := f.fs.direct.start(f, p, off, true); err != nil {
		return err
	} else if begun {
		return f.FinishWriteSync()
	}
	if _, err := callWriteAt(f.f, p, off); err != nil {
		return err
	}
	return f.Sync()
}

// StartWriteSync implements AsyncFile.
func (f *osFile) StartWriteSync(p []byte, off int64) (begun bool, err error) {
	return f.fs.direct.start(f, p, off, false)
}

// FinishWriteSync implements AsyncFile.
func (f *osFile) FinishWriteSync() error { return f.fs.direct.finish() }

// AwaitWriteSync implements AsyncFile.
func (f *osFile) AwaitWriteSync() bool { return f.fs.direct.await() }

// WakeWriteSync implements AsyncFile.
func (f *osFile) WakeWriteSync() { f.fs.direct.wake() }

func (f *osFile) Size() (int64, error) {
	info, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Preallocate writes real zeros: then a later flush changes no metadata, and
// costs one write to the device instead of two.
func (f *osFile) Preallocate(size int64) error {
	return f.zero(size, zerosAlone, func(time.Duration) error { return nil })
}

// PreallocateGradually implements gradual.
func (f *osFile) PreallocateGradually(size int64, hurry, unwanted <-chan struct{}) error {
	return f.zero(size, zerosBeside, func(took time.Duration) error {
		rest(min(restTimes*took, restMost), hurry, unwanted)
		select {
		case <-unwanted:
			return ErrUnwanted
		default:
			return nil
		}
	})
}

// zero makes the file size bytes long with zeros, syncs it whenever so many more
// are written, and then calls between with the time that took.
func (f *osFile) zero(size, atOnce int64, between func(took time.Duration) error) error {
	have, err := f.Size()
	if err != nil {
		return err
	}
	if have >= size {
		return nil
	}
	if err := reserve(f.f, have, size-have); err != nil {
		return err
	}
	zeros := make([]byte, min(size-have, zerosBeside))
	start := time.Now()
	for have < size {
		n := min(int64(len(zeros)), size-have)
		if _, err := callWriteAt(f.f, zeros[:n], have); err != nil {
			return err
		}
		if have += n; have%atOnce != 0 {
			continue
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if err := between(time.Since(start)); err != nil {
			return err
		}
		start = time.Now()
	}
	return nil
}

// rest waits for some time, or until there is a reason not to.
func rest(d time.Duration, hurry, unwanted <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-hurry:
	case <-unwanted:
	}
}
