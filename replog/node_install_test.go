package replog_test

import (
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// lateAccept is a cell of five in which n1 has led and what it proposed in two
// slots has not arrived anywhere; n4 was elected by n2 and n5 and had other
// values chosen there. n2 has these in a snapshot alone. n3 sees n2 only.
type lateAccept struct {
	c       *cell
	h       *host // n3
	from    paxos.Slot
	last    paxos.Slot
	old     paxos.Ballot
	chunk   *pb.SnapshotChunk
	pending []replog.Effects // what the disk is owed and has not begun
	held    bool             // it begins nothing
}

func newLateAccept(t *testing.T) *lateAccept {
	c := newCell(t, 1, 5, nil)
	c.mustStart(0, 1, 2, 3, 4)
	c.until("founded", founded(c))
	if c.untilLed() != c.hosts[0] {
		t.Fatal("n1 does not lead")
	}
	c.untilSame()
	l := &lateAccept{c: c, h: c.hosts[2], from: c.hosts[2].sm.slot, old: c.hosts[2].node.Status().Paxos.Ballot}
	l.last = l.from + 2
	source := c.hosts[1]
	state := *source.sm
	for slot := l.from + 1; slot <= l.last; slot++ {
		state.Apply(l.entry(slot, "of n4"))
	}
	conf := source.node.Configuration()
	source.must(source.storage.SaveSnapshot(&pb.SnapshotMeta{Slot: uint64(l.last), Cell: "demo",
		Config: codec.EncodeConfiguration(conf), CellIdentity: conf.CellIdentity}, state))
	var err error
	l.chunk, err = source.storage.ReadSnapshot(l.last, 0, 1<<20)
	source.must(err)
	return l
}

func (l *lateAccept) entry(slot paxos.Slot, text string) paxos.Entry {
	return paxos.Entry{Slot: slot, Ballot: l.old, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{[]byte(text)}}}
}

func (l *lateAccept) receive(peer paxos.ReplicaID, m *pb.PeerMessage) {
	l.h.node.Step(l.c.now, replog.PeerReceived{Peer: peer, Message: m})
}

// arrive delivers the accept of n1.
func (l *lateAccept) arrive() {
	l.receive(1, paxosMessage(paxos.Message{Kind: paxos.MsgAccept, Ballot: l.old, Chosen: l.from,
		Entries: []paxos.Entry{l.entry(l.from+1, "of n1"), l.entry(l.from+2, "of n1")}}))
}

// settle takes what n3 owes; as long as the disk is not held, it performs it.
func (l *lateAccept) settle(until func(*replog.Effects) bool) (sent []*pb.PeerMessage) {
	for range 4 {
		e := l.h.node.Take(l.c.now)
		for _, s := range e.Send {
			sent = append(sent, s.Message)
		}
		l.h.slow(&e)
		l.pending = append(l.pending, e)
		l.held = l.held || until != nil && until(&e)
		l.perform()
	}
	return sent
}

func (l *lateAccept) perform() {
	if l.held {
		return
	}
	l.h.disk, l.pending = append(l.h.disk, l.pending...), nil
	l.h.flush()
	events := l.h.events
	l.h.events = nil
	for _, ev := range events {
		l.h.node.Step(l.c.now, ev)
	}
}

// fetch goes on until the disk is owed what until says; then it holds the disk.
func (l *lateAccept) fetch(t *testing.T, until func(*replog.Effects) bool) {
	for i := 0; i < 3000 && !l.held; i++ {
		l.c.now += stepTime
		l.h.node.Step(l.c.now, replog.Tick{})
		for _, m := range l.settle(until) {
			px := m.GetPaxos()
			switch kind := paxos.MessageKind(px.GetKind()); {
			case m.GetSnapshotRequest() != nil:
				l.receive(2, &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: l.chunk}})
			case kind == paxos.MsgProbe:
				l.receive(2, paxosMessage(paxos.Message{Kind: paxos.MsgProbeReply, Chosen: l.last, First: l.last + 1, Sequence: px.Sequence}))
			case kind == paxos.MsgCatchUp:
				l.receive(2, paxosMessage(paxos.Message{Kind: paxos.MsgCatchUpReply, Slot: paxos.Slot(px.Slot), Chosen: l.last, First: l.last + 1}))
			}
		}
	}
	if !l.held {
		t.Fatalf("no snapshot is on its way: %+v", l.h.node.Status())
	}
}

// What a leader of old had accepted here while a snapshot was on its way stands
// in the log below that snapshot, before its installation or behind it. It is
// not what was chosen there, and no restart may take it for that.
func TestLateAcceptWhileASnapshotIsInstalled(t *testing.T) {
	for name, arrives := range map[string]struct {
		before bool // the accept is on disk before the snapshot is installed
		until  func(*replog.Effects) bool
	}{
		"before the installation": {true, func(e *replog.Effects) bool { return len(e.ReceiveSnapshot) > 0 }},
		"behind the installation": {false, func(e *replog.Effects) bool { return e.InstallSnapshot != nil }},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLateAccept(t)
			l.fetch(t, arrives.until)
			l.arrive()
			l.settle(nil)
			l.held = false
			l.perform()
			l.settle(nil)
			if l.h.installs != 1 || l.h.sm.slot != l.last {
				t.Fatalf("n3 is at slot %d of %d, %d installations", l.h.sm.slot, l.last, l.h.installs)
			}
			before := l.h.node.Status().Paxos.First
			l.c.crash(2)
			l.c.mustStart(2) // which reads all that the log gives for chosen
			if got := l.h.opened.Paxos; got.First != l.last+1 || before != got.First || got.Applied != l.last {
				t.Fatalf("the log began at slot %d before the restart, and begins at %d behind it; the snapshot is of slot %d", before, got.First, got.Applied)
			}
			// And so it tells a replica that lags.
			l.receive(5, paxosMessage(paxos.Message{Kind: paxos.MsgCatchUp, Slot: l.from + 1, Limit: 1 << 20}))
			for range 3 {
				for _, m := range l.settle(nil) {
					if px := m.GetPaxos(); paxos.MessageKind(px.GetKind()) == paxos.MsgCatchUpReply && len(px.Entries) > 0 {
						t.Fatalf("n3 says that %v were chosen", px.Entries)
					}
				}
			}
		})
	}
}

// A peer that asked for a snapshot when there was none gets the one that is
// installed here, and nothing stays under way for it.
func TestInstalledSnapshotServesWhoWaited(t *testing.T) {
	l := newLateAccept(t)
	l.fetch(t, func(e *replog.Effects) bool { return e.InstallSnapshot != nil })
	l.receive(2, &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotRequest{SnapshotRequest: &pb.SnapshotRequest{}}})
	l.settle(nil)
	if n := l.h.node.Status().InFlight.Giving; n != 1 {
		t.Fatalf("%d peers wait for a snapshot, want 1", n)
	}
	l.held = false
	l.perform()
	var got []uint64
	for range 4 {
		for _, m := range l.settle(nil) {
			if c := m.GetSnapshotChunk(); c != nil {
				got = append(got, c.GetSlot())
			}
		}
	}
	if len(got) != 1 || got[0] != uint64(l.last) || l.h.node.Status().InFlight.Giving != 0 {
		t.Errorf("pieces of the snapshots %v were sent, want one of slot %d; under way: %+v", got, l.last, l.h.node.Status().InFlight)
	}
}
