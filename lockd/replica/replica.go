package replica

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/store"
)

// Replica is a whole replica. It is used by one goroutine.
type Replica struct {
	o       Options
	node    replog.NodeAPI
	master  *master.Master
	store   *store.Store
	now     time.Duration
	started time.Duration
	id      paxos.ReplicaID // 0: not asked yet

	leader    paxos.RoleEvent // the last one
	heard     time.Duration   // from a leader
	heardIt   bool
	applied   paxos.Slot
	cell      cellClock
	restoring paxos.Slot    // of the snapshot that is being installed
	founding  string        // the last note of what founding waits for
	asked     time.Duration // when that was looked at
	notes     []Note
	begun     bool // Begin was called: Take follows
}

// settleRounds bounds how often one Take goes around between log and master. A
// one-replica cell needs a few, because its log answers at once; what is left
// is done at the next tick.
const settleRounds = 16

// foundingEvery is how often a replica that waits for its cell to be founded
// looks what it waits for.
const foundingEvery = time.Second

// New makes a replica from what was found on disk. found must have been opened
// with DecodeSnapshot.
func New(o Options, found *replog.Found) (*Replica, error) {
	return build(o, found, func(sm replog.StateMachine) (replog.NodeAPI, error) {
		return replog.NewNode(o.Node, found, sm)
	})
}

// build makes a replica over any log.
func build(o Options, found *replog.Found, log func(replog.StateMachine) (replog.NodeAPI, error)) (*Replica, error) {
	mo := o.master()
	r := &Replica{o: o, now: o.Node.Now, started: o.Node.Now, store: store.New(),
		cell: cellClock{at: o.Node.Now, drift: int64(mo.DriftPPM)}}
	switch s := found.State.(type) {
	case nil:
	case *store.Store:
		r.restoring = found.Paxos.Applied // the log gives the state back to us
	default:
		return nil, fmt.Errorf("starting the replica: the snapshot was decoded to a %T; open the log with replica.DecodeSnapshot", s)
	}
	mo.Status, mo.AgeMS, mo.CellTime = r.Status, r.ageMS, r.cell.read
	r.master = master.New(mo, r.store, r.now)
	node, err := log(stateMachine{r})
	if err != nil {
		return nil, fmt.Errorf("starting the replica: %w", err)
	}
	r.node = node
	r.limitState()
	return r, nil
}

// master are the options of the master's part.
func (o Options) master() master.Options {
	return master.Options{
		Cell: o.Node.Cell, Replica: o.Node.Name, MaxFrame: o.MaxFrame,
		MaxSessions: o.MaxSessions, MaxConnections: o.MaxConnections,
		MaxSessionsPerConn: o.MaxSessionsPerConn, MaxWatchesPerConn: o.MaxWatchesPerConn,
		MaxPending: o.MaxPending, MaxPendingSession: o.MaxPendingSession,
		DriftPPM: cmp.Or(o.DriftPPM, master.DefaultDriftPPM), WallMS: o.WallMS, Room: o.Room,
		WatchLogBytes: o.WatchLogBytes, WatchTopicBytes: o.WatchTopicBytes,
	}
}

// DecodeSnapshot reads a snapshot of the store; it is replog's
// storage.Options.Decode.
func DecodeSnapshot(in io.Reader) (any, error) {
	s, err := store.ReadSnapshot(in)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Store is the state as applied so far, for reading. It is another one after a
// snapshot was installed.
func (r *Replica) Store() *store.Store { return r.store }

// stateMachine is the replica as the log sees it.
type stateMachine struct{ r *Replica }

// Apply applies a chosen entry to the store and tells the master.
func (sm stateMachine) Apply(e paxos.Entry) { sm.r.apply(e) }

// Snapshot returns the state as it is, immutable, in O(1).
func (sm stateMachine) Snapshot() replog.Snapshot { return sm.r.store.Clone() }

// Restore replaces the state.
func (sm stateMachine) Restore(state any) { sm.r.restore(state) }

func (r *Replica) apply(e paxos.Entry) {
	invariant.Assert(r.applied == 0 || e.Slot == r.applied+1,
		"entries are applied in order, each once: slot %d follows %d", e.Slot, r.applied)
	r.applied = e.Slot
	switch e.Value.Kind {
	case paxos.Batch:
		for _, c := range e.Value.Commands {
			result, changes := r.store.Apply(c)
			r.cell.applied(r.now, r.store.CellTime())
			if r.o.Observer != nil {
				r.o.Observer.Command(e.Slot, c, result, changes, r.store)
			}
			r.master.Command(r.now, c, result, changes)
		}
	case paxos.Lead:
		epoch, changes := r.store.ApplyLead(e.Value.WallSeconds, e.Value.CellTime, e.Value.CellEpoch)
		r.master.Lead(r.now, e.Value.Leader, epoch, changes)
		r.timeOfLead()
	case paxos.Config:
		if c := e.Value.Config; e.Slot == 1 && c != nil {
			r.store.ApplyFound(c.Cell, c.CellIdentity, c.RevisionFloor)
			r.cell.follow(r.now, r.store.CellTime())
			r.notes = append(r.notes, Note{Level: "info", Text: "the cell is founded",
				Args: []any{"cell", c.Cell, "members", len(c.Members)}})
		}
	case paxos.NoOp:
	}
	if r.o.Observer != nil {
		r.o.Observer.Entry(e, r.store)
	}
	r.master.Entry(r.now, e.Slot)
}

// timeOfLead goes on from the cell time that a Lead entry has left, unless it made
// this replica the master: then its own, which the entry has told of earlier.
func (r *Replica) timeOfLead() {
	told := r.store.CellTime()
	if r.master.Leading() {
		r.cell.applied(r.now, told)
		r.cell.lead(r.now, true)
		return
	}
	r.cell.follow(r.now, told)
}

func (r *Replica) restore(state any) {
	s, ok := state.(*store.Store)
	invariant.Assert(ok, "a snapshot of the log holds a store, not a %T", state)
	another := s.Epoch() != r.store.Epoch()
	r.store, r.applied = s, r.restoring
	r.master.SetStore(r.now, s)
	if another {
		r.cell.follow(r.now, s.CellTime())
	} else {
		r.cell.applied(r.now, s.CellTime())
	}
	if r.o.Observer != nil {
		r.o.Observer.Restored(r.applied, s)
	}
}

// Step takes one event: a replog.Event or one of a client's connection.
func (r *Replica) Step(now time.Duration, ev Event) {
	r.now = now
	switch e := ev.(type) {
	case ConnOpened:
		r.master.Opened(now, e.Conn, e.Remote)
	case ConnReceived:
		r.master.Received(now, e.Conn, e.Message)
	case ConnClosed:
		r.master.Closed(now, e.Conn)
	case HandOver:
		r.master.HandOver(now)
	case replog.Event:
		r.stepLog(now, e)
	}
}

// stepLog takes an event of the log.
func (r *Replica) stepLog(now time.Duration, ev replog.Event) {
	switch e := ev.(type) {
	case replog.PeerReceived:
		r.hear(e)
	case replog.Tick:
		// A label for the Lead entry, should there be one.
		e.CellTime, e.CellEpoch = r.cell.read(now), r.store.Epoch()
		r.node.Step(now, e)
		r.limitState()
		r.master.Tick(now)
		r.noteFounding()
		return
	case replog.SnapshotReceived:
		if e.Meta != nil {
			r.restoring = paxos.Slot(e.Meta.GetSlot())
		}
	case replog.SnapshotInstalled:
		r.restoring = paxos.Slot(e.Meta.GetSlot())
	}
	r.node.Step(now, ev)
}

// limitState tells the master the smallest limits of the state that members have.
func (r *Replica) limitState() {
	l := r.node.StateLimits()
	r.master.SetStateLimit(int(min(l.Nodes, math.MaxInt)), int64(min(l.Bytes, math.MaxInt64)))
}

// hear notes when the leader was last heard, for the age of stale reads.
func (r *Replica) hear(e replog.PeerReceived) {
	if e.Peer != r.leader.Leader || e.Peer == 0 {
		return
	}
	switch paxos.MessageKind(e.Message.GetPaxos().GetKind()) {
	case paxos.MsgHeartbeat, paxos.MsgAccept:
		r.heard, r.heardIt = r.now, true
	}
}

// Begin closes the batch as far as the log is concerned: followers and disk
// work while what was chosen is applied. See API.
func (r *Replica) Begin(now time.Duration) replog.Effects {
	r.now = now
	r.propose(now)
	r.begun = true
	return r.node.Begin(now)
}

// Gathering tells how many requests had better wait for each other.
func (r *Replica) Gathering(now time.Duration) int { return r.node.Gathering(now) }

// Awaits reports what the log waits for.
func (r *Replica) Awaits() (flush bool, votes paxos.Slot) { return r.node.Awaits() }

// Due tells when something that was held back is to wait no longer.
func (r *Replica) Due(now time.Duration) time.Duration {
	if r.master.Backlog() {
		return now
	}
	return min(r.master.Due(), r.node.Due(now))
}

// propose hands to the log what the master wants of it.
func (r *Replica) propose(now time.Duration) {
	w := r.master.Wants(now)
	if len(w.Proposals) > 0 {
		r.node.Step(now, replog.ProposeCommands{Commands: w.Proposals})
	}
	for _, id := range w.Confirm {
		r.node.Step(now, replog.ConfirmLead{ID: id})
	}
	if w.HandOver {
		r.node.Step(now, replog.HandOver{})
	}
}

// Take closes the batch and returns what is owed.
func (r *Replica) Take(now time.Duration) Effects {
	r.now = now
	var e Effects
	for range settleRounds {
		if !r.begun {
			r.propose(now)
		}
		r.begun = false
		log := r.node.Take(now)
		r.takeLog(now, &log)
		merge(&e.Log, &log)
		if e.Log.Fatal != nil {
			break
		}
		if !r.master.Wanting() {
			break
		}
	}
	own := r.master.Take(now)
	e.Conns, e.Close = own.Conns, own.Close
	e.Notes = append(r.notes, own.Notes...)
	r.notes = nil
	e.Role = r.role()
	return e
}

// takeLog hands to the master what the log says to it.
func (r *Replica) takeLog(now time.Duration, log *replog.Effects) {
	// The role first: what was dropped or proven under a lead that is lost
	// concerns nobody any more.
	if log.Role != nil {
		r.setRole(now, *log.Role)
	}
	for _, c := range log.Confirmed {
		r.master.Confirmed(now, c)
	}
	if len(log.Dropped) > 0 {
		r.master.Dropped(now, log.Dropped)
	}
	log.Role, log.Confirmed, log.Dropped = nil, nil, nil
}

// merge adds what one round of the log owes to what the batch owes.
func merge(to, from *replog.Effects) {
	to.Append = join(to.Append, from.Append)
	to.Send = join(to.Send, from.Send)
	to.After = join(to.After, from.After)
	to.DiskRead = join(to.DiskRead, from.DiskRead)
	to.SnapshotRead = join(to.SnapshotRead, from.SnapshotRead)
	to.ReceiveSnapshot = join(to.ReceiveSnapshot, from.ReceiveSnapshot)
	to.Notes = join(to.Notes, from.Notes)
	to.Warnings = join(to.Warnings, from.Warnings)
	if from.SaveSnapshot != nil {
		to.SaveSnapshot = from.SaveSnapshot
	}
	if from.InstallSnapshot != nil {
		to.InstallSnapshot = from.InstallSnapshot
	}
	to.Trim = max(to.Trim, from.Trim)
	if from.SetFounded != 0 {
		to.SetFounded = from.SetFounded
	}
	to.Fatal = errors.Join(to.Fatal, from.Fatal)
}

// join appends, without a copy when one side is empty.
func join[T any](a, b []T) []T {
	if len(a) == 0 {
		return b
	}
	return append(a, b...)
}
