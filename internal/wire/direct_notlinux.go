//go:build unix && (!linux || race || 386 || s390x)

// The race detector learns from these calls what another process, or goroutine,
// has seen; of raw ones it hears nothing.

package wire

import "syscall"

// writeSocket writes to a socket that does not block.
func writeSocket(fd int, b []byte) (int, error) { return syscall.Write(fd, b) }

// readSocket reads from a socket that does not block.
func readSocket(fd int, b []byte) (int, error) { return syscall.Read(fd, b) }
