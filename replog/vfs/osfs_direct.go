package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"unsafe"

	"github.com/seed70370324/lockd/internal/invariant"
)

// directAlign is what offset, length and memory of a direct write are
// multiples of: the page, and at least the block of every disk that is sold.
const directAlign = 4096

// errDirectUnavailable says that this file system or kernel does not do direct,
// durable writes; WriteAt and Sync do the same there, slower.
var errDirectUnavailable = errors.New("direct writes are not available")

// AlignedBytes returns n zero bytes, n a multiple of directAlign, in memory
// that a direct write takes. They are on the heap, which does not move; without
// inlining no compiler may find that a caller's stack, which does, is enough.
//
//go:noinline
func AlignedBytes(n int) []byte {
	invariant.Assert(n >= 0 && n%directAlign == 0, "%d aligned bytes are no whole blocks", n)
	b := make([]byte, n+directAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (directAlign - 1)
	return b[skip : skip+n : skip+n]
}

// isAligned reports whether b may be written directly as far as its memory goes.
func isAligned(b []byte) bool {
	return len(b)%directAlign == 0 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%directAlign == 0
}

// directWriter writes the files of a directory directly, one after the other,
// as long as the system does it.
type directWriter struct {
	mu   sync.Mutex
	to   *directFile
	of   *osFile // whose file that is
	none bool    // the system does not do it: for good
}

// start begins osFile.WriteSync, if it is done here; false: it is not, and nothing
// is written. If it has begun, finish must follow. Without turn it is not done if
// another file was written last: to turn to one takes a write of its own.
func (w *directWriter) start(f *osFile, p []byte, off int64, turn bool) (begun bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.none || !isAligned(p) || off%directAlign != 0 {
		return false, nil
	}
	if w.of != f {
		if !turn {
			return false, nil
		}
		err := w.turnTo(f)
		if errors.Is(err, errDirectUnavailable) {
			w.none = true
			return false, w.drop()
		} else if err != nil {
			return false, err
		}
	}
	if err := w.to.Start(p, off); err != nil {
		return false, err
	}
	return true, nil
}

// finish waits for what start has begun.
func (w *directWriter) finish() error {
	d := w.opened()
	if d == nil {
		return fmt.Errorf("waiting for a direct write: %w", fs.ErrClosed)
	}
	return d.Finish()
}

// await waits until a write that start has begun, or begins meanwhile, has ended:
// then finish does not wait. It returns after wake too, and perhaps for nothing.
// False: nothing has been written directly yet, and it has not waited.
func (w *directWriter) await() bool {
	d := w.opened()
	return d != nil && d.Await()
}

// wake makes await return, the next one if none is under way.
func (w *directWriter) wake() {
	if d := w.opened(); d != nil {
		d.Wake()
	}
}

func (w *directWriter) opened() *directFile {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to
}

func (w *directWriter) turnTo(f *osFile) (err error) {
	// The file may have another name by now.
	path := fmt.Sprintf("/proc/self/fd/%d", f.f.Fd())
	if w.to == nil {
		w.to, err = openDirect(path)
	} else {
		err = w.to.turnTo(path)
	}
	switch {
	case err == nil:
		w.of = f
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w: %w", errDirectUnavailable, err) // no /proc, or one that is closed to us
	}
	return err
}

func (w *directWriter) drop() error {
	d := w.to
	w.to, w.of = nil, nil
	if d == nil {
		return nil
	}
	return d.Close()
}

// close gives back what there is. Another write begins anew.
func (w *directWriter) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.drop()
}
