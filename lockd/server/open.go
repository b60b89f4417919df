package server

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs"
)

// open locks and reads the data directory. Its errors say what to do.
func (s *Server) open() (*storage.Opened, error) {
	fs := s.cfg.FS
	if fs == nil {
		var err error
		if fs, err = vfs.NewOSFS(s.cfg.DataDir); err != nil {
			return nil, fmt.Errorf("--data-dir: %w: give a directory that this user can make and write", err)
		}
	}
	start := time.Now()
	opened, err := storage.Open(storage.Options{
		FS:             fs,
		Cell:           s.cfg.Cell,
		Replica:        s.cfg.Name,
		SegmentBytes:   s.cfg.Tuning.SegmentBytes,
		Decode:         replica.DecodeSnapshot,
		NewIncarnation: randomUint64,
	})
	if err != nil {
		return nil, openError(s.cfg.DataDir, err)
	}
	for _, n := range opened.Notes {
		s.log.Warn(n)
	}
	s.log.Info("the data directory is open", "data", s.cfg.DataDir, "empty", opened.Empty,
		"entries", len(opened.Paxos.Entries), "snapshot_slot", opened.Paxos.Applied, "took", time.Since(start))
	return opened, nil
}

// openError names the flag; the error itself says in plain words what is wrong
// with the directory and what to do. Nothing in it was changed.
func openError(dir string, err error) error {
	var inUse *vfs.InUseError
	var foreign *ondisk.ForeignError
	var damaged *ondisk.DamagedError
	if errors.As(err, &inUse) || errors.As(err, &foreign) || errors.As(err, &damaged) {
		return fmt.Errorf("--data-dir %s: %w", dir, err)
	}
	return fmt.Errorf("--data-dir %s cannot be opened: %w", dir, err)
}

func closeStorage(s storage.API) error {
	if err := s.Close(); err != nil {
		return fmt.Errorf("close the data directory: %w", err)
	}
	return nil
}

func randomUint64() uint64 {
	var b [8]byte
	// crypto/rand.Read never fails; the process would be stopped by it.
	_, _ = rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}
