package replog

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// Node drives a paxos.Replica with log, snapshots, peers and state machine. It
// is a deterministic state machine itself: one goroutine calls Step with what
// happened and Take for what is owed; it does no I/O and reads no clock.
//
// # Order of what is owed
//
// Within one Effects the shell performs InstallSnapshot and SetFounded behind
// every Append of earlier Effects and before its own. An InstallSnapshot
// replaces the log by the promise and the entries it carries, which are all
// that was recorded up to then above the snapshot's slot, this batch's own
// record included; records of later batches follow it in the same queue. So
// nothing that was promised or accepted is lost, whether it was written before
// the snapshot or behind it.
type Node struct {
	o           NodeOptions
	id          paxos.ReplicaID
	incarnation uint64
	px          *paxos.Replica
	sm          StateMachine
	now         time.Duration
	fx          Effects
	taken       paxos.Effects // what paxos owes in this batch
	begun       bool          // Begin has left taken for Take
	fatal       error

	// initial is the cell as it was given; config what slot 1 holds, nil until
	// that is known to be chosen. view is config (or initial) with the addresses
	// known at the moment, made when asked for.
	initial *paxos.Configuration
	config  *paxos.Configuration
	view    *paxos.Configuration

	role     paxos.Role
	peers    []*peer // by ID, without this replica
	founding founding

	applied  paxos.Slot
	accepted acceptedLog
	promised paxos.Ballot
	sequence uint64 // of the last record or After message taken from paxos
	durable  uint64 // sequence up to which all is durable

	// The identity file gets the cell's identity when the record that tells of
	// slot 1 is durable: never does the file name a cell that the log does not.
	identityOwed  bool
	identityAfter uint64

	keep  keeping
	fetch fetching
}

var _ NodeAPI = (*Node)(nil)

// peer is another member as this node sees it.
type peer struct {
	id        paxos.ReplicaID
	name      string
	connected bool
	hello     *pb.PeerHello // of this connection, also of a refused one
	refused   string        // why it is ignored; "" it is not
	founded   bool          // it knows a founded cell
	report    *pb.Founding  // what it said of itself before founding
	noted     string        // last refusal that was noted
	notedAt   time.Duration
	// state is what it last said it can hold, also when it is not connected.
	state StateLimits

	serve serving
}

// speaks reports whether messages are exchanged with the peer.
func (p *peer) speaks() bool { return p.connected && p.refused == "" }

// NewNode makes a node of what Open found, with the state machine empty; the
// state of the snapshot is restored into it here, the log behind it is applied
// by the first Take. Errors say what is wrong with the options or the data;
// *RefusedError: the cell knows this replica with another disk.
func NewNode(o NodeOptions, found *Found, sm StateMachine) (*Node, error) {
	o.setDefaults()
	initial, err := initialConfiguration(&o)
	if err != nil {
		return nil, err
	}
	n := &Node{
		o:           o,
		incarnation: found.Identity.GetIncarnation(),
		sm:          sm,
		now:         o.Now,
		initial:     initial,
		applied:     found.Paxos.Applied,
		promised:    found.Paxos.Promised,
	}
	for _, e := range found.Paxos.Entries {
		if e.Slot > n.applied {
			n.accepted.put(e)
		}
	}
	n.accepted.check(n.applied)
	n.keep.start(n.applied)
	if err := n.knownConfiguration(found); err != nil {
		return nil, err
	}
	current := n.current()
	for _, m := range current.Members {
		switch {
		case m.Name == o.Name:
			n.id = m.ID
		default:
			n.peers = append(n.peers, &peer{id: m.ID, name: m.Name})
		}
	}
	if err := n.checkSelf(); err != nil {
		return nil, err
	}
	n.warnOfStrangers()
	if found.State != nil {
		sm.Restore(found.State)
	}
	px := o.Paxos
	px.ID, px.Configuration, px.Now = n.id, *current, o.Now
	n.px = paxos.New(px, found.Paxos)
	return n, nil
}

// warnOfStrangers warns of replicas that the initial cluster's list names and the
// founded cell does not have. Nothing else tells of one that never connects: an
// operator who means to add or replace a member so would take it for done.
func (n *Node) warnOfStrangers() {
	if n.config == nil {
		return
	}
	var strangers []string
	for i := range n.initial.Members {
		name := n.initial.Members[i].Name
		if !slices.ContainsFunc(n.config.Members, func(m paxos.Member) bool { return m.Name == name }) {
			strangers = append(strangers, name)
		}
	}
	if len(strangers) > 0 {
		n.warn("--initial-cluster names %s, but the members of cell %q are those that founded it, %s: take %s out of --initial-cluster",
			strings.Join(strangers, ", "), n.config.Cell, memberNames(n.config.Members), strings.Join(strangers, ", "))
	}
}

func (o *NodeOptions) setDefaults() {
	if o.SnapshotSlots <= 0 {
		o.SnapshotSlots = 50_000
	}
	if o.SnapshotBytes <= 0 {
		o.SnapshotBytes = 64 << 20
	}
	if o.TrailSlots <= 0 {
		o.TrailSlots = 10_000
	}
}

// initialConfiguration gives the initial members their IDs: 1..n by name.
func initialConfiguration(o *NodeOptions) (*paxos.Configuration, error) {
	members := append([]paxos.Member(nil), o.InitialCluster...)
	sort.Slice(members, func(i, j int) bool { return members[i].Name < members[j].Name })
	self := false
	for i := range members {
		m := &members[i]
		if m.Name == "" || i > 0 && members[i-1].Name == m.Name {
			return nil, fmt.Errorf("the initial cluster has a member without a name, or %q twice: give each replica a name of its own", m.Name)
		}
		*m = paxos.Member{ID: paxos.ReplicaID(i + 1), Name: m.Name, PeerAddress: m.PeerAddress, Voter: true}
		if m.Name == o.Name {
			self = true
			m.ClientAddress = o.ClientAddress
			if o.PeerAddress != "" {
				m.PeerAddress = o.PeerAddress
			}
		}
	}
	if !self {
		return nil, fmt.Errorf("this replica, %q, is not in the initial cluster (%s): name it there", o.Name, memberNames(members))
	}
	return &paxos.Configuration{Members: members, Cell: o.Cell}, nil
}

func memberNames(members []paxos.Member) string {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
	}
	return strings.Join(names, ", ")
}

// current is the configuration chosen, or the initial one before founding.
func (n *Node) current() *paxos.Configuration {
	if n.config != nil {
		return n.config
	}
	return n.initial
}

func (n *Node) peer(id paxos.ReplicaID) *peer {
	for _, p := range n.peers {
		if p.id == id {
			return p
		}
	}
	return nil
}

// Configuration returns the members with the addresses known at the moment:
// those of the initial cluster's list before those of slot 1, a connected
// peer's own before both. Before founding it is the initial members, with
// CellIdentity 0. The value is not changed afterwards and must not be.
func (n *Node) Configuration() *paxos.Configuration {
	if n.view != nil {
		return n.view
	}
	c := *n.current()
	c.Members = append([]paxos.Member(nil), c.Members...)
	for i := range c.Members {
		m := &c.Members[i]
		for _, given := range n.initial.Members {
			if given.Name == m.Name && given.PeerAddress != "" {
				m.PeerAddress = given.PeerAddress
			}
		}
		if m.ID == n.id {
			m.ClientAddress = n.o.ClientAddress
			m.Incarnation = n.incarnation
		}
		if p := n.peer(m.ID); p != nil && p.speaks() && p.hello.GetClientAddress() != "" {
			m.ClientAddress = p.hello.GetClientAddress()
		}
	}
	n.view = &c
	return n.view
}

// StateLimits is the most that every member can hold, as far as they have said:
// the smallest of each, this replica's own included.
func (n *Node) StateLimits() StateLimits {
	least := n.o.State
	for _, p := range n.peers {
		least.Nodes, least.Bytes = smaller(least.Nodes, p.state.Nodes), smaller(least.Bytes, p.state.Bytes)
	}
	return least
}

// smaller is the smaller of two limits of which 0 is none.
func smaller(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Status is a view for people.
func (n *Node) Status() NodeStatus {
	s := NodeStatus{
		Paxos:        n.px.Status(),
		Applied:      n.applied,
		SnapshotSlot: n.keep.newest,
		Founded:      n.config != nil,
		Connected:    make(map[paxos.ReplicaID]bool, len(n.peers)),
		State:        map[paxos.ReplicaID]StateLimits{n.id: n.o.State},
	}
	for _, p := range n.peers {
		s.Connected[p.id] = p.speaks()
		s.State[p.id] = p.state
	}
	if n.config == nil {
		s.Founding = n.foundingText()
	}
	s.InFlight = n.inFlight(&s.Paxos)
	return s
}

// Step takes one event.
func (n *Node) Step(now time.Duration, ev Event) {
	invariant.Assert(!n.begun, "an event comes between Begin and Take")
	n.now = max(n.now, now)
	switch ev := ev.(type) {
	case Tick:
		n.tick(ev)
	case PeerConnected:
		n.peerConnected(ev.Hello)
	case PeerDisconnected:
		n.peerDisconnected(ev.Peer)
	case PeerReceived:
		n.peerReceived(ev.Peer, ev.Message)
	case PeerArriving:
		n.fetchArriving(ev.Peer)
		n.px.Step(n.now, paxos.Arriving{From: ev.Peer})
	case PeerSent:
		n.px.Step(n.now, paxos.Sent{To: ev.Peer, Queued: ev.Queued})
	case AppendDone:
		if ev.Sequence > n.sequence {
			invariant.Assert(false, "record %d is said to be durable, the last one written was %d", ev.Sequence, n.sequence)
		}
		n.durable = max(n.durable, ev.Sequence)
		n.px.Step(n.now, paxos.Persisted{Sequence: ev.Sequence})
	case ReadDone:
		n.px.Step(n.now, paxos.LogRead{To: ev.To, Entries: ev.Entries, Trimmed: ev.Trimmed})
	case SnapshotSaved:
		n.snapshotSaved(ev)
	case SnapshotReadDone:
		n.snapshotRead(ev)
	case SnapshotReceived:
		n.snapshotReceived(ev)
	case SnapshotInstalled:
		n.snapshotInstalled(ev.Meta)
	case ProposeCommands:
		if n.config == nil {
			// Nothing but the configuration is proposed before it is chosen.
			invariant.Unreachable("only a leader that has applied its own first entry, and so slot 1, is given commands")
			n.fx.Dropped = append(n.fx.Dropped, ev.Commands...)
			return
		}
		n.px.Step(n.now, paxos.Propose{Commands: ev.Commands})
	case ConfirmLead:
		n.px.Step(n.now, paxos.ConfirmRead{ID: ev.ID})
	case HandOver:
		n.px.Step(n.now, paxos.Handover{})
	default:
		invariant.Assert(false, "event of unknown type %T", ev)
	}
}

func (n *Node) tick(t Tick) {
	n.px.Step(n.now, paxos.Label(t)) // also for the promise by which the cell is founded
	n.foundingTick()
	n.fetchTick()
	if n.ticks() {
		n.px.Step(n.now, paxos.Tick(t))
	}
}

// Begin closes the batch as far as the log is concerned, see NodeAPI.
func (n *Node) Begin(now time.Duration) Effects {
	n.now = max(n.now, now)
	if n.fatal != nil || n.config == nil || n.fetch.meta != nil {
		// Nothing may leave, or the order of what is done to the disk matters.
		return Effects{}
	}
	n.taken = n.px.Take(n.now)
	n.owe(&n.taken)
	n.begun = true
	fx := Effects{Append: n.fx.Append, Send: n.fx.Send, After: n.fx.After}
	n.fx.Append, n.fx.Send, n.fx.After = nil, nil, nil
	return fx
}

// Take closes the batch.
func (n *Node) Take(now time.Duration) Effects {
	n.now = max(n.now, now)
	if n.begun {
		n.begun = false
		n.finish(&n.taken)
		n.taken = paxos.Effects{}
	} else {
		n.drain()
	}
	n.install()
	n.save()
	n.trim()
	n.writeIdentity()
	fx := n.fx
	fx.Fatal = n.fatal
	n.fx = Effects{}
	return fx
}

// Gathering tells how many commands have to come together.
func (n *Node) Gathering(now time.Duration) int { return n.px.Gathering(now) }

// Awaits reports whether anything depends on AppendDone, and on peers' votes.
// Before founding all counts.
func (n *Node) Awaits() (flush bool, votes paxos.Slot) {
	if n.config == nil || n.identityOwed {
		return true, 0
	}
	return n.px.Awaits()
}

// Due tells when Take does something although nothing happens.
func (n *Node) Due(now time.Duration) time.Duration { return n.px.Due(now) }

// drain takes what paxos owes and passes it on.
func (n *Node) drain() {
	e := n.px.Take(n.now)
	n.owe(&e)
	n.finish(&e)
}

// owe passes on what goes to disk and peers.
func (n *Node) owe(e *paxos.Effects) {
	if e.Record != nil || len(e.After) > 0 {
		if e.Sequence <= n.sequence {
			invariant.Assert(false, "record %d comes behind record %d", e.Sequence, n.sequence)
		}
		n.sequence = e.Sequence
	}
	if e.Record != nil {
		n.record(e.Sequence, e.Record)
	}
	n.sendNow(e.Now)
	for i := range e.After {
		if m := &e.After[i]; n.maySend(m) {
			n.fx.After = append(n.fx.After, SendAfter{Sequence: e.Sequence, Send: outgoing(m)})
		}
	}
}

// finish applies what was chosen, and only then passes on what was proven or
// dropped: who hears of that finds the state as it has to be.
func (n *Node) finish(e *paxos.Effects) {
	for i := range e.Chosen {
		n.apply(e.Chosen[i])
	}
	n.fx.Confirmed = append(n.fx.Confirmed, e.Confirmed...)
	n.fx.Dropped = append(n.fx.Dropped, e.Dropped...)
	n.fx.DiskRead = append(n.fx.DiskRead, e.ReadLog...)
	n.fx.Notes = append(n.fx.Notes, e.Notes...)
	if e.Role != nil {
		n.role = e.Role.Role
		n.fx.Role = e.Role
	}
	if e.NeedSnapshot != 0 {
		n.needSnapshot(e.NeedSnapshot)
	}
}

// record remembers what is being made durable.
func (n *Node) record(sequence uint64, r *paxos.Record) {
	if r.Promised.Less(n.promised) {
		invariant.Assert(false, "a promise of %v follows one of %v", r.Promised, n.promised)
	}
	n.promised = r.Promised
	for _, e := range r.Entries {
		if e.Slot > n.applied {
			n.accepted.put(e)
		}
	}
	n.fx.Append = append(n.fx.Append, Append{Sequence: sequence, Record: r})
}

// sendNow passes on messages that depend on nothing. Followers that are equally
// far are sent the same accept: it is made, and encoded, once.
func (n *Node) sendNow(messages []paxos.Message) {
	var last *paxos.Message
	var made Send
	for i := range messages {
		m := &messages[i]
		if !n.maySend(m) {
			continue
		}
		if last != nil && sameAccept(last, m) {
			made.To = m.To
		} else {
			made = outgoing(m)
		}
		last = m
		n.fx.Send = append(n.fx.Send, made)
	}
}

// sameAccept reports whether two accepts differ in nothing but who gets them.
func sameAccept(a, b *paxos.Message) bool {
	return a.Kind == paxos.MsgAccept && b.Kind == paxos.MsgAccept &&
		a.Ballot == b.Ballot && a.Chosen == b.Chosen &&
		len(a.Entries) == len(b.Entries) && len(a.Entries) > 0 && &a.Entries[0] == &b.Entries[0]
}

func (n *Node) maySend(m *paxos.Message) bool {
	p := n.peer(m.To)
	return p != nil && p.speaks() && n.mayCampaign(m.Kind)
}

// outgoing makes a message for a peer.
func outgoing(m *paxos.Message) Send {
	return Send{
		To:      m.To,
		Message: &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: codec.EncodeMessage(m)}},
		Bulk:    m.Kind == paxos.MsgCatchUpReply || m.Kind == paxos.MsgValues,
	}
}

// apply hands a chosen entry to the state machine.
func (n *Node) apply(e paxos.Entry) {
	// Every slot is applied once, in order, without a gap.
	if e.Slot != n.applied+1 {
		invariant.Assert(false, "slot %d is applied behind slot %d", e.Slot, n.applied)
	}
	// Slot 1 founds the cell: no command is chosen before its members are.
	invariant.Assert(e.Slot != 1 || e.Value.Kind == paxos.Config, "slot 1 holds a value of kind %d and no configuration", e.Value.Kind)
	n.applied = e.Slot
	n.accepted.dropTo(e.Slot)
	if e.Value.Kind == paxos.Config {
		n.adopt(e.Value.Config)
	}
	n.sm.Apply(e)
	for _, c := range e.Value.Commands {
		n.keep.bytes += int64(len(c))
	}
}

func (n *Node) note(format string, args ...any) {
	n.fx.Notes = append(n.fx.Notes, fmt.Sprintf(format, args...))
}

func (n *Node) warn(format string, args ...any) {
	n.fx.Warnings = append(n.fx.Warnings, fmt.Sprintf(format, args...))
}

// stop makes the replica stop; the first reason counts.
func (n *Node) stop(err error) {
	if n.fatal == nil {
		n.fatal = err
	}
}

// Check asserts what is too costly to assert at every step; an error is a
// breach that paxos found.
func (n *Node) Check() error {
	n.accepted.check(n.applied)
	if n.durable > n.sequence {
		invariant.Assert(false, "record %d is durable, the last written is %d", n.durable, n.sequence)
	}
	invariant.Assert(n.keep.older <= n.keep.newest && n.keep.newest <= n.applied,
		"snapshots of slots %d and %d are kept, applied is %d", n.keep.older, n.keep.newest, n.applied)
	if n.keep.trimmed > n.keep.newest {
		invariant.Assert(false, "the log is cut at slot %d, the newest snapshot is of slot %d", n.keep.trimmed, n.keep.newest)
	}
	return n.px.Check()
}
