// Package master is what a replica is for its clients: their connections, and,
// while the replica leads, the sessions with their leases, the requests on
// their way through the log, the events, reads and watches.
//
// It is a pure state machine. A replica hands it what happened (connections,
// messages, ticks, applied commands, the role in the cell) with the time, and
// takes what it owes: commands to propose, proofs of leadership to ask for,
// messages to send. It decides nothing about the replicated state: it reads the
// store, and changes it through the log alone.
//
// What keeps a session safe is spread over few places, each of which asserts
// its part:
//
//   - lease.go: a lease is given as of an instant at which leadership was
//     proven, never to a session whose expiry has been proposed and is
//     undecided, and never shortened;
//   - confirm.go: what must be linearizable is answered under a proof of
//     leadership that was begun after the question arrived, from a state in
//     which everything chosen before it is applied;
//   - role.go: nothing is served before this replica's own Lead entry is applied,
//     nor after another's is.
package master

import (
	"time"

	"github.com/google/btree"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// ConnID names a client's connection at this replica; never used twice.
type ConnID uint64

// ConnSend queues a message for a client. The message must not be changed by
// anybody: parts of it belong to the store or to messages for others.
type ConnSend struct {
	Conn    ConnID
	Message *wirepb.ServerMessage
}

// ConnClose ends a connection once what is queued for it has left.
type ConnClose struct {
	Conn   ConnID
	Reason string
}

// Note is a line for the operator's log.
type Note struct {
	Level string // debug, info, warn, error
	Text  string
	Args  []any // slog key-value pairs
}

// Options of a Master. All limits have defaults; Status, AgeMS and CellTime are needed.
type Options struct {
	Cell     string // its name
	Replica  string // name of this one
	MaxFrame int    // largest frame taken from clients, and sent

	MaxSessions        int
	MaxConnections     int
	MaxSessionsPerConn int // at most maxKeepAlive
	MaxWatchesPerConn  int
	MaxPending         int
	MaxPendingSession  int
	WatchLogBytes      int // changes kept for watches that were not told them yet
	WatchTopicBytes    int // the same for watches of one scope

	DriftPPM int
	WallMS   func() int64

	// Status and AgeMS answer for the whole replica: ReadStatus, and how long
	// ago it heard from a master (-1 never).
	Status func(now time.Duration) *wirepb.StatusResult
	AgeMS  func(now time.Duration) int64
	// CellTime returns the replica's cell time in nanoseconds: never back while it
	// leads, never ahead of real time.
	CellTime func(now time.Duration) int64
	// Room says how many bytes a connection can be sent now without waiting for
	// its client to read; deep asks for more than is usual, which few get at a
	// time. While nothing is queued it must be pageBytes and roomReserve at least.
	// Default: as much as the largest state of a watch.
	Room func(c ConnID, deep bool) int
}

// DefaultDriftPPM bounds how far clocks run apart, in parts per million.
const DefaultDriftPPM = 10_000

// The limits that have no option.
const (
	maxWatches       = 1 << 20  // of all connections
	maxPendingBytes  = 64 << 20 // commands proposed and not applied
	maxWatchState    = 32 << 20 // bytes of a watch's first state
	maxKeepAlive     = 1 << 16  // sessions named in one KeepAlive
	minClientFrame   = 64 << 10 // a client must take frames of at least this
	maxText          = 256      // of a client's text that is repeated to it
	leaseBytes       = 24       // of a session in the answer to a KeepAlive, at most
	defaultFrame     = 4 << 20  // a client's limit when it names none
	frameReserve     = 1 << 10  // kept free in a paged answer
	protocolVersion  = 2
	defaultLease     = 12 * time.Second
	retryOverloaded  = 200 // milliseconds
	retryNoMaster    = 200
	maxConfirmRounds = 4 // proofs of leadership asked for at a time
)

func (o *Options) setDefaults() {
	set := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	set(&o.MaxFrame, 2<<20)
	set(&o.MaxSessions, 100_000)
	set(&o.MaxConnections, 50_000)
	set(&o.MaxSessionsPerConn, maxKeepAlive)
	o.MaxSessionsPerConn = min(o.MaxSessionsPerConn, maxKeepAlive)
	set(&o.MaxWatchesPerConn, 10_000)
	set(&o.MaxPending, 65_536)
	set(&o.MaxPendingSession, 256)
	set(&o.DriftPPM, DefaultDriftPPM)
	set(&o.WatchLogBytes, 64<<20)
	set(&o.WatchTopicBytes, o.WatchLogBytes/2)
	if o.WallMS == nil {
		o.WallMS = func() int64 { return 0 }
	}
	if o.Room == nil {
		o.Room = func(ConnID, bool) int { return maxWatchState }
	}
}

// Master is the client-facing half of a replica. It is used by one goroutine.
type Master struct {
	o  Options
	st store.API

	now     time.Duration
	lastRun time.Duration // when a client's event or a tick came last
	frozen  time.Duration // time that counts against no session, see lease.go
	applied paxos.Slot

	role  roleState
	conns map[ConnID]*conn
	dirty []*conn // have messages queued, in the order of their first one

	// Of the master; empty unless role.active.
	sessions   map[uint64]*session
	deadlines  *btree.BTreeG[deadline] // of sessions, in lease time
	silence    *btree.BTreeG[deadline] // when to look whether a session is silent, in lease time
	clears     []uint64                // sessions whose notes are to be cleared
	held       *btree.BTreeG[heldUntil]
	opening    map[string]*opening // by nonce
	pending    int                 // requests proposed and not applied
	bytes      int                 // of their commands
	growing    size                // what they, and openings, may add to the state
	stateLimit size                // not of the mastership: see SetStateLimit
	expiring   int                 // sessions whose expiry is proposed
	rounds     rounds
	watches    watches
	timers     timers
	acks       []ackDue

	proposals [][]byte
	proposal  storepb.Command // of a request, until it is encoded: all its fields are set anew
	urgent    bool            // one of them is not to be held back
	heldSince time.Duration   // since when the oldest is, if none is urgent
	closes    []ConnClose
	notes     []Note
	handover  bool // to be passed on to the node

	count  Counters
	limits map[string]uint64 // what each has refused; nil: nothing
}

// Counters count since the start.
type Counters struct {
	Requests, Reads, KeepAlives, Events     uint64
	Granted, Expired, Refused, Elections    uint64
	Sessions, Connections, Watches, Pending int

	WatchLogBytes int    // of the change log
	WatchesBehind int    // watches that their clients read too slowly for
	WatchesMissed uint64 // how often one fell out of the change log
}

// New returns a Master over a store that others write.
func New(o Options, st store.API, now time.Duration) *Master {
	o.setDefaults()
	m := &Master{o: o, st: st, now: now, lastRun: now, conns: make(map[ConnID]*conn)}
	m.forget()
	return m
}

// SetStore gives another store, after a snapshot was installed.
func (m *Master) SetStore(now time.Duration, st store.API) {
	m.now = now
	// A leader never installs a snapshot: it has applied all that is chosen.
	if m.role.active {
		m.stepDown("its state was replaced by a snapshot")
	}
	m.st = st
}

// forget drops everything that only a master has.
func (m *Master) forget() {
	m.sessions = make(map[uint64]*session)
	m.deadlines = btree.NewG(32, deadline.less)
	m.silence = btree.NewG(32, deadline.less)
	m.clears = nil
	m.held = btree.NewG(32, heldUntil.less)
	for _, o := range m.opening {
		o.conn.opening = 0
	}
	m.opening = make(map[string]*opening)
	m.pending, m.bytes, m.expiring = 0, 0, 0
	m.growing = size{}
	m.rounds.forget()
	m.watches.forget()
	m.timers = timers{}
	m.acks = nil
	m.proposals, m.urgent = nil, false
}

// Wants is what a Master asks of the log.
type Wants struct {
	Proposals [][]byte // commands, encoded
	Confirm   []uint64 // proofs of leadership, by ID
	HandOver  bool     // give the lead away
}

// Wanting reports whether Wants has something to give.
func (m *Master) Wanting() bool {
	return m.Due() <= m.now || m.handover || m.rounds.ready()
}

// Backlog reports whether Take has more to do than one batch may.
func (m *Master) Backlog() bool { return m.watches.backlog() }

// idleTime is how long a request that cannot do anything but queue is held back
// for company.
const idleTime = 2 * time.Millisecond

// Due is when there are commands that are not to be held back any longer;
// paxos.Never: none are held back.
func (m *Master) Due() time.Duration {
	switch {
	case len(m.proposals) == 0:
		return paxos.Never
	case m.urgent:
		return m.heldSince
	}
	return m.heldSince + idleTime
}

// Wants returns, once, what is to be handed to the log now. Call it until
// Wanting says no, then Take.
func (m *Master) Wants(now time.Duration) Wants {
	m.now = now
	w := Wants{HandOver: m.handover, Confirm: m.rounds.begin(now, m.leaseTime(now))}
	if m.handover || m.Due() <= now {
		// In the order in which they came, those that were held back too.
		w.Proposals, m.proposals, m.urgent = m.proposals, nil, false
	}
	m.handover = false
	return w
}

// Effects is what is owed to the clients and the operator.
type Effects struct {
	Conns []ConnSend // grouped by connection, in order for each
	Close []ConnClose
	Notes []Note
}

// Take returns what has gathered since the last Take.
func (m *Master) Take(now time.Duration) Effects {
	m.now = now
	m.watches.startFresh(m)
	m.watches.flush(m)
	m.watches.closeBatch()
	var e Effects
	n := 0
	for _, c := range m.dirty {
		n += len(c.out)
	}
	if n > 0 {
		e.Conns = make([]ConnSend, 0, n)
	}
	for i, c := range m.dirty {
		for j, msg := range c.out {
			e.Conns = append(e.Conns, ConnSend{Conn: c.id, Message: msg})
			c.out[j] = nil
		}
		c.out = c.out[:0]
		if cap(c.out) > keepOut {
			c.out = nil
		}
		c.dirty = false
		m.dirty[i] = nil
	}
	m.dirty = m.dirty[:0]
	e.Close, m.closes = m.closes, nil
	e.Notes, m.notes = m.notes, nil
	return e
}

// keepOut is how many messages an emptied queue of a connection keeps room for.
const keepOut = 8

// Tick tells the time. Only here does time cause anything.
func (m *Master) Tick(now time.Duration) {
	m.passTime(now)
	m.tickRole()
	if !m.serving() {
		return
	}
	m.answerHeld()
	m.watches.unblock(m)
	m.watches.startWaiting(m)
	m.expire()
	m.noteSilent()
	m.clearNotes()
	m.proposeTimers()
	m.proposeAcks()
}

// Counters returns what was counted, and the present sizes.
func (m *Master) Counters() Counters {
	c := m.count
	c.Sessions, _ = m.st.Counts()
	c.Connections = len(m.conns)
	c.Watches = m.watches.count
	c.Pending = m.pending
	c.WatchLogBytes, c.WatchesBehind = m.watches.log.bytes, m.watches.behind
	return c
}

func (m *Master) note(level, text string, args ...any) {
	m.notes = append(m.notes, Note{Level: level, Text: text, Args: args})
}

// queues reports whether a command is an Acquire that can only queue up behind
// others. Nobody waits for that: it goes into the log with whatever comes next,
// often the release that the lock's next holder sends at the same time, and
// saves a round that would stand in the way of it.
func (m *Master) queues(c *storepb.Command) bool {
	a := c.GetAcquire()
	return a != nil && (a.GetNoDeadline() || a.GetWaitMs() > 0) && m.st.Contended(a.GetPath(), a.GetMode())
}

// propose encodes a command with what only the master may fill in, and queues
// it for the log. It returns the size of the encoding.
func (m *Master) propose(c *storepb.Command) int {
	c.Epoch = m.role.epoch
	c.CellTime = m.cellTime()
	c.WallMs = m.o.WallMS()
	b := encode(c)
	m.timers.logged = m.now
	if len(m.proposals) == 0 {
		m.heldSince = m.now
	}
	m.proposals = append(m.proposals, b)
	m.urgent = m.urgent || !m.queues(c)
	return len(b)
}
