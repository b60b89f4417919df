package replog

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// Founding: how a cell begins, once.
//
// Every replica of a cell that is not founded tells the others who it is (its
// disk's incarnation), whether it is empty, and which attempt at founding it
// has accepted in slot 1. The lowest name, the founder, proposes the
// configuration in slot 1 when all members are there. Rules that make each
// step repeatable after a crash, with no disk exchanged unseen:
//
//   - Nobody else campaigns, and nothing else is proposed, before slot 1 is
//     chosen. A replica that does not know slot 1 chosen answers, and lets no
//     probe or prepare of its own leave.
//   - If any member has accepted an attempt, the founder proposes that same
//     configuration, and only if every incarnation in it is that of the disk
//     that is there now. So all votes that an attempt ever got are still there.
//   - A replica accepts a configuration in slot 1 only if it names this
//     replica's own incarnation.
//   - A founder proposes one configuration until it is restarted.

const (
	reportEvery   = time.Second // reports are repeated, messages may be lost
	campaignEvery = 2 * time.Second
)

type founding struct {
	config     *paxos.Configuration // proposed by this founder since its start
	nextReport time.Duration
	nextTry    time.Duration
	noted      string
}

// attempt is the configuration accepted in slot 1, nil if there is none.
func (n *Node) attempt() *paxos.Configuration {
	if e, ok := n.accepted.get(1); ok && e.Value.Kind == paxos.Config {
		return e.Value.Config
	}
	return nil
}

// empty reports whether this replica has accepted nothing but attempts at
// founding: a configuration in slot 1, and the founder's own first entries and
// filled holes behind it.
func (n *Node) empty() bool {
	if n.config != nil || n.applied > 0 {
		invariant.Unreachable("a replica that knows its cell founded does not say whether it is empty")
		return false
	}
	for _, e := range n.accepted.above(0) {
		switch e.Value.Kind {
		case paxos.NoOp, paxos.Lead:
		case paxos.Config:
			if e.Slot != 1 {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// founder reports whether this replica is the one to found the cell.
func (n *Node) founder() bool { return n.id == n.initial.Members[0].ID }

// mayCampaign keeps a replica that does not know its cell founded from being
// elected, the founder apart.
func (n *Node) mayCampaign(k paxos.MessageKind) bool {
	return n.config != nil || n.founding.config != nil || k != paxos.MsgProbe && k != paxos.MsgPrepare
}

// ticks reports whether paxos is told the time: before founding only if the
// founder is at work, or if others know of a founded cell and this replica is
// to catch up.
func (n *Node) ticks() bool {
	if n.config != nil || n.founding.config != nil {
		return true
	}
	for _, p := range n.peers {
		if p.speaks() && p.founded {
			return true
		}
	}
	return false
}

// mayAccept drops what must not be accepted while slot 1 is open here: a
// configuration that names another disk than this one.
func (n *Node) mayAccept(m *paxos.Message) bool {
	for i := range m.Entries {
		e := &m.Entries[i]
		if e.Slot != 1 || e.Value.Kind != paxos.Config || m.Kind != paxos.MsgAccept {
			continue
		}
		if self := member(e.Value.Config, n.id); self == nil || self.Name != n.o.Name || self.Incarnation != n.incarnation {
			return false
		}
	}
	return true
}

// report tells a peer about this replica.
func (n *Node) report(p *peer) {
	f := &pb.Founding{
		Name:        n.o.Name,
		Incarnation: n.incarnation,
		Empty:       n.empty(),
		Attempt:     codec.EncodeConfiguration(n.attempt()),
	}
	for _, m := range n.initial.Members {
		f.Members = append(f.Members, m.Name)
	}
	n.fx.Send = append(n.fx.Send, Send{To: p.id, Message: &pb.PeerMessage{Body: &pb.PeerMessage_Founding{Founding: f}}})
}

func (n *Node) foundingReceived(p *peer, f *pb.Founding) {
	if n.config != nil || f.GetName() != p.name || f.GetIncarnation() != p.hello.GetIncarnation() {
		return
	}
	p.report = f
	n.found()
}

func (n *Node) foundingTick() {
	if n.config != nil {
		return
	}
	if n.now >= n.founding.nextReport {
		n.founding.nextReport = n.now + reportEvery
		for _, p := range n.peers {
			if p.speaks() {
				n.report(p)
			}
		}
	}
	n.found()
}

// found makes the founder propose the configuration as soon as it may, and
// again if that came to nothing.
func (n *Node) found() {
	if n.config != nil || !n.founder() {
		return
	}
	if why := n.obstacle(); why != "" {
		if n.founding.noted != why {
			n.founding.noted = why
			n.note("founding cell %q %s", n.o.Cell, why)
		}
		return
	}
	if n.now < n.founding.nextTry || n.px.Status().Role != paxos.Follower {
		return
	}
	n.founding.nextTry = n.now + campaignEvery
	if n.founding.config == nil {
		n.founding.config = n.firstConfiguration()
		n.note("founding cell %q: every member is there", n.o.Cell)
	}
	n.px.Step(n.now, paxos.ProposeConfig{Configuration: *n.founding.config})
	n.px.Step(n.now, paxos.Campaign{})
}

// firstConfiguration is the attempt that somebody has accepted, or a new one.
func (n *Node) firstConfiguration() *paxos.Configuration {
	if c := n.attempt(); c != nil {
		return c
	}
	for _, p := range n.peers {
		// obstacle has decoded it and found it good.
		if c, err := codec.DecodeConfiguration(p.report.GetAttempt()); err == nil && c != nil {
			return c
		}
	}
	c := *n.initial
	c.Members = slices.Clone(c.Members)
	c.CellIdentity = n.o.NewIdentity()
	// The first Lead entry, which follows, raises it to the founders' clocks.
	c.RevisionFloor = 1
	for i := range c.Members {
		m := &c.Members[i]
		if p := n.peer(m.ID); p != nil {
			m.Incarnation = p.hello.GetIncarnation()
			m.ClientAddress = p.hello.GetClientAddress()
			if a := p.hello.GetPeerAddress(); a != "" {
				m.PeerAddress = a
			}
			continue
		}
		m.Incarnation = n.incarnation
	}
	return &c
}

// foundingText says for people what founding waits for.
func (n *Node) foundingText() string {
	if why := n.obstacle(); why != "" {
		return why
	}
	if n.founder() {
		return "is under way"
	}
	return fmt.Sprintf("is under way, by %s", n.initial.Members[0].Name)
}

// obstacle says why the founder may not propose yet, "" if it may.
func (n *Node) obstacle() string {
	var missing []string
	for _, p := range n.peers {
		switch {
		case p.connected && p.refused != "":
			missing = append(missing, fmt.Sprintf("%s (which is refused: %s)", p.name, p.refused))
		case p.speaks() && p.founded:
			return fmt.Sprintf("is over: %s knows the founded cell; waits to be told its log", p.name)
		case !p.speaks() || p.report == nil:
			missing = append(missing, p.name)
		}
	}
	if len(missing) > 0 {
		return "waits for " + strings.Join(missing, ", ")
	}
	var names []string
	for _, m := range n.initial.Members {
		names = append(names, m.Name)
	}
	for _, p := range n.peers {
		if !slices.Equal(p.report.GetMembers(), names) {
			return fmt.Sprintf("waits: %s was started with the members %s, %s with %s; start all with the same --initial-cluster",
				p.name, strings.Join(p.report.GetMembers(), ", "), n.o.Name, strings.Join(names, ", "))
		}
		if !p.report.GetEmpty() {
			return fmt.Sprintf("waits: %s is not empty; only empty replicas found a cell", p.name)
		}
	}
	return n.attemptObstacle()
}

// attemptObstacle compares the attempts that were accepted with who is there.
func (n *Node) attemptObstacle() string {
	if why := n.compareAttempt(n.o.Name, n.attempt()); why != "" {
		return why
	}
	for _, p := range n.peers {
		c, err := codec.DecodeConfiguration(p.report.GetAttempt())
		if err != nil {
			return fmt.Sprintf("waits: what %s says cannot be understood: %v", p.name, err)
		}
		if why := n.compareAttempt(p.name, c); why != "" {
			return why
		}
	}
	return ""
}

func (n *Node) compareAttempt(holder string, c *paxos.Configuration) string {
	if c == nil {
		return ""
	}
	for _, m := range n.initial.Members {
		now := n.incarnation
		if p := n.peer(m.ID); p != nil {
			now = p.hello.GetIncarnation()
		}
		if then := member(c, m.ID); len(c.Members) != len(n.initial.Members) || then == nil || then.Name != m.Name || then.Incarnation != now {
			return fmt.Sprintf("waits: %s took part in an earlier founding, which was not finished, with another disk of %s; "+
				"give %s its old data directory back, or, as nothing was ever stored in this cell, empty the data directories of all its replicas and start them again",
				holder, m.Name, m.Name)
		}
	}
	return ""
}
