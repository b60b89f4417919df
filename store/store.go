// Package store is the replicated state of a cell: a tree of nodes with small
// contents, a lock at each node with its queue, and the sessions that use
// them. It is a deterministic state machine: the same commands in the same
// order give the same results, the same changes and the same state hash on
// every replica, after a replay, and after a snapshot. Nothing in it reads a
// clock, a random source or the order of a map.
//
// Every table is a copy-on-write B-tree of records. A record is written in
// place while only one Store can have it, and replaced by a copy after a Clone
// (see Store.generation). So Clone costs the same however big the state is, a
// clone can be written out while the original goes on, and a command that
// changes a node or a session allocates nothing for it.
//
// Over a restore of the cell from a cold copy of its data the store promises just
// this: a revision or fence that is given afterwards exceeds each that was given
// before it, by the copied cell after the copy too, as long as the other copy is
// dead (it gives no more), the wall clocks of a majority are not behind those of
// the majority that led before, and a second has passed since. See revision.go.
//
// Files: command.go (Apply: who may execute what, exactly once), node.go, tree.go
// and cache.go (nodes), conditions.go,
// lock.go (grants), ghost.go (losses), waiter.go (queues), session.go,
// note.go, kept.go (results), multi.go, timer.go, revision.go, hash.go, snapshot.go, check.go.
package store

import (
	"cmp"

	"github.com/google/btree"
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// Store is the replicated state; see API. One goroutine at a time may use it; a
// Clone is apart from its original and may be used by another.
type Store struct {
	revision uint64
	epoch    uint64
	cellTime int64 // nanoseconds
	wallMS   int64 // largest label seen
	cell     string
	identity uint64

	// generation tells the records that may be written in place: those whose
	// made is equal to it. Clone raises it for both, the original and the clone.
	//
	// Invariant: a record is written only by the Store that made it, and never
	// once a clone may share it. For a Store puts its own generation into what it
	// makes, and what it shares was made before a Clone, with a lower one.
	generation uint64

	nodes      *btree.BTreeG[nodeItem]      // by parent's path, name
	ephemerals *btree.BTreeG[ephemeralItem] // by owner, path
	locks      *btree.BTreeG[lockItem]      // by path: those with a holder, ghost or waiter
	claims     *btree.BTreeG[claimItem]     // by session, ticket: all holders, ghosts, waiters
	holders    *btree.BTreeG[queueItem]     // by path, revision: holders and ghosts
	waiters    *btree.BTreeG[queueItem]     // by path, revision
	timers     *btree.BTreeG[timerItem]     // by time
	sessions   *btree.BTreeG[sessionItem]   // by number
	nonces     *btree.BTreeG[nonceItem]     // by nonce
	noted      *btree.BTreeG[uint64]        // the sessions that are noted as silent
	events     *btree.BTreeG[eventItem]     // by session, number

	sum   uint64 // of the hashes of all records, modulo 2^64
	bytes int64  // of the sizes of all records

	// What the tables hold for what was looked up last: a command asks for the
	// same session, lock and node again and again. It saves searches, it decides
	// nothing.
	recent     sessionItem
	recentLock lockItem
	cache      nodeCache

	// Of the command that is being applied.
	command *pb.Command // room for it; its parts are new each time
	now     uint64      // its revision, if it takes one
	changed bool        // it has changed nodes, locks or sessions
	changes []Change
	touched []string // paths whose queue or container node must be looked at
	removed int      // what its Deletes have taken away, as DeleteMax counts
}

var _ API = (*Store)(nil)

// treeDegree is that of the B-trees: nodes of at most 63 items keep the cost
// of a copied node and of a search within it low.
const treeDegree = 32

// New returns the state before any command: a root node and nothing else.
func New() *Store {
	s := empty()
	s.putNode(nodeItem{node: &node{kind: pb.NodeKind_PERMANENT, contentGen: 1}})
	return s
}

func empty() *Store {
	return &Store{
		nodes:      btree.NewG(treeDegree, lessNode),
		ephemerals: btree.NewG(treeDegree, lessEphemeral),
		locks:      btree.NewG(treeDegree, lessLock),
		claims:     btree.NewG(treeDegree, lessClaim),
		holders:    btree.NewG(treeDegree, lessQueue),
		waiters:    btree.NewG(treeDegree, lessQueue),
		timers:     btree.NewG(treeDegree, lessTimer),
		sessions:   btree.NewG(treeDegree, lessSession),
		nonces:     btree.NewG(treeDegree, lessNonce),
		noted:      btree.NewG(treeDegree, cmp.Less[uint64]),
		events:     btree.NewG(treeDegree, lessEvent),
	}
}

// Clone returns a consistent view in O(1). Only the goroutine that applies
// commands may call it.
func (s *Store) Clone() *Store {
	s.generation++
	c := *s
	c.changes, c.touched, c.cache, c.command = nil, nil, nodeCache{}, nil
	c.nodes = s.nodes.Clone()
	c.ephemerals = s.ephemerals.Clone()
	c.locks = s.locks.Clone()
	c.claims = s.claims.Clone()
	c.holders = s.holders.Clone()
	c.waiters = s.waiters.Clone()
	c.timers = s.timers.Clone()
	c.sessions = s.sessions.Clone()
	c.nonces = s.nonces.Clone()
	c.noted = s.noted.Clone()
	c.events = s.events.Clone()
	return &c
}

// ApplyLead is applied for a leader's first entry; it returns the new epoch.
// Epochs only grow: a command is void in any but that of the master that proposed it.
// wallSeconds is the lowest wall clock of the majority that promised, in seconds
// since 1970 (0: unknown); cellTime is the leader's. Both only ever move the
// state's forward.
//
// Invariant: cellTime counts only if the leader read it under the present epoch
// (cellEpoch), that is after it had applied the Lead entry before this one. What
// it read earlier may be ahead of the cell time that the master in between went
// on from, and would make times end early that were counted under that master.
func (s *Store) ApplyLead(wallSeconds, cellTime int64, cellEpoch uint64) (uint64, []Change) {
	s.begin()
	if cellEpoch == s.epoch || invariant.Planted(invariant.OldCellTimeTaken) {
		s.cellTime = max(s.cellTime, cellTime)
	}
	s.epoch++
	capped := s.raise(wallSeconds)
	s.changes = append(s.changes, Change{Kind: ChangeEpoch, Revision: s.revision, Capped: capped})
	return s.epoch, s.changes
}

// ApplyFound is applied for the founding entry. A floor that is beyond what a
// clock may ask for is lowered to that.
func (s *Store) ApplyFound(cell string, cellIdentity, revisionFloor uint64) {
	s.begin()
	s.cell, s.identity = cell, cellIdentity
	s.revision = max(s.revision, min(revisionFloor, highMax<<revisionCountBits))
	root, _ := s.node("/")
	if root.instance == 0 {
		s.editNode("/", func(root *node) { root.instance, root.modifyRev = s.revision, s.revision })
	}
}

// Revision of the state.
func (s *Store) Revision() uint64 { return s.revision }

// Epoch counts the leaders' first entries that were applied.
func (s *Store) Epoch() uint64 { return s.epoch }

// CellTime in nanoseconds, the largest that a command carried.
func (s *Store) CellTime() int64 { return s.cellTime }

// Cell returns the cell's name and random identity, given by its founding.
func (s *Store) Cell() (string, uint64) { return s.cell, s.identity }

// Counts of what is in the state.
func (s *Store) Counts() (sessions, nodes int) { return s.sessions.Len(), s.nodes.Len() }
