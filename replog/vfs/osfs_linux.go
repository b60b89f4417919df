package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed70370324/lockd/internal/invariant"
)

// callFdatasync is one of the calls of osfs_calls.go.
var callFdatasync = unix.Fdatasync

// syncData is fdatasync: content and size, not the times. A call that a signal
// interrupted has not reported anything yet, so it may be repeated; after any
// other error nothing may be.
func syncData(f *os.File) error {
	if invariant.Planted(invariant.NoFdatasync) {
		return nil
	}
	for {
		err := callFdatasync(int(f.Fd()))
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}

// reserve asks for room in one piece. Not every file system can.
func reserve(f *os.File, off, n int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), 0, off, n)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
			return nil
		}
		return os.NewSyscallError("fallocate", err)
	}
}
