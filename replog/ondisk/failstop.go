package ondisk

import (
	"errors"
	"sync"
)

// ErrClosed is what a storage answers that was closed in good order.
var ErrClosed = errors.New("the storage is closed")

// FailStop remembers the first failed write. After it nothing is known about
// what is on disk (the kernel may have dropped the pages, and report success
// the next time), so there is no next time.
type FailStop struct {
	mu  sync.Mutex
	err error
}

// Check returns the failure, nil if there was none.
func (f *FailStop) Check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Fail notes a failure of doing something, and returns what every call is answered
// from now on.
func (f *FailStop) Fail(doing string, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = &StoppedError{Doing: doing, Err: err}
	}
	return f.err
}

// Close has every call from now on answered with ErrClosed.
func (f *FailStop) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = ErrClosed
	}
}
