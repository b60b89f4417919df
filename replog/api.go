package replog

import (
	"io"
	"time"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
)

// ---- the seams to the outside ----

// StateMachine is what the log is for. All methods are called by the node's
// Step; the writing of a Snapshot runs beside it.
type StateMachine interface {
	// Apply takes a chosen entry; slots come in order without a gap.
	Apply(e paxos.Entry)
	// Snapshot returns an immutable view in O(1).
	Snapshot() Snapshot
	// Restore replaces the state by one that Decode made.
	Restore(state any)
}

// Snapshot is an immutable view that can write itself.
type Snapshot interface {
	WriteSnapshot(w io.Writer) error
}

// ---- the node: paxos + bookkeeping of log and snapshots + apply ----

// Event is what a Node is given.
type Event interface{ nodeEvent() }

type (
	// Tick tells the time, with the labels of paxos.Tick.
	Tick struct {
		WallSeconds int64
		CellTime    int64
		CellEpoch   uint64
	}
	// PeerConnected says that the connection to a peer is up, and who it says
	// it is.
	PeerConnected struct{ Hello *pb.PeerHello }
	// PeerDisconnected says that it is down.
	PeerDisconnected struct{ Peer paxos.ReplicaID }
	// PeerReceived delivers a message from a peer.
	PeerReceived struct {
		Peer    paxos.ReplicaID
		Message *pb.PeerMessage
	}
	// PeerArriving and PeerSent say how bulk messages travel on the links, see
	// paxos.Arriving and paxos.Sent.
	PeerArriving struct{ Peer paxos.ReplicaID }
	PeerSent     struct {
		Peer   paxos.ReplicaID
		Queued int
	}
	// AppendDone says that everything appended up to Sequence is durable.
	AppendDone struct{ Sequence uint64 }
	// ReadDone answers a DiskRead.
	ReadDone struct {
		To      paxos.ReplicaID
		Entries []paxos.Entry
		Trimmed bool
	}
	// SnapshotSaved answers SaveSnapshot; Err leaves things as they were.
	SnapshotSaved struct {
		Slot paxos.Slot
		Err  error
	}
	// SnapshotRead answers SnapshotRead: a chunk to send.
	SnapshotReadDone struct {
		To    paxos.ReplicaID
		Chunk *pb.SnapshotChunk
		Err   error
	}
	// SnapshotReceived answers ReceiveSnapshot; Meta and State are set with the
	// last chunk.
	SnapshotReceived struct {
		Meta  *pb.SnapshotMeta
		State any
		Err   error
	}
	// SnapshotInstalled answers InstallSnapshot.
	SnapshotInstalled struct{ Meta *pb.SnapshotMeta }
	// ProposeCommands hands encoded commands to the log.
	ProposeCommands struct{ Commands [][]byte }
	// ConfirmLead asks for proof of leadership, see paxos.ConfirmRead.
	ConfirmLead struct{ ID uint64 }
	// HandOver gives the lead away.
	HandOver struct{}
)

func (Tick) nodeEvent()              {}
func (PeerConnected) nodeEvent()     {}
func (PeerDisconnected) nodeEvent()  {}
func (PeerReceived) nodeEvent()      {}
func (PeerArriving) nodeEvent()      {}
func (PeerSent) nodeEvent()          {}
func (AppendDone) nodeEvent()        {}
func (ReadDone) nodeEvent()          {}
func (SnapshotSaved) nodeEvent()     {}
func (SnapshotReadDone) nodeEvent()  {}
func (SnapshotReceived) nodeEvent()  {}
func (SnapshotInstalled) nodeEvent() {}
func (ProposeCommands) nodeEvent()   {}
func (ConfirmLead) nodeEvent()       {}
func (HandOver) nodeEvent()          {}

// Effects is what the shell owes after a batch of events.
type Effects struct {
	// Append: write these and report AppendDone{Sequence} once durable. The
	// shell gathers all that queue up while a flush runs under the next one.
	Append []Append
	// Send leaves now; After leaves when its Sequence is durable, whether before
	// or behind the AppendDone that says so.
	Send  []Send
	After []SendAfter

	DiskRead        []paxos.ReadLog
	SaveSnapshot    *SaveSnapshot
	Trim            paxos.Slot // drop log at or below; 0 nothing
	SnapshotRead    []SnapshotRead
	ReceiveSnapshot []*pb.SnapshotChunk
	InstallSnapshot *InstallSnapshot
	SetFounded      uint64 // write the cell identity; 0 nothing

	// Upwards.
	Confirmed []paxos.Confirm
	Dropped   [][]byte
	Role      *paxos.RoleEvent
	Notes     []string // for the operator's log
	Warnings  []string // the same, when something should be done about it
	// Fatal: the replica must stop at once and say this.
	Fatal error
}

// Append is a record to write.
type Append struct {
	Sequence uint64
	Record   *paxos.Record
}

// Send is a message for a peer. Bulk ones go by the bulk lane.
type Send struct {
	To      paxos.ReplicaID
	Message *pb.PeerMessage
	Bulk    bool
}

// SendAfter is a message that may leave only when Sequence is durable.
type SendAfter struct {
	Sequence uint64
	Send     Send
}

// SaveSnapshot asks for a snapshot to be written.
type SaveSnapshot struct {
	Meta     *pb.SnapshotMeta
	Snapshot Snapshot
}

// SnapshotRead asks for a piece of a snapshot to be read for a peer.
type SnapshotRead struct {
	To     paxos.ReplicaID
	Slot   paxos.Slot
	Offset int64
	Limit  int
}

// InstallSnapshot asks for the log to be replaced by a received snapshot.
type InstallSnapshot struct {
	Meta     *pb.SnapshotMeta
	Promised paxos.Ballot
	Entries  []paxos.Entry // accepted above the snapshot: they stay valid
}

// NodeOptions of a Node.
type NodeOptions struct {
	Paxos          paxos.Options // ID and Configuration are filled in by the node
	Cell           string
	Name           string
	InitialCluster []paxos.Member // by name; only names and peer addresses count
	PeerAddress    string         // advertised
	ClientAddress  string         // advertised
	SnapshotSlots  int            // snapshot after so many slots, default 50,000
	SnapshotBytes  int64          // or so many bytes of commands, default 64 MiB
	TrailSlots     int            // slots kept in the log behind the older snapshot, default 10,000
	State          StateLimits    // what this process can hold
	NewIdentity    func() uint64  // random cell identity, when founding
	Now            time.Duration
}

// Found is what a storage held at the start, as far as the node needs to know it.
type Found struct {
	Identity      *pb.Identity
	Paxos         paxos.Restored
	Configuration *paxos.Configuration // newest known, nil before founding
	State         any                  // decoded snapshot, nil if there is none
}

// NodeAPI is what the shell and the simulator call; *Node has it.
// NewNode is `func NewNode(o NodeOptions, found *Found, sm StateMachine) (*Node, error)`.
type NodeAPI interface {
	// Step takes one event at time now. Effects gather until Take.
	Step(now time.Duration, ev Event)
	// Begin closes the batch as far as the log is concerned: proposals are cut
	// into slots, and what is owed to disk and peers for them is returned, so
	// that it is under way while the state machine applies what was chosen. Take
	// must follow, with no Step between. Begin may be left out.
	Begin(now time.Duration) Effects
	// Take closes the batch, and everything (else) that is owed is returned.
	Take(now time.Duration) Effects
	// Gathering tells how many commands have to come together before they are
	// proposed, 0 none: see paxos.Replica.Gathering.
	Gathering(now time.Duration) int
	// Awaits reports whether anything depends on AppendDone, and above which slot
	// on the votes of peers: see paxos.Replica.Awaits.
	Awaits() (flush bool, votes paxos.Slot)
	// Due is the earliest instant at which Take does something although no event
	// but a Tick comes: see paxos.Replica.Due.
	Due(now time.Duration) time.Duration
	Status() NodeStatus
	// StateLimits is the most that every member can hold, as far as they have said.
	StateLimits() StateLimits
	// MemberName and so on for people.
	Configuration() *paxos.Configuration
}

// NodeStatus is a view for people.
type NodeStatus struct {
	Paxos        paxos.Status
	Applied      paxos.Slot
	SnapshotSlot paxos.Slot
	Founded      bool
	Founding     string // what it waits for, while not founded
	Connected    map[paxos.ReplicaID]bool
	State        map[paxos.ReplicaID]StateLimits // what each member has last said that it can hold
	InFlight     InFlight
}

// StateLimits are the most nodes and bytes of state that a process can hold; 0:
// no limit, or none was told.
type StateLimits struct{ Nodes, Bytes uint64 }
