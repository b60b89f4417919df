// Package replica is a whole replica as one deterministic state machine: the
// log's node, the store and the master, composed. The shell in lockd/server
// and the simulator drive the same code.
package replica

import (
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// ConnID names a client's connection at this replica; never used twice.
type ConnID = master.ConnID

// Event is a replog.Event or one of the client events below.
type Event any

type (
	// ConnOpened tells of a client's connection; its preface has been seen.
	ConnOpened struct {
		Conn   ConnID
		Remote string
	}
	// ConnReceived delivers a client's message.
	ConnReceived struct {
		Conn    ConnID
		Message *pb.ClientMessage
	}
	// ConnClosed tells that the connection is gone (also after ConnClose).
	ConnClosed struct{ Conn ConnID }
	// HandOver makes a master give the lead away (SIGTERM): its clients are
	// told where to go.
	HandOver struct{}
)

// Effects is what the shell owes after a batch.
type Effects struct {
	Log   replog.Effects
	Conns []ConnSend  // in order for each connection
	Close []ConnClose // after the messages above
	Role  Role        // as it is after the batch
	Notes []Note      // for the operator's log
}

// ConnSend{Conn, Message} queues a message for a client. The message is shared:
// encode it, change nothing.
type ConnSend = master.ConnSend

// ConnClose{Conn, Reason} ends a connection once what is queued for it has left.
type ConnClose = master.ConnClose

// Note{Level, Text, Args} is a line for the operator's log: level info, warn or
// error, slog key-value pairs.
type Note = master.Note

// Role is what the replica is for its clients.
type Role struct {
	Master        bool // serves
	Leaving       bool // serves no more, and has not given the lead away yet
	MasterName    string
	MasterAddress string
	Epoch         uint64
	Founded       bool
}

// Options of a Replica.
type Options struct {
	Node     replog.NodeOptions
	Version  string
	WallMS   func() int64 // wall clock, Unix milliseconds: a label only; the simulator gives its own
	MaxFrame int          // default 2 MiB
	// Limits, each with a default.
	MaxSessions        int // 100,000
	MaxConnections     int // 50,000
	MaxSessionsPerConn int // 65,536, which is the most
	MaxWatchesPerConn  int // 10,000
	MaxPending         int // logged requests proposed and not answered, all sessions: 65,536
	MaxPendingSession  int // the same for one session: 256
	// WatchLogBytes bounds the changes kept for watches whose clients are slow, 64 MiB;
	// WatchTopicBytes those for watches of one scope, half of that.
	WatchLogBytes, WatchTopicBytes int
	// Drift bounds how far clocks run apart, in parts per million: 10,000 (1 %).
	DriftPPM int
	// Room says how many bytes a connection can be sent now without waiting for
	// its client to read; deep asks for more than is usual, which few get at a
	// time: then it is 0 or enough for every state of a watch. Default: always
	// as much as that.
	Room func(c ConnID, deep bool) int
	// Observer, if set, is told what this replica applies (the simulator).
	Observer Observer
}

// Observer is told of everything a replica applies, while it applies it, also
// of what it replays while New runs. It must change nothing.
type Observer interface {
	// Command follows each command of an entry; changes are only valid until it
	// returns.
	Command(slot paxos.Slot, command []byte, result *storepb.Result, changes []store.Change, s *store.Store)
	// Entry follows each entry, whatever its kind, behind its commands.
	Entry(e paxos.Entry, s *store.Store)
	// Restored tells that the state was replaced by a snapshot up to slot.
	Restored(slot paxos.Slot, s *store.Store)
}

// API of *Replica. New is `func New(o Options, found *replog.Found) (*Replica, error)`.
type API interface {
	Step(now time.Duration, ev Event)
	// Begin returns what the log owes to disk and peers before what was chosen is
	// applied; Take must follow with no Step between. It may be left out.
	Begin(now time.Duration) replog.Effects
	Take(now time.Duration) Effects
	// Gathering tells how many requests that arrive now had better wait for each
	// other, or for the end of what is under way; 0: they need not wait.
	Gathering(now time.Duration) int
	// Awaits reports whether anything depends on AppendDone, and above which slot
	// on the votes of peers: others may be given late, up to the next Tick.
	Awaits() (flush bool, votes paxos.Slot)
	// Due is the earliest instant at which Begin and Take do something although
	// nothing but a Tick comes: something was held back until then. It is also
	// when requests need not gather any longer (see Gathering). paxos.Never:
	// nothing waits for time to pass. The answer holds until the next event.
	Due(now time.Duration) time.Duration
	Status(now time.Duration) *pb.StatusResult
	// Metrics for the shell to export.
	Metrics() Metrics
	// Store is the state as applied so far, for reading (the simulator's
	// checks). It is another one after a snapshot was installed.
	Store() *store.Store
}

// Limits lists the limits of a replica with these options by their names: what
// the store takes, and what the master holds for clients.
func (o Options) Limits() []store.Limit {
	return append(store.Limits(), o.master().Limits()...)
}

// Metrics are counters and gauges since the start.
type Metrics struct {
	Sessions, Connections, Watches, Nodes, Pending int
	WatchLogBytes                                  int    // of changes that some watch was not told yet
	WatchesBehind                                  int    // watches whose client has no room for them
	WatchesMissed                                  uint64 // how often changes were left out of a watch
	LogBytes                                       int    // of the log's entries that are in memory
	Requests, Reads, KeepAlives, Events            uint64
	Granted, Expired, Refused, Elections           uint64
	Chosen, Applied, Target, Revision, Epoch       uint64 // Target: highest slot known chosen anywhere
	Thrift                                         paxos.ThriftCounts
	AskedFirst                                     []paxos.ReplicaID // by a thrifty leader
	Master                                         bool
	InFlight                                       master.InFlight
	LogInFlight                                    replog.InFlight
	// Size of the state, and the smallest limits of it that members told; 0: none.
	StateBytes, StateBytesMax int64
	StateNodesMax             int
	// Limited counts what each limit has refused, by its name; nil: nothing.
	Limited map[string]uint64
}
