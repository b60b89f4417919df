//go:build !race

package wire

import (
	"syscall"
	"unsafe"
)

// writeSocket writes to a socket that does not block, so the scheduler need not
// be told of the call: that would cost about as much again.
func writeSocket(fd int, b []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// readSocket reads from a socket that does not block. That the scheduler is not
// told counts for more here: each read that it hears of wakes the runtime's
// monitor, which then looks around every 20 µs until all is idle again.
func readSocket(fd int, b []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
