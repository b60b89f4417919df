//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package vfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// directDirs are a directory on a disk and one in memory, as far as the machine
// has them, and the one that tests have anyway.
func directDirs(tb testing.TB) []string {
	dirs := []string{tb.TempDir()}
	for _, parent := range []string{"/var/tmp", "/dev/shm"} {
		dir, err := os.MkdirTemp(parent, "direct-test-")
		if err != nil {
			continue // not there, or not for us
		}
		tb.Cleanup(func() { _ = os.RemoveAll(dir) })
		dirs = append(dirs, dir)
	}
	return dirs
}

// preallocated makes a file as the log makes one.
func preallocated(tb testing.TB, dir string, size int64) string {
	tb.Helper()
	path := filepath.Join(dir, "file")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	file := &osFile{f: f}
	if err := errors.Join(file.Preallocate(size), file.Sync(), file.Close()); err != nil {
		tb.Fatal(err)
	}
	return path
}

// onDirectFiles runs test in each directory that takes direct writes; one that
// does not must say so.
func onDirectFiles(t *testing.T, size int64, test func(t *testing.T, d *directFile, path string)) {
	for _, dir := range directDirs(t) {
		path := preallocated(t, dir, size)
		t.Run(strings.Split(dir, "/")[1], func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			d, err := openDirect(path)
			if errors.Is(err, errDirectUnavailable) {
				t.Logf("not here: %v", err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			test(t, d, path)
			if err := d.Close(); err != nil {
				t.Errorf("closing: %v", err)
			}
			if err := d.Close(); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("closing again: %v", err)
			}
			if err := d.WriteSync(AlignedBytes(directAlign), 0); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("writing after Close: %v", err)
			}
		})
	}
}

func TestDirectLayout(t *testing.T) {
	var b iocb
	if unsafe.Sizeof(b) != 64 || unsafe.Sizeof(ioEvent{}) != 32 || unsafe.Offsetof(b.rwFlags) != 12 ||
		unsafe.Offsetof(b.buf) != 24 || unsafe.Offsetof(b.offset) != 40 || unsafe.Offsetof(b.resfd) != 60 {
		t.Errorf("the kernel's structures look different: %+v", b)
	}
	for n := 0; n <= 1<<20; n = 2*n + directAlign {
		if p := AlignedBytes(n); len(p) != n || cap(p) != n || !isAligned(p) {
			t.Errorf("%d aligned bytes: %d at %p", n, len(p), p)
		}
	}
}

// TestDirectWritesAreSeen: whoever reads by another descriptor sees a write at
// the latest when it has returned, whether the pages were cached before, are
// being read, or not; nor do collections of garbage and signals disturb it.
func TestDirectWritesAreSeen(t *testing.T) {
	const blocks, rounds = 16, 400
	onDirectFiles(t, blocks*directAlign, func(t *testing.T, d *directFile, path string) {
		reader, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = reader.Close() }()
		var begun, done [blocks]atomic.Uint64 // the number that each block has
		var stop atomic.Bool
		var beside sync.WaitGroup
		defer beside.Wait()
		defer stop.Store(true)
		beside.Go(func() {
			var b [8]byte
			for i := 0; !stop.Load(); i++ {
				k := i % blocks
				least := done[k].Load()
				if _, err := reader.ReadAt(b[:], int64(k)*directAlign); err != nil {
					t.Errorf("reading beside: %v", err)
					return
				}
				got, most := binary.LittleEndian.Uint64(b[:]), begun[k].Load()
				if got < least || got > most {
					t.Errorf("block %d has number %d, although %d was durable before, and %d is being written", k, got, least, most)
					return
				}
				if i%64 == 0 {
					if err := unix.Kill(os.Getpid(), unix.SIGURG); err != nil {
						t.Errorf("sending a signal: %v", err)
					}
					runtime.GC()
				}
			}
		})
		random := rand.New(rand.NewPCG(1, 2))
		whole, want := make([]byte, blocks*directAlign), make([]byte, blocks*directAlign)
		for round := uint64(1); round <= rounds && !t.Failed(); round++ {
			first := random.IntN(blocks)
			p := AlignedBytes((1 + random.IntN(blocks-first)) * directAlign)
			for i := 0; i < len(p); i += 8 {
				binary.LittleEndian.PutUint64(p[i:], round)
			}
			n, off := len(p), first*directAlign
			copy(want[off:], p)
			for k := range n / directAlign {
				begun[first+k].Store(round)
			}
			if err := d.WriteSync(p, int64(off)); err != nil {
				t.Fatal(err)
			}
			for k := range n / directAlign {
				done[first+k].Store(round)
			}
			if round%2 == 0 { // else the pages stay as they are: dropped
				if _, err := reader.ReadAt(whole, 0); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(whole, want) {
					t.Fatalf("round %d: a reader does not see what was written", round)
				}
			}
		}
	})
}

// TestDirectAfterOrdinaryWrites: a log's header is written in the ordinary way
// before, perhaps in the same page.
func TestDirectAfterOrdinaryWrites(t *testing.T) {
	onDirectFiles(t, 4*directAlign, func(t *testing.T, d *directFile, path string) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		p, got, want := AlignedBytes(2*directAlign), make([]byte, 4*directAlign), make([]byte, 4*directAlign)
		for round := range 100 {
			ordinary := bytes.Repeat([]byte{byte(2*round + 1)}, 3*directAlign) // dirty when the direct write comes
			copy(want[directAlign/2:], ordinary)
			if _, err := f.WriteAt(ordinary, directAlign/2); err != nil {
				t.Fatal(err)
			}
			for i := range p {
				p[i] = byte(2*round + 2)
			}
			copy(want[directAlign:], p)
			if err := d.WriteSync(p, directAlign); err != nil {
				t.Fatal(err)
			}
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("round %d: another content than was written, %v", round, err)
			}
		}
		if err := f.Sync(); err != nil {
			t.Errorf("the kernel found the page cache stale: %v", err)
		}
	})
}

func TestDirectOpenLeavesTheContent(t *testing.T) {
	for _, dir := range directDirs(t) {
		path := filepath.Join(dir, "file")
		for _, size := range []int{directAlign, directAlign + 1, 3*directAlign - 1, 5 * directAlign} {
			want := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{byte(size)}).Read(want)
			if err := os.WriteFile(path, want, 0o600); err != nil {
				t.Fatal(err)
			}
			if d, err := openDirect(path); err == nil {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, errDirectUnavailable) {
				t.Errorf("%s, %d bytes: %v", dir, size, err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: opening changed a file of %d bytes: %v", dir, size, err)
			}
		}
	}
}

func TestDirectOpenFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := openDirect(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDirectUnavailable) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := openDirect("/proc/self/comm"); !errors.Is(err, errDirectUnavailable) {
		t.Errorf("a file system without direct writes: %v", err)
	}
	_, err := openDirect(preallocated(t, dir, directAlign-1))
	if err == nil || !errors.Is(err, errDirectUnavailable) && !strings.Contains(err.Error(), "long enough") {
		t.Errorf("a file that has no block: %v", err)
	}
	for errno, want := range map[unix.Errno]bool{
		unix.EINVAL: true, unix.ENOSYS: true, unix.EPERM: true, unix.EAGAIN: true, unix.EOPNOTSUPP: true,
		unix.EIO: false, unix.ENOSPC: false, unix.EMFILE: false, unix.EBADF: false,
	} {
		err := refused("trying", os.NewSyscallError("io_submit", errno))
		if errors.Is(err, errDirectUnavailable) != want || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// TestDirectWriteFails: the error names the place and the cause, and nothing
// stays behind from a write that failed.
func TestDirectWriteFails(t *testing.T) {
	onDirectFiles(t, 4*directAlign, func(t *testing.T, d *directFile, path string) {
		p := AlignedBytes(2 * directAlign)
		for name, write := range map[string]func() error{
			"length":   func() error { return d.WriteSync(p[:directAlign+512], 0) },
			"memory":   func() error { return d.WriteSync(p[512:512+directAlign], 0) },
			"offset":   func() error { return d.WriteSync(p, 512) },
			"negative": func() error { return d.WriteSync(p, -directAlign) },
		} {
			if err := write(); err == nil || !strings.Contains(err.Error(), "multiples of 4096") {
				t.Errorf("an unaligned %s: %v", name, err)
			}
		}
		err := d.WriteSync(p, 1<<62)
		if err != nil && !strings.Contains(err.Error(), "8192 bytes at 4611686018427387904 of "+path) {
			t.Errorf("beyond any file: %v", err)
		}
		// Ext4 (of blocks of 4096) ends a block before 16 TiB: half of it fits.
		var s unix.Statfs_t
		if e := unix.Statfs(path, &s); e == nil && uint32(s.Type) == unix.EXT4_SUPER_MAGIC && s.Bsize == 4096 {
			if !errors.Is(err, unix.EFBIG) {
				t.Errorf("beyond any file: %v", err)
			}
			if err := d.WriteSync(p, 1<<44-int64(len(p))); !errors.Is(err, io.ErrShortWrite) {
				t.Errorf("half a write: %v", err)
			}
		}
		file, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
		if err != nil {
			t.Fatal(err)
		}
		readOnly, err := newDirect(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := readOnly.WriteSync(p, 0); !errors.Is(err, unix.EBADF) || !strings.Contains(err.Error(), path+": io_submit: ") {
			t.Errorf("a file open for reading: %v", err)
		}
		if err := readOnly.Close(); err != nil {
			t.Error(err)
		}
		if err := d.WriteSync(p, 0); err != nil {
			t.Errorf("after errors of others: %v", err)
		}
	})
}

// TestDirectPollerGivesUp: even then WriteSync returns only when the kernel has
// let go of the memory.
func TestDirectPollerGivesUp(t *testing.T) {
	onDirectFiles(t, 4*directAlign, func(t *testing.T, d *directFile, path string) {
		turns := 0
		d.step = func(uintptr) bool {
			turns++
			if err := d.signal.SetReadDeadline(time.Unix(1, 0)); err != nil {
				t.Error(err)
			}
			return false
		}
		p := AlignedBytes(directAlign)
		p[0] = 7
		if err := d.WriteSync(p, directAlign); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a poller that gives up: %v", err)
		}
		if turns != 1 || d.submitted.Load() {
			t.Errorf("after %d turns, under way still: %v", turns, d.submitted.Load())
		}
		if got, err := os.ReadFile(path); err != nil || got[directAlign] != 7 {
			t.Errorf("what was begun is not ended: %v", err)
		}
		d.step = d.turn
		if err := d.signal.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			p[0] = byte(i)
			if err := d.WriteSync(p, 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestDirectAwait: who waits beforehand is woken by the end of each write that
// another goroutine begins, by nothing else but Wake, and misses none of them.
func TestDirectAwait(t *testing.T) {
	onDirectFiles(t, 4*directAlign, func(t *testing.T, d *directFile, path string) {
		const writes = 300
		var mu sync.Mutex // as in the log's shell: a write's end is not looked at before its begin is known
		begun, landed := 0, make(chan error)
		var waiter sync.WaitGroup
		waiter.Go(func() {
			for finished := 0; finished < writes; {
				if !d.Await() {
					landed <- errors.New("the poller does not wait")
					return
				}
				mu.Lock()
				ended := begun > finished
				mu.Unlock()
				if ended {
					finished++
					landed <- d.Finish()
				}
			}
		})
		p := AlignedBytes(directAlign)
		for i := range writes {
			if i%3 == 0 {
				d.Wake()
			}
			binary.LittleEndian.PutUint64(p, uint64(i))
			mu.Lock()
			err := d.Start(p, int64(i%4)*directAlign)
			begun++
			mu.Unlock()
			if i%5 == 0 {
				d.Wake()
			}
			if err := errors.Join(err, <-landed); err != nil {
				t.Fatal(err)
			}
			if d.submitted.Load() {
				t.Error("a write that has ended is under way still")
			}
		}
		waiter.Wait()
		d.Wake()
		if !d.Await() {
			t.Error("a Wake before Await is lost")
		}
		if got, err := os.ReadFile(path); err != nil || binary.LittleEndian.Uint64(got[(writes-1)%4*directAlign:]) != writes-1 {
			t.Errorf("the last write is not there: %v", err)
		}
	})
}

// TestDirectEndNobodyAskedFor: a write whose end was seen is not over before
// Finish has told it, and Close gives its memory back.
func TestDirectEndNobodyAskedFor(t *testing.T) {
	onDirectFiles(t, 4*directAlign, func(t *testing.T, _ *directFile, path string) {
		d, err := openDirect(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Start(AlignedBytes(directAlign), 0); err != nil {
			t.Fatal(err)
		}
		if !d.Await() {
			t.Error("the poller does not wait")
		}
		if err := d.Start(AlignedBytes(directAlign), directAlign); err == nil {
			t.Error("a write is begun before the end of the last one was told")
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		d = nil
		for range 3 {
			runtime.GC() // it panics at memory that is left pinned
		}
	})
}

func TestDirectLeavesNoDescriptors(t *testing.T) {
	count := func() int {
		names, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	onDirectFiles(t, 4*directAlign, func(t *testing.T, d *directFile, path string) {
		before := count()
		for range 15 {
			other, err := openDirect(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := openDirect("/proc/self/comm"); err == nil {
				t.Fatal("a direct write to /proc")
			}
		}
		if after := count(); after > before {
			t.Errorf("%d descriptors before, %d after", before, after)
		}
	})
}

// TestDirectOneAtATime: callers queue, and Close behind them.
func TestDirectOneAtATime(t *testing.T) {
	for _, dir := range directDirs(t) {
		path := preallocated(t, dir, 8*directAlign)
		d, err := openDirect(path)
		if errors.Is(err, errDirectUnavailable) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var writers sync.WaitGroup
		for k := range 8 {
			writers.Go(func() {
				p := AlignedBytes(directAlign)
				for {
					p[0]++
					if err := d.WriteSync(p, int64(k)*directAlign); err != nil {
						if !errors.Is(err, fs.ErrClosed) {
							t.Error(err)
						}
						return
					}
					if p[0] == 20 {
						if err := d.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
							t.Error(err)
						}
					}
				}
			})
		}
		writers.Wait()
	}
}

func TestDirectAllocatesNothing(t *testing.T) {
	onDirectFiles(t, 16*directAlign, func(t *testing.T, d *directFile, _ string) {
		p, off := AlignedBytes(2*directAlign), int64(0)
		if n := testing.AllocsPerRun(200, func() {
			if err := d.WriteSync(p, off); err != nil {
				t.Fatal(err)
			}
			off = (off + int64(len(p))) % (16 * directAlign)
		}); n != 0 {
			t.Errorf("%v allocations a write", n)
		}
	})
}

// Each benchmark writes 8 KiB at moving places of a preallocated file of 16 MiB,
// durably, on the disk that has /var/tmp.

func BenchmarkFlushDirect(b *testing.B) {
	d, err := openDirect(benchFile(b))
	if err != nil {
		b.Fatal(err)
	}
	benchFlush(b, d.WriteSync)
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkFlushFdatasync(b *testing.B) {
	f, err := os.OpenFile(benchFile(b), os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	file := &osFile{f: f}
	benchFlush(b, func(p []byte, off int64) error {
		if _, err := file.WriteAt(p, off); err != nil {
			return err
		}
		return file.Sync()
	})
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
}

const benchFileSize = 16 << 20

func benchFile(b *testing.B) string {
	dir, err := os.MkdirTemp("/var/tmp", "direct-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return preallocated(b, dir, benchFileSize)
}

func benchFlush(b *testing.B, flush func(p []byte, off int64) error) {
	p, off := AlignedBytes(2*directAlign), int64(0)
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		p[0]++
		if err := flush(p, off); err != nil {
			b.Fatal(err)
		}
		off = (off + int64(len(p))) % benchFileSize
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(after.Nvcsw-before.Nvcsw)/float64(b.N), "switches/op")
}
