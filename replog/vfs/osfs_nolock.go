//go:build !unix

package vfs

import (
	"errors"
	"os"
)

// lockFile: without a lock two processes could write the same log.
func lockFile(*os.File) (held bool, err error) {
	return false, errors.New("this system's file locks are not supported")
}
