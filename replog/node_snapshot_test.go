package replog_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

func TestSnapshotTrimRestart(t *testing.T) {
	c := newCell(t, 1, 3, func(o *replog.NodeOptions) { o.SnapshotSlots, o.TrailSlots = 100, 20 })
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	c.write(1000)
	c.untilSame()
	for i, h := range c.hosts {
		s := h.node.Status()
		if h.saves < 5 || s.SnapshotSlot < 800 || s.Paxos.First == 1 {
			t.Fatalf("%s saved %d snapshots, the newest of slot %d, and its log begins at %d", h.name, h.saves, s.SnapshotSlot, s.Paxos.First)
		}
		// The log goes back behind the older of the two, by the trail.
		if first := s.Paxos.First; first+100 > s.SnapshotSlot {
			t.Fatalf("%s: newest snapshot %d, log from %d: the older snapshot is of no use", h.name, s.SnapshotSlot, first)
		}
		before := *h.sm
		c.crash(i)
		c.mustStart(i)
		if h.opened.Paxos.Applied < 800 {
			t.Fatalf("%s starts from slot %d", h.name, h.opened.Paxos.Applied)
		}
		c.untilSame()
		if h.sm.hash != before.hash && h.sm.slot == before.slot || h.sm.count < before.count {
			t.Fatalf("%s: %+v before the restart, %+v behind it", h.name, before, *h.sm)
		}
	}
}

func TestSnapshotAfterSoManyBytes(t *testing.T) {
	c := newCell(t, 1, 1, func(o *replog.NodeOptions) { o.SnapshotBytes = 2000 })
	c.mustStart(0)
	c.until("founded", founded(c))
	c.write(500)
	c.untilSame()
	if n := c.hosts[0].saves; n < 2 || n > 5 {
		t.Fatalf("%d snapshots for 6 KB of commands", n)
	}
}

func TestSnapshotThatFailsIsTriedAgainLater(t *testing.T) {
	c := newCell(t, 1, 1, nil)
	h := c.hosts[0]
	c.options = func(o *replog.NodeOptions) { o.SnapshotSlots = 10 }
	c.mustStart(0)
	c.until("founded", founded(c))
	var e replog.Effects
	take := func(now time.Duration) replog.Effects {
		e := h.node.Take(now)
		for _, a := range e.Append {
			h.node.Step(now, replog.AppendDone{Sequence: a.Sequence})
		}
		return e
	}
	for i := 0; e.SaveSnapshot == nil; i++ {
		if i == 100 {
			t.Fatalf("no snapshot is due at %d", h.node.Status().Applied)
		}
		h.node.Step(c.now, replog.ProposeCommands{Commands: [][]byte{[]byte("command")}})
		e = take(c.now)
	}
	h.node.Step(c.now, replog.SnapshotSaved{Slot: paxos.Slot(e.SaveSnapshot.Meta.GetSlot()), Err: errors.New("no room")})
	if e := take(c.now); e.SaveSnapshot != nil || !strings.Contains(strings.Join(e.Warnings, "\n"), "no room") {
		t.Fatalf("tried again at once, or not told: %v", e.Warnings)
	}
	take(c.now + 11*time.Second)
	if e := take(c.now + 11*time.Second); e.SaveSnapshot == nil {
		t.Fatal("not tried again")
	}
}

func TestOwnSnapshotIsNeverAheadOfTheLog(t *testing.T) {
	c := newCell(t, 1, 1, nil)
	h := c.hosts[0]
	c.mustStart(0)
	c.until("founded", founded(c))
	c.write(20)
	c.untilSame(0)
	c.crash(0)
	c.options = func(o *replog.NodeOptions) { o.SnapshotSlots = 1 }
	c.mustStart(0)
	var flushed paxos.Slot // what the records that are flushed say is chosen
	for i := range 100 {
		c.now += 20 * time.Millisecond
		h.node.Step(c.now, replog.Tick{})
		e := h.node.Take(c.now)
		if s := e.SaveSnapshot; s != nil {
			if slot := paxos.Slot(s.Meta.GetSlot()); flushed < slot {
				t.Fatalf("the snapshot of slot %d is written while the log on disk is chosen up to %d", slot, flushed)
			}
			return
		}
		if i < 10 {
			continue // the disk hangs; what it is owed is forgotten, the last record has it all
		}
		for _, a := range e.Append {
			flushed = a.Record.Chosen
			h.node.Step(c.now, replog.AppendDone{Sequence: a.Sequence})
		}
	}
	t.Error("no snapshot was taken")
}

func TestLaggingReplicaInstallsASnapshot(t *testing.T) {
	for seed := range uint64(4) {
		c := newCell(t, seed, 3, func(o *replog.NodeOptions) {
			o.SnapshotSlots, o.TrailSlots = 100, 20
			o.Paxos.MemoryBytes = 1000
		})
		c.filler = 1200 << 10 // several pieces
		c.loss = int(seed % 3)
		c.mustStart(0, 1, 2)
		c.until("founded", founded(c))
		c.write(20)
		c.untilSame()
		late := c.hosts[2]
		if seed%2 == 0 {
			c.crash(2)
		} else {
			c.partition(2)
			c.pass(2 * time.Second)
		}
		c.write(1000)
		if seed%2 == 0 {
			c.mustStart(2)
		} else {
			c.heal()
		}
		if seed%3 == 0 { // the cell serves meanwhile
			c.pass(100 * time.Millisecond)
			c.write(300)
		}
		c.untilSame()
		if late.installs == 0 {
			t.Fatalf("seed %d: no snapshot was installed\n%s", seed, c.story())
		}
		// What it has is good for a restart, and for a quorum of its own.
		c.crash(2)
		c.mustStart(2)
		c.crash(0)
		c.write(50)
		c.untilSame(1, 2)
		c.mustStart(0)
		c.untilSame()
	}
}

func TestSnapshotTransferGoesOnElsewhere(t *testing.T) {
	c := newCell(t, 4, 3, func(o *replog.NodeOptions) {
		o.SnapshotSlots, o.TrailSlots = 100, 20
		o.Paxos.MemoryBytes = 1000
	})
	c.filler = 3 << 20
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	c.crash(2)
	c.write(600)
	c.untilSame(0, 1)
	c.mustStart(2)
	// The source stops in the middle of the transfer.
	source := -1
	for i := range 2 {
		c.hosts[i].stopBefore = func(e *replog.Effects) bool {
			for _, s := range e.Send {
				if ch := s.Message.GetSnapshotChunk(); ch.GetOffset() > 1<<20 {
					source = i
					c.hosts[1-i].stopBefore = nil
					return true
				}
			}
			return false
		}
	}
	c.until("the source stopped", func() bool { return source >= 0 })
	c.until("the snapshot installed", func() bool { return c.hosts[2].installs > 0 })
	c.untilSame(1-source, 2)
	c.write(10)
	c.mustStart(source)
	c.untilSame()
}

// TestLeadsWhileASnapshotIsInstalled: while a snapshot is taking the log's
// place the replica is elected by others that do not know those slots chosen.
// It goes on with the values it has accepted.
func TestLeadsWhileASnapshotIsInstalled(t *testing.T) {
	c := newCell(t, 1, 3, nil)
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	if c.untilLed() != c.hosts[0] {
		t.Fatal("n1 does not lead")
	}
	c.untilSame()
	h := c.hosts[2]
	from := h.sm.slot
	now := c.now
	receive := func(peer paxos.ReplicaID, m paxos.Message) {
		h.node.Step(now, replog.PeerReceived{Peer: peer, Message: paxosMessage(m)})
	}
	// settle performs all but installing, and gathers what is sent.
	var install *replog.InstallSnapshot
	settle := func() (sent []*pb.PeerMessage) {
		for range 3 {
			e := h.node.Take(now)
			if e.InstallSnapshot != nil {
				install = e.InstallSnapshot
			}
			for _, s := range e.Send {
				sent = append(sent, s.Message)
			}
			for _, s := range e.After {
				sent = append(sent, s.Send.Message)
			}
			h.slow(&e)
			e.InstallSnapshot = nil
			h.disk = append(h.disk, e)
			h.flush()
			for _, ev := range h.events {
				h.node.Step(now, ev)
			}
			h.events = nil
		}
		return sent
	}
	last := from + 4
	b1 := h.node.Status().Paxos.Ballot
	var entries []paxos.Entry
	for slot := from + 1; slot <= last; slot++ {
		entries = append(entries, paxos.Entry{Slot: slot, Ballot: b1, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{{byte(slot)}}}})
	}
	receive(1, paxos.Message{Kind: paxos.MsgAccept, Ballot: b1, Slot: from + 1, Chosen: from, Entries: entries})
	settle()
	// n2 leads now and knows more to be chosen than n3 does, and cut its log.
	b2 := paxos.Ballot{Round: b1.Round + 1, Replica: 2}
	source := c.hosts[1]
	snapshot := chain{c: c, slot: last}
	meta := &pb.SnapshotMeta{Slot: uint64(last), Cell: "demo", Config: codec.EncodeConfiguration(source.node.Configuration()),
		CellIdentity: source.node.Configuration().CellIdentity}
	source.must(source.storage.SaveSnapshot(meta, snapshot))
	chunk, err := source.storage.ReadSnapshot(last, 0, 1<<20)
	source.must(err)
	for range 200 {
		now += stepTime
		receive(2, paxos.Message{Kind: paxos.MsgHeartbeat, Ballot: b2, Chosen: last, Sequence: 1, First: last + 1})
		h.node.Step(now, replog.Tick{})
		for _, m := range settle() {
			if m.GetPaxos().GetKind() == uint32(paxos.MsgCatchUp) {
				receive(2, paxos.Message{Kind: paxos.MsgCatchUpReply, Slot: paxos.Slot(m.GetPaxos().Slot), Chosen: last, First: last + 1})
			}
			if m.GetSnapshotRequest() != nil {
				h.node.Step(now, replog.PeerReceived{Peer: 2, Message: &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: chunk}}})
			}
		}
	}
	if install == nil || h.node.Status().Applied != from {
		t.Fatalf("no snapshot is being installed: %+v", h.node.Status())
	}
	// Silence; n1 elects n3.
	accepted := paxos.Slot(0)
	for range 1000 {
		now += stepTime
		h.node.Step(now, replog.Tick{})
		for _, m := range settle() {
			px := m.GetPaxos()
			b := codec.DecodeBallot(px.GetBallot())
			switch paxos.MessageKind(px.GetKind()) {
			case paxos.MsgProbe:
				receive(1, paxos.Message{Kind: paxos.MsgProbeReply, OK: true, Chosen: from, Sequence: px.Sequence})
			case paxos.MsgPrepare:
				receive(1, paxos.Message{Kind: paxos.MsgPromise, OK: true, Ballot: b, Promised: b, Slot: paxos.Slot(px.Slot), Chosen: from})
			case paxos.MsgAccept:
				accepted = max(accepted, paxos.Slot(px.Entries[len(px.Entries)-1].Slot))
			case paxos.MsgHeartbeat:
				if install != nil && accepted > last {
					// The disk is done while n3 leads, its slots still open.
					if h.node.Status().Applied != from {
						t.Fatal("n3 has chosen alone")
					}
					h.must(h.storage.InstallSnapshot(install.Meta, install.Promised, install.Entries))
					h.node.Step(now, replog.SnapshotInstalled{Meta: install.Meta})
					h.node.Take(now)
					if h.sm.slot != from {
						t.Fatal("a leader's state was replaced")
					}
					install = nil
				}
				if install == nil {
					receive(1, paxos.Message{Kind: paxos.MsgAccepted, OK: true, Ballot: b, Promised: b, Slot: accepted, Chosen: from})
				}
				receive(1, paxos.Message{Kind: paxos.MsgHeartbeatAck, OK: true, Ballot: b, Promised: b, Sequence: px.Sequence, Chosen: from})
			}
		}
		if h.sm.slot > last {
			break
		}
	}
	if h.sm.slot <= last || h.sm.count != 4 {
		t.Fatalf("n3 does not go on: slot %d of %d, %d commands\n%+v", h.sm.slot, last, h.sm.count, h.node.Status())
	}
	if s := h.node.Status(); s.SnapshotSlot != last || s.Paxos.First != last+1 {
		t.Fatalf("the snapshot is forgotten: %+v", s)
	}
}

// TestTransferKeepsTheLogBehindIt: while a peer fetches a snapshot the log
// behind that snapshot is kept, up to a bound.
func TestTransferKeepsTheLogBehindIt(t *testing.T) {
	c := newCell(t, 1, 3, func(o *replog.NodeOptions) { o.SnapshotSlots, o.TrailSlots = 20, 1 })
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	c.write(100)
	h := c.hosts[0]
	sent := h.node.Status().SnapshotSlot
	ask := func() {
		h.node.Step(c.now, replog.PeerReceived{Peer: 3, Message: &pb.PeerMessage{
			Body: &pb.PeerMessage_SnapshotRequest{SnapshotRequest: &pb.SnapshotRequest{Slot: uint64(sent)}}}})
	}
	for range 15 {
		ask()
		c.write(10)
		if first := h.node.Status().Paxos.First; first > sent+1 {
			t.Fatalf("the log begins at %d while the snapshot of slot %d is sent", first, sent)
		}
	}
	for range 15 {
		ask()
		c.write(10)
	}
	if first := h.node.Status().Paxos.First; first <= sent+1 {
		t.Fatalf("a peer that never finishes keeps the log from %d on", first)
	}
}
