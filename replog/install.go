package replog

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// Catching up by snapshot: a replica that is behind every log it can reach
// fetches a peer's snapshot piece by piece, has it verified and made durable
// beside its log, and then lets it take the log's place. Each piece is asked
// for when the one before is on disk, so a slow disk slows the sender; a piece
// that does not come is asked for again, then elsewhere. What counts is
// progress, not how long the whole takes.

const (
	fetchChunk   = 512 << 10
	fetchTimeout = 3 * time.Second
	fetchTries   = 3 // without an answer, then another peer is asked
	// fetchLongest bounds how long bytes that arrive are taken for the piece that
	// was asked for: they may be of another message.
	fetchLongest = time.Minute
)

type fetching struct {
	active  bool
	from    paxos.ReplicaID
	slot    paxos.Slot // of the snapshot, 0 until its first piece has come
	offset  uint64
	asked   time.Duration
	arrived time.Duration // when bytes of a large message last came from there
	tries   int
	writing bool // a piece is on its way to the disk

	// The snapshot, complete and decoded, until it is installed.
	meta       *pb.SnapshotMeta
	state      any
	installing bool // it takes the log's place on disk
	installed  bool // it has
}

// needSnapshot begins to fetch one, unless that is under way.
func (n *Node) needSnapshot(from paxos.ReplicaID) {
	f := &n.fetch
	if f.active || f.meta != nil {
		return
	}
	f.active = true
	f.begin(from)
	n.note("this replica, at slot %d, is behind the logs of the others: it fetches a snapshot from replica %d", n.applied, from)
	if p := n.peer(from); p == nil || !p.speaks() {
		n.fetchElsewhere()
	}
	n.askChunk()
}

// begin starts over, with the newest snapshot of a peer.
func (f *fetching) begin(from paxos.ReplicaID) {
	f.from, f.slot, f.offset, f.tries, f.arrived = from, 0, 0, 0, 0
}

// fetchElsewhere turns to the next peer that is connected; with none it stays.
func (n *Node) fetchElsewhere() {
	next := paxos.ReplicaID(0)
	for _, p := range n.peers { // by ID: the next one up, else the lowest
		if p.speaks() && (p.id > n.fetch.from && next <= n.fetch.from || next == 0) {
			next = p.id
		}
	}
	if next == 0 {
		next = n.fetch.from
	}
	n.fetch.begin(next)
}

// askChunk asks for the next piece.
func (n *Node) askChunk() {
	f := &n.fetch
	f.asked = n.now
	p := n.peer(f.from)
	if f.writing || p == nil || !p.speaks() {
		return // fetchTick goes on
	}
	n.fx.Send = append(n.fx.Send, Send{To: p.id, Message: &pb.PeerMessage{
		Body: &pb.PeerMessage_SnapshotRequest{SnapshotRequest: &pb.SnapshotRequest{
			Slot: uint64(f.slot), Offset: f.offset, Limit: fetchChunk,
		}},
	}})
}

// fetchArriving hears that a large message is on its way from a peer. On a slow
// link a piece takes longer than fetchTimeout, and one that is asked for again
// while it comes has to be carried again, before the next.
func (n *Node) fetchArriving(from paxos.ReplicaID) {
	if f := &n.fetch; f.from == from && n.now-f.asked < fetchLongest {
		f.arrived = n.now
	}
}

// fetchTick asks again when nothing came.
func (n *Node) fetchTick() {
	f := &n.fetch
	if !f.active || f.writing || n.now-max(f.asked, f.arrived) < fetchTimeout {
		return
	}
	if f.tries++; f.tries >= fetchTries {
		n.fetchElsewhere()
	}
	n.askChunk()
}

// fetchFailed starts over with another peer after a pause.
func (n *Node) fetchFailed(format string, args ...any) {
	n.note("fetching a snapshot from replica %d: %s; another is tried", n.fetch.from, fmt.Sprintf(format, args...))
	n.fetchElsewhere()
	n.fetch.asked = n.now
}

func (n *Node) chunkReceived(p *peer, c *pb.SnapshotChunk) {
	f := &n.fetch
	if !f.active || f.writing || p.id != f.from {
		return
	}
	size := uint64(len(c.GetData()))
	switch {
	case c.GetGone():
		n.fetchFailed("its snapshot is no longer there")
	case c.GetSlot() == 0 || f.slot != 0 && paxos.Slot(c.GetSlot()) != f.slot || c.GetOffset() != f.offset:
		// An answer to a question that was asked twice.
	case paxos.Slot(c.GetSlot()) <= n.applied:
		// The log was caught up with meanwhile, or a peer has it: paxos asks for a
		// snapshot again if it finds neither.
		f.active = false
		n.note("the snapshot of slot %d of replica %d is not ahead of this replica, at slot %d: it is not fetched", c.GetSlot(), f.from, n.applied)
	case size > c.GetSize() || f.offset > c.GetSize()-size || c.GetLast() != (f.offset+size == c.GetSize()) || size == 0 && !c.GetLast():
		n.fetchFailed("a piece of %d bytes at %d of %d makes no sense", size, c.GetOffset(), c.GetSize())
	default:
		f.slot = paxos.Slot(c.GetSlot())
		f.offset += size
		f.tries = 0
		f.writing = true
		n.fx.ReceiveSnapshot = append(n.fx.ReceiveSnapshot, c)
	}
}

func (n *Node) snapshotReceived(ev SnapshotReceived) {
	f := &n.fetch
	f.writing = false
	switch {
	case !f.active:
		// Given up meanwhile.
	case ev.Err != nil:
		n.fetchFailed("%v", ev.Err)
	case f.slot <= n.applied:
		f.active = false
		n.note("the log was caught up with meanwhile, the snapshot of slot %d is not needed", f.slot)
	case ev.Meta == nil:
		n.askChunk()
	default:
		if !n.isOurs(ev.Meta) {
			invariant.Unreachable("the storage refuses what is not of this cell, or has not this replica in it")
			n.fetchFailed("it is not one of this cell with this replica in it")
			return
		}
		f.active = false
		f.meta, f.state = ev.Meta, ev.State
	}
}

// isOurs reports whether a snapshot is one of this cell, with this replica in it
// as it is.
func (n *Node) isOurs(m *pb.SnapshotMeta) bool {
	c, err := codec.DecodeConfiguration(m.GetConfig())
	ours := err == nil && c != nil && m.GetCell() == n.o.Cell && c.Cell == n.o.Cell && c.CellIdentity == m.GetCellIdentity() &&
		(n.config == nil || c.CellIdentity == n.config.CellIdentity)
	return ours && slices.ContainsFunc(c.Members, func(m paxos.Member) bool {
		return m.ID == n.id && m.Name == n.o.Name && m.Incarnation == n.incarnation
	})
}

// leads reports whether this replica leads or is about to. A leader proposes
// every open slot again itself, so it has no use for a snapshot.
func (n *Node) leads() bool { return n.role == paxos.Preparing || n.role == paxos.Leader }

// install lets a complete snapshot take the place of the log, unless the log
// has overtaken it. It is called when all that paxos owes so far is taken, so
// that promise and entries are those of this batch.
func (n *Node) install() {
	f := &n.fetch
	switch {
	case f.meta == nil || f.installing:
	case f.installed:
		n.enter()
	case paxos.Slot(f.meta.GetSlot()) <= n.applied:
		n.note("the log has overtaken the snapshot of slot %d, it is not installed", f.meta.GetSlot())
		n.keep.have(paxos.Slot(f.meta.GetSlot()))
		f.meta, f.state = nil, nil
	case !n.leads():
		f.installing = true
		n.fx.InstallSnapshot = &InstallSnapshot{
			Meta:     f.meta,
			Promised: n.promised,
			Entries:  n.accepted.above(paxos.Slot(f.meta.GetSlot())),
		}
	}
}

// snapshotInstalled hears that the snapshot is on disk in the log's place.
func (n *Node) snapshotInstalled(m *pb.SnapshotMeta) {
	f := &n.fetch
	invariant.Assert(f.installing && m.GetSlot() == f.meta.GetSlot(), "a snapshot of slot %d was installed that was not asked for", m.GetSlot())
	f.installing, f.installed = false, true
	// What paxos has chosen before goes first: it belongs to the old state.
	n.drain()
	n.enter()
}

// enter goes on from the installed snapshot. If this replica has come to lead
// meanwhile, with values that were accepted and not known to be chosen, it
// waits until these have overtaken the snapshot or another leads.
func (n *Node) enter() {
	f := &n.fetch
	slot := paxos.Slot(f.meta.GetSlot())
	if slot > n.applied && n.leads() {
		return
	}
	meta, state := f.meta, f.state
	*f = fetching{writing: f.writing}
	n.keep.replaced(slot)
	n.serveWaiting()
	if slot <= n.applied {
		// The log has overtaken it; on disk, all above it is there.
		n.px.Step(n.now, paxos.Trimmed{Slot: slot})
		return
	}
	c, err := codec.DecodeConfiguration(meta.GetConfig())
	invariant.Assert(err == nil, "the configuration in a snapshot that was checked: %v", err)
	n.sm.Restore(state)
	n.applied = slot
	n.accepted.dropTo(slot)
	n.adopt(c)
	n.px.Step(n.now, paxos.Installed{Slot: slot, Configuration: *c})
	n.note("installed a snapshot of slot %d", slot)
}
