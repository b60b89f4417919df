package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

const (
	maxIdentity = 64 << 10
)

// encodeIdentity gives the content of the identity file: text that a person
// can read, ended by a checksum.
func encodeIdentity(id *pb.Identity) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "lockd-identity %d\n", id.Format)
	fmt.Fprintf(&b, "cell %s\n", strconv.Quote(id.Cell))
	fmt.Fprintf(&b, "replica %s\n", strconv.Quote(id.Replica))
	fmt.Fprintf(&b, "incarnation %016x\n", id.Incarnation)
	fmt.Fprintf(&b, "cell-identity %016x\n", id.CellIdentity)
	fmt.Fprintf(&b, "crc32c %08x\n", crc32.Checksum([]byte(b.String()), ondisk.Castagnoli))
	return []byte(b.String())
}

// decodeIdentity is strict: only what encodeIdentity writes is accepted.
func decodeIdentity(content []byte) (*pb.Identity, error) {
	lines := strings.Split(string(content), "\n")
	words := []string{"lockd-identity", "cell", "replica", "incarnation", "cell-identity", "crc32c"}
	if len(lines) != len(words)+1 || lines[len(words)] != "" {
		return nil, errors.New("it is not a whole identity file")
	}
	values := make([]string, len(words))
	for i, word := range words {
		value, ok := strings.CutPrefix(lines[i], word+" ")
		if !ok {
			return nil, fmt.Errorf("line %d does not begin with %q", i+1, word)
		}
		values[i] = value
	}
	id := &pb.Identity{}
	format, err := strconv.ParseUint(values[0], 10, 32)
	if err != nil {
		return nil, errors.New("its format is unreadable")
	}
	id.Format = uint32(format)
	if id.Cell, err = strconv.Unquote(values[1]); err != nil {
		return nil, errors.New("its cell is unreadable")
	}
	if id.Replica, err = strconv.Unquote(values[2]); err != nil {
		return nil, errors.New("its replica is unreadable")
	}
	if id.Incarnation, err = strconv.ParseUint(values[3], 16, 64); err != nil {
		return nil, errors.New("its incarnation is unreadable")
	}
	if id.CellIdentity, err = strconv.ParseUint(values[4], 16, 64); err != nil {
		return nil, errors.New("its cell identity is unreadable")
	}
	if string(encodeIdentity(id)) != string(content) {
		return nil, errors.New("its checksum is wrong")
	}
	return id, nil
}

// readIdentity reads the identity file; the error is fs.ErrNotExist if there
// is none, *ondisk.DamagedError if it is unreadable.
func readIdentity(fsys vfs.FS) (*pb.Identity, error) {
	content, err := readSmall(fsys, ondisk.IdentityName, maxIdentity)
	if err != nil {
		return nil, err
	}
	id, err := decodeIdentity(content)
	if err != nil {
		return nil, &ondisk.DamagedError{File: ondisk.IdentityName, What: err.Error()}
	}
	if err := ondisk.CheckFormat(ondisk.IdentityName, id.Format); err != nil {
		return nil, err
	}
	return id, nil
}

func readSmall(fsys vfs.FS, name string, limit int64) (content []byte, err error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", name, err)
	}
	if size > limit {
		return nil, &ondisk.DamagedError{File: name, Offset: limit, What: fmt.Sprintf("a file of %d bytes is not possible", size)}
	}
	content = make([]byte, size)
	if n, err := f.ReadAt(content, 0); n < len(content) {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	return content, nil
}

// writeIdentity replaces the identity file, durably: after a crash either the
// old one is there or the new one.
func writeIdentity(fsys vfs.FS, id *pb.Identity) error {
	temp := ondisk.IdentityName + ondisk.TempSuffix
	if err := writeSmall(fsys, temp, encodeIdentity(id)); err != nil {
		return fmt.Errorf("writing %s: %w", temp, err)
	}
	if err := fsys.Rename(temp, ondisk.IdentityName); err != nil {
		return fmt.Errorf("naming %s: %w", ondisk.IdentityName, err)
	}
	if err := fsys.SyncDir(""); err != nil {
		return fmt.Errorf("making %s durable: %w", ondisk.IdentityName, err)
	}
	return nil
}

func writeSmall(fsys vfs.FS, name string, content []byte) (err error) {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Sync()
}
