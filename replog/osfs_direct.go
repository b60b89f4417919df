package replog

import (
	"errors"
	"unsafe"

	"github.com/seed70370324/lockd/internal/invariant"
)

// directAlign is what offset, length and memory of a direct write are
// multiples of: the page, and at least the block of every disk that is sold.
const directAlign = 4096

// errDirectUnavailable says that this file system or kernel does not do direct,
// durable writes; WriteAt and Sync do the same there, slower.
var errDirectUnavailable = errors.New("direct writes are not available")

// alignedBytes returns n zero bytes, n a multiple of directAlign, in memory
// that a direct write takes. They are on the heap, which does not move; without
// inlining no compiler may find that a caller's stack, which does, is enough.
//
//go:noinline
func alignedBytes(n int) []byte {
	invariant.Assert(n >= 0 && n%directAlign == 0, "%d aligned bytes are no whole blocks", n)
	b := make([]byte, n+directAlign)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (directAlign - 1)
	return b[skip : skip+n : skip+n]
}

// isAligned reports whether b may be written directly as far as its memory goes.
func isAligned(b []byte) bool {
	return len(b)%directAlign == 0 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%directAlign == 0
}
