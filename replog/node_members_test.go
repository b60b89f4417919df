package replog_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
)

// A replica that was stopped before it knew that its cell was founded is started
// again with one member more than the cell was founded with, and that one, which
// is started as well, is refused.
func TestMemberThatTheCellWasNotFoundedWith(t *testing.T) {
	more := false
	c := newCell(t, 1, 4, func(o *replog.NodeOptions) {
		if o.Name != "n3" || !more {
			o.InitialCluster = o.InitialCluster[:3]
		}
	})
	c.mustStart(0, 1, 2)
	c.until("n3 has accepted slot 1", func() bool { _, ok := c.hosts[2].voted[1]; return ok })
	c.partition(2)
	c.until("founded", func() bool { return c.hosts[0].node.Status().Founded })
	c.crash(2)
	more = true
	c.mustStart(2)
	h := c.hosts[2]
	if h.node.Status().Founded {
		t.Fatal("n3 knows already that the cell is founded")
	}
	h.node.Step(c.now, replog.PeerConnected{Hello: &pb.PeerHello{Cell: "demo", Name: "n4", Replica: 4, Incarnation: 9, Version: replog.PeerVersion}})
	c.heal()
	c.until("n3 knows that the cell is founded", func() bool { return h.fatal != nil || h.node.Status().Founded })
	if h.fatal != nil {
		t.Fatal(h.fatal)
	}
	if h.node.Status().Connected[4] {
		t.Error("n4 is taken for a member")
	}
	warned := func() bool {
		return slices.ContainsFunc(c.hosts[2].notes, func(s string) bool {
			return strings.Contains(s, "--initial-cluster names n4,") && strings.Contains(s, "n1, n2, n3")
		})
	}
	if !warned() {
		t.Errorf("n3 has learned who its members are and does not warn of n4: %q", h.notes)
	}
	c.write(3)
	c.untilSame()
	c.crash(2)
	c.hosts[2].notes = nil
	c.mustStart(2)
	c.until("n3 warns of n4 when it starts", warned)
	for _, h := range c.hosts[:2] {
		if slices.ContainsFunc(h.notes, func(s string) bool { return strings.Contains(s, "--initial-cluster names") }) {
			t.Errorf("a replica whose list is right warns: %q", h.notes)
		}
	}
}
