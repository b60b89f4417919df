package replog

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// Snapshots: when they are taken, how far the log is cut behind them, and how
// peers get them.

const (
	// saveAgain is how long after a snapshot that failed the next is tried.
	saveAgain = 10 * time.Second
	// transferIdle ends a transfer to a peer that asks for nothing more.
	transferIdle = 30 * time.Second
	// saveLate and trimLate bound, in multiples of SnapshotSlots, how long a
	// transfer puts off the next snapshot and the cutting of the log.
	saveLate = 4
	trimLate = 10
	// The sizes of a chunk, whatever the peer asks for.
	minChunk = 64 << 10
	maxChunk = 1 << 20
)

// keeping counts what has happened since the newest snapshot.
type keeping struct {
	newest, older paxos.Slot // of the two snapshots kept, 0 none
	bytes         int64      // of commands applied since the newest
	saving        bool
	savingBytes   int64 // bytes when the saving one was taken
	// The saving one, until a record that says that its slot is chosen is
	// durable, the one of sequence after.
	taken   *SaveSnapshot
	after   uint64
	retryAt time.Duration
	trimmed paxos.Slot // the log is cut up to here
}

// start begins with the snapshot that the state was loaded from. Whether an
// older one is there is not known, so nothing is cut before the next.
func (k *keeping) start(loaded paxos.Slot) { k.newest = loaded }

// have notes that there is a newer snapshot on disk.
func (k *keeping) have(slot paxos.Slot) {
	if slot > k.newest {
		k.older, k.newest = k.newest, slot
	}
}

// replaced notes that a snapshot took the place of the log: it is the only one.
func (k *keeping) replaced(slot paxos.Slot) {
	k.newest, k.older, k.trimmed, k.bytes = slot, 0, slot, 0
}

// serving is the transfer of a snapshot to a peer.
type serving struct {
	active  bool
	slot    paxos.Slot // of the snapshot; 0 not known yet
	asked   time.Duration
	reading bool
	waiting *pb.SnapshotRequest // there is no snapshot yet
}

// under reports whether a transfer to the peer is under way.
func (s *serving) under(now time.Duration) bool {
	return s.active && now-s.asked < transferIdle
}

// save asks for a snapshot when it is due, one at a time.
//
// Invariant: no snapshot of this replica's own is ahead of its log on disk.
// What is chosen is applied before it is durable, and in the same slot an older
// record may hold another value; a snapshot that became durable first would
// make that one pass for chosen after a crash.
func (n *Node) save() {
	k := &n.keep
	if k.taken != nil && n.durable >= k.after {
		n.fx.SaveSnapshot, k.taken = k.taken, nil
	}
	if k.saving || n.fetch.meta != nil || n.config == nil || n.applied <= k.newest || n.now < k.retryAt {
		return
	}
	since := uint64(n.applied - k.newest)
	due := since >= uint64(n.o.SnapshotSlots) || k.bytes >= n.o.SnapshotBytes
	for _, p := range n.peers {
		if p.serve.waiting != nil && k.newest == 0 {
			due = true
		}
		// A third snapshot would push out the one that is being sent.
		if p.serve.under(n.now) && p.serve.slot != 0 && p.serve.slot < k.newest && since < saveLate*uint64(n.o.SnapshotSlots) {
			return
		}
	}
	if !due {
		return
	}
	k.saving, k.savingBytes = true, k.bytes
	k.taken = &SaveSnapshot{Meta: n.meta(), Snapshot: n.sm.Snapshot()}
	n.px.Step(n.now, paxos.NoteChosen{})
	n.drain()
	k.after = n.sequence
}

// meta describes a snapshot of the present state.
func (n *Node) meta() *pb.SnapshotMeta {
	return &pb.SnapshotMeta{
		Format:       codec.FormatVersion,
		Slot:         uint64(n.applied),
		Config:       codec.EncodeConfiguration(n.config),
		Cell:         n.o.Cell,
		CellIdentity: n.config.CellIdentity,
		Promised:     codec.EncodeBallot(n.promised),
	}
}

func (n *Node) snapshotSaved(ev SnapshotSaved) {
	k := &n.keep
	k.saving = false
	if ev.Err != nil {
		k.retryAt = n.now + saveAgain
		n.warn("the snapshot of slot %d was not saved: %v; tried again in %v", ev.Slot, ev.Err, saveAgain)
		return
	}
	if ev.Slot > k.newest { // else a newer one came from a peer meanwhile
		k.bytes -= k.savingBytes
	}
	k.have(ev.Slot)
	n.serveWaiting()
}

// serveWaiting serves the peers that have waited for a first snapshot.
func (n *Node) serveWaiting() {
	for _, p := range n.peers {
		if r := p.serve.waiting; r != nil {
			p.serve.waiting = nil
			n.snapshotRequested(p, r)
		}
	}
}

// trim cuts the log behind the OLDER of the two snapshots kept, so that there
// is no gap if the newest turns out to be damaged, less what slow followers
// may need.
func (n *Node) trim() {
	k := &n.keep
	trail := paxos.Slot(n.o.TrailSlots)
	if k.older <= trail || n.fetch.meta != nil {
		return
	}
	limit := k.older - trail
	for _, p := range n.peers {
		s := &p.serve
		if s.under(n.now) && s.slot != 0 && s.slot < limit && n.applied-s.slot < trimLate*paxos.Slot(n.o.SnapshotSlots) {
			limit = s.slot // the peer needs what follows it
		}
	}
	if limit > k.trimmed {
		k.trimmed = limit
		n.px.Step(n.now, paxos.Trimmed{Slot: limit})
		n.fx.Trim = limit
	}
}

// snapshotRequested has a piece of a snapshot read for a peer, one at a time.
func (n *Node) snapshotRequested(p *peer, r *pb.SnapshotRequest) {
	s := &p.serve
	if n.keep.newest == 0 {
		s.waiting = r // served when there is one; save takes it
		return
	}
	if s.reading || r.GetOffset() > 1<<62 {
		return // it asks again
	}
	s.active, s.asked, s.reading = true, n.now, true
	if s.slot = paxos.Slot(r.GetSlot()); s.slot == 0 {
		s.slot = n.keep.newest
	}
	n.fx.SnapshotRead = append(n.fx.SnapshotRead, SnapshotRead{
		To:     p.id,
		Slot:   paxos.Slot(r.GetSlot()),
		Offset: int64(r.GetOffset()),
		Limit:  min(max(int(r.GetLimit()), minChunk), maxChunk),
	})
}

func (n *Node) snapshotRead(ev SnapshotReadDone) {
	p := n.peer(ev.To)
	if p == nil {
		invariant.Unreachable("snapshots are read for peers alone, and these do not change")
		return
	}
	p.serve.reading = false
	if ev.Err != nil {
		n.note("reading a snapshot for %s: %v", p.name, ev.Err)
		return // it asks again, here or elsewhere
	}
	if slot := paxos.Slot(ev.Chunk.GetSlot()); slot != 0 && !ev.Chunk.GetGone() {
		p.serve.slot = slot
	}
	if p.speaks() {
		n.fx.Send = append(n.fx.Send, Send{To: p.id, Bulk: true, Message: &pb.PeerMessage{
			Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: ev.Chunk},
		}})
	}
}
