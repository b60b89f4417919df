package store

import (
	"io"

	"github.com/seed70370324/lockd/store/pb"
)

// Limits of what the store takes; part of the replicated behaviour, so they
// are the same on every replica.
const (
	DataMax            = 1 << 20        // bytes of a node's content
	PathMax            = 1024           // bytes of a path
	NameMax            = 255            // bytes of one part of a path
	ChildrenMax        = 1 << 20        // children of a node
	LockDelayMaxMillis = 60_000         // longest lock-delay
	LeaseMinMillis     = 1_000          // session lease
	LeaseMaxMillis     = 10 * 60 * 1000 // session lease
	WindowMax          = 1024           // results kept for a session
	MultiMax           = 1024           // operations in a Multi
	ConditionsMax      = 16             // conditions of an operation
	WaitersMax         = 10_000         // holders, ghosts and waiters of a lock
	LocksMax           = 10_000         // locks of a session: held, lost and not released, waited for
	EphemeralsMax      = 10_000         // ephemeral nodes of a session
	DeleteMax          = 10_000         // nodes, and holders and waiters of their locks, that a command deletes
	SkipMax            = 10_000         // taken names that a sequential create passes over
	EventsMax          = 65_536         // events kept for a session, those to come included
	EventBytesMax      = 16 << 20       // bytes of a session's events, as Size counts, those to come included
	ResultBytesMax     = 4 << 20        // bytes of a session's kept results, as Size counts
	BlockersMax        = 16             // holders and waiters named in an answer
	TextMax            = 255            // bytes of a client's name or host
	NonceMin           = 8              // bytes of an OpenSession's nonce
	NonceMax           = 64             // bytes of an OpenSession's nonce
)

// Change is one thing that an applied command did; watches and events are made
// from these. A command's changes carry the command's revision and stand in the
// order in which they happened: revision and place give the order of all.
type Change struct {
	Kind     ChangeKind
	Reason   pb.DeleteReason  // ChangeDeleted
	Path     string           // node changes, lock changes
	Session  uint64           // session changes, session events
	Event    *pb.SessionEvent // ChangeSessionEvent: deliver to Session
	Revision uint64
	Lock     LockChange // ChangeLock
	// ChangeEpoch: the leader's wall clock is beyond what revisions take (a clock
	// of 2127 or later): they were raised as far as they may be, and no further.
	Capped bool
}

// LockChange is what became of one request for a lock. With LockEventNone the
// lock did not pass: a waiter came or left, or a ghost's time began to run.
type LockChange struct {
	Event       LockEvent
	Loss        pb.LossReason // LockLost
	Mode        pb.LockMode
	Session     uint64
	Ticket      uint64
	Client      *pb.ClientInfo
	Fence       uint64 // 0 of one that waits
	Generation  uint64 // of the lock
	LockDelayMS uint64
}

// Blocker returns whom the change concerns, as watches tell it.
func (l *LockChange) Blocker() *pb.Blocker {
	return &pb.Blocker{
		Session: l.Session, Ticket: l.Ticket, Client: l.Client, Mode: l.Mode, Fence: l.Fence,
		LockDelayMs: l.LockDelayMS, Ghost: l.Event == LockLost || l.Event == LockGhostEnded,
	}
}

// LockEvent is how a lock passed; the numbers are those of the wire.
type LockEvent uint8

// The ways in which a lock passes.
const (
	LockEventNone  LockEvent = iota
	LockAcquired             // granted
	LockReleased             // by its holder
	LockLost                 // left without release: a ghost keeps it, unless there is no lock-delay
	LockGhostEnded           // the ghost's time is over, or its client released it
)

// ChangeKind is the kind of a Change.
type ChangeKind uint8

// The kinds of change.
const (
	ChangeNone          ChangeKind = iota
	ChangeCreated                  // node Path created
	ChangeContent                  // content of Path written
	ChangeDeleted                  // node Path deleted
	ChangeLock                     // holders or waiters of Path changed
	ChangeSessionOpened            // Session opened
	ChangeSessionClosed            // Session ended (closed or expired)
	ChangeSessionEvent             // Event was added to Session's record
	ChangeEpoch                    // a new master's first entry
)

// Due is a timer that is pending in the state, in cell time.
type Due struct {
	At  int64
	Ref *pb.TimerRef
}

// SessionView is what the master needs of a session.
type SessionView struct {
	ID         uint64
	Nonce      []byte
	LeaseMS    uint64
	Client     *pb.ClientInfo
	LastNumber uint64 // highest request number executed or voided
	LastChange uint64
	OpenedMS   int64
	Locks      int
	Lost       int // lost and not released
	Waiting    int
	Ephemerals int
	// LeaseEndCell is the cell time at which the lease ends of a session that is
	// noted as silent (NoteSessions), else 0.
	LeaseEndCell int64
}

// NodeView is one node, for reading. Data must not be changed.
type NodeView struct {
	Path    string
	Data    []byte
	HasData bool
	Stat    *pb.Stat
}

// LockView is the lock state of a path, for people and for sequencers.
type LockView struct {
	Path       string
	Instance   uint64
	Generation uint64
	Fence      uint64
	Holders    []*pb.Blocker // ghosts among them
	Waiters    []*pb.Blocker // in queue order
}

// API is what the layers above use of *Store; it is here so that the contract
// can be read in one place.
type API interface {
	// Apply executes an encoded pb.Command. It never fails and never panics on
	// input: a malformed command is answered BAD_COMMAND. The changes are in
	// the order in which they happened; they are valid until the next Apply.
	// The result is kept for repeats: it must not be changed.
	Apply(command []byte) (*pb.Result, []Change)
	// ApplyLead is applied for a leader's first entry; it returns the new epoch.
	// Change.Capped of its change says that the wall clock was refused.
	ApplyLead(wallSeconds, cellTime int64, cellEpoch uint64) (epoch uint64, changes []Change)
	// ApplyFound is applied for the founding entry (slot 1).
	ApplyFound(cell string, cellIdentity, revisionFloor uint64)

	Revision() uint64
	Epoch() uint64
	CellTime() int64
	Cell() (name string, identity uint64)
	Hash() uint64 // hash of the whole state, kept as it changes: O(1)

	Node(path string) (NodeView, bool)
	// Children calls f for each direct child of path in name order, behind the
	// name after, until f returns false.
	Children(path, after string, f func(name string, n NodeView) bool) bool
	// Subtree calls f for path and everything below it, in path order.
	Subtree(path string, f func(n NodeView) bool)
	Session(id uint64) (SessionView, bool)
	// SessionOf returns the session that an OpenSession with this nonce finds.
	SessionOf(nonce []byte) (id uint64, ok bool)
	Sessions(after uint64, f func(SessionView) bool)
	// Events calls f for the events of a session that are not acknowledged.
	Events(session, after uint64, f func(*pb.SessionEvent) bool)
	Lock(path string) (LockView, bool)
	// Contended reports whether a request for the lock of a path in this mode would
	// have to wait: for a holder, a ghost or a waiter.
	Contended(path string, mode pb.LockMode) bool
	// Locks calls f for each path at or below prefix, behind the path after,
	// that has a holder, a ghost or a waiter.
	Locks(prefix, after string, f func(LockView) bool)
	// NextDue returns the timers that fall due first, at most max, earliest
	// first.
	NextDue(max int) []Due
	Counts() (sessions, nodes int)
	// Size returns how many nodes there are and how many bytes the whole state
	// counts, by rules that are the same on all replicas (size.go): O(1).
	Size() (nodes int, bytes int64)

	// Clone returns a consistent read-only view in O(1), which another
	// goroutine may write out.
	Clone() *Store
	// WriteSnapshot writes the state as length-prefixed pb.SnapshotRecord.
	WriteSnapshot(w io.Writer) error
	// Check verifies the state's invariants in O(n).
	Check() error
}
