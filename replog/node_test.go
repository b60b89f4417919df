package replog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

func TestWritesApplyEverywhereThroughLossAndCrashes(t *testing.T) {
	for seed := range uint64(8) {
		c := newCell(t, seed, 3, func(o *replog.NodeOptions) { o.SnapshotSlots, o.TrailSlots = 40, 10 })
		c.loss = 3
		c.mustStart(0, 1, 2)
		c.until("founded", founded(c))
		for round := range 8 {
			c.write(30)
			i := c.rng.IntN(3)
			switch round % 3 {
			case 0:
				c.crash(i)
				c.write(30)
				c.mustStart(i)
			case 1:
				c.partition(i)
				c.pass(2 * time.Second)
				c.write(30)
				c.heal()
			default:
				for j := range c.hosts {
					c.crash(j)
				}
				c.mustStart(0, 1, 2)
			}
		}
		c.untilSame()
		if c.hosts[0].saves == 0 {
			t.Fatal("no snapshot was saved")
		}
	}
}

func TestHandOver(t *testing.T) {
	c := newCell(t, 1, 3, nil)
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	c.write(20)
	old := c.untilLed()
	at := c.now
	old.node.Step(c.now, replog.HandOver{})
	c.until("led by another", func() bool { l := c.leader(); return l != nil && l != old })
	if took := c.now - at; took > 300*time.Millisecond {
		t.Fatalf("handing over took %v, as long as an election", took)
	}
	c.write(20)
	c.untilSame()
}

func TestConfirmedReads(t *testing.T) {
	c := newCell(t, 1, 3, nil)
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	l := c.untilLed()
	since := c.now
	l.node.Step(c.now, replog.ConfirmLead{ID: 42})
	var got *paxos.Confirm
	l.stopBefore = func(e *replog.Effects) bool {
		for i := range e.Confirmed {
			got = &e.Confirmed[i]
		}
		return false
	}
	l.settle()
	c.until("confirmed", func() bool { return got != nil })
	if got.ID != 42 || got.Since < since || got.Slot == 0 {
		t.Fatalf("%+v", got)
	}
}

func TestAddressesComeFromTheListAndThePeers(t *testing.T) {
	c := newCell(t, 1, 3, nil)
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	c.crash(0)
	c.crash(1)
	c.options = func(o *replog.NodeOptions) {
		for i := range o.InitialCluster {
			o.InitialCluster[i].PeerAddress = "new-" + o.InitialCluster[i].Name + ":1"
		}
		o.ClientAddress = "new-" + o.Name + ":2"
	}
	c.mustStart(0)
	m := c.hosts[0].node.Configuration().Members
	if m[1].PeerAddress != "new-n2:1" || m[0].ClientAddress != "new-n1:2" || m[1].ClientAddress != "n2:2" {
		t.Fatalf("%+v", m)
	}
	c.mustStart(1)
	if m := c.hosts[0].node.Configuration().Members; m[1].ClientAddress != "new-n2:2" {
		t.Fatalf("%+v", m)
	}
	c.write(3)
	c.untilSame()
}

// TestNonsenseFromAPeer: no message of a peer makes a node panic or stop.
func TestNonsenseFromAPeer(t *testing.T) {
	for _, foundedFirst := range []bool{false, true} {
		c := newCell(t, 1, 3, nil)
		c.mustStart(0, 1)
		if foundedFirst {
			c.mustStart(2)
			c.until("founded", founded(c))
		}
		h := c.hosts[1]
		for _, m := range []*pb.PeerMessage{
			nil, {},
			{Body: &pb.PeerMessage_Paxos{}},
			{Body: &pb.PeerMessage_Paxos{Paxos: &pb.PaxosMessage{Kind: 999}}},
			{Body: &pb.PeerMessage_Paxos{Paxos: &pb.PaxosMessage{Kind: uint32(paxos.MsgAccept), Ballot: &pb.Ballot{Round: 1, Replica: 1}, Entries: []*pb.Entry{{Slot: 1}, {}}}}},
			{Body: &pb.PeerMessage_Hello{}},
			{Body: &pb.PeerMessage_Founding{}},
			{Body: &pb.PeerMessage_Founding{Founding: &pb.Founding{Name: "n1"}}},
			{Body: &pb.PeerMessage_Refusal{}},
			{Body: &pb.PeerMessage_SnapshotRequest{}},
			{Body: &pb.PeerMessage_SnapshotRequest{SnapshotRequest: &pb.SnapshotRequest{Offset: 1 << 63, Limit: 1 << 31}}},
			{Body: &pb.PeerMessage_SnapshotChunk{}},
			{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: &pb.SnapshotChunk{Slot: 1, Offset: 1 << 63, Data: []byte("x"), Size: 1}}},
		} {
			for _, from := range []paxos.ReplicaID{0, 1, 2, 3, 77} {
				h.node.Step(c.now, replog.PeerReceived{Peer: from, Message: m})
			}
			if e := h.node.Take(c.now); e.Fatal != nil || len(e.ReceiveSnapshot) > 0 {
				t.Fatalf("%v stops it: %v", m, e.Fatal)
			}
		}
		h.node.Step(c.now, replog.PeerConnected{Hello: &pb.PeerHello{Name: "stranger"}})
		h.node.Step(c.now, replog.PeerConnected{Hello: nil})
		h.node.Step(c.now, replog.PeerDisconnected{Peer: 77})
		h.node.Step(c.now, replog.ReadDone{To: 77})
		h.node.Step(c.now, replog.SnapshotReadDone{To: 77})
		if e := h.node.Take(c.now); e.Fatal != nil {
			t.Fatal(e.Fatal)
		}
	}
}

// TestRandomFaults lets a cell work through crashes, power cuts, partitions and
// lost messages, with snapshots so often that installing them meets everything
// else. The cell's history checks every slot that any life of any replica
// applies.
func TestRandomFaults(t *testing.T) {
	runs := uint64(16)
	if testing.Short() {
		runs = 6
	}
	installs, saves := 0, 0
	for seed := range runs {
		n := 3
		if seed%4 == 3 {
			n = 5
		}
		c := newCell(t, 1000+seed, n, func(o *replog.NodeOptions) {
			o.SnapshotSlots, o.TrailSlots = 15, 5
			o.Paxos.MemoryBytes, o.Paxos.WindowSlots = 100, 20
		})
		c.loss = c.rng.IntN(6)
		for i := range c.hosts {
			c.mustStart(i)
		}
		for range 40 {
			c.fault()
			for range c.rng.IntN(300) {
				for _, h := range c.hosts {
					if h.up() && c.rng.IntN(4) == 0 {
						c.random++
						h.node.Step(c.now, replog.ProposeCommands{Commands: [][]byte{fmt.Append(nil, c.random)}})
						h.settle()
					}
				}
				c.step()
			}
		}
		c.loss = 0
		c.heal()
		for i, h := range c.hosts {
			if !h.up() {
				c.mustStart(i)
			}
			installs += h.installs
			saves += h.saves
		}
		c.write(5)
		c.untilSame()
	}
	if installs < int(runs) || saves < 20*int(runs) {
		t.Fatalf("%d snapshots installed, %d saved: the test has become too tame", installs, saves)
	}
	t.Logf("%d snapshots saved, %d installed", saves, installs)
}

// fault lets something happen to a random host.
func (c *cell) fault() {
	i := c.rng.IntN(len(c.hosts))
	h := c.hosts[i]
	switch c.rng.IntN(8) {
	case 0, 1, 2:
		if h.up() {
			c.crash(i)
		}
	case 3:
		for j := range c.hosts {
			c.crash(j)
		}
	case 4:
		c.partition(i)
	case 5:
		c.heal()
	}
	if !h.up() && c.rng.IntN(3) > 0 {
		c.mustStart(i)
	}
}

func paxosMessage(m paxos.Message) *pb.PeerMessage {
	return &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: codec.EncodeMessage(&m)}}
}
