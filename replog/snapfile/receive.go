package snapfile

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

// Receive adds a piece to the snapshot that is being received. Pieces come in
// order; one that was had before is ignored, one of another snapshot or with
// offset 0 starts over.
func (s *Store) Receive(c *pb.SnapshotChunk) (*pb.SnapshotMeta, any, error) {
	s.receiving.Lock()
	defer s.receiving.Unlock()
	if err := s.stop.Check(); err != nil {
		return nil, nil, err
	}
	if c.GetGone() {
		return nil, nil, s.dropPart()
	}
	if err := checkChunk(c); err != nil {
		return nil, nil, fmt.Errorf("receiving a snapshot: %w", err)
	}
	if err := s.receivePiece(c); err != nil {
		return nil, nil, fmt.Errorf("receiving the snapshot of slot %d: %w", c.Slot, err)
	}
	if s.part.got < s.part.size {
		return nil, nil, nil
	}
	meta, state, err := s.complete()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("receiving the snapshot of slot %d: %w", c.Slot, err), s.dropPart())
	}
	return meta, state, nil
}

func checkChunk(c *pb.SnapshotChunk) error {
	switch {
	case c.GetSlot() == 0:
		return errors.New("the piece has no slot")
	case c.Size == 0 || c.Size > maxSnapshotBytes:
		return fmt.Errorf("a snapshot of %d bytes is not possible", c.Size)
	case len(c.Data) == 0:
		return errors.New("the piece is empty")
	case c.Offset > c.Size || uint64(len(c.Data)) > c.Size-c.Offset:
		return fmt.Errorf("the piece of %d bytes at %d does not fit the size %d", len(c.Data), c.Offset, c.Size)
	}
	return nil
}

func (s *Store) receivePiece(c *pb.SnapshotChunk) error {
	p := s.part
	if p == nil || p.slot != paxos.Slot(c.Slot) || p.size != int64(c.Size) || c.Offset == 0 {
		if c.Offset != 0 {
			return fmt.Errorf("a piece at %d comes before the first one", c.Offset)
		}
		if err := s.dropPart(); err != nil {
			return err
		}
		f, err := vfs.CreateTemp(s.fs, incomingName)
		if err != nil {
			return err
		}
		p = &incoming{slot: paxos.Slot(c.Slot), size: int64(c.Size), file: f}
		s.part = p
	}
	at := int64(c.Offset)
	if at > p.got {
		return fmt.Errorf("a piece at %d comes where the one at %d is due", at, p.got)
	}
	if at+int64(len(c.Data)) <= p.got {
		return nil
	}
	if _, err := p.file.WriteAt(c.Data[p.got-at:], p.got); err != nil {
		return errors.Join(err, s.dropPart())
	}
	before := p.got
	p.got = at + int64(len(c.Data))
	if before/snapSyncBytes != p.got/snapSyncBytes {
		if err := p.file.Sync(); err != nil {
			return errors.Join(err, s.dropPart())
		}
	}
	return nil
}

// complete verifies and decodes what was received, and only then gives it its
// name.
func (s *Store) complete() (*pb.SnapshotMeta, any, error) {
	p := s.part
	if err := p.file.Sync(); err != nil {
		return nil, nil, err
	}
	meta, raw, err := verifySnapshot(p.file, incomingName)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case paxos.Slot(meta.Slot) != p.slot:
		return nil, nil, fmt.Errorf("it is that of slot %d", meta.Slot)
	case meta.Cell != s.id.Cell:
		return nil, nil, fmt.Errorf("it is of cell %q, this is a replica of cell %q", meta.Cell, s.id.Cell)
	}
	c, err := codec.DecodeConfiguration(meta.Config)
	if err != nil {
		return nil, nil, err
	}
	if own := s.cellIdentity(); own != 0 && (c == nil || c.CellIdentity != own) {
		return nil, nil, fmt.Errorf("it is of another founding of the cell, this is a replica of %016x", own)
	}
	// Node.isOurs checks it again. It is refused here already, since a file that has
	// its name takes the log's place at the next start.
	if c == nil || !slices.ContainsFunc(c.Members, s.isThisReplica) {
		return nil, nil, fmt.Errorf("replica %s with this disk (incarnation %016x) is not in it", s.id.Replica, s.id.Incarnation)
	}
	state, err := decodeSnapshot(p.file, incomingName, raw, s.decode)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reading == p.slot {
		s.endReading()
	}
	if err := s.name(incomingName, p.slot); err != nil {
		return nil, nil, err
	}
	s.part = nil
	return meta, state, p.file.Close()
}

func (s *Store) isThisReplica(m paxos.Member) bool {
	return m.Name == s.id.Replica && m.Incarnation == s.id.Incarnation
}

// dropPart forgets the snapshot that is being received; receiving is held.
func (s *Store) dropPart() error {
	if s.part == nil {
		return nil
	}
	err := s.part.file.Close()
	s.part = nil
	if removeErr := s.fs.Remove(incomingName); !errors.Is(removeErr, fs.ErrNotExist) {
		err = errors.Join(err, removeErr)
	}
	return err
}

// Installed notes that the log below slot is gone, and removes the snapshots
// that were of use with it only.
func (s *Store) Installed(slot paxos.Slot) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = slot
	var gone []paxos.Slot
	kept := s.kept[:0:0]
	for _, k := range s.kept {
		if k < slot {
			gone = append(gone, k)
		} else {
			kept = append(kept, k)
		}
	}
	s.kept = kept
	return s.remove(gone)
}
