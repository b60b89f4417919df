package client

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// State of a session.
type State = machine.State

// The states of a session. After Jeopardy comes Live again (all is as it was)
// or Expired. A Reader is Connecting, Live or Closed.
const (
	Connecting = machine.Connecting
	Live       = machine.Live
	Jeopardy   = machine.Jeopardy
	Expired    = machine.Expired
	Closed     = machine.Closed
)

// Kind of a node.
type Kind uint8

// The kinds of node.
const (
	KindPermanent Kind = 1 // until it is deleted
	KindEphemeral Kind = 2 // goes with the session that created it
	KindContainer Kind = 3 // goes when it has been used and is empty
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case KindPermanent:
		return "permanent"
	case KindEphemeral:
		return "ephemeral"
	case KindContainer:
		return "container"
	default:
		return "unknown"
	}
}

// Stat is what the service knows about a node besides its content. Revisions
// and generations only grow.
type Stat struct {
	Instance          uint64 // revision of its creation: names this incarnation of the path
	ContentGeneration uint64 // 1 at creation, one more with each write
	LockGeneration    uint64 // grows when the lock goes from free to held
	ACLGeneration     uint64
	Checksum          uint64 // of the content
	CreateRevision    uint64
	ModifyRevision    uint64    // of the last write
	Created           time.Time // by the service's wall clock: a label
	Modified          time.Time
	Kind              Kind
	Owner             uint64 // session, of an ephemeral node
	Size              int    // of the content, in bytes
	Children          int
	ChildGeneration   uint64 // one more with each child created or deleted
	ChildRevision     uint64 // of the last such change
}

func statOf(s *storepb.Stat) Stat {
	if s == nil {
		return Stat{}
	}
	kind := Kind(s.Kind)
	if kind == 0 {
		kind = KindPermanent
	}
	return Stat{
		Instance:          s.Instance,
		ContentGeneration: s.ContentGeneration,
		LockGeneration:    s.LockGeneration,
		ACLGeneration:     s.AclGeneration,
		Checksum:          s.Checksum,
		CreateRevision:    s.CreateRevision,
		ModifyRevision:    s.ModifyRevision,
		Created:           wallTime(s.CreateMs),
		Modified:          wallTime(s.ModifyMs),
		Kind:              kind,
		Owner:             s.Owner,
		Size:              int(s.DataLength),
		Children:          int(s.Children),
		ChildGeneration:   s.ChildGeneration,
		ChildRevision:     s.ChildRevision,
	}
}

// wallTime of Unix milliseconds; 0 is the zero Time.
func wallTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Node is a node with its content. Data is nil if the node has null content,
// which is not the same as empty.
type Node struct {
	Path string
	Data []byte
	Stat Stat
}

// Child is an entry of a listing.
type Child struct {
	Name string // last part of its path
	Stat Stat
}

// ClientInfo says who a session is, for people.
type ClientInfo struct {
	Name string // program
	Host string
	PID  int
}

// String is like "backup on db3, pid 4711".
func (c ClientInfo) String() string {
	name, host := c.Name, c.Host
	if name == "" {
		name = "unnamed client"
	}
	if host == "" {
		return name
	}
	return fmt.Sprintf("%s on %s, pid %d", name, host, c.PID)
}

func clientInfo(c *storepb.ClientInfo) ClientInfo {
	return ClientInfo{Name: c.GetName(), Host: c.GetHost(), PID: int(c.GetPid())}
}

// Holder of a lock.
type Holder struct {
	Session   uint64
	Client    ClientInfo
	Mode      Mode
	Fence     uint64
	Since     time.Time     // by the service's wall clock: a label
	Held      time.Duration // for how long by now; 0 if not known
	Lease     time.Duration // length of the session's lease
	LeaseLeft time.Duration // as the master sees it; -1 if not known
	LockDelay time.Duration
	// Ghost: the holder has left without releasing the lock; nobody gets it
	// before its lock-delay (or lease and lock-delay) has run, GhostLeft from
	// now (-1 if not known).
	Ghost     bool
	GhostLeft time.Duration

	ticket uint64 // names the holding within its session
}

// String is like "backup on db3, pid 4711, since 10:04:05, fence 912".
func (h Holder) String() string {
	s := h.Client.String()
	if !h.Since.IsZero() {
		s += ", since " + h.Since.Local().Format("15:04:05")
	}
	s += fmt.Sprintf(", fence %d", h.Fence)
	if h.Ghost {
		s += " (gone, its lock-delay runs)"
	}
	return s
}

// Waiter is a request in the queue for a lock.
type Waiter struct {
	Session uint64
	Client  ClientInfo
	Mode    Mode
	Since   time.Time     // by the service's wall clock: a label
	Waited  time.Duration // for how long by now; 0 if not known
	Left    time.Duration // until it gives up; -1: never, or not known
	Lease   time.Duration // length of the session's lease
}

// blockers splits what a result or event names into holders and waiters.
func blockers(bs []*storepb.Blocker, t serviceTime) (holders []Holder, waiters []Waiter) {
	for _, b := range bs {
		if b.GetFence() != 0 {
			holders = append(holders, holderOf(b, t))
		} else {
			waiters = append(waiters, waiterOf(b, t))
		}
	}
	return holders, waiters
}

// serviceTime is the service's time at a reading; zero if not known. Cell time
// decides when things fall due; it stands still while there is no master, so
// the wall clock's labels tell better how long something has lasted.
type serviceTime struct {
	cell   int64 // nanoseconds
	wallMS int64
}

func (t serviceTime) since(b *storepb.Blocker) time.Duration {
	if t.cell <= 0 {
		return 0
	}
	d := max(0, time.Duration(t.cell-b.GetSinceCell()))
	if t.wallMS > 0 && b.GetSinceWallMs() > 0 {
		d = max(d, millis(t.wallMS-b.GetSinceWallMs()))
	}
	return d
}

func holderOf(b *storepb.Blocker, t serviceTime) Holder {
	h := Holder{
		Session:   b.GetSession(),
		Client:    clientInfo(b.GetClient()),
		Mode:      Mode(b.GetMode()),
		Fence:     b.GetFence(),
		Since:     wallTime(b.GetSinceWallMs()),
		Lease:     millis(b.GetLeaseMs()),
		LeaseLeft: -1,
		LockDelay: millis(b.GetLockDelayMs()),
		Ghost:     b.GetGhost(),
		GhostLeft: -1,
		ticket:    b.GetTicket(),
	}
	h.Held = t.since(b)
	if t.cell > 0 && h.Ghost {
		h.GhostLeft = max(0, time.Duration(b.GetGhostUntilCell()-t.cell))
	}
	return h
}

func waiterOf(b *storepb.Blocker, t serviceTime) Waiter {
	w := Waiter{
		Session: b.GetSession(),
		Client:  clientInfo(b.GetClient()),
		Mode:    Mode(b.GetMode()),
		Since:   wallTime(b.GetSinceWallMs()),
		Left:    -1,
		Lease:   millis(b.GetLeaseMs()),
	}
	w.Waited = t.since(b)
	if d := b.GetDeadlineCell(); t.cell > 0 && d != 0 {
		w.Left = max(0, time.Duration(d-t.cell))
	}
	return w
}

func millis[T uint64 | int64](ms T) time.Duration { return time.Duration(ms) * time.Millisecond }

// millisLeft turns a time left that may be -1, unknown.
func millisLeft(ms int64) time.Duration {
	if ms < 0 {
		return -1
	}
	return millis(ms)
}

// LockInfo is the state of a node's lock.
type LockInfo struct {
	Path       string
	Generation uint64
	Fence      uint64   // of the present or last grant
	Holders    []Holder // ghosts among them
	Waiters    []Waiter // in the order in which they will be granted
}

func lockInfo(l *pb.LockInfo, t serviceTime) LockInfo {
	info := LockInfo{Path: l.GetPath(), Generation: l.GetGeneration(), Fence: l.GetFence()}
	for i, b := range l.GetHolders() {
		h := holderOf(b, t)
		if i < len(l.GetHolderLeaseLeftMs()) {
			h.LeaseLeft = millisLeft(l.HolderLeaseLeftMs[i])
		}
		info.Holders = append(info.Holders, h)
	}
	for _, b := range l.GetWaiters() {
		info.Waiters = append(info.Waiters, waiterOf(b, t))
	}
	return info
}

// SessionInfo describes a session that the service knows.
type SessionInfo struct {
	ID         uint64
	Client     ClientInfo
	Lease      time.Duration
	LeaseLeft  time.Duration // -1 if not known
	Opened     time.Time     // by the service's wall clock: a label
	Locks      int           // held
	Waiting    int           // lock requests in queues
	Ephemerals int
	Address    string // of its connection, "" if it has none now
}

func sessionInfo(s *pb.SessionInfo) SessionInfo {
	return SessionInfo{
		ID:         s.GetId(),
		Client:     clientInfo(s.GetClient()),
		Lease:      millis(s.GetLeaseMs()),
		LeaseLeft:  millisLeft(s.GetLeaseLeftMs()),
		Opened:     wallTime(s.GetOpenedMs()),
		Locks:      int(s.GetLocks()),
		Waiting:    int(s.GetWaiting()),
		Ephemerals: int(s.GetEphemerals()),
		Address:    s.GetAddress(),
	}
}

// ReplicaStatus is how one replica sees itself and its cell.
type ReplicaStatus struct {
	Cell          string
	Replica       string
	Role          string // "master", "electing", "follower", "founding"
	MasterName    string // "" if it knows none
	MasterAddress string
	Ballot        string
	Chosen        uint64 // slots known to be chosen
	Applied       uint64 // slots applied
	FirstSlot     uint64 // first slot that its log still has
	SnapshotSlot  uint64
	Revision      uint64
	Epoch         uint64
	StateHash     uint64
	Sessions      int
	Nodes         int
	Connections   int
	Uptime        time.Duration
	Version       string
	Peers         []PeerStatus // the other replicas, as this one sees them
}

// PeerStatus is how a replica sees another one.
type PeerStatus struct {
	Name      string
	Address   string
	Connected bool
	Chosen    uint64        // slots, as last reported
	Behind    uint64        // slots behind the master
	Heard     time.Duration // ago; -1: never
}

func replicaStatus(s *pb.StatusResult) ReplicaStatus {
	r := ReplicaStatus{
		Cell:          s.GetCell(),
		Replica:       s.GetReplica(),
		Role:          s.GetRole(),
		MasterName:    s.GetMasterName(),
		MasterAddress: s.GetMasterAddress(),
		Ballot:        s.GetBallot(),
		Chosen:        s.GetChosen(),
		Applied:       s.GetApplied(),
		FirstSlot:     s.GetFirstSlot(),
		SnapshotSlot:  s.GetSnapshotSlot(),
		Revision:      s.GetRevision(),
		Epoch:         s.GetEpoch(),
		StateHash:     s.GetStateHash(),
		Sessions:      int(s.GetSessions()),
		Nodes:         int(s.GetNodes()),
		Connections:   int(s.GetConnections()),
		Uptime:        millis(s.GetUptimeMs()),
		Version:       s.GetVersion(),
	}
	for _, p := range s.GetPeers() {
		r.Peers = append(r.Peers, PeerStatus{
			Name:      p.GetName(),
			Address:   p.GetAddress(),
			Connected: p.GetConnected(),
			Chosen:    p.GetChosen(),
			Behind:    p.GetBehind(),
			Heard:     millisLeft(p.GetHeardMsAgo()),
		})
	}
	return r
}
