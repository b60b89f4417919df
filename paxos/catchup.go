package paxos

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

const (
	catchUpBytes   = 1 << 20         // asked for at a time
	catchUpTimeout = 1 * time.Second // then another peer is asked
	catchUpMax     = 8 << 20         // most that is given at a time
	readsMost      = 4               // reads of the log for one replica that are not answered yet
)

// catchUp is the state of fetching chosen values from others; it is outside
// of the protocol proper: a chosen value is chosen, whoever tells it.
type catchUp struct {
	target   Slot      // something up to here is known chosen somewhere
	peer     ReplicaID // asked, or to be asked
	asked    bool
	at       time.Duration
	gapSince time.Duration // since when the next slot has been missing, 0: it is not
	vain     int           // how often nothing came of it

	// sent: the leader that is followed has sent everything up to it; cameAt: when
	// an accept last came from it.
	sent   Slot
	cameAt time.Duration

	// dropped: something that came found no room here, at the disk or beyond a gap.
	// It is not on its way any more, whatever was sent.
	dropped bool
}

// onTheWay reports whether the next slot has been sent to this replica by the
// leader that it follows, so that it will come, unless it was lost.
func (r *Replica) onTheWay() bool {
	return r.leader != 0 && r.chosen < r.catch.sent && !r.catch.dropped
}

// behind notes that slots up to target are chosen and not all known here.
func (r *Replica) behind(target Slot, peer ReplicaID) {
	c := &r.catch
	if target > c.target {
		c.target = target
		if !c.asked {
			c.peer = peer
		}
	}
	if c.gapSince == 0 {
		c.gapSince = r.now
	}
	// A small gap is most likely on its way; a candidate and a replica that is
	// far behind do not wait for it.
	if r.phase != nil || (target > r.chosen+Slot(r.o.WindowSlots) && !r.onTheWay()) {
		r.askCatchUp()
	}
}

func (r *Replica) catchUpTick() {
	c := &r.catch
	if c.target <= r.chosen || r.lead != nil {
		c.gapSince = 0
		return
	}
	// Bytes that still come are a reason to wait; where links do not tell of them,
	// it is waited longer each time.
	patience := catchUpTimeout
	if !r.arrivals {
		patience <<= min(c.vain, 4)
	}
	patience += 2 * r.patience()
	switch {
	case c.asked && r.now-max(c.at, r.link(c.peer).arrived) > patience:
		c.asked = false
		c.vain++
		c.peer = r.otherPeer(c.peer)
		r.askCatchUp()
	case c.asked || c.gapSince == 0:
	case r.onTheWay():
		if r.now-max(c.gapSince, c.at, c.cameAt, r.link(r.leader).arrived) > patience {
			c.vain++
			r.askCatchUp()
		}
	case r.now-max(c.gapSince, c.at) > r.o.Heartbeat/2:
		r.askCatchUp()
	}
}

// otherPeer is the member after id, in turn, that is not this one.
func (r *Replica) otherPeer(id ReplicaID) ReplicaID {
	ms := r.cfg.Members
	for i := range ms {
		if ms[i].ID == id {
			for k := 1; k <= len(ms); k++ {
				if next := ms[(i+k)%len(ms)].ID; next != r.o.ID {
					return next
				}
			}
		}
	}
	for _, m := range ms {
		if m.ID != r.o.ID {
			return m.ID
		}
	}
	return 0
}

func (r *Replica) askCatchUp() {
	c := &r.catch
	if c.asked || c.target <= r.chosen || r.lead != nil {
		return
	}
	if r.diskBehind() {
		c.dropped = true // asked once the disk has room, see persisted
		return
	}
	if c.peer == 0 || c.peer == r.o.ID {
		c.peer = r.otherPeer(0)
	}
	if c.peer == 0 {
		return
	}
	c.asked, c.at, c.dropped = true, r.now, false
	r.send(Message{Kind: MsgCatchUp, To: c.peer, Slot: r.chosen + 1, Limit: catchUpBytes})
}

// onCatchUp gives what is chosen from the slot asked for on: from memory, or
// by way of the driver from disk.
func (r *Replica) onCatchUp(m *Message) {
	limit := int(min(max(m.Limit, 1), catchUpMax))
	if r.onItsWay(m.From, answered{kind: MsgCatchUp, slot: m.Slot}) {
		return
	}
	reply := Message{Kind: MsgCatchUpReply, To: m.From, Slot: m.Slot, Chosen: r.chosen, First: r.first()}
	switch {
	case m.Slot == 0 || m.Slot > r.chosen || m.Slot < r.first():
		r.send(reply) // nothing to give, or trimmed: First says so
	case m.Slot >= r.log.base:
		upTo := r.chosen
		if invariant.Planted(invariant.CatchUpGivesAccepted) {
			upTo = r.log.last()
		}
		reply.Entries = r.log.collect(m.Slot, upTo, limit)
		r.send(reply)
	case r.link(m.From).reading >= readsMost:
		// The disk hangs.
	default:
		r.link(m.From).reading++
		r.out.ReadLog = append(r.out.ReadLog, ReadLog{To: m.From, From: m.Slot, UpTo: r.log.base - 1, Limit: uint64(limit)})
	}
}

// logRead passes on what the driver read from disk.
func (r *Replica) logRead(ev LogRead) {
	if l := r.link(ev.To); l.reading > 0 {
		l.reading--
	}
	reply := Message{Kind: MsgCatchUpReply, To: ev.To, Chosen: r.chosen, First: r.first()}
	for _, e := range ev.Entries {
		if e.Slot > r.chosen {
			invariant.Unreachable("the log is asked for slots up to the chosen index alone, which never goes back")
			break
		}
		e.Chosen = true
		reply.Entries = append(reply.Entries, e)
	}
	if len(reply.Entries) > 0 {
		reply.Slot = reply.Entries[0].Slot
	}
	r.send(reply)
}

func (r *Replica) onCatchUpReply(m *Message) {
	c := &r.catch
	expected := c.asked && m.From == c.peer
	c.target = max(c.target, m.Chosen)
	before := r.chosen
	for _, e := range m.Entries {
		r.learn(e)
	}
	if expected {
		c.asked = false
	}
	if !expected || r.lead != nil {
		return
	}
	switch {
	case r.chosen > before:
		c.vain = 0
		if r.chosen-before > Slot(r.o.WindowSlots) && c.target <= r.chosen {
			r.note("caught up with %d from replica %d", r.chosen, m.From)
		}
		r.askCatchUp()
	case m.First > r.chosen+1:
		// Trimmed is not empty: what is gone there is in a snapshot there.
		r.out.NeedSnapshot = m.From
		c.at, c.asked = r.now, true // asked again, of another, if no snapshot comes
	case m.Chosen <= r.chosen:
		c.peer = r.otherPeer(m.From) // it does not know more than we do
	}
}

// learn takes a value that is known to be chosen.
// Invariant: a chosen value never changes.
func (r *Replica) learn(e Entry) {
	if e.Slot != r.chosen+1 || (r.lead != nil && !invariant.Planted(invariant.LeaderLearns)) {
		return
	}
	if r.diskBehind() {
		r.catch.dropped = true
		return
	}
	x := r.log.get(e.Slot)
	if x != nil && !x.Chosen && x.Ballot == e.Ballot && !e.Ballot.IsZero() {
		invariant.Assert(sameValue(&x.Value, &e.Value), "slot %d: chosen value differs from the one accepted at the same ballot %v", e.Slot, e.Ballot)
	}
	e.Chosen = true
	r.store(e)
	r.choose(e.Slot)
	if p := r.phase; p != nil {
		delete(p.best, e.Slot)
		p.progressAt = r.now
		if r.chosen >= p.chosen {
			r.phaseOneStep()
		}
	}
}

func sameValue(a, b *Value) bool {
	if a.Kind != b.Kind || a.Leader != b.Leader || a.WallSeconds != b.WallSeconds || a.CellTime != b.CellTime || a.CellEpoch != b.CellEpoch || len(a.Commands) != len(b.Commands) {
		return false
	}
	for i := range a.Commands {
		if string(a.Commands[i]) != string(b.Commands[i]) {
			return false
		}
	}
	return true
}

// trimmed forgets what a snapshot covers.
func (r *Replica) trimmed(s Slot) {
	invariant.Assert(s <= r.chosen, "log trimmed up to %d above the chosen index %d", s, r.chosen)
	r.diskFirst = max(r.diskFirst, s+1)
	r.log.dropTo(s)
}

// installed takes over a snapshot. Entries accepted above it stay valid, with
// their ballots.
func (r *Replica) installed(ev Installed) {
	r.catch.asked, r.catch.gapSince = false, 0
	if ev.Slot <= r.chosen {
		invariant.Unreachable("the node has applied all that is chosen before it goes on from a snapshot, and takes none that is behind")
		return
	}
	if r.lead != nil {
		invariant.Unreachable("the node lets no snapshot take the place of a leader's log")
		// Asked for before the election, and come after it: some of the slots
		// that are being proposed again are in it. Whoever has the log leads.
		r.note("snapshot up to %d came while leading", ev.Slot)
		r.abdicate()
	}
	for s := r.chosen + 1; s <= ev.Slot; s++ {
		if x := r.log.get(s); x != nil {
			r.openBytes -= x.size
		}
	}
	r.log.dropTo(ev.Slot)
	r.chosen, r.durChosen = ev.Slot, ev.Slot
	r.diskFirst = ev.Slot + 1
	if len(ev.Configuration.Members) > 0 {
		r.cfg = ev.Configuration
	}
	r.note("snapshot up to %d installed", ev.Slot)
	if p := r.phase; p != nil && r.chosen >= p.chosen {
		r.phaseOneStep()
		return
	}
	r.askCatchUp()
}
