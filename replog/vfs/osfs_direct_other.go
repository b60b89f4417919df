//go:build !linux || !(386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64)

package vfs

import "fmt"

// directFile is not there on this system: openDirect makes none.
type directFile struct{}

// openDirect always ends in errDirectUnavailable.
func openDirect(path string) (*directFile, error) {
	return nil, fmt.Errorf("opening %s: %w: not on this system", path, errDirectUnavailable)
}

// turnTo fails.
func (*directFile) turnTo(string) error { return errDirectUnavailable }

// WriteSync fails.
func (*directFile) WriteSync([]byte, int64) error { return errDirectUnavailable }

// Start fails.
func (*directFile) Start([]byte, int64) error { return errDirectUnavailable }

// Finish fails.
func (*directFile) Finish() error { return errDirectUnavailable }

// Await does not wait.
func (*directFile) Await() bool { return false }

// Wake has nobody to wake.
func (*directFile) Wake() {}

// Close has nothing to close.
func (*directFile) Close() error { return nil }
