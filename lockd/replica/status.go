package replica

import (
	"errors"

	"strconv"
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/paxos"
)

// setRole tells the master what the log says about the lead.
func (r *Replica) setRole(now time.Duration, e paxos.RoleEvent) {
	if e.Leader != r.leader.Leader {
		r.heardIt = false
		if e.Leader != 0 {
			r.heard, r.heardIt = now, true
		}
	}
	r.leader = e
	name, address := r.member(e.Leader)
	r.master.SetRole(now, master.Role{
		Leads:         e.Role == paxos.Leader,
		Campaigns:     e.Role == paxos.Candidate || e.Role == paxos.Preparing,
		Ballot:        e.Ballot,
		Self:          e.Leader != 0 && e.Leader == r.self(),
		MasterName:    name,
		MasterAddress: address,
	})
	r.cell.lead(now, r.master.Leading())
}

// Check looks for what is too costly to assert at every step, in the log's node,
// in the master's accounts and in the state.
func (r *Replica) Check() error {
	return errors.Join(r.CheckMachines(), r.store.Check())
}

// CheckMachines is Check without the state, which only changes when entries are
// applied, and whose check takes O(n).
func (r *Replica) CheckMachines() error {
	var log error
	if n, ok := r.node.(interface{ Check() error }); ok {
		log = n.Check()
	}
	return errors.Join(log, r.master.Check())
}

// self returns this replica's number, which never changes. It is asked in every
// turn, and to ask the node for its whole status costs memory.
func (r *Replica) self() paxos.ReplicaID {
	if r.id == 0 {
		r.id = r.node.Status().Paxos.ID
	}
	return r.id
}

// member returns a member's name, and the address it has for clients.
func (r *Replica) member(id paxos.ReplicaID) (name, address string) {
	if id == 0 {
		return "", ""
	}
	if c := r.node.Configuration(); c != nil {
		for i := range c.Members {
			if c.Members[i].ID == id {
				name, address = c.Members[i].Name, c.Members[i].ClientAddress
			}
		}
	}
	if name == r.o.Node.Name && r.o.Node.ClientAddress != "" {
		address = r.o.Node.ClientAddress
	}
	return name, address
}

// role is what the replica is for its clients now.
func (r *Replica) role() Role {
	serving, epoch := r.master.Serving()
	role := Role{Master: serving, Leaving: !serving && r.master.Leading(), Epoch: epoch, Founded: r.founded()}
	if serving || r.leader.Leader != r.self() {
		role.MasterName, role.MasterAddress = r.member(r.leader.Leader)
	}
	return role
}

func (r *Replica) founded() bool {
	_, identity := r.store.Cell()
	return identity != 0
}

// ageMS is how long ago this replica heard from a master; -1: never, or not
// since it last changed.
func (r *Replica) ageMS(now time.Duration) int64 {
	if serving, _ := r.master.Serving(); serving {
		return 0
	}
	if !r.heardIt {
		return -1
	}
	return int64((now - r.heard) / time.Millisecond)
}

// Status describes the replica to people.
func (r *Replica) Status(now time.Duration) *pb.StatusResult {
	n := r.node.Status()
	role := r.role()
	sessions, nodes := r.store.Counts()
	s := &pb.StatusResult{
		Cell: r.o.Node.Cell, Replica: r.o.Node.Name, Role: r.roleName(role, n.Paxos.Role),
		MasterName: role.MasterName, MasterAddress: role.MasterAddress,
		Ballot: n.Paxos.Ballot.String(), Chosen: uint64(n.Paxos.Chosen), Applied: uint64(n.Applied),
		FirstSlot: uint64(n.Paxos.First), SnapshotSlot: uint64(n.SnapshotSlot),
		Revision: r.store.Revision(), Epoch: r.store.Epoch(), StateHash: r.store.Hash(),
		Sessions: uint32(sessions), Nodes: uint32(nodes),
		Connections: uint32(r.master.Counters().Connections),
		UptimeMs:    int64((now - r.started) / time.Millisecond),
		Version:     r.o.Version,
	}
	c := r.node.Configuration()
	if c == nil {
		return s
	}
	progress := make(map[paxos.ReplicaID]paxos.PeerProgress, len(n.Paxos.Peers))
	for _, p := range n.Paxos.Peers {
		progress[p.ID] = p
	}
	for i := range c.Members {
		m := &c.Members[i]
		if m.ID == n.Paxos.ID {
			continue
		}
		name, address := r.member(m.ID)
		peer := &pb.PeerStatus{Name: name, Address: address, Connected: n.Connected[m.ID], HeardMsAgo: -1}
		if p, ok := progress[m.ID]; ok && p.Heard != 0 {
			peer.Chosen = uint64(p.Chosen)
			if n.Paxos.Chosen > p.Chosen {
				peer.Behind = uint64(n.Paxos.Chosen - p.Chosen)
			}
			peer.HeardMsAgo = int64((now - p.Heard) / time.Millisecond)
		}
		s.Peers = append(s.Peers, peer)
	}
	return s
}

// roleName is the role in a word.
func (r *Replica) roleName(role Role, log paxos.Role) string {
	switch {
	case !role.Founded:
		return "founding"
	case role.Master:
		return "master"
	case log != paxos.Follower || r.leader.Leader == 0:
		return "electing"
	}
	return "follower"
}

// Metrics returns counters and gauges for the shell to export.
func (r *Replica) Metrics() Metrics {
	c := r.master.Counters()
	n := r.node.Status()
	serving, _ := r.master.Serving()
	nodes, bytes := r.store.Size()
	nodesMax, bytesMax := r.master.StateLimit()
	var first []paxos.ReplicaID
	for _, p := range n.Paxos.Peers {
		if p.First {
			first = append(first, p.ID)
		}
	}
	return Metrics{
		Sessions: c.Sessions, Connections: c.Connections, Watches: c.Watches, Nodes: nodes, Pending: c.Pending,
		WatchLogBytes: c.WatchLogBytes, WatchesBehind: c.WatchesBehind, WatchesMissed: c.WatchesMissed,
		Requests: c.Requests, Reads: c.Reads, KeepAlives: c.KeepAlives, Events: c.Events,
		Granted: c.Granted, Expired: c.Expired, Refused: c.Refused, Elections: c.Elections,
		Chosen: uint64(n.Paxos.Chosen), Applied: uint64(n.Applied), Target: uint64(n.Paxos.Target),
		Revision: r.store.Revision(), Epoch: r.store.Epoch(),
		Master: serving, LogBytes: n.Paxos.LogBytes, InFlight: r.master.InFlight(), LogInFlight: n.InFlight,
		StateBytes: bytes, StateBytesMax: bytesMax, StateNodesMax: nodesMax, Limited: r.master.Refusals(), Thrift: n.Paxos.Thrift, AskedFirst: first,
	}
}

// noteFounding says what founding waits for, when that has changed.
func (r *Replica) noteFounding() {
	if r.founded() || (r.asked != 0 && r.now-r.asked < foundingEvery) {
		return
	}
	r.asked = r.now
	text := r.node.Status().Founding
	if text == "" || text == r.founding {
		return
	}
	r.founding = text
	c := 0
	for _, up := range r.node.Status().Connected {
		if up {
			c++
		}
	}
	r.notes = append(r.notes, Note{Level: "info", Text: "the cell is not founded yet: it " + text,
		Args: []any{"connected", strconv.Itoa(c)}})
}
