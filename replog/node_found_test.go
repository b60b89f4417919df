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
	"github.com/seed70370324/lockd/replog/storage"
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
	if first.Cell != "demo" || first.CellIdentity == 0 || first.RevisionFloor != 1 || len(first.Members) != len(c.hosts) {
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
	o, err := storage.Open(storage.Options{FS: h.fs.Crash(h.c.rng), Cell: "demo", Replica: h.name, SegmentBytes: 1,
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

// A refusal may be lost. Who has not heard it asks again, and is told again.
func TestWipedMemberHearsOfItsRefusalInTheEnd(t *testing.T) {
	c := newCell(t, 9, 3, nil)
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	c.crash(1)
	c.wipe(1)
	c.loss = 100
	c.mustStart(1)
	c.pass(500 * time.Millisecond)
	if !c.hosts[1].up() {
		t.Fatal("it has stopped already: the test does not test what it says")
	}
	c.loss = 0
	c.until("stopped", func() bool { return !c.hosts[1].up() })
	var refused *replog.RefusedError
	if !errors.As(c.hosts[1].fatal, &refused) {
		t.Fatalf("n2 stopped with %v", c.hosts[1].fatal)
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
		{func(h *pb.PeerHello) { h.Version++ }, false, "same release"},
	} {
		c.disconnect(h, c.hosts[1])
		c.cut[[2]int{0, 1}] = true
		hello := c.hosts[1].helloNow()
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
			{Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{Text: "go away", Fatal: true, Incarnation: h.helloNow().Incarnation}}},
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
	hello := c.hosts[0].helloNow()
	hello.Name, hello.Replica, hello.Cell = "n2", 2, "prod"
	h := c.hosts[0]
	own := h.helloNow().Incarnation
	h.node.Step(c.now, replog.PeerConnected{Hello: hello})
	refuse := func(incarnation uint64) {
		h.node.Step(c.now, replog.PeerReceived{Peer: 2, Message: &pb.PeerMessage{
			Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{Text: "this is cell prod", Fatal: true, Incarnation: incarnation}}}})
	}
	refuse(own + 1) // of a process that bore this replica's name before
	if e := h.node.Take(c.now); e.Fatal != nil {
		t.Fatalf("it stops for the refusal of another disk: %v", e.Fatal)
	}
	refuse(own)
	if e := h.node.Take(c.now); e.Fatal == nil || !strings.Contains(e.Fatal.Error(), "this is cell prod") {
		t.Fatalf("it goes on: %v", e.Fatal)
	}
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

func TestBadOptionsAndData(t *testing.T) {
	opened := func() *replog.Found {
		return &replog.Found{Identity: &pb.Identity{Incarnation: 7}}
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
		change  func(*replog.Found)
		want    string
	}{
		{"not a member", members("n2", "n3"), nil, "not in the initial cluster (n2, n3)"},
		{"twice", members("n1", "n2", "n1"), nil, `"n1" twice`},
		{"no name", members("n1", ""), nil, "without a name"},
		{"log gone", members("n1"), func(o *replog.Found) { o.Identity.CellIdentity = 5 }, "are gone"},
		{"another identity", members("n1"), func(o *replog.Found) {
			o.Identity.CellIdentity, o.Configuration, o.Paxos.Chosen = 5, conf, 1
		}, "were copied"},
		{"another disk", members("n1"), func(o *replog.Found) { o.Configuration, o.Paxos.Applied = conf, 1 }, "with another disk"},
		{"no longer a member", members("n0", "n1"), func(o *replog.Found) {
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

// The identity file names the cell only once slot 1 is durable in this replica's
// own log, however long others have known that it is chosen.
func TestIdentityWaitsForSlotOne(t *testing.T) {
	c := newCell(t, 1, 3, nil)
	h := c.hosts[2]
	h.held = true
	c.mustStart(0, 1, 2)
	c.until("known to be founded", func() bool { return h.node.Status().Founded })
	c.pass(time.Second) // settle checks each SetFounded against the disk
	h.held = false
	c.until("named by the identity file", func() bool {
		o, err := storage.Open(storage.Options{FS: h.fs.CrashLost(), Cell: "demo", Replica: h.name, SegmentBytes: 1,
			Decode: decodeChain, NewIncarnation: func() uint64 { return 1 }})
		c.hosts[2].must(err)
		return o.Identity.CellIdentity != 0
	})
}
