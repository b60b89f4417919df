package vfs

import (
	"errors"
	"fmt"
	"io"
)

// FS is the part of a file system that the log uses, rooted in the data
// directory; names are relative and slash-separated. OSFS is the real one;
// package faultfs has one that forgets what was not synced.
type FS interface {
	// Create makes a new file (an existing one is an error).
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// List returns the names in a directory ("" the root), sorted.
	List(dir string) ([]string, error)
	MkdirAll(dir string) error
	// SyncDir makes creations, renames and removals in dir durable.
	SyncDir(dir string) error
}

// File is an open file of an FS.
type File interface {
	io.ReaderAt
	io.WriterAt
	Size() (int64, error)
	// Preallocate makes the file at least size bytes long, zero filled.
	Preallocate(size int64) error
	Truncate(size int64) error
	// Sync makes the content durable (fdatasync). After an error nothing
	// about the file may be believed.
	Sync() error
	// WriteSync is WriteAt and Sync of what it writes, in one. Offset, length and
	// memory are aligned to 4096 bytes. Of what else was written to the file and
	// not synced it promises nothing. After an error nothing about the file may
	// be believed.
	WriteSync(p []byte, off int64) error
	Close() error
}

// AsyncFile is offered by a File whose WriteSync need not be waited for.
type AsyncFile interface {
	// StartWriteSync begins a WriteSync; false: that cannot be done here, and
	// nothing was written. Until FinishWriteSync has returned p must not be
	// changed, and nothing else written to the file.
	StartWriteSync(p []byte, off int64) (begun bool, err error)
	// FinishWriteSync waits for the end of what was begun.
	FinishWriteSync() error
	// AwaitWriteSync and WakeWriteSync are AsyncStorage's AwaitSync and WakeSync.
	AwaitWriteSync() bool
	WakeWriteSync()
}

// Locker is offered by an FS that can keep other processes away. Lock fails
// with an *InUseError if another one has it; it must not change anything else.
type Locker interface {
	Lock() (release func() error, err error)
}

// LockName is the file that the process that has the directory open holds locked.
const LockName = "LOCK"

// InUseError says that another process has the directory open.
type InUseError struct {
	Dir string
	PID int // 0 unknown
}

func (e *InUseError) Error() string {
	by := "another process"
	if e.PID != 0 {
		by = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("the data directory %s is in use by %s: stop that one, or give another directory", e.Dir, by)
}

// Background is offered by an FS on which work may go on beside the caller's:
// then the next segment is preallocated while the present one fills, and
// nobody waits for 64 MiB of zeros. Without it everything happens in the calls
// themselves, in one order (the simulator's disks).
type Background interface {
	// Background runs work in a goroutine of its own.
	Background(work func())
}

// Gradual is offered by a File that can be preallocated while flushes of another
// one go on: it is written in small parts, with a rest after each, so that a
// flush waits for little. Once hurry is closed it does not rest any more; once
// unwanted is, it gives up with an error.
type Gradual interface {
	PreallocateGradually(size int64, hurry, unwanted <-chan struct{}) error
}

// ErrUnwanted is what PreallocateGradually ends with once unwanted is closed.
var ErrUnwanted = errors.New("the file is not wanted any more")
