package paxos

import (
	"fmt"
	"time"
)

// ReplicaID names a member of the cell; 0 names nobody.
type ReplicaID uint64

// Slot is a position in the replicated log, counted from 1.
type Slot uint64

// Ballot is a proposer's number: rounds first, ties broken by replica. The
// zero Ballot is lower than every ballot that a replica uses.
type Ballot struct {
	Round   uint64
	Replica ReplicaID
}

// Less reports whether b comes before o.
func (b Ballot) Less(o Ballot) bool {
	if b.Round != o.Round {
		return b.Round < o.Round
	}
	return b.Replica < o.Replica
}

// IsZero reports whether b is no ballot.
func (b Ballot) IsZero() bool { return b == Ballot{} }

func (b Ballot) String() string { return fmt.Sprintf("b%d.%d", b.Round, b.Replica) }

// ValueKind says what a slot's value is.
type ValueKind uint8

// The kinds of value.
const (
	NoOp   ValueKind = iota // fills a hole
	Batch                   // client commands
	Lead                    // a leader's first own entry: sets the epoch
	Config                  // members; slot 1 founds the cell
)

// Value is what is chosen in a slot. It is never changed once made.
type Value struct {
	Kind     ValueKind
	Commands [][]byte // Batch: encoded commands, opaque here
	Leader   Ballot   // Lead: ballot of the leader that proposed it first
	// Lead, opaque to paxos: the lowest wall clock of the majority that promised,
	// in seconds since 1970 (0: unknown), and the leader's cell time in nanoseconds.
	WallSeconds int64
	CellTime    int64
	CellEpoch   uint64         // how many Lead entries had been applied when CellTime was read
	Config      *Configuration // Config
}

// Configuration is the set of members that rules the slots behind the one it
// is chosen in.
type Configuration struct {
	Members []Member // by ascending ID

	// Opaque to paxos, carried for the layers above.
	Cell          string
	CellIdentity  uint64
	RevisionFloor uint64
}

// Member is a replica of the cell.
type Member struct {
	ID            ReplicaID
	Name          string
	Incarnation   uint64
	PeerAddress   string
	ClientAddress string
	Voter         bool
}

// Entry is a value in a slot, as accepted at Ballot or, if Chosen, as known to
// be chosen. A Named one tells slot and ballot only: its Value is empty and
// means nothing, not a no-op. It occurs in MsgPromise and MsgFetch alone.
type Entry struct {
	Slot   Slot
	Ballot Ballot
	Chosen bool
	Named  bool
	Value  Value
}

// Record is what must be on disk before anything that depends on it is said:
// the promise in force, the chosen index (a hint that may lag) and the entries
// accepted or learnt since the last record.
type Record struct {
	Promised Ballot
	Chosen   Slot
	Entries  []Entry
}

// Message is anything one replica says to another. Kind says which fields
// count; the table is in the package comment.
type Message struct {
	Kind     MessageKind
	From, To ReplicaID
	Ballot   Ballot  // the ballot it belongs to
	Promised Ballot  // answers: the answerer's promise, so that a refusal teaches
	Slot     Slot    // first slot asked about / last slot accepted without a gap
	Chosen   Slot    // sender's chosen index (leader: commit index)
	First    Slot    // first slot the sender still has in its log
	Sequence uint64  // heartbeat round, echoed by the answer; read confirmations count these
	OK       bool    // answers: yes or no
	Limit    uint64  // catch-up, fetch: bytes wanted
	Entries  []Entry // accepts, values, catch-up; promises and fetches: Named
	// WallSeconds is the sender's wall clock, in seconds since 1970 (0: unknown).
	WallSeconds int64
	// RoundTrip is how long the sender waits for the answers of a majority these
	// days, so that the receiver does not take that time for silence.
	RoundTrip time.Duration
}

// MessageKind is the kind of a Message; the values are part of the peers'
// protocol.
type MessageKind uint8

// The messages. Each request is followed by its answer.
const (
	MsgNone         MessageKind = iota
	MsgProbe                    // pre-election: would you follow me?
	MsgProbeReply               // changes nothing durable
	MsgPrepare                  // phase 1a for every slot from Slot on
	MsgPromise                  // phase 1b
	MsgAccept                   // phase 2a, several slots; carries the commit index
	MsgAccepted                 // phase 2b
	MsgHeartbeat                // commit index, read round
	MsgHeartbeatAck             // progress of the follower
	MsgCatchUp                  // give me chosen entries from Slot on
	MsgCatchUpReply             // chosen entries, or First > Slot: trimmed
	MsgHandover                 // leader to its successor: campaign now
	MsgFetch                    // candidate: give me the values that you named in your promise
	MsgValues                   // some of these, whole; none: they are no longer there

	msgEnd // above every kind
)

// Known reports whether k is a kind of message that this version knows.
func (k MessageKind) Known() bool { return k > MsgNone && k < msgEnd }

// Bulk reports whether messages of this kind carry values, and so may be large.
// The links cut such messages into parts; all others are small, and travel
// between the parts.
func (k MessageKind) Bulk() bool {
	return k == MsgAccept || k == MsgCatchUpReply || k == MsgValues
}

// Event is what a Replica is given: one of the types below.
type Event interface{ event() }

type (
	// Tick tells the time; give it at least every 20 ms. WallSeconds (since 1970,
	// 0: unknown) and CellTime (nanoseconds) are labels for promises and Lead
	// entries; no decision depends on them.
	Tick struct {
		WallSeconds int64
		CellTime    int64
		CellEpoch   uint64 // how many Lead entries had been applied when CellTime was read
	}
	// Label has the labels of a Tick and tells no time: for a replica that may not
	// campaign yet, and whose promise is to carry its wall clock all the same.
	Label Tick
	// Receive delivers a message. From is the authenticated sender.
	Receive struct{ Message Message }
	// Arriving says that bytes of a bulk message from From have arrived that is
	// not whole yet. A link gives it once for all that came since the last one, at
	// most every 20 ms, and at least every 100 ms while bytes come. It shows that
	// what is waited for is on its way: catch-up and fetches wait on. It is not a
	// message of a leader or a follower: no election timer, no majority and no read
	// counts it.
	Arriving struct{ From ReplicaID }
	// Sent tells how far the bulk messages for a peer have got on their link:
	// Queued bytes of them are not acknowledged by the peer's end. They may still
	// arrive, so nothing is sent again. A link gives it when this has changed, at
	// most every 20 ms; always when Queued becomes 0, which it also does when the
	// connection breaks, since what was on its way is lost then. A link that never
	// gives it is taken for a slow one of which nothing is known.
	Sent struct {
		To     ReplicaID
		Queued int
	}
	// Persisted says that everything up to and including the Effects with this
	// Sequence is durable.
	Persisted struct{ Sequence uint64 }
	// Propose hands commands to the leader; they are gathered into as few
	// slots as the limits allow when Take is called. Ignored (see
	// Effects.Dropped) unless the replica leads.
	Propose struct{ Commands [][]byte }
	// ProposeConfig asks the leader to propose a configuration: founding only,
	// for now.
	ProposeConfig struct{ Configuration Configuration }
	// ConfirmRead asks for proof of leadership begun after now; the answer is
	// in Effects.Confirmed with this ID, or never if leadership is lost (then
	// Effects.Role says so).
	ConfirmRead struct{ ID uint64 }
	// Handover makes the leader stop proposing and hand over to the most
	// advanced follower (or to To, if set).
	Handover struct{ To ReplicaID }
	// LogRead answers Effects.ReadLog: chosen entries read from disk.
	LogRead struct {
		To      ReplicaID
		Entries []Entry
		// Trimmed: they are gone from disk; First is what is left.
		Trimmed bool
	}
	// Trimmed says that the driver dropped the log up to and including Slot,
	// which a snapshot covers.
	Trimmed struct{ Slot Slot }
	// Installed says that a snapshot up to Slot took the place of the state
	// and of the log up to there.
	Installed struct {
		Slot          Slot
		Configuration Configuration
	}
	// Campaign starts an election at once (tests, founding).
	Campaign struct{}
	// NoteChosen makes the next Effects have a Record, if only for its chosen
	// index: what relies on slots that are chosen now waits for its flush.
	NoteChosen struct{}
)

func (Tick) event()          {}
func (Label) event()         {}
func (Receive) event()       {}
func (Arriving) event()      {}
func (Sent) event()          {}
func (Persisted) event()     {}
func (Propose) event()       {}
func (ProposeConfig) event() {}
func (ConfirmRead) event()   {}
func (Handover) event()      {}
func (LogRead) event()       {}
func (Trimmed) event()       {}
func (Installed) event()     {}
func (Campaign) event()      {}
func (NoteChosen) event()    {}

// Effects is what the driver owes after a batch of events. Sequence grows by
// one with each Effects that has a Record or an After message.
//
// "Durable before visible" is in this type: After may leave only when the
// Record (and every Record before it) is on disk, that is when the driver
// gives Persisted{Sequence} for it; messages in Now depend on nothing that is
// not durable. A promise or an accept vote never stands in Now.
type Effects struct {
	Sequence uint64
	Record   *Record   // nil: nothing to persist
	Now      []Message // may leave at once
	After    []Message // may leave when Sequence is durable

	Chosen    []Entry    // newly chosen without a gap, in order: apply them
	Confirmed []Confirm  // reads whose leadership is proven; serve when Slot is applied
	Dropped   [][]byte   // proposals not taken: this replica does not lead (never proposed)
	Role      *RoleEvent // role changed (the last change of the batch)
	ReadLog   []ReadLog  // fetch these from disk, answer with LogRead
	// NeedSnapshot: this replica is behind every log it can reach; fetch a
	// snapshot from this peer (0: none needed).
	NeedSnapshot ReplicaID
	// Notes are things an operator wants to know (election, preemption, hole
	// filled, catch-up...), one line each.
	Notes []string
}

// Confirm proves that this replica led at the instant Since (its own clock):
// a read that began before may be served from a state in which Slot is
// applied.
type Confirm struct {
	ID    uint64
	Since time.Duration
	Slot  Slot
}

// ReadLog asks for chosen entries from From to UpTo for replica To. The last
// record of each of these slots is durable; behind UpTo the log may still have
// a value that was accepted and not chosen, while the one that was is queued.
type ReadLog struct {
	To    ReplicaID
	From  Slot
	UpTo  Slot
	Limit uint64 // bytes
}

// Role is what a replica is at the moment.
type Role uint8

// The roles.
const (
	Follower Role = iota
	Candidate
	Preparing // phase 1 won, open slots being closed: serves nothing yet
	Leader    // all open slots and its own Lead entry are chosen
)

func (r Role) String() string {
	return [...]string{"follower", "candidate", "preparing", "leader"}[r]
}

// RoleEvent tells of a change of role or of the leader known.
type RoleEvent struct {
	Role   Role
	Ballot Ballot    // own, or the one followed
	Leader ReplicaID // 0 while none is known
}

// Options of a Replica. Durations are on the driver's monotonic clock.
type Options struct {
	ID            ReplicaID
	Configuration Configuration // newest known; founding: the initial members
	Heartbeat     time.Duration // default 100 ms
	ElectionMin   time.Duration // silence after which to probe: random in [min, max); default 500 ms
	ElectionMax   time.Duration // default 900 ms
	DiskTimeout   time.Duration // a leader whose own flush takes longer steps down; default 2 s
	WindowSlots   int           // proposed and not chosen, default 256
	WindowBytes   int           // the same in bytes, default 16 MiB
	BatchBytes    int           // most bytes of commands in a slot, default 1 MiB (one larger command is a slot alone)
	EagerTime     time.Duration // a leader sends everything to everybody for at least so long before it is thrifty, default 1 s
	MemoryBytes   int           // chosen entries kept in memory for catch-up, default 64 MiB
	Seed          uint64        // of the back-off's random numbers
	Now           time.Duration // clock at the start
}

// Restored is what was found on disk.
type Restored struct {
	Promised Ballot
	Chosen   Slot    // highest known chosen index
	Applied  Slot    // slot of the snapshot the state was loaded from, 0 none
	First    Slot    // first slot the log on disk still has (for catch-up of others)
	Entries  []Entry // every slot above Applied that has a record, ascending, the last record of each
}

// Status is a view for people.
type Status struct {
	ID       ReplicaID
	Role     Role
	Promised Ballot
	Ballot   Ballot // led or followed
	Leader   ReplicaID
	Chosen   Slot
	Target   Slot // highest slot known to be chosen somewhere; above Chosen while catching up
	First    Slot // first slot still held (memory or disk)
	Last     Slot // last accepted
	LogBytes int  // of the entries kept in memory, see Options.MemoryBytes
	Thrift   ThriftCounts
	InFlight InFlight
	Peers    []PeerProgress
}

// PeerProgress is the leader's view of a follower.
type PeerProgress struct {
	ID       ReplicaID
	Accepted Slot // without a gap, at the leader's ballot
	Chosen   Slot
	Heard    time.Duration // when, on the leader's clock; 0 never
	Flying   int           // bytes that were sent to it and that it has not accepted
	First    bool          // a thrifty leader asks it first
}
