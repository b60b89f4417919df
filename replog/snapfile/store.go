package snapfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

const (
	snapshotsKept    = 2
	incomingName     = ondisk.SnapDir + "/incoming.part"
	defaultReadChunk = 256 << 10
	maxReadChunk     = 4 << 20
	maxSnapshotBytes = 1 << 40
)

// Snapshot is an immutable view of the state that can write itself.
type Snapshot interface {
	WriteSnapshot(w io.Writer) error
}

// Decode reads what a Snapshot wrote. It has no side effect.
type Decode func(r io.Reader) (state any, err error)

// Options say where the snapshots are, and whose.
type Options struct {
	FS       vfs.FS
	Stop     *ondisk.FailStop
	Identity *pb.Identity
	Decode   Decode
	// CellIdentity returns that of the identity file, 0 before founding.
	CellIdentity func() uint64
}

// New returns the snapshots of a directory that has those of the slots kept,
// good ones, in ascending order.
func New(o Options, kept []paxos.Slot) *Store {
	return &Store{fs: o.FS, stop: o.Stop, id: o.Identity, decode: o.Decode, cellIdentity: o.CellIdentity, kept: kept}
}

// Store is the snapshot files of a replica.
type Store struct {
	fs     vfs.FS
	stop   *ondisk.FailStop
	id     *pb.Identity
	decode Decode
	// cellIdentity is that of the identity file, 0 before founding.
	cellIdentity func() uint64

	saving sync.Mutex // one at a time is written

	mu   sync.Mutex
	kept []paxos.Slot // good ones, ascending
	base paxos.Slot   // the log below it is gone: older snapshots are of no use
	// The one that a follower is fetching is kept besides, as long as it makes
	// progress.
	reading  paxos.Slot
	readFile vfs.File
	progress bool // it was read since the last snapshot was made

	receiving sync.Mutex
	part      *incoming
}

// incoming is the snapshot that is being received.
type incoming struct {
	slot paxos.Slot
	size int64
	got  int64
	file vfs.File
}

// Found is what is in the directory; nothing is changed yet.
type Found struct {
	Good      []paxos.Slot // ascending, at most all
	damaged   []paxos.Slot
	Damage    []*ondisk.DamagedError // of each of damaged
	leftovers []string
	Newest    *pb.SnapshotMeta // of the newest good one
	raw       uint64           // bytes of its content
}

// Read verifies every snapshot there is.
func Read(fsys vfs.FS, id *pb.Identity) (*Found, error) {
	names, err := fsys.List(ondisk.SnapDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading the directory %s: %w", ondisk.SnapDir, err)
	}
	found := &Found{}
	for _, name := range names {
		slot, ok := ondisk.ParseNumberedName(name, ondisk.SnapSuffix)
		switch {
		case ok:
			if err := found.verify(fsys, paxos.Slot(slot), id); err != nil {
				return nil, err
			}
		case strings.HasSuffix(name, ondisk.TempSuffix) || ondisk.SnapDir+"/"+name == incomingName:
			found.leftovers = append(found.leftovers, ondisk.SnapDir+"/"+name)
		case strings.HasSuffix(name, damagedSuffix):
		default:
			return nil, fmt.Errorf("the file %s/%s is none of the log's: take it away, then start again", ondisk.SnapDir, name)
		}
	}
	return found, nil
}

func (s *Found) verify(fsys vfs.FS, slot paxos.Slot, id *pb.Identity) (err error) {
	name := Name(slot)
	f, err := fsys.Open(name)
	if err != nil {
		return fmt.Errorf("opening %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	meta, raw, err := verifySnapshot(f, name)
	if err == nil && paxos.Slot(meta.Slot) != slot {
		err = &ondisk.DamagedError{File: name, What: fmt.Sprintf("the file holds the snapshot of slot %d", meta.Slot)}
	}
	var damage *ondisk.DamagedError
	switch {
	case errors.As(err, &damage):
		s.damaged, s.Damage = append(s.damaged, slot), append(s.Damage, damage)
		return nil
	case err != nil:
		return err
	case meta.Cell != id.Cell:
		return &ondisk.ForeignError{FoundCell: meta.Cell, FoundReplica: id.Replica, AskedCell: id.Cell, AskedReplica: id.Replica,
			FoundIncarnation: id.Incarnation, Wanted: id.Incarnation}
	}
	s.Good, s.Newest, s.raw = append(s.Good, slot), meta, raw
	return nil
}

// Base is the slot of the newest good snapshot, 0 if there is none.
func (s *Found) Base() paxos.Slot {
	if len(s.Good) == 0 {
		return 0
	}
	return s.Good[len(s.Good)-1]
}

// Load decodes the newest good snapshot.
func (s *Found) Load(fsys vfs.FS, decode Decode) (state any, err error) {
	name := Name(s.Base())
	f, err := fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return decodeSnapshot(f, name, s.raw, decode)
}

// Repair removes what a crash left and puts damaged files aside.
func (s *Found) Repair(fsys vfs.FS) (notes []string, err error) {
	for _, name := range s.leftovers {
		if err := fsys.Remove(name); err != nil {
			return nil, fmt.Errorf("removing the leftover %s: %w", name, err)
		}
		notes = append(notes, "removed "+name+", left by an earlier stop")
	}
	for i, slot := range s.damaged {
		name := Name(slot)
		if err := fsys.Rename(name, name+damagedSuffix); err != nil {
			return nil, fmt.Errorf("putting the damaged %s aside: %w", name, err)
		}
		with := "the log alone"
		if s.Base() > 0 {
			with = fmt.Sprintf("the snapshot of slot %d and the log behind it", s.Base())
		}
		notes = append(notes, fmt.Sprintf("a damaged snapshot (%s) was put aside as %s%s; going on with %s",
			s.Damage[i].Place(), name, damagedSuffix, with))
	}
	if err := fsys.SyncDir(ondisk.SnapDir); err != nil {
		return nil, fmt.Errorf("making %s durable: %w", ondisk.SnapDir, err)
	}
	return notes, nil
}

// Save writes a snapshot. An error leaves things as they were, unless it says
// that the storage has stopped.
func (s *Store) Save(meta *pb.SnapshotMeta, snap Snapshot) error {
	s.saving.Lock()
	defer s.saving.Unlock()
	if err := s.stop.Check(); err != nil {
		return err
	}
	slot := paxos.Slot(meta.Slot)
	if slot == 0 {
		return errors.New("saving a snapshot: it has no slot")
	}
	if s.superfluous(slot) {
		return nil
	}
	name := Name(slot)
	if err := s.writeTemp(name+ondisk.TempSuffix, meta, snap); err != nil {
		return fmt.Errorf("saving the snapshot of slot %d: %w", slot, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot <= s.base {
		return s.fs.Remove(name + ondisk.TempSuffix)
	}
	if err := s.name(name+ondisk.TempSuffix, slot); err != nil {
		return err
	}
	return s.retain()
}

// superfluous: that snapshot is there, or the log has gone on without it.
func (s *Store) superfluous(slot paxos.Slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.kept {
		if k == slot {
			return true
		}
	}
	return slot <= s.base
}

func (s *Store) writeTemp(temp string, meta *pb.SnapshotMeta, snap Snapshot) (err error) {
	f, err := vfs.CreateTemp(s.fs, temp)
	if err != nil {
		return err
	}
	_, err = Write(f, meta, snap)
	if err = errors.Join(err, f.Close()); err != nil {
		// Nothing refers to it; what cannot be removed now goes at the next start.
		return errors.Join(err, s.fs.Remove(temp))
	}
	return nil
}

// name gives a durable temporary file its name, durably; mu is held.
func (s *Store) name(temp string, slot paxos.Slot) error {
	name := Name(slot)
	if err := s.fs.Rename(temp, name); err != nil {
		return s.stop.Fail("naming "+name, err)
	}
	if err := s.fs.SyncDir(ondisk.SnapDir); err != nil {
		return s.stop.Fail("making the name of "+name+" durable", err)
	}
	at := len(s.kept)
	for at > 0 && s.kept[at-1] >= slot {
		at--
	}
	if at < len(s.kept) && s.kept[at] == slot {
		return nil
	}
	s.kept = append(s.kept, 0)
	copy(s.kept[at+1:], s.kept[at:])
	s.kept[at] = slot
	return nil
}

// retain removes what is older than the newest two; mu is held.
func (s *Store) retain() error {
	pinned := paxos.Slot(0)
	if s.progress {
		pinned = s.reading
	}
	s.progress = false
	var gone []paxos.Slot
	kept := s.kept[:0:0]
	for i, slot := range s.kept {
		if i < len(s.kept)-snapshotsKept && slot != pinned {
			gone = append(gone, slot)
		} else {
			kept = append(kept, slot)
		}
	}
	s.kept = kept
	return s.remove(gone)
}

// remove removes snapshots and, if there are two good ones, also what was put
// aside as damaged; mu is held.
func (s *Store) remove(gone []paxos.Slot) error {
	var names []string
	for _, slot := range gone {
		if slot == s.reading {
			s.endReading()
		}
		names = append(names, Name(slot))
	}
	if len(s.kept) >= snapshotsKept {
		all, err := s.fs.List(ondisk.SnapDir)
		if err != nil {
			return s.stop.Fail("reading the directory "+ondisk.SnapDir, err)
		}
		for _, n := range all {
			if strings.HasSuffix(n, damagedSuffix) {
				names = append(names, ondisk.SnapDir+"/"+n)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	for _, n := range names {
		if err := s.fs.Remove(n); err != nil {
			return s.stop.Fail("removing "+n, err)
		}
	}
	if err := s.fs.SyncDir(ondisk.SnapDir); err != nil {
		return s.stop.Fail("making removals in "+ondisk.SnapDir+" durable", err)
	}
	return nil
}

// Oldest is the slot up to which the log may go: that of the oldest kept
// snapshot, if there is another one to fall back from.
func (s *Store) Oldest() paxos.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) < snapshotsKept {
		return 0
	}
	return s.kept[0]
}

// Newest gives the slot of the newest snapshot, 0 if there is none.
func (s *Store) Newest() paxos.Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) == 0 {
		return 0
	}
	return s.kept[len(s.kept)-1]
}

// Read gives a piece of a snapshot's file.
func (s *Store) Read(slot paxos.Slot, offset int64, limit int) (*pb.SnapshotChunk, error) {
	if err := s.stop.Check(); err != nil {
		return nil, err
	}
	if limit <= 0 {
		limit = defaultReadChunk
	}
	limit = min(limit, maxReadChunk)
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := &pb.SnapshotChunk{Slot: uint64(slot), Offset: uint64(max(offset, 0)), Gone: true}
	if slot == 0 && len(s.kept) > 0 {
		slot = s.kept[len(s.kept)-1]
	}
	if !s.has(slot) || offset < 0 {
		return gone, nil
	}
	if err := s.startReading(slot); err != nil {
		return nil, err
	}
	size, err := s.readFile.Size()
	if err != nil {
		return nil, fmt.Errorf("size of %s: %w", Name(slot), err)
	}
	if offset >= size {
		return gone, nil
	}
	data := make([]byte, min(int64(limit), size-offset))
	if n, err := s.readFile.ReadAt(data, offset); n < len(data) {
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("reading %s: %w", Name(slot), err)
	}
	s.progress = true
	last := offset+int64(len(data)) == size
	if last {
		s.endReading()
	}
	return &pb.SnapshotChunk{Slot: uint64(slot), Offset: uint64(offset), Data: data, Size: uint64(size), Last: last}, nil
}

func (s *Store) has(slot paxos.Slot) bool {
	for _, k := range s.kept {
		if k == slot && slot != 0 {
			return true
		}
	}
	return false
}

func (s *Store) startReading(slot paxos.Slot) error {
	if s.reading == slot {
		return nil
	}
	s.endReading()
	f, err := s.fs.Open(Name(slot))
	if err != nil {
		return fmt.Errorf("opening %s: %w", Name(slot), err)
	}
	s.reading, s.readFile = slot, f
	return nil
}

func (s *Store) endReading() {
	if s.readFile != nil {
		_ = s.readFile.Close() // it was only read
	}
	s.reading, s.readFile, s.progress = 0, nil, false
}

// Close waits for a snapshot that is being saved, and gives back the files. The
// fail stop is closed before, so that no other is begun.
func (s *Store) Close() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.receiving.Lock()
	err := s.dropPart()
	s.receiving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endReading()
	return err
}
