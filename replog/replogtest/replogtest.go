// Package replogtest has what the tests of several packages of the replicated log
// use.
package replogtest

import (
	"bytes"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

// File is a file for decoders to read; only appending writes are kept.
type File struct{ B []byte }

func (f *File) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(f.B).ReadAt(p, off)
}

func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if end := int(off) + len(p); end > len(f.B) {
		f.B = append(f.B, make([]byte, end-len(f.B))...)
	}
	return copy(f.B[off:], p), nil
}
func (f *File) Size() (int64, error)      { return int64(len(f.B)), nil }
func (f *File) Preallocate(n int64) error { _, err := f.WriteAt(nil, n); return err }
func (f *File) Truncate(int64) error      { return errors.ErrUnsupported }
func (f *File) Sync() error               { return nil }
func (f *File) Close() error              { return nil }
func (f *File) WriteSync(p []byte, off int64) error {
	_, err := f.WriteAt(p, off)
	return err
}

// OneFile is a file system for one small file.
type OneFile struct{ F *File }

func (o OneFile) Open(string) (vfs.File, error)   { return o.F, nil }
func (o OneFile) Create(string) (vfs.File, error) { return o.F, nil }
func (o OneFile) Rename(string, string) error     { return nil }
func (o OneFile) Remove(string) error             { return fs.ErrNotExist }
func (o OneFile) List(string) ([]string, error)   { return nil, nil }
func (o OneFile) MkdirAll(string) error           { return nil }
func (o OneFile) SyncDir(string) error            { return nil }

// ID is the identity of a replica.
var ID = &pb.Identity{Format: codec.FormatVersion, Cell: "demo", Replica: "n1", Incarnation: 42}

// Typed demands an error that says what is wrong with a file in a way that its
// caller can decide upon.
func Typed(t *testing.T, err error) {
	t.Helper()
	var damaged *ondisk.DamagedError
	var foreign *ondisk.ForeignError
	if !errors.As(err, &damaged) && !errors.As(err, &foreign) && !strings.Contains(err.Error(), "this version of lockd") {
		t.Fatalf("an error of no known kind: %v", err)
	}
}
