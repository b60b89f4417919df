package vfs

import (
	"errors"
	"io/fs"
)

// CreateTemp creates a temporary file, in the place of one of that name that was
// given up and could not be removed then: it must not be in the way for good.
func CreateTemp(fsys FS, name string) (File, error) {
	f, err := fsys.Create(name)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	if err := fsys.Remove(name); err != nil {
		return nil, err
	}
	return fsys.Create(name)
}
