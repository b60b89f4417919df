package replog

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// PeerVersion is the version of the protocol between replicas.
const PeerVersion = 4

// noteAgain is how long the same refusal of a peer that keeps coming is not
// noted again.
const noteAgain = time.Minute

// RefusedError stops a replica that its cell does not take: the cell knows a
// replica of this name with another disk, or is another cell.
type RefusedError struct {
	By   string // name of the replica that refused
	Cell string // of that replica
	Text string // what it said
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("replica %s of cell %q refuses this replica: %s", e.By, e.Cell, e.Text)
}

// knownConfiguration finds the configuration that is known to be chosen.
func (n *Node) knownConfiguration(found *Found) error {
	identity := found.Identity.GetCellIdentity()
	chosen := found.Paxos.Applied > 0 || found.Paxos.Chosen > 0
	switch first, ok := n.accepted.get(1); {
	case found.Configuration != nil && chosen:
		n.config = found.Configuration
	case ok && first.Value.Kind == paxos.Config && (first.Chosen || chosen || identity != 0):
		// The identity file names the cell only when slot 1 is chosen and its
		// entry durable, so the entry is the chosen one although no record says
		// so yet.
		n.config = first.Value.Config
	case identity != 0 || chosen:
		return fmt.Errorf("the data of replica %q belong to the founded cell %q, but its log and snapshots are gone: "+
			"do not start it with this directory, it has forgotten its votes; bring back the whole directory or leave the replica stopped",
			n.o.Name, n.o.Cell)
	default:
		return nil
	}
	if n.config.Cell != n.o.Cell || identity != 0 && identity != n.config.CellIdentity {
		return fmt.Errorf("the log is that of cell %q (identity %016x), the identity file that of cell %q (%016x): files were copied into this directory",
			n.config.Cell, n.config.CellIdentity, n.o.Cell, identity)
	}
	n.identityOwed = identity == 0
	return nil
}

// checkSelf checks what the configuration says of this replica.
func (n *Node) checkSelf() error {
	if n.id == 0 {
		return fmt.Errorf("cell %q has no replica %q; its members are %s", n.o.Cell, n.o.Name, memberNames(n.current().Members))
	}
	if n.config == nil {
		return nil
	}
	m := member(n.config, n.id)
	if m.Incarnation != n.incarnation {
		return &RefusedError{By: n.o.Name, Cell: n.o.Cell, Text: anotherDisk(m, n.incarnation)}
	}
	return nil
}

func member(c *paxos.Configuration, id paxos.ReplicaID) *paxos.Member {
	for i := range c.Members {
		if c.Members[i].ID == id {
			return &c.Members[i]
		}
	}
	return nil
}

func anotherDisk(m *paxos.Member, incarnation uint64) string {
	return fmt.Sprintf("the cell knows replica %s with another disk (incarnation %016x, this one is %016x): its data directory was emptied or exchanged. "+
		"It has forgotten its votes and must not come back under this name. "+
		"Start it with its old data directory; if that is lost leave it stopped: the cell goes on without it while a majority of its replicas runs",
		m.Name, m.Incarnation, incarnation)
}

func notFoundedWith(h *pb.PeerHello, c *paxos.Configuration) string {
	return fmt.Sprintf("cell %q was founded without a replica %s; its members are %s: take %s out of --initial-cluster and stop it",
		c.Cell, h.GetName(), memberNames(c.Members), h.GetName())
}

// adopt takes the configuration that slot 1 (or a snapshot) holds.
func (n *Node) adopt(c *paxos.Configuration) {
	if n.config != nil {
		// A cell is founded once.
		invariant.Assert(c.CellIdentity == n.config.CellIdentity, "cell %016x is founded again as %016x", n.config.CellIdentity, c.CellIdentity)
		n.config = c
		n.view = nil
		return
	}
	n.config = c
	n.view = nil
	n.identityOwed, n.identityAfter = true, n.sequence
	if m := member(c, n.id); m == nil || m.Name != n.o.Name {
		n.stop(fmt.Errorf("cell %q was founded with the members %s, in which replica %d is not %s: start it with the same --initial-cluster as the others",
			c.Cell, memberNames(c.Members), n.id, n.o.Name))
		return
	}
	if err := n.checkSelf(); err != nil {
		n.stop(err)
		return
	}
	n.note("cell %q is founded: identity %016x, members %s", c.Cell, c.CellIdentity, memberNames(c.Members))
	n.warnOfStrangers()
	for _, p := range n.peers {
		if p.connected {
			n.admit(p)
		}
	}
}

// writeIdentity has the identity file name the cell once slot 1 is durable.
func (n *Node) writeIdentity() {
	slotOne := n.durable >= n.identityAfter || invariant.Planted(invariant.IdentityBeforeSlotOne)
	if n.identityOwed && slotOne && n.fatal == nil {
		n.identityOwed = false
		n.fx.SetFounded = n.config.CellIdentity
	}
}

func (n *Node) peerConnected(h *pb.PeerHello) {
	var p *peer
	for _, q := range n.peers {
		if q.name == h.GetName() {
			p = q
		}
	}
	if p == nil {
		n.note("a replica that calls itself %q of cell %q connected and is ignored: no member has that name", h.GetName(), h.GetCell())
		return
	}
	n.greeted(p, h)
}

// greeted takes a hello: the first of a connection, or a later one that tells
// of a change.
func (n *Node) greeted(p *peer, h *pb.PeerHello) {
	n.view = nil
	p.connected, p.hello = true, h
	if p.founded = h.GetFounded(); p.founded || h.GetIncarnation() != p.report.GetIncarnation() {
		p.report = nil
	}
	n.admit(p)
	if p.speaks() {
		p.state = StateLimits{Nodes: h.GetStateNodes(), Bytes: h.GetStateBytes()}
	}
	if p.speaks() && n.config == nil {
		n.report(p)
		n.found()
	}
}

func (n *Node) peerDisconnected(id paxos.ReplicaID) {
	if p := n.peer(id); p != nil {
		n.view = nil
		p.connected, p.founded, p.hello, p.report = false, false, nil, nil
	}
}

// admit decides whether the peer is who the configuration says. One that is
// not is told so, and nothing that it sends is looked at.
func (n *Node) admit(p *peer) {
	text, fatal := n.objection(p)
	p.refused = text
	if text == "" {
		return
	}
	n.refuse(p, text, fatal)
	if p.noted != text || n.now-p.notedAt >= noteAgain {
		p.noted, p.notedAt = text, n.now
		n.warn("the connection with %s is refused: %s", p.name, text)
	}
}

func (n *Node) refuse(p *peer, text string, fatal bool) {
	n.fx.Send = append(n.fx.Send, Send{To: p.id, Message: &pb.PeerMessage{
		Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{Text: text, Fatal: fatal, Incarnation: p.hello.GetIncarnation()}},
	}})
}

// objection says why the peer is refused, "" if it is not, and whether it must
// not go on with the data it has.
func (n *Node) objection(p *peer) (text string, fatal bool) {
	h := p.hello
	if text, fatal = Objection(h, n.o.Cell, n.o.Name, p.id, n.current().Members, n.config); text != "" {
		return text, fatal
	}
	if n.config == nil && n.founding.config != nil {
		// Once a configuration is proposed a disk that is exchanged is too late.
		if m := member(n.founding.config, p.id); m == nil || m.Incarnation != h.GetIncarnation() {
			return anotherDisk(m, h.GetIncarnation()), false
		}
	}
	return "", false
}

// Objection says what is wrong with a hello that came in the name of member id,
// as replica self of the cell sees it; config is nil while the cell is not
// founded.
func Objection(h *pb.PeerHello, cell, self string, id paxos.ReplicaID, members []paxos.Member, config *paxos.Configuration) (text string, fatal bool) {
	switch {
	case h.GetVersion() != PeerVersion:
		return fmt.Sprintf("it speaks version %d of the protocol between replicas, this one (%s) version %d: run the same release on all replicas",
			h.GetVersion(), self, PeerVersion), false
	case h.GetCell() != cell:
		return fmt.Sprintf("this is cell %q and not %q: check --cell and --initial-cluster", cell, h.GetCell()), true
	case config != nil && h.GetCellIdentity() != 0 && h.GetCellIdentity() != config.CellIdentity:
		return fmt.Sprintf("this cell %q is %016x and not %016x, it was founded apart: one of the two has the wrong data directory or --initial-cluster",
			cell, config.CellIdentity, h.GetCellIdentity()), false
	case paxos.ReplicaID(h.GetReplica()) != id:
		return fmt.Sprintf("%s calls itself replica %d of the cell, here it is replica %d: the lists of initial members differ (here: %s)",
			h.GetName(), h.GetReplica(), id, memberNames(members)), config != nil
	case config != nil:
		m := member(config, id)
		if m == nil {
			// This replica was started with more members than the cell was founded with.
			return notFoundedWith(h, config), true
		}
		if m.Incarnation != h.GetIncarnation() {
			return anotherDisk(m, h.GetIncarnation()), true
		}
	}
	return "", false
}

// refusedBy hears that a peer refuses this replica. Only one that knows of
// nothing chosen stops for it, and only if the other side is a founded cell or
// another one: no stray process can stop a replica that holds data.
//
// Invariant: a refusal counts only for the disk that was refused.
func (n *Node) refusedBy(p *peer, r *pb.PeerRefusal) {
	if r.GetIncarnation() != n.incarnation {
		return
	}
	if p.noted != r.GetText() || n.now-p.notedAt >= noteAgain {
		p.noted, p.notedAt = r.GetText(), n.now
		n.warn("%s (cell %q) refuses this replica: %s", p.name, p.hello.GetCell(), r.GetText())
	}
	if r.GetFatal() && n.config == nil && n.applied == 0 && (p.hello.GetFounded() || p.hello.GetCell() != n.o.Cell) {
		n.stop(&RefusedError{By: p.name, Cell: p.hello.GetCell(), Text: r.GetText()})
	}
}

// peerReceived takes a message from a peer. Nothing in it is taken on trust.
func (n *Node) peerReceived(id paxos.ReplicaID, m *pb.PeerMessage) {
	p := n.peer(id)
	if p == nil || !p.connected {
		return
	}
	switch body := m.GetBody().(type) {
	case *pb.PeerMessage_Hello:
		if body.Hello.GetName() == p.name {
			n.greeted(p, body.Hello)
		}
		return
	case *pb.PeerMessage_Refusal:
		n.refusedBy(p, body.Refusal)
		return
	}
	if p.refused != "" {
		if _, founding := m.GetBody().(*pb.PeerMessage_Founding); founding {
			// It has not heard; it would wait for this cell for ever.
			if text, fatal := n.objection(p); text != "" {
				n.refuse(p, text, fatal)
			}
		}
		return
	}
	switch body := m.GetBody().(type) {
	case *pb.PeerMessage_Paxos:
		n.paxosReceived(p, body.Paxos)
	case *pb.PeerMessage_Founding:
		n.foundingReceived(p, body.Founding)
	case *pb.PeerMessage_SnapshotRequest:
		n.snapshotRequested(p, body.SnapshotRequest)
	case *pb.PeerMessage_SnapshotChunk:
		n.chunkReceived(p, body.SnapshotChunk)
	}
}

func (n *Node) paxosReceived(p *peer, m *pb.PaxosMessage) {
	msg, err := codec.DecodeMessage(m, p.id, n.id)
	if err != nil {
		if n.now-p.notedAt >= noteAgain || p.noted != err.Error() {
			p.noted, p.notedAt = err.Error(), n.now
			n.note("a message from %s is left out: %v", p.name, err)
		}
		return
	}
	if n.config == nil {
		if msg.Chosen > 0 {
			p.founded = true
		}
		if !n.mayAccept(&msg) {
			return
		}
	}
	n.px.Step(n.now, paxos.Receive{Message: msg})
}
