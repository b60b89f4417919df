// Package model is a second, slow and simple store: what store.proto and
// DESIGN.md say of Apply, written from the text alone. The simulator gives it
// every command that the cell applies, in order, and compares what both make
// of it. It shares no code with the store, so one misunderstanding does not
// hide in both.
package model

import (
	"sort"

	"github.com/seed70370324/lockd/store"
	"github.com/seed70370324/lockd/store/pb"
)

// Model is the state. All paths and sessions are in plain maps; what a command
// is rarely about is found by looking at everything.
type Model struct {
	revision, epoch uint64
	cellTime        int64
	wall            int64
	nodes           map[string]*node
	locks           map[string]*lock // of nodes, and of deleted ones that left ghosts
	sessions        map[uint64]*session
	nonces          map[string]uint64

	// Of the command that is applied:
	next    uint64 // the revision that it gets if it does anything
	changes []store.Change
	touched []string // paths whose lock may pass on, or which may be an idle container
	undo    *undo    // set within a Multi
}

type node struct {
	stat    *pb.Stat // owned by the node, never handed out
	data    []byte
	hasData bool
	nextSeq uint64
	used    bool // container: has had a child or a lock
	implied bool // container that a lock or a path made
}

type lock struct {
	generation, fence uint64
	holders, waiters  []claim // holders: ghosts among them; waiters: queue order
}

// claim is one request for a lock: it waits, holds, or is a ghost.
type claim struct {
	session, ticket uint64
	client          *pb.ClientInfo
	mode            pb.LockMode
	delay, lease    uint64 // milliseconds
	fence           uint64
	wall, cell      int64 // since when it waits or holds
	deadline        int64 // cell time, 0 never
	revision        uint64
	ghost           bool
	until           int64 // of a ghost, cell time; 0: unstarted
}

type session struct {
	id         uint64
	nonce      string
	lease      uint64
	client     *pb.ClientInfo
	last       uint64 // highest number executed or voided
	lowest     uint64
	results    map[uint64]*pb.Result
	events     []*pb.SessionEvent
	nextEvent  uint64
	acked      uint64
	lastChange uint64
	opened     int64
	leaseEnd   int64
}

// undo is what the paths and sessions that a Multi has changed were before;
// nil where there was nothing.
type undo struct {
	nodes    map[string]*node
	locks    map[string]*lock
	sessions map[uint64]session
}

// New returns the state before founding.
func New() *Model {
	return &Model{
		nodes:    map[string]*node{"/": root()},
		locks:    map[string]*lock{},
		sessions: map[uint64]*session{},
		nonces:   map[string]uint64{},
	}
}

// root is there first; the founding says of which revision.
func root() *node {
	return &node{used: true, stat: &pb.Stat{ContentGeneration: 1,
		Checksum: store.Checksum(nil), Kind: pb.NodeKind_PERMANENT}}
}

const (
	firstSecond = 1735689600 // 2025-01-01
	lowBits     = 31
	lastSecond  = 4922553600 // in December 2125: what the text says of a clock that is far ahead is not modelled
)

// Found is the founding entry: revisions begin at the floor.
func (m *Model) Found(floor uint64) {
	m.revision = max(m.revision+1, floor)
	root := m.nodes["/"].stat
	root.Instance, root.CreateRevision, root.ModifyRevision = m.revision, m.revision, m.revision
}

// Lead is a leader's first entry. It reports whether the text says what the
// revision is.
func (m *Model) Lead(wallSeconds, cellTime int64, cellEpoch uint64) {
	m.epoch++
	if cellEpoch+1 == m.epoch { // read behind the Lead entry before
		m.cellTime = max(m.cellTime, cellTime)
	}
	if wallSeconds > firstSecond && wallSeconds < lastSecond {
		m.revision = max(m.revision, uint64(wallSeconds-firstSecond)<<lowBits)
	}
}

// Apply executes a command. The result and the changes are what the store's
// should be; detail and limit are not set.
func (m *Model) Apply(c *pb.Command) (*pb.Result, []store.Change) {
	m.changes, m.touched = m.changes[:0], m.touched[:0]
	m.next = m.revision + 1
	if c.GetEpoch() != m.epoch { // of another master: void
		return &pb.Result{Code: pb.Code_STALE_EPOCH, Number: c.GetNumber(), Revision: m.revision}, nil
	}
	m.cellTime = max(m.cellTime, c.GetCellTime())
	m.wall = max(m.wall, c.GetWallMs())
	r, repeat := m.command(c)
	m.settle()
	if len(m.changes) > 0 {
		m.revision = m.next
	}
	if !repeat {
		r.Revision = m.revision
		r.Number = c.GetNumber()
	}
	return r, m.changes
}

// command reports also whether the result is that of an earlier command.
func (m *Model) command(c *pb.Command) (r *pb.Result, repeat bool) {
	switch op := c.Op.(type) {
	case nil:
		return code(pb.Code_BAD_COMMAND), false
	case *pb.Command_OpenSession:
		return m.open(op.OpenSession), false
	case *pb.Command_ExpireSession, *pb.Command_Timers, *pb.Command_Clock, *pb.Command_NoteSessions:
		return m.caused(c), false
	}
	return m.request(c)
}

// caused executes a command that time causes.
func (m *Model) caused(c *pb.Command) *pb.Result {
	switch op := c.Op.(type) {
	case *pb.Command_ExpireSession:
		s := m.sessions[op.ExpireSession.GetSession()]
		if s == nil {
			return code(pb.Code_UNKNOWN_SESSION)
		}
		if s.lastChange != op.ExpireSession.GetLastChange() {
			return &pb.Result{Code: pb.Code_STALE_EPOCH, Session: s.id, LastChange: s.lastChange}
		}
		m.end(s, pb.LossReason_HOLDER_EXPIRED, false)
		return &pb.Result{Session: s.id}
	case *pb.Command_Timers:
		for _, t := range op.Timers.GetDue() {
			m.timer(t)
			m.settle() // one after the other: a lock that a ghost leaves may be granted before the next falls due
		}
	case *pb.Command_NoteSessions:
		for _, n := range op.NoteSessions.GetNotes() {
			s := m.sessions[n.GetSession()]
			if s == nil {
				continue
			}
			if s.leaseEnd != 0 && n.GetLeaseEndCell() == 0 {
				s.lastChange++ // a sign of life
			}
			s.leaseEnd = n.GetLeaseEndCell()
		}
	}
	return code(pb.Code_OK)
}

// request executes what a session has sent: each number once, in order.
func (m *Model) request(c *pb.Command) (r *pb.Result, repeat bool) {
	s := m.sessions[c.GetSession()]
	if s == nil {
		return code(pb.Code_UNKNOWN_SESSION), false
	}
	if _, ok := c.Op.(*pb.Command_AckEvents); ok {
		s.ack(c.GetAckedEvent())
		return &pb.Result{Session: s.id}, false
	}
	n := c.GetNumber()
	switch {
	case n == 0:
		return code(pb.Code_BAD_COMMAND), false
	case n > s.last+1:
		return code(pb.Code_RETRY), false
	}
	s.ack(c.GetAckedEvent())
	r = s.results[n] // a repeat is answered although its result is to be dropped
	s.forget(c.GetLowestUnanswered())
	if n <= s.last {
		if r != nil {
			return r, true
		}
		return code(pb.Code_FORGOTTEN), false
	}
	s.last = n
	r = m.operation(s, c)
	s.results[n] = r
	return r, false
}

// Refused takes it that the store has refused a request because of a limit
// that the model does not count: recorded says whether the request has used up
// its number.
func (m *Model) Refused(c *pb.Command, r *pb.Result, recorded bool) {
	m.changes = m.changes[:0]
	m.cellTime = max(m.cellTime, c.GetCellTime())
	m.wall = max(m.wall, c.GetWallMs())
	s := m.sessions[c.GetSession()]
	if s == nil || c.GetNumber() > s.last+1 {
		return
	}
	s.ack(c.GetAckedEvent())
	s.forget(c.GetLowestUnanswered())
	if recorded && c.GetNumber() == s.last+1 {
		s.last = c.GetNumber()
		s.results[s.last] = r
	}
}

func (m *Model) operation(s *session, c *pb.Command) *pb.Result {
	switch op := c.Op.(type) {
	case *pb.Command_VoidRequest:
		return code(pb.Code_VOIDED)
	case *pb.Command_CloseSession:
		m.end(s, pb.LossReason_HOLDER_CLOSED, op.CloseSession.GetWorkEnded())
		return &pb.Result{Session: s.id}
	case *pb.Command_Create:
		return m.create(s, op.Create)
	case *pb.Command_Put:
		return m.put(op.Put)
	case *pb.Command_Delete:
		return m.delete(op.Delete)
	case *pb.Command_Acquire:
		return m.acquire(s, c.GetNumber(), op.Acquire)
	case *pb.Command_Release:
		return m.release(s, op.Release, true)
	case *pb.Command_Forfeit:
		return m.forfeit(s, op.Forfeit.GetTicket())
	case *pb.Command_BreakLock:
		return m.breakLock(op.BreakLock)
	case *pb.Command_Multi:
		return m.multi(s, op.Multi)
	}
	return code(pb.Code_BAD_COMMAND)
}

func code(c pb.Code) *pb.Result { return &pb.Result{Code: c} }

// settle passes on the locks that the command has touched and removes the
// containers on which nothing is left, upwards.
func (m *Model) settle() {
	sort.SliceStable(m.touched, func(i, j int) bool { return behind(m.touched[j], m.touched[i]) })
	granted := len(m.touched)
	for _, path := range m.touched {
		m.passOn(path)
	}
	for i := granted - 1; i >= 0; i-- {
		for path := m.touched[i]; m.removeIdle(path); {
			path = parentOf(path)
		}
	}
	m.touched = m.touched[:0]
}

func (m *Model) touch(path string) { m.touched = append(m.touched, path) }
