//go:build !race && !386 && !s390x

package wire

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// writeSocket writes to a socket that does not block, so the scheduler need not
// be told of the call: that would cost about as much again. The calls of sockets
// are shorter than those of files in general.
func writeSocket(fd int, b []byte) (int, error) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// readSocket reads from a socket that does not block. That the scheduler is not
// told counts for more here: each read that it hears of wakes the runtime's
// monitor, which then looks around every 20 µs until all is idle again.
func readSocket(fd int, b []byte) (int, error) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
		syscall.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// epollWait looks which connections have something, without waiting.
func epollWait(fd int, events []unix.EpollEvent) (int, error) {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
