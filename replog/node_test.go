package replog_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
)

func founded(c *cell) func() bool {
	return func() bool {
		for _, h := range c.hosts {
			if h.up() && (!h.node.Status().Founded || h.node.Status().Applied < 2) {
				return false
			}
		}
		return true
	}
}

// checkFounding checks that slot 1 holds what founding promises.
func checkFounding(t *testing.T, c *cell) {
	t.Helper()
	first := c.hosts[0].node.Configuration()
	if first.Cell != "demo" || first.CellIdentity == 0 || first.RevisionFloor != 5<<40+1 || len(first.Members) != len(c.hosts) {
		t.Fatalf("the cell is %+v", first)
	}
	for i, h := range c.hosts {
		conf := h.node.Configuration()
		if conf.CellIdentity != first.CellIdentity {
			t.Fatalf("%s is of cell %016x, n1 of %016x", h.name, conf.CellIdentity, first.CellIdentity)
		}
		for j, m := range conf.Members {
			want := paxos.Member{ID: paxos.ReplicaID(j + 1), Name: c.names[j], Incarnation: c.hosts[j].opened.Identity.GetIncarnation(),
				PeerAddress: c.names[j] + ":1", ClientAddress: c.names[j] + ":2", Voter: true}
			if m != want {
				t.Fatalf("%s has member %+v, want %+v", c.hosts[i].name, m, want)
			}
		}
	}
}

func TestFoundingWithEverybodyThere(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := newCell(t, uint64(n), n, nil)
			for i := range c.hosts {
				c.mustStart(i)
			}
			c.until("founded", founded(c))
			checkFounding(t, c)
			c.write(10)
			c.untilSame()
			if got := c.hosts[0].sm.count; got != 10 {
				t.Fatalf("%d commands applied, want 10", got)
			}
			for _, h := range c.hosts {
				if id := reopenIdentity(t, h); id != h.node.Configuration().CellIdentity {
					t.Fatalf("the identity file of %s names cell %016x", h.name, id)
				}
			}
		})
	}
}

// reopenIdentity reads the identity from what is durable.
func reopenIdentity(t *testing.T, h *host) uint64 {
	t.Helper()
	o, err := replog.Open(replog.StorageOptions{FS: h.fs.Crash(h.c.rng), Cell: "demo", Replica: h.name, SegmentBytes: 1,
		Decode: decodeChain, NewIncarnation: h.c.fresh})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Storage.Close()
	return o.Identity.GetCellIdentity()
}

func TestFoundingWaitsForEveryMember(t *testing.T) {
	c := newCell(t, 1, 3, nil)
	c.mustStart(1)
	c.pass(3 * time.Second)
	if got := c.hosts[1].node.Status().Founding; got != "waits for n1, n3" {
		t.Fatalf("n2 says %q", got)
	}
	c.mustStart(0)
	c.pass(5 * time.Second)
	for _, i := range []int{0, 1} {
		s := c.hosts[i].node.Status()
		if s.Founded || s.Founding != "waits for n3" || s.Paxos.Promised != (paxos.Ballot{}) || s.Paxos.Last != 0 {
			t.Fatalf("%s did something, or says %q: %+v", c.names[i], s.Founding, s.Paxos)
		}
		c.hosts[i].node.Step(c.now, replog.ProposeCommands{Commands: [][]byte{[]byte("early")}})
		c.step()
		if c.hosts[i].dropped != 1 {
			t.Fatal("a command was taken before founding")
		}
	}
	c.mustStart(2)
	c.until("founded", founded(c))
	checkFounding(t, c)
}

func TestFoundingRefusesDifferentLists(t *testing.T) {
	c := newCell(t, 1, 3, func(o *replog.NodeOptions) {
		if o.Name == "n2" {
			o.InitialCluster = append(o.InitialCluster, paxos.Member{Name: "n9", PeerAddress: "n9:1"})
		}
	})
	c.mustStart(0, 1, 2)
	c.pass(5 * time.Second)
	s := c.hosts[0].node.Status()
	if s.Founded || !strings.Contains(s.Founding, "n2 was started with the members n1, n2, n3, n9") {
		t.Fatalf("n1: founded %v, says %q", s.Founded, s.Founding)
	}
}

// TestFoundingAfterCrashAtEachStep crashes one replica at each of its batches
// in turn while the cell is founded, and starts it again.
func TestFoundingAfterCrashAtEachStep(t *testing.T) {
	for victim := range 3 {
		for batch, done := 0, false; !done; batch++ {
			for _, after := range []bool{false, true} {
				c := newCell(t, uint64(batch*10+victim), 3, nil)
				c.mustStart(0, 1, 2)
				left := batch
				crashed := false
				c.hosts[victim].stopBefore = func(e *replog.Effects) bool {
					// Only batches in which something is owed count as steps.
					if len(e.Send)+len(e.Append)+len(e.After) == 0 && e.SetFounded == 0 {
						return false
					}
					left--
					crashed = left < 0
					return crashed
				}
				c.until("the crash", func() bool { return crashed || founded(c)() })
				c.hosts[victim].stopBefore = nil
				done = !crashed // founded with fewer batches than that
				if done && batch < 4 {
					t.Fatalf("n%d founds the cell in %d batches: the test has become too tame", victim+1, batch)
				}
				if after && !c.hosts[victim].up() {
					c.pass(3 * time.Second)
				}
				if !c.hosts[victim].up() {
					c.mustStart(victim)
				}
				c.until(fmt.Sprintf("founded after a crash of n%d at its batch %d", victim+1, batch), founded(c))
				checkFounding(t, c)
				c.write(3)
				c.untilSame()
			}
		}
	}
}

// TestFoundingSurvivesPowerCuts crashes all replicas again and again while
// they found the cell.
func TestFoundingSurvivesPowerCuts(t *testing.T) {
	for seed := range uint64(30) {
		c := newCell(t, seed, 3, nil)
		c.loss = 10
		c.mustStart(0, 1, 2)
		for range 6 {
			c.pass(time.Duration(c.rng.IntN(120)) * time.Millisecond)
			for i := range c.hosts {
				if c.rng.IntN(2) == 0 {
					c.crash(i)
					c.mustStart(i)
				}
			}
		}
		c.until("founded", founded(c))
		checkFounding(t, c)
		c.write(3)
		c.untilSame()
	}
}

func TestWipedMemberIsRefusedAndTold(t *testing.T) {
	for victim := range 3 {
		c := newCell(t, uint64(victim), 3, nil)
		c.mustStart(0, 1, 2)
		c.until("founded", founded(c))
		c.write(5)
		c.untilSame()
		c.crash(victim)
		c.wipe(victim)
		c.mustStart(victim)
		h := c.hosts[victim]
		c.until("stopped", func() bool { return !h.up() })
		var refused *replog.RefusedError
		if !errors.As(h.fatal, &refused) || !strings.Contains(refused.Text, "with another disk") || !strings.Contains(refused.Text, "old data directory") {
			t.Fatalf("n%d stopped with %v", victim+1, h.fatal)
		}
		if h.sm.slot != 0 {
			t.Fatal("the wiped replica was told something")
		}
		// The others go on.
		c.write(5)
		c.untilSame()
	}
}

func TestWipedMajorityFoundsNothing(t *testing.T) {
	c := newCell(t, 3, 3, nil)
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	identity := c.hosts[2].node.Configuration().CellIdentity
	for i := range 2 {
		c.crash(i)
		c.wipe(i)
	}
	c.mustStart(0, 1)
	c.until("both stopped", func() bool { return !c.hosts[0].up() && !c.hosts[1].up() })
	c.pass(time.Second)
	if s := c.hosts[2].node.Status(); !s.Founded || c.hosts[2].node.Configuration().CellIdentity != identity {
		t.Fatalf("n3 is %+v", s)
	}
}

// TestDiskExchangedDuringFounding: n2 has accepted an attempt that names a disk
// of n3 that is gone. Nobody founds anything over that.
func TestDiskExchangedDuringFounding(t *testing.T) {
	c := newCell(t, 5, 3, nil)
	c.mustStart(0, 1, 2)
	// n1 crashes before it learns of any vote.
	c.hosts[0].stopBefore = func(*replog.Effects) bool { return c.hosts[1].node.Status().Paxos.Last > 0 }
	c.until("n1 crashed", func() bool { return !c.hosts[0].up() })
	c.pass(200 * time.Millisecond)
	if s := c.hosts[1].node.Status(); s.Paxos.Last == 0 || s.Founded {
		t.Fatalf("n2 is %+v: the test does not test what it says", s)
	}
	c.crash(2)
	c.wipe(2)
	c.mustStart(0, 2)
	c.pass(5 * time.Second)
	s := c.hosts[0].node.Status()
	if s.Founded || !strings.Contains(s.Founding, "with another disk of n3") {
		t.Fatalf("n1: founded %v, says %q", s.Founded, s.Founding)
	}
}

func TestForeignCellIsRefusedAndTheReplicaRunsOn(t *testing.T) {
	c := newCell(t, 1, 3, nil)
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	h := c.hosts[0]
	for _, test := range []struct {
		change func(*pb.PeerHello)
		fatal  bool
		want   string
	}{
		{func(h *pb.PeerHello) { h.Cell = "prod" }, true, `not "prod"`},
		{func(h *pb.PeerHello) { h.CellIdentity++ }, false, "founded apart"},
		{func(h *pb.PeerHello) { h.Incarnation++ }, true, "with another disk"},
		{func(h *pb.PeerHello) { h.Replica = 3 }, true, "calls itself replica 3"},
		{func(h *pb.PeerHello) { h.Version = 2 }, false, "same release"},
	} {
		c.disconnect(h, c.hosts[1])
		c.cut[[2]int{0, 1}] = true
		hello := c.hosts[1].node.Hello()
		test.change(hello)
		h.node.Step(c.now, replog.PeerConnected{Hello: hello})
		e := h.node.Take(c.now)
		var refusal *pb.PeerRefusal
		for _, s := range e.Send {
			if r := s.Message.GetRefusal(); r != nil && s.To == 2 {
				refusal = r
			} else if s.To == 2 {
				t.Fatalf("%s: it is also sent %v", test.want, s.Message)
			}
		}
		if refusal == nil || refusal.GetFatal() != test.fatal || !strings.Contains(refusal.GetText(), test.want) || e.Fatal != nil {
			t.Fatalf("%s: refused with %v (fatal here: %v)", test.want, refusal, e.Fatal)
		}
		// Nothing that it says counts, its own refusal neither.
		promised := h.node.Status().Paxos.Promised
		for _, m := range []*pb.PeerMessage{
			{Body: &pb.PeerMessage_Paxos{Paxos: &pb.PaxosMessage{Kind: uint32(paxos.MsgPrepare), Ballot: &pb.Ballot{Round: 99, Replica: 2}, Slot: 1, Ok: true}}},
			{Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{Text: "go away", Fatal: true}}},
			{Body: &pb.PeerMessage_SnapshotRequest{SnapshotRequest: &pb.SnapshotRequest{}}},
		} {
			h.node.Step(c.now, replog.PeerReceived{Peer: 2, Message: m})
		}
		if e := h.node.Take(c.now); e.Fatal != nil || h.node.Status().Paxos.Promised != promised || h.node.Status().Connected[2] {
			t.Fatalf("%s: it was listened to: %v", test.want, e.Fatal)
		}
	}
}

func TestEmptyReplicaOfAnotherCellStops(t *testing.T) {
	c := newCell(t, 1, 2, func(o *replog.NodeOptions) {
		if o.Name == "n2" {
			o.PeerAddress = "" // as good as any
		}
	})
	c.mustStart(0)
	hello := c.hosts[0].node.Hello()
	hello.Name, hello.Replica, hello.Cell = "n2", 2, "prod"
	h := c.hosts[0]
	h.node.Step(c.now, replog.PeerConnected{Hello: hello})
	h.node.Step(c.now, replog.PeerReceived{Peer: 2, Message: &pb.PeerMessage{
		Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{Text: "this is cell prod", Fatal: true}}}})
	if e := h.node.Take(c.now); e.Fatal == nil || !strings.Contains(e.Fatal.Error(), "this is cell prod") {
		t.Fatalf("it goes on: %v", e.Fatal)
	}
}

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
	for i := 0; e.SaveSnapshot == nil; i++ {
		if i == 100 {
			t.Fatalf("no snapshot is due at %d", h.node.Status().Applied)
		}
		h.node.Step(c.now, replog.ProposeCommands{Commands: [][]byte{[]byte("command")}})
		e = h.node.Take(c.now)
		for _, a := range e.Append {
			h.node.Step(c.now, replog.AppendDone{Sequence: a.Sequence})
		}
	}
	h.node.Step(c.now, replog.SnapshotSaved{Slot: paxos.Slot(e.SaveSnapshot.Meta.GetSlot()), Err: errors.New("no room")})
	if e := h.node.Take(c.now); e.SaveSnapshot != nil || !strings.Contains(strings.Join(e.Notes, "\n"), "no room") {
		t.Fatalf("tried again at once, or not noted: %v", e.Notes)
	}
	if e := h.node.Take(c.now + 11*time.Second); e.SaveSnapshot == nil {
		t.Fatal("not tried again")
	}
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

// TestReplicaThatMissedItsFounding has nothing and finds the log of the others
// cut: the snapshot tells it of its cell.
func TestReplicaThatMissedItsFounding(t *testing.T) {
	c := newCell(t, 2, 3, func(o *replog.NodeOptions) { o.SnapshotSlots, o.TrailSlots = 100, 20; o.Paxos.MemoryBytes = 1000 })
	c.mustStart(0, 1, 2)
	// n3 is cut off as soon as the founder has proposed.
	proposed := false
	c.hosts[0].stopBefore = func(e *replog.Effects) bool {
		for _, s := range e.Send {
			proposed = proposed || s.Message.GetPaxos().GetKind() == uint32(paxos.MsgAccept)
		}
		return false
	}
	c.until("proposed", func() bool { return proposed })
	c.partition(2)
	c.until("founded", func() bool { return c.hosts[0].node.Status().Founded && c.hosts[1].node.Status().Founded })
	if c.hosts[2].node.Status().Founded {
		t.Fatal("n3 knows already")
	}
	c.write(600)
	c.untilSame(0, 1)
	c.heal()
	c.untilSame()
	if c.hosts[2].installs == 0 {
		t.Fatal("n3 did not need a snapshot: the test does not test what it says")
	}
	checkFounding(t, c)
	if id := reopenIdentity(t, c.hosts[2]); id == 0 {
		c.pass(time.Second)
		if id := reopenIdentity(t, c.hosts[2]); id == 0 {
			t.Fatal("the identity file of n3 does not name the cell")
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

func TestBadOptionsAndData(t *testing.T) {
	opened := func() *replog.Opened {
		return &replog.Opened{Identity: &pb.Identity{Incarnation: 7}}
	}
	members := func(names ...string) (m []paxos.Member) {
		for _, n := range names {
			m = append(m, paxos.Member{Name: n})
		}
		return m
	}
	conf := &paxos.Configuration{Cell: "demo", CellIdentity: 9, Members: []paxos.Member{{ID: 1, Name: "n1", Incarnation: 8, Voter: true}}}
	for _, test := range []struct {
		what    string
		cluster []paxos.Member
		change  func(*replog.Opened)
		want    string
	}{
		{"not a member", members("n2", "n3"), nil, "not in the initial cluster (n2, n3)"},
		{"twice", members("n1", "n2", "n1"), nil, `"n1" twice`},
		{"no name", members("n1", ""), nil, "without a name"},
		{"log gone", members("n1"), func(o *replog.Opened) { o.Identity.CellIdentity = 5 }, "are gone"},
		{"another identity", members("n1"), func(o *replog.Opened) {
			o.Identity.CellIdentity, o.Configuration, o.Paxos.Chosen = 5, conf, 1
		}, "were copied"},
		{"another disk", members("n1"), func(o *replog.Opened) { o.Configuration, o.Paxos.Applied = conf, 1 }, "with another disk"},
		{"no longer a member", members("n0", "n1"), func(o *replog.Opened) {
			o.Configuration, o.Paxos.Applied = &paxos.Configuration{Cell: "demo", Members: []paxos.Member{{ID: 1, Name: "n5"}}}, 1
		}, `has no replica "n1"; its members are n5`},
	} {
		o := opened()
		if test.change != nil {
			test.change(o)
		}
		_, err := replog.NewNode(replog.NodeOptions{Cell: "demo", Name: "n1", InitialCluster: test.cluster, NewIdentity: func() uint64 { return 1 }}, o, &chain{})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.what, err, test.want)
		}
	}
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

// TestMemberThatMissedItsFoundingReadsTheLog: the same as with a snapshot, but
// the log is still there.
func TestMemberThatMissedItsFoundingReadsTheLog(t *testing.T) {
	for seed := range uint64(5) {
		c := newCell(t, seed, 3, nil)
		c.mustStart(0, 1, 2)
		c.until("all connected", func() bool { return c.hosts[1].node.Status().Paxos.Promised != paxos.Ballot{} })
		c.partition(2)
		c.until("founded", func() bool { return c.hosts[0].node.Status().Founded && c.hosts[1].node.Status().Founded })
		c.write(20)
		if c.hosts[2].node.Status().Founded {
			t.Fatal("n3 knows already")
		}
		c.heal()
		c.untilSame()
		checkFounding(t, c)
		c.pass(100 * time.Millisecond)
		if reopenIdentity(t, c.hosts[2]) == 0 {
			t.Fatal("the identity file of n3 does not name the cell")
		}
	}
}

func paxosMessage(m paxos.Message) *pb.PeerMessage {
	return &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: replog.EncodeMessage(&m)}}
}

// TestConfigurationWithAnotherDiskIsNotAccepted: a replica votes for a founding
// only if that names its own disk.
func TestConfigurationWithAnotherDiskIsNotAccepted(t *testing.T) {
	for _, right := range []bool{false, true} {
		c := newCell(t, 1, 3, nil)
		c.mustStart(1)
		h := c.hosts[1]
		h.node.Step(c.now, replog.PeerConnected{Hello: &pb.PeerHello{Cell: "demo", Name: "n1", Replica: 1, Incarnation: 1, Version: replog.PeerVersion}})
		conf := *h.node.Configuration()
		conf.CellIdentity = 77
		conf.Members = append([]paxos.Member(nil), conf.Members...)
		if !right {
			conf.Members[1].Incarnation++
		}
		b := paxos.Ballot{Round: 1, Replica: 1}
		h.node.Step(c.now, replog.PeerReceived{Peer: 1, Message: paxosMessage(paxos.Message{Kind: paxos.MsgPrepare, Ballot: b, Slot: 1})})
		h.node.Step(c.now, replog.PeerReceived{Peer: 1, Message: paxosMessage(paxos.Message{Kind: paxos.MsgAccept, Ballot: b, Slot: 1,
			Entries: []paxos.Entry{{Slot: 1, Ballot: b, Value: paxos.Value{Kind: paxos.Config, Config: &conf}}}})})
		h.node.Take(c.now)
		if accepted := h.node.Status().Paxos.Last == 1; accepted != right {
			t.Fatalf("names its disk: %v, accepted: %v", right, accepted)
		}
	}
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
	meta := &pb.SnapshotMeta{Slot: uint64(last), Cell: "demo", Config: replog.EncodeConfiguration(source.node.Configuration()),
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
			b := replog.DecodeBallot(px.GetBallot())
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
