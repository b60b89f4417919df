package storage

import (
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/snapfile"
	"github.com/seed70370324/lockd/replog/vfs"
)

// Options say where the data is and whose it is.
type Options struct {
	FS           vfs.FS
	Cell         string
	Replica      string
	SegmentBytes int64 // default 64 MiB
	Decode       snapfile.Decode
	// NewIncarnation returns a random number (for an empty directory).
	NewIncarnation func() uint64
}

// Opened is what Open found.
type Opened struct {
	replog.Found // what the node needs to know of it
	Storage      *Storage
	Empty        bool     // the directory was empty: a new incarnation was made
	Notes        []string // what an operator should read (torn tail cut, ...)
}

// Async is offered by a API whose Sync need not be waited for.
type Async interface {
	// StartSync begins a Sync and does not wait for the disk, though the kernel
	// may for a moment; begun is false where that is not possible and all is left
	// to FinishSync. That must follow in any case, with nothing else that concerns
	// the log but Read asked between them. Snapshots may be saved, read and
	// received.
	StartSync() (begun bool, err error)
	// FinishSync is Sync, or waits for the one that was begun.
	FinishSync() error
	// AwaitSync is for the goroutine that calls FinishSync, to wait in before there
	// is anything to finish: so that to begin a flush wakes nobody, its end alone
	// does. It returns when a flush that StartSync has begun, or begins meanwhile,
	// has ended, after WakeSync, and perhaps for nothing. False: that is not
	// possible here, or not yet, and it has not waited.
	AwaitSync() bool
	// WakeSync makes an AwaitSync return, the next one if none is under way. Any
	// goroutine may call it while no Sync, Append or FinishSync is under way.
	WakeSync()
}

// API is what the shell (and the simulator) calls; *Storage has it. One
// goroutine at a time uses it except where it is said. Open is `func Open(o Options) (*Opened, error)`; its errors are
// *ondisk.DamagedError, *ondisk.ForeignError (another cell's or replica's data), *vfs.InUseError.
type API interface {
	// Append takes records for the next Sync, in order; they must not be changed
	// until it has returned.
	Append(records []*paxos.Record) error
	// Sync writes all that was appended and makes it durable, with one flush.
	// After an error the storage refuses everything (fail-stop).
	Sync() error
	// SetFounded writes the cell's identity into the identity file, durably.
	SetFounded(cellIdentity uint64) error
	// Read returns entries known chosen from slot from on, about limit bytes, and
	// none above chosen: up to there the last record of each slot must have been
	// made durable. It may run beside Append and Sync. trimmed: from is before the first slot kept.
	Read(from paxos.Slot, limit int, chosen paxos.Slot) (entries []paxos.Entry, trimmed bool, err error)
	// SaveSnapshot writes a snapshot beside the log and makes it durable; it
	// may run beside everything else. The newest two are kept.
	SaveSnapshot(meta *pb.SnapshotMeta, s replog.Snapshot) error
	// Trim drops segments that hold nothing above slot.
	Trim(slot paxos.Slot) error
	// ReadSnapshot reads a piece of the newest snapshot's file (or of that of
	// slot, if not 0 and still there).
	ReadSnapshot(slot paxos.Slot, offset int64, limit int) (*pb.SnapshotChunk, error)
	// ReceiveSnapshot adds a piece to the snapshot that is being received. With
	// the last one it is verified, decoded and made durable under its name, and
	// returned; until then meta is nil.
	ReceiveSnapshot(c *pb.SnapshotChunk) (meta *pb.SnapshotMeta, state any, err error)
	// InstallSnapshot forgets the whole log below the received snapshot and
	// begins a new segment behind it, with the promise and the entries given.
	InstallSnapshot(meta *pb.SnapshotMeta, promised paxos.Ballot, entries []paxos.Entry) error
	Close() error
}
