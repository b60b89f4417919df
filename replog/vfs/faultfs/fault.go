package faultfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
)

// Ops counts the operations that changed something so far.
func (f *FS) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ops
}

// Trace calls t for every operation that changes something; nil ends that.
func (f *FS) Trace(t func(op Op, name string)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = t
}

// StopAfter lets n more operations happen and then stops everything with
// ErrStopped, as if the power were gone; negative: no end. Reading goes on.
func (f *FS) StopAfter(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopAfter = n
}

// Fail makes the nth operation of a kind from now on (1 is the next) fail with
// err; it changes nothing. A Sync or SyncDir that fails loses what it should
// have made durable for good, whatever a later one says.
func (f *FS) Fail(op Op, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = fault{in: n, err: err}
}

// FailFrom makes the nth operation of a kind from now on and all that follow fail
// with err, until Fail or FailFrom is called for that kind again (n 0: none fails).
func (f *FS) FailFrom(op Op, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = fault{in: n, err: err, stays: true}
}

// FailRead makes reads of a file that touch the byte at offset fail with err, so
// many times (negative: for good, and then over Crash and Kill as well, as a bad
// sector does). MendReads ends that.
func (f *FS) FailRead(name string, offset int64, times int, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, findErr := f.lookUp(name)
	if findErr != nil {
		return findErr
	}
	n.bad = append(n.bad, badSpot{offset: offset, times: times, err: err})
	return nil
}

// MendReads makes all of a file readable again.
func (f *FS) MendReads(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookUp(name)
	if err == nil {
		n.bad = nil
	}
	return err
}

// Vanish takes a file away durably, also from a process that has it open: as after
// a repair of the file system, or by an operator's hand.
func (f *FS) Vanish(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, last, err := f.find(name)
	if err != nil {
		return err
	}
	node, ok := d.seen[last].(*inode)
	if !ok {
		return &fs.PathError{Op: "vanish", Path: name, Err: fs.ErrNotExist}
	}
	gone := func(names map[string]any) {
		for at, n := range names {
			if n == any(node) {
				delete(names, at)
			}
		}
	}
	gone(d.seen)
	gone(d.durable)
	for _, r := range d.pending {
		for i, n := range r.nodes {
			if n == any(node) {
				r.nodes[i] = nil
			}
		}
	}
	return nil
}

// FlipBits turns n different bits between two offsets over, durably.
func (f *FS) FlipBits(rng *rand.Rand, name string, from, to int64, n int) error {
	bits := map[int64]bool{}
	for want := min(int64(n), 8*(to-from)); int64(len(bits)) < want; {
		bits[8*from+rng.Int64N(8*(to-from))] = true
	}
	for _, bit := range slices.Sorted(maps.Keys(bits)) {
		if err := f.Flip(name, bit/8, uint(bit%8)); err != nil {
			return err
		}
	}
	return nil
}

// Limit lets files grow by bytes in all, then writes fail with ErrNoSpace;
// removing a file gives its bytes back. Negative: no limit.
func (f *FS) Limit(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spaceLeft = bytes
}

// Flip turns a bit (0 to 7) over, durably.
func (f *FS) Flip(name string, offset int64, bit uint) error {
	return f.spoil(name, func(c *content) error {
		if offset < 0 || offset >= c.size {
			return fs.ErrInvalid
		}
		c.own(offset / blockBytes).data[offset%blockBytes] ^= 1 << (bit & 7)
		return nil
	})
}

// Overwrite changes bytes durably, behind the back of who has the file open.
func (f *FS) Overwrite(name string, offset int64, data []byte) error {
	return f.spoil(name, func(c *content) error {
		c.writeAt(data, offset)
		return nil
	})
}

// Cut makes a file shorter, or longer by zeros, durably.
func (f *FS) Cut(name string, size int64) error {
	return f.spoil(name, func(c *content) error {
		c.resize(size)
		return nil
	})
}

func (f *FS) spoil(name string, do func(*content) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookUp(name)
	if err != nil {
		return err
	}
	return errors.Join(do(&n.seen), do(&n.durable))
}

// ReadFile gives what a reader sees of a file.
func (f *FS) ReadFile(name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookUp(name)
	if err != nil {
		return nil, err
	}
	out := make([]byte, n.seen.size)
	if len(out) > 0 {
		_, err = n.seen.readAt(out, 0)
	}
	return out, err
}

// WriteFile makes or replaces a file, durably with its name; its directory
// must be there.
func (f *FS) WriteFile(name string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, last, err := f.find(name)
	if err != nil {
		return err
	}
	n := newInode()
	n.write(data, 0)
	n.sync()
	d.seen[last], d.durable[last] = n, n
	return nil
}

// file is an open file.
type file struct {
	fs     *FS
	name   string
	n      *inode
	closed bool
}

func (f *file) open() error {
	if f.closed {
		return &fs.PathError{Op: "use", Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.open(); err != nil {
		return 0, err
	}
	if err := f.n.unreadable(f.name, off, int64(len(p))); err != nil {
		return 0, err
	}
	return f.n.seen.readAt(p, off)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.open(); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrInvalid}
	}
	if err := f.fs.begin(Write, f.name); err != nil {
		return 0, err
	}
	room := f.fs.grow(f.n.seen.size, off+int64(len(p)))
	if room < off+int64(len(p)) {
		// As a full disk does: what fits is written.
		n := int(max(0, room-off))
		if n > 0 {
			f.n.write(p[:n], off)
		}
		return n, &fs.PathError{Op: "write", Path: f.name, Err: ErrNoSpace}
	}
	if len(p) > 0 {
		f.n.write(p, off)
	}
	return len(p), nil
}

// grow takes room for a file to grow, and gives the size it may grow to.
func (f *FS) grow(from, to int64) int64 {
	if f.spaceLeft < 0 || to <= from {
		return to
	}
	take := min(to-from, f.spaceLeft)
	f.spaceLeft -= take
	return from + take
}

func (f *file) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.open(); err != nil {
		return 0, err
	}
	return f.n.seen.size, nil
}

func (f *file) Preallocate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	if size <= f.n.seen.size {
		return nil
	}
	return f.resize(size)
}

func (f *file) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	if size < 0 {
		return &fs.PathError{Op: "truncate", Path: f.name, Err: fs.ErrInvalid}
	}
	return f.resize(size)
}

func (f *file) resize(size int64) error {
	if err := f.fs.begin(Resize, f.name); err != nil {
		return err
	}
	if f.fs.grow(f.n.seen.size, size) < size {
		return &fs.PathError{Op: "resize", Path: f.name, Err: ErrNoSpace}
	}
	f.n.resize(size)
	return nil
}

func (f *file) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	if err := f.fs.begin(Sync, f.name); err != nil {
		if !errors.Is(err, ErrStopped) {
			f.n.drop()
		}
		return err
	}
	f.n.sync()
	return nil
}

// WriteSync is a write and a sync, counted as both: the power may go between
// them, and then any part of the write is there.
func (f *file) WriteSync(p []byte, off int64) error {
	if off%pageBytes != 0 || len(p)%pageBytes != 0 {
		return fmt.Errorf("write and sync %d bytes of %s at %d: not aligned to %d: %w", len(p), f.name, off, pageBytes, fs.ErrInvalid)
	}
	if _, err := f.WriteAt(p, off); err != nil {
		return err
	}
	return f.Sync()
}

func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.open(); err != nil {
		return err
	}
	f.closed = true
	return nil
}

// NextData gives the first offset from off on that may hold something else
// than zeros: the size of the file if there is none.
func (f *file) NextData(off int64) int64 {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	for index := off / blockBytes; index < int64(len(f.n.seen.blocks)); index++ {
		if f.n.seen.blocks[index] != nil {
			return min(max(off, index*blockBytes), f.n.seen.size)
		}
	}
	return f.n.seen.size
}
