package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/snapfile"
	"github.com/seed70370324/lockd/replog/vfs"
	"github.com/seed70370324/lockd/replog/wal"
)

const (
	defaultSegmentBytes = 64 << 20
	// MaxSegmentBytes is the largest that a segment of the log can be asked to be.
	MaxSegmentBytes = 1 << 30
)

// Storage is the durable part of a replica: identity, log and snapshots. It
// has the methods of API and Async; several goroutines may call them, though Append
// and Sync make sense from one.
type Storage struct {
	fs      vfs.FS
	stop    ondisk.FailStop
	release func() error
	log     *wal.Log
	snaps   *snapfile.Store

	identity sync.Mutex
	id       *pb.Identity
}

var (
	_ API   = (*Storage)(nil)
	_ Async = (*Storage)(nil)
)

func (o *Options) check() error {
	switch {
	case o.FS == nil:
		return errors.New("opening the storage: no file system given")
	case o.Cell == "" || o.Replica == "":
		return errors.New("opening the storage: cell and replica must have a name")
	case o.NewIncarnation == nil:
		return errors.New("opening the storage: no source of incarnations given")
	case o.SegmentBytes < 0 || o.SegmentBytes > MaxSegmentBytes:
		return fmt.Errorf("opening the storage: segments of %d bytes: at most %d are possible", o.SegmentBytes, MaxSegmentBytes)
	case o.SegmentBytes == 0:
		o.SegmentBytes = defaultSegmentBytes
	}
	o.SegmentBytes = wal.SegmentSize(o.SegmentBytes)
	return nil
}

// Open opens the storage in o.FS, or makes it there if it is empty. It checks
// everything before it changes anything, so a start that fails destroys
// nothing. Errors: *ondisk.DamagedError, *ondisk.ForeignError, *vfs.InUseError, or one of the
// file system.
func Open(o Options) (*Opened, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	release := func() error { return nil }
	if l, ok := o.FS.(vfs.Locker); ok {
		var err error
		if release, err = l.Lock(); err != nil {
			return nil, err
		}
	}
	opened, err := open(&o)
	if err != nil {
		return nil, errors.Join(withDir(err, o.FS), release())
	}
	opened.Storage.release = release
	return opened, nil
}

// withDir puts the name of the directory into an error, if it is known.
func withDir(err error, fsys vfs.FS) error {
	s, ok := fsys.(fmt.Stringer)
	if !ok {
		return err
	}
	var damaged *ondisk.DamagedError
	var foreign *ondisk.ForeignError
	switch {
	case errors.As(err, &damaged) && damaged.Dir == "":
		damaged.Dir = s.String()
	case errors.As(err, &foreign) && foreign.Dir == "":
		foreign.Dir = s.String()
	}
	return err
}

func open(o *Options) (*Opened, error) {
	id, err := readIdentity(o.FS)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return create(o)
	case err != nil:
		return nil, err
	case id.Cell != o.Cell || id.Replica != o.Replica:
		return nil, &ondisk.ForeignError{FoundCell: id.Cell, FoundReplica: id.Replica, AskedCell: o.Cell, AskedReplica: o.Replica,
			FoundIncarnation: id.Incarnation, Wanted: id.Incarnation}
	}
	s := &Storage{fs: o.FS, id: id}
	snaps, err := snapfile.Read(o.FS, id)
	if err != nil {
		return nil, err
	}
	log, err := wal.Read(s.logOptions(o), snaps.Base())
	if err != nil {
		return nil, err
	}
	opened, err := s.restore(o, snaps, log)
	if err != nil {
		return nil, errors.Join(err, log.Log().Close())
	}
	return opened, nil
}

// restore checks that snapshot and log go together, then cleans up and gives
// what was found.
func (s *Storage) restore(o *Options, snaps *snapfile.Found, log *wal.Found) (*Opened, error) {
	base := snaps.Base()
	// A replica's own snapshots are never ahead of its log (Node.save): this one
	// was received, and it has not come to its installation. What the log holds
	// below its slot need not be what was chosen there.
	uninstalled := log.Chosen() < base
	log.Settle(base)
	if err := checkWhole(snaps, log); err != nil {
		return nil, err
	}
	opened := &Opened{Storage: s, Found: replog.Found{Identity: proto.CloneOf(s.id)}}
	var c *paxos.Configuration
	if base > 0 {
		var err error
		if c, err = codec.DecodeConfiguration(snaps.Newest.Config); err != nil {
			return nil, &ondisk.DamagedError{File: snapfile.Name(base), What: err.Error()}
		}
		log.TakeConfiguration(c, base)
		if opened.State, err = snaps.Load(o.FS, o.Decode); err != nil {
			return nil, err
		}
	}
	notes, err := s.repair(snaps, log)
	if err != nil {
		return nil, err
	}
	s.log = log.Log()
	s.snaps = snapfile.New(s.snapOptions(o), snaps.Good)
	if installed := log.Installed(); installed > 0 {
		// A crash may have kept the installation from removing older ones.
		if err := s.snaps.Installed(installed); err != nil {
			return nil, err
		}
	}
	if uninstalled {
		if err := s.log.Install(base, c, log.Promised(), nil); err != nil {
			return nil, err
		}
		if err := s.snaps.Installed(base); err != nil {
			return nil, err
		}
		notes = append(notes, fmt.Sprintf("the snapshot of slot %d was received and not installed before an earlier stop: it has taken the log's place", base))
	}
	opened.Notes = notes
	opened.Configuration = log.Configuration()
	opened.Paxos = paxos.Restored{
		Promised: log.Promised(),
		Chosen:   log.Chosen(),
		Applied:  base,
		First:    s.log.First(),
		Entries:  log.Sorted(),
	}
	return opened, nil
}

func (s *Storage) logOptions(o *Options) wal.Options {
	return wal.Options{FS: o.FS, Stop: &s.stop, Identity: s.id, SegmentBytes: o.SegmentBytes}
}

func (s *Storage) snapOptions(o *Options) snapfile.Options {
	return snapfile.Options{FS: o.FS, Stop: &s.stop, Identity: s.id, Decode: o.Decode, CellIdentity: s.cellIdentity}
}

// checkWhole finds out whether the state can be made again from the newest
// good snapshot and the log: every slot above it that is known to be chosen
// must have a record.
func checkWhole(snaps *snapfile.Found, log *wal.Found) error {
	base, installed := snaps.Base(), log.Installed()
	number, file, offset := log.Start()
	if base < installed {
		if len(snaps.Damage) > 0 {
			return snaps.Damage[len(snaps.Damage)-1]
		}
		return &ondisk.DamagedError{File: snapfile.Name(installed), What: "this snapshot, which took the log's place up to its slot, is missing"}
	}
	// Without any good snapshot the log alone will do only if it goes back to
	// the beginning; and two bad snapshots are a disk that is not to be trusted.
	if len(snaps.Good) == 0 && (len(snaps.Damage) > 1 || len(snaps.Damage) == 1 && number != 1) {
		return snaps.Damage[len(snaps.Damage)-1]
	}
	for slot := base + 1; slot <= log.Chosen(); slot++ {
		if log.Has(slot) {
			continue
		}
		if len(snaps.Damage) > 0 {
			return snaps.Damage[len(snaps.Damage)-1]
		}
		return &ondisk.DamagedError{
			File: file, Offset: offset,
			What: fmt.Sprintf("slot %d was chosen, is not in the snapshot (which ends at slot %d) and has no record",
				slot, base),
		}
	}
	return nil
}

// repair is the first thing that changes the disk.
func (s *Storage) repair(snaps *snapfile.Found, log *wal.Found) (notes []string, err error) {
	err = s.fs.Remove(ondisk.IdentityName + ondisk.TempSuffix)
	if err == nil {
		notes = append(notes, "removed "+ondisk.IdentityName+ondisk.TempSuffix+", left by an earlier stop")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("removing the leftover %s: %w", ondisk.IdentityName+ondisk.TempSuffix, err)
	}
	if err := s.fs.SyncDir(""); err != nil {
		return nil, fmt.Errorf("making the data directory durable: %w", err)
	}
	more, err := snaps.Repair(s.fs)
	if err != nil {
		return nil, err
	}
	notes = append(notes, more...)
	more, err = log.Repair()
	return append(notes, more...), err
}

// create makes a new storage. The identity file comes last: until its name is
// durable there is nothing, and the next start begins again.
func create(o *Options) (*Opened, error) {
	notes, err := clearUnfinished(o)
	if err != nil {
		return nil, err
	}
	id := &pb.Identity{Format: codec.FormatVersion, Cell: o.Cell, Replica: o.Replica, Incarnation: o.NewIncarnation()}
	if id.Incarnation == 0 {
		id.Incarnation = 1 // 0 means none
	}
	s := &Storage{fs: o.FS, id: id}
	for _, dir := range []string{ondisk.LogDir, ondisk.SnapDir} {
		if err := o.FS.MkdirAll(dir); err != nil {
			return nil, fmt.Errorf("making the directory %s: %w", dir, err)
		}
	}
	// The directories must outlive a crash that the identity outlives.
	if err := o.FS.SyncDir(""); err != nil {
		return nil, fmt.Errorf("making the data directory durable: %w", err)
	}
	s.snaps = snapfile.New(s.snapOptions(o), nil)
	if s.log, err = wal.Create(s.logOptions(o)); err != nil {
		return nil, err
	}
	if err := writeIdentity(o.FS, id); err != nil {
		return nil, errors.Join(err, s.log.Close())
	}
	return &Opened{
		Storage: s,
		Found:   replog.Found{Identity: proto.CloneOf(id), Paxos: paxos.Restored{First: 1}},
		Empty:   true,
		Notes:   notes,
	}, nil
}

// clearUnfinished removes what a first start left that did not get as far as
// the identity file. Anything else in the directory is not ours to touch.
func clearUnfinished(o *Options) (notes []string, err error) {
	foreign := func(name string) error {
		return &ondisk.ForeignError{Found: name, AskedCell: o.Cell, AskedReplica: o.Replica}
	}
	names, err := o.FS.List("")
	if err != nil {
		return nil, fmt.Errorf("reading the data directory: %w", err)
	}
	var remove []string
	for _, name := range names {
		switch name {
		case vfs.LockName, "lost+found":
		case ondisk.IdentityName + ondisk.TempSuffix:
			remove = append(remove, name)
		case ondisk.LogDir, ondisk.SnapDir:
			inside, err := o.FS.List(name)
			if err != nil {
				return nil, fmt.Errorf("reading the directory %s: %w", name, err)
			}
			for _, in := range inside {
				unused, err := wal.Unused(o.FS, name+"/"+in)
				if err != nil {
					return nil, err
				}
				if !unused {
					return nil, foreign(name + "/" + in)
				}
				remove = append(remove, name+"/"+in)
			}
		default:
			return nil, foreign(name)
		}
	}
	for _, name := range remove {
		if err := o.FS.Remove(name); err != nil {
			return nil, fmt.Errorf("removing %s, left by an unfinished first start: %w", name, err)
		}
		notes = append(notes, "removed "+name+", left by an unfinished first start")
	}
	return notes, nil
}

// Append implements API.
func (s *Storage) Append(records []*paxos.Record) error { return s.log.Append(records) }

// Sync implements API.
func (s *Storage) Sync() error { return s.log.Sync() }

// StartSync implements Async.
func (s *Storage) StartSync() (begun bool, err error) { return s.log.Start() }

// FinishSync implements Async.
func (s *Storage) FinishSync() error { return s.log.Finish() }

// AwaitSync implements Async.
func (s *Storage) AwaitSync() bool {
	return s.log.Await()
}

// WakeSync implements Async.
func (s *Storage) WakeSync() {
	s.log.Wake()
}

func (s *Storage) cellIdentity() uint64 {
	s.identity.Lock()
	defer s.identity.Unlock()
	return s.id.CellIdentity
}

// SetFounded implements API.
func (s *Storage) SetFounded(cellIdentity uint64) error {
	s.identity.Lock()
	defer s.identity.Unlock()
	if err := s.stop.Check(); err != nil {
		return err
	}
	if s.id.CellIdentity == cellIdentity {
		return nil
	}
	if s.id.CellIdentity != 0 {
		return fmt.Errorf("this replica belongs to the cell with identity %016x and cannot join %016x", s.id.CellIdentity, cellIdentity)
	}
	id := proto.CloneOf(s.id)
	id.CellIdentity = cellIdentity
	if err := writeIdentity(s.fs, id); err != nil {
		return s.stop.Fail("writing the identity", err)
	}
	s.id.CellIdentity = cellIdentity
	return nil
}

// Read implements API.
func (s *Storage) Read(from paxos.Slot, limit int, chosen paxos.Slot) ([]paxos.Entry, bool, error) {
	entries, trimmed, err := s.log.Read(from, limit, chosen)
	return entries, trimmed, withDir(err, s.fs)
}

// SaveSnapshot implements API.
func (s *Storage) SaveSnapshot(meta *pb.SnapshotMeta, snap replog.Snapshot) error {
	m := proto.CloneOf(meta)
	m.Format = codec.FormatVersion
	if m.Cell == "" {
		m.Cell = s.id.Cell
	}
	return s.snaps.Save(m, snap)
}

// Trim implements API. It never removes what would be needed to go on
// from the older of the two snapshots, whatever slot says.
func (s *Storage) Trim(slot paxos.Slot) error { return s.log.Trim(min(slot, s.snaps.Oldest())) }

// ReadSnapshot implements API.
func (s *Storage) ReadSnapshot(slot paxos.Slot, offset int64, limit int) (*pb.SnapshotChunk, error) {
	return s.snaps.Read(slot, offset, limit)
}

// ReceiveSnapshot implements API.
func (s *Storage) ReceiveSnapshot(c *pb.SnapshotChunk) (*pb.SnapshotMeta, any, error) {
	return s.snaps.Receive(c)
}

// InstallSnapshot implements API.
func (s *Storage) InstallSnapshot(meta *pb.SnapshotMeta, promised paxos.Ballot, entries []paxos.Entry) error {
	base := paxos.Slot(meta.GetSlot())
	if newest := s.snaps.Newest(); base == 0 || base != newest {
		return fmt.Errorf("installing the snapshot of slot %d: the newest one here is that of slot %d", base, newest)
	}
	config, err := codec.DecodeConfiguration(meta.Config)
	if err != nil {
		return fmt.Errorf("installing the snapshot of slot %d: %w", base, err)
	}
	if err := s.log.Install(base, config, promised, entries); err != nil {
		return err
	}
	return s.snaps.Installed(base)
}

// Close implements API. What was not synced is not durable.
func (s *Storage) Close() error {
	s.stop.Close()
	err := errors.Join(s.snaps.Close(), s.log.Close())
	if s.release != nil {
		err = errors.Join(err, s.release())
		s.release = nil
	}
	return err
}
