//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

// The tag leaves out the big-endian machines: there two fields of the control
// block change places. They write through the page cache.

package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed70370324/lockd/internal/invariant"
)

// directFile writes blocks past the page cache and returns when they are
// durable, without a thread that waits for the disk: the write is handed to the
// kernel (io_submit), which signals its end by an eventfd, and for this the
// goroutine waits as for a connection, in the runtime's poller. One durable
// write is one call, where a write and an fdatasync are two.
//
// Durable means the following. The write has IOCB_DSYNC (by RWF_DSYNC), so the
// kernel ends it in one of two ways, both before it reports the completion
// (iomap_dio_complete):
//   - a plain overwrite, on a device that has no volatile write cache or takes
//     REQ_FUA, is written through (IOMAP_DIO_WRITE_THROUGH): the device reports
//     the end of the write itself when it is on stable storage;
//   - otherwise generic_write_sync calls the file system's fsync for data: it
//     commits what metadata the data needs, and sends a cache flush
//     (REQ_PREFLUSH), which covers the write as it is complete by then.
//
// The caller's part is that there is no such metadata: the blocks have been
// allocated, written (zeros; a block only allocated would be marked as written
// by this write) and synced with the file's length and name before. It is a
// matter of time only, except for the name: of that a write makes nothing
// durable. The times of the file are left to whenever the kernel likes.
//
// Readers by other descriptors see the new bytes as soon as WriteSync has
// returned. The kernel writes back and drops the cached pages of the range
// before the write (kiocb_invalidate_pages) and drops them again after it, for a
// reader that came between (kiocb_invalidate_post_direct_write). Pages that are
// clean can always be dropped, whoever reads. Pages that somebody makes dirty
// meanwhile cannot: if they are found before, the kernel writes through the page
// cache instead and syncs, which is as good; if after, it warns in its log and
// the next fsync of the file fails with EIO, but the write does not. So nobody
// may write the same pages in another way while a WriteSync is under way; before
// and after is fine.
type directFile struct {
	mu   sync.Mutex // one write at a time, and Close behind it
	name string
	file *os.File
	ring uintptr // the kernel's aio_context_t, 0 once closed

	// The eventfd. The raw connection is there to wait in the poller without
	// reading: the poller is edge triggered and each completion is an edge, the
	// count in the eventfd means nothing.
	signal *os.File
	resfd  uint32
	wait   syscall.RawConn
	step   func(uintptr) bool // turn, made once: to wait allocates nothing
	watch  func(uintptr) bool // likewise, glance
	woken  atomic.Bool        // Wake was called, and no Await has returned for it

	// Of the write under way. The kernel copies the control block before
	// io_submit returns, but reads the memory to be written until the end: it
	// is pinned, which keeps it alive, where it is, and off the stack.
	pin       runtime.Pinner
	block     iocb
	list      [1]*iocb
	event     ioEvent
	noTime    unix.Timespec
	p         []byte
	off       int64
	err       error
	submitted atomic.Bool // the kernel has it, or gets it, and its end has not been seen
}

// iocb is the kernel's struct iocb as little-endian machines have it; it is the
// same for 32 and 64 bits.
type iocb struct {
	data    uint64 // comes back in the event
	_       uint32 // key, written by the kernel
	rwFlags int32
	opcode  uint16
	_       int16 // priority, none
	fildes  uint32
	buf     uint64
	nbytes  uint64
	offset  int64
	_       uint64
	flags   uint32
	resfd   uint32
}

// ioEvent is the kernel's struct io_event.
type ioEvent struct {
	data uint64
	obj  uint64
	res  int64 // bytes, or an errno below zero
	res2 int64
}

const (
	iocbCmdPwrite = 1 // IOCB_CMD_PWRITE
	iocbFlagResfd = 1 // IOCB_FLAG_RESFD
)

// openDirect opens an existing file, of at least one block, for direct, durable
// writes. That the kernel, its sandbox and the file system do it is tried: the
// last whole block of the file is read and written back as it was. So nobody
// else may write the file meanwhile. (The last one because a log's first blocks
// say what the file is, and its last ones are the last to be used.)
//
// The error is errDirectUnavailable where it is not done: the caller then writes
// in the ordinary way for good.
func openDirect(path string) (*directFile, error) {
	file, err := openPastCache(path)
	if err != nil {
		return nil, err
	}
	d, err := newDirect(file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if err := d.probe(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func openPastCache(path string) (*os.File, error) {
	file, err := callOpen(path, os.O_RDWR|unix.O_DIRECT, 0)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return nil, unavailable("opening for direct writes", err)
	case err != nil:
		return nil, fmt.Errorf("opening for direct writes: %w", err)
	}
	return file, nil
}

// turnTo goes on with another file, and tries it as openDirect does: what is
// slow to give back (see Close) serves one file after the other.
func (d *directFile) turnTo(path string) error {
	file, err := openPastCache(path)
	if err != nil {
		return err
	}
	d.mu.Lock()
	old := d.file
	d.file, d.name = file, path
	d.mu.Unlock()
	return errors.Join(old.Close(), d.probe())
}

// newDirect takes over a file that was opened with O_DIRECT, unless it fails.
func newDirect(file *os.File) (*directFile, error) {
	d := &directFile{name: file.Name(), file: file}
	d.step, d.watch, d.list[0] = d.turn, d.glance, &d.block
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, refused("making an eventfd for direct writes to "+d.name, os.NewSyscallError("eventfd2", err))
	}
	d.signal, d.resfd = os.NewFile(uintptr(fd), "eventfd"), uint32(fd)
	// A file that the poller did not take has no deadline either.
	if err := d.signal.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(unavailable("waiting for direct writes to "+d.name, err), d.signal.Close())
	}
	if d.wait, err = d.signal.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("waiting for direct writes to %s: %w", d.name, err), d.signal.Close())
	}
	// One request of the fs.aio-max-nr that the machine has.
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&d.ring)), 0); errno != 0 {
		err := refused("preparing direct writes to "+d.name, os.NewSyscallError("io_setup", errno))
		return nil, errors.Join(err, d.signal.Close())
	}
	return d, nil
}

// probe shows that writes get through.
func (d *directFile) probe() error {
	if err := d.knownDurable(); err != nil {
		return err
	}
	info, err := d.file.Stat()
	if err != nil {
		return fmt.Errorf("trying direct writes: %w", err)
	}
	if info.Size() < directAlign {
		return fmt.Errorf("trying direct writes to %s: it has %d bytes and must have %d at least: make it long enough first",
			d.name, info.Size(), directAlign)
	}
	block := AlignedBytes(directAlign)
	at := (info.Size()/directAlign - 1) * directAlign
	if _, err := d.file.ReadAt(block, at); err != nil {
		return refused("trying direct reads", err)
	}
	if err := d.WriteSync(block, at); err != nil {
		return refused("trying direct writes", err)
	}
	return nil
}

// knownDurable lets through the file systems of which the kernel's source says
// that they keep IOCB_DSYNC in a direct write. There is no trying it: one that
// ignores it (FUSE with direct_io knows only the flags of open) looks the same
// until the power goes. A tmpfs keeps nothing anyway.
func (d *directFile) knownDurable() error {
	var s unix.Statfs_t
	for {
		err := unix.Fstatfs(int(d.file.Fd()), &s)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("looking up the file system of %s: %w", d.name, os.NewSyscallError("fstatfs", err))
		}
		break
	}
	switch uint32(s.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return nil
	}
	return unavailable("trying direct writes to "+d.name, fmt.Errorf("its file system, of type %#x, is not known to make them durable", uint32(s.Type)))
}

// refused is the error of a step that may be missing here: unavailable if the
// kernel says so, else a fault like any other.
func refused(doing string, err error) error {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EAGAIN, unix.ENOMEM, unix.EOPNOTSUPP} {
		if errors.Is(err, errno) {
			return unavailable(doing, err)
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func unavailable(doing string, err error) error {
	return fmt.Errorf("%w: %s: %w", errDirectUnavailable, doing, err)
}

// WriteSync writes p at off and returns when exactly these bytes are durable.
// All of p, off and len(p) must be aligned, and p must have been allocated by Go
// (AlignedBytes); it may be used again when WriteSync has returned. After an
// error the blocks hold anything, and no later success says otherwise: as after
// a failed fsync there is no next time. Part of a write is an error as well. It
// allocates nothing. One caller at a time; others queue.
func (d *directFile) WriteSync(p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.start(p, off); err != nil {
		return err
	}
	return d.finish()
}

// Start begins a WriteSync and does not wait for its end. Finish must follow; until
// it has returned p is the kernel's.
func (d *directFile) Start(p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.start(p, off)
}

// Finish waits for the end of what Start has begun. Its error is WriteSync's.
func (d *directFile) Finish() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.finish()
}

func (d *directFile) start(p []byte, off int64) error {
	switch {
	case d.ring == 0:
		return d.failed(p, off, fs.ErrClosed)
	case !isAligned(p) || off < 0 || off%directAlign != 0:
		return d.failed(p, off, fmt.Errorf("place and memory must be multiples of %d", directAlign))
	case d.submitted.Load() || d.p != nil:
		return d.failed(p, off, errors.New("the end of the write before is not known"))
	}
	d.p, d.off = p, off
	if len(p) == 0 {
		return nil
	}
	return d.submit()
}

func (d *directFile) finish() error {
	p, off := d.p, d.off
	d.p = nil
	for len(p) > 0 {
		if d.ring == 0 {
			return d.failed(p, off, fs.ErrClosed)
		}
		res, err := d.ended()
		switch {
		case err != nil:
			return d.failed(p, off, err)
		case res == -int64(unix.EINTR):
			// A signal came before anything was reported: as with fdatasync,
			// the same again.
			d.p, d.off = p, off
			err := d.submit()
			d.p = nil
			if err != nil {
				return err
			}
		case res < 0:
			return d.failed(p, off, syscall.Errno(-res))
		case res != int64(len(p)):
			return d.failed(p, off, fmt.Errorf("%d bytes were written: %w", res, io.ErrShortWrite))
		default:
			return nil
		}
	}
	return nil
}

// callSubmit and callGetEvents are among the calls of osfs_calls.go.
var (
	callSubmit = func(ring uintptr, list *[1]*iocb) (n uintptr, errno syscall.Errno) {
		n, _, errno = unix.RawSyscall(unix.SYS_IO_SUBMIT, ring, 1, uintptr(unsafe.Pointer(list)))
		return n, errno
	}
	callGetEvents = func(ring, least uintptr, event *ioEvent, within *unix.Timespec) (n uintptr, errno syscall.Errno) {
		call := unix.Syscall6
		if within != nil {
			call = unix.RawSyscall6 // it does not wait, so the scheduler need not know
		}
		n, _, errno = call(unix.SYS_IO_GETEVENTS, ring, least, 1,
			uintptr(unsafe.Pointer(event)), uintptr(unsafe.Pointer(within)), 0)
		return n, errno
	}
)

// durableFlags returns the flags of a write that ends once it is durable.
func durableFlags() int32 {
	if invariant.Planted(invariant.DirectWritesNotDurable) {
		return 0
	}
	return unix.RWF_DSYNC
}

// submit hands the write of p at off to the kernel.
func (d *directFile) submit() error {
	first := unsafe.SliceData(d.p)
	d.pin.Pin(first)
	d.block = iocb{
		data:    d.block.data + 1,
		rwFlags: durableFlags(),
		opcode:  iocbCmdPwrite,
		fildes:  uint32(d.file.Fd()),
		buf:     uint64(uintptr(unsafe.Pointer(first))),
		nbytes:  uint64(len(d.p)),
		offset:  d.off,
		flags:   iocbFlagResfd,
		resfd:   d.resfd,
	}
	// Before the call: an Await may see the end of the write before this goroutine
	// sees the end of the call.
	d.submitted.Store(true)
	for {
		// Raw, although the kernel may hold it up: for a write that ends before the
		// call does it sends the flush from here (some hundred µs), and it waits for
		// a frozen file system or a full queue of the device. A collection of garbage
		// waits for it then, and with it the process; at once, if the process has one
		// processor only. But each call that the scheduler hears of wakes the runtime's
		// monitor: at every flush that costs more.
		n, errno := callSubmit(d.ring, &d.list)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == 0 && n == 1:
			return nil
		}
		d.submitted.Store(false)
		d.pin.Unpin()
		p := d.p
		d.p = nil
		err := errors.New("io_submit: the kernel took nothing")
		if errno != 0 {
			err = os.NewSyscallError("io_submit", errno)
		}
		return d.failed(p, d.off, err)
	}
}

// Await waits until a write that Start has begun, or begins meanwhile, has ended,
// or until Wake is called; then Finish does not wait. False: the poller does not
// wait (any more). It is for the goroutine that calls Finish; Close must not come
// while it waits.
func (d *directFile) Await() bool { return d.wait.Read(d.watch) == nil }

// Wake makes Await return, the next one if none is under way.
func (d *directFile) Wake() {
	d.woken.Store(true)
	one := uint64(1)
	// It fails only once the counter is full, so the poller has been told.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(d.resfd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}

// glance is turn for Await: without a write there is nothing to look for.
func (d *directFile) glance(uintptr) bool {
	return d.woken.Swap(false) || d.submitted.Load() && d.reap(0, &d.noTime)
}

// ended waits for the end of the write under way, unless Await has seen it.
func (d *directFile) ended() (res int64, err error) {
	d.err = nil
	if d.submitted.Load() {
		err = d.wait.Read(d.step)
	}
	if d.submitted.Load() && d.err == nil {
		// The poller gave up (it does if the eventfd is closed). The memory is
		// the kernel's still: wait for the end in the ordinary way.
		d.reap(1, nil)
	}
	if d.submitted.Load() {
		return 0, d.err // pinned until Close has seen the end
	}
	d.pin.Unpin()
	if err = errors.Join(d.err, err); err != nil {
		return 0, err
	}
	invariant.Assert(d.event.data == d.block.data, "a completion belongs to the one write that is under way")
	return d.event.res, nil
}

// turn is called by the poller: at once, and whenever the eventfd was signalled.
// It reports whether there is nothing to wait for. The poller has forgotten
// earlier signals when it calls for the first time; that of a write which ended
// before is not missed, since its end is looked for then.
func (d *directFile) turn(uintptr) bool { return d.reap(0, &d.noTime) }

// reap takes the completion, if there are at least so many within that time
// (nil is for ever), and reports whether that is settled. With no time left the
// kernel says EINTR instead of nothing if a signal is pending.
func (d *directFile) reap(least uintptr, within *unix.Timespec) bool {
	for {
		n, errno := callGetEvents(d.ring, least, &d.event, within)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			d.err = os.NewSyscallError("io_getevents", errno)
			return true
		}
		if n != 0 {
			d.submitted.Store(false)
		}
		return n != 0
	}
}

func (d *directFile) failed(p []byte, off int64, err error) error {
	return fmt.Errorf("direct write of %d bytes at %d of %s: %w", len(p), off, d.name, err)
}

// Close waits for a write that is under way, and gives everything back. It
// sleeps for some tens of milliseconds (io_destroy waits until no processor of
// the machine can still use the ring, an RCU grace period): call it beside what
// is urgent.
func (d *directFile) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ring == 0 {
		return fmt.Errorf("closing direct writes to %s: %w", d.name, fs.ErrClosed)
	}
	var err error
	// The kernel waits in it for what it still has to write.
	if _, _, errno := unix.Syscall(unix.SYS_IO_DESTROY, d.ring, 0, 0); errno != 0 {
		err = fmt.Errorf("closing direct writes to %s: %w", d.name, os.NewSyscallError("io_destroy", errno))
	}
	d.ring = 0
	d.submitted.Store(false)
	d.pin.Unpin() // of a write whose end nobody has asked for
	d.p = nil
	return errors.Join(err, d.signal.Close(), d.file.Close())
}
