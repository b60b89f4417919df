package paxos_test

import (
	"bytes"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
)

// history remembers everything that may never be contradicted, over all
// replicas and all their lives, and fails at the first contradiction.
type history struct {
	// chosen[s-1] is the value of slot s, as the first replica to report it had
	// it. Every other report of the slot must be the same.
	chosen []paxos.Value
	where  map[string]paxos.Slot // command -> slot it is chosen in
	gone   map[string]bool       // commands reported as dropped
	held   map[string]life       // commands given to a replica and in no record yet

	leaders  map[paxos.Ballot]life                  // who led at a ballot
	proposed map[paxos.Ballot]map[paxos.Slot]string // value sent for acceptance
	promised []paxos.Ballot                         // highest promise that left each replica
	reached  []paxos.Slot                           // chosen index of each replica in this life

	reads map[readKey]*readAsked
}

// life is one run of a replica from start to crash.
type life struct {
	id   paxos.ReplicaID
	boot int
}

type readKey struct {
	life
	read uint64
}

// readAsked is what a confirmed read must not miss.
type readAsked struct {
	at        time.Duration
	floor     paxos.Slot // highest slot that anybody had reported chosen
	confirmed bool
}

func newHistory(n int) *history {
	return &history{
		where:    make(map[string]paxos.Slot),
		gone:     make(map[string]bool),
		held:     make(map[string]life),
		leaders:  make(map[paxos.Ballot]life),
		proposed: make(map[paxos.Ballot]map[paxos.Slot]string),
		promised: make([]paxos.Ballot, n+1),
		reached:  make([]paxos.Slot, n+1),
		reads:    make(map[readKey]*readAsked),
	}
}

func sameValue(a, b *paxos.Value) bool {
	if a.Kind != b.Kind || a.Leader != b.Leader || len(a.Commands) != len(b.Commands) {
		return false
	}
	for i := range a.Commands {
		if !bytes.Equal(a.Commands[i], b.Commands[i]) {
			return false
		}
	}
	return (a.Config == nil) == (b.Config == nil) && valueText(a) == valueText(b)
}

func (h *history) top() paxos.Slot { return paxos.Slot(len(h.chosen)) }

// started notes a new life of a replica.
func (h *history) started(n *node) { h.reached[n.id] = n.disk.snapshot }

// given notes commands that a replica gets.
func (h *history) given(n *node, commands [][]byte) {
	for _, c := range commands {
		h.held[string(c)] = life{n.id, n.boot}
	}
}

// settled: once all is quiet no running replica sits on a command. It has
// proposed it, or has said that it drops it.
func (h *history) settled(c *cell) {
	for cmd, l := range h.held {
		if n := c.node(l.id); n.r != nil && n.boot == l.boot {
			fail("replica %d was given %s, which it neither proposed nor dropped", l.id, cmd)
		}
	}
}

// asked notes a read, to judge its confirmation by.
func (h *history) asked(c *cell, n *node, id uint64) {
	h.reads[readKey{life{n.id, n.boot}, id}] = &readAsked{at: c.now, floor: h.top()}
}

// took looks at what a replica wants done.
func (h *history) took(c *cell, n *node, e *paxos.Effects) {
	for i := range e.Now {
		k := e.Now[i].Kind
		if (k == paxos.MsgPromise || k == paxos.MsgAccepted) && e.Now[i].OK && !invariant.Planted(invariant.PromiseBeforeFlush) {
			fail("replica %d would send before its flush: %s", n.id, messageText(&e.Now[i]))
		}
	}
	if r := e.Record; r != nil {
		h.keeps(n, r)
	}
	for i := range e.Chosen {
		h.choose(c, n, &e.Chosen[i])
		// A leader knows of slots by the votes for what it proposed, and in no other way.
		if x := &e.Chosen[i]; n.role.Role >= paxos.Preparing && e.Role == nil && x.Ballot != n.role.Ballot {
			fail("replica %d leads at %v and reports slot %d chosen, which it has at %v", n.id, n.role.Ballot, x.Slot, x.Ballot)
		}
	}
	for _, d := range e.Dropped {
		if s, ok := h.where[string(d)]; ok {
			fail("replica %d drops %s, which is chosen in slot %d", n.id, d, s)
		}
		h.gone[string(d)] = true
		delete(h.held, string(d))
	}
	for _, r := range e.Confirmed {
		h.confirm(c, n, r)
	}
	if e.Role != nil {
		n.role = *e.Role
		h.lead(n, e.Role)
	}
	h.progress(n)
}

// keeps: a promise that has left is kept, over crashes too.
func (h *history) keeps(n *node, r *paxos.Record) {
	said := h.promised[n.id]
	if r.Promised.Less(said) {
		fail("replica %d promised %v and now writes %v: it forgot its promise", n.id, said, r.Promised)
	}
	for i := range r.Entries {
		e := &r.Entries[i]
		for _, cmd := range e.Value.Commands {
			delete(h.held, string(cmd))
		}
		if !e.Chosen && e.Ballot.Replica == n.id {
			h.propose(e.Ballot, e.Slot, valueText(&e.Value)) // its own, if to nobody else
		}
		if !e.Chosen && e.Ballot.Less(said) {
			fail("replica %d promised %v and accepts slot %d at %v", n.id, said, e.Slot, e.Ballot)
		}
	}
}

// choose: one value a slot, for ever; every replica reports each slot exactly
// once a life, in order; and chosen means that a majority of the disks has it.
func (h *history) choose(c *cell, n *node, e *paxos.Entry) {
	if e.Slot != n.applied+1 {
		fail("replica %d reports slot %d chosen after slot %d", n.id, e.Slot, n.applied)
	}
	n.applied = e.Slot
	if e.Slot <= h.top() {
		if old := &h.chosen[e.Slot-1]; !sameValue(old, &e.Value) {
			fail("slot %d: %s is chosen, replica %d says %s", e.Slot, valueText(old), n.id, valueText(&e.Value))
		}
		return
	}
	if e.Slot != h.top()+1 {
		fail("replica %d reports slot %d, nobody reported slot %d", n.id, e.Slot, h.top()+1)
	}
	have, voters := 0, 0
	for i, o := range c.nodes {
		if !c.conf.Members[i].Voter {
			continue
		}
		voters++
		d, ok := o.disk.entries[e.Slot]
		if e.Slot < o.disk.first || (ok && sameValue(&d.Value, &e.Value)) {
			have++
		}
	}
	if have <= voters/2 {
		fail("replica %d reports slot %d chosen: %s, but only %d disks have it", n.id, e.Slot, valueText(&e.Value), have)
	}
	if (e.Slot == 1) != (e.Value.Kind == paxos.Config) {
		fail("slot %d: %s is chosen; the configuration belongs in slot 1", e.Slot, valueText(&e.Value))
	}
	h.chosen = append(h.chosen, e.Value)
	for _, cmd := range e.Value.Commands {
		if h.gone[string(cmd)] {
			fail("%s was dropped and is chosen in slot %d", cmd, e.Slot)
		}
		if s, ok := h.where[string(cmd)]; ok {
			fail("%s was proposed once and is chosen in slots %d and %d", cmd, s, e.Slot)
		}
		h.where[string(cmd)] = e.Slot
	}
}

// confirm: a confirmed read sees all that was reported chosen before it was
// asked, and the proof begins after the asking.
func (h *history) confirm(c *cell, n *node, r paxos.Confirm) {
	a := h.reads[readKey{life{n.id, n.boot}, r.ID}]
	switch {
	case a == nil:
		fail("replica %d confirms read %d, which nobody asked", n.id, r.ID)
	case a.confirmed:
		fail("replica %d confirms read %d twice", n.id, r.ID)
	case r.Slot < a.floor:
		fail("replica %d confirms read %d at slot %d, but slot %d was chosen before it was asked", n.id, r.ID, r.Slot, a.floor)
	case r.Since < a.at || r.Since > c.now:
		fail("replica %d confirms read %d of %v as of %v at %v", n.id, r.ID, a.at, r.Since, c.now)
	}
	a.confirmed = true
}

// lead: a ballot belongs to its replica, and to one life of it.
func (h *history) lead(n *node, r *paxos.RoleEvent) {
	if r.Role != paxos.Preparing && r.Role != paxos.Leader {
		return
	}
	if r.Ballot.Replica != n.id {
		fail("replica %d leads at %v", n.id, r.Ballot)
	}
	me := life{n.id, n.boot}
	if was, ok := h.leaders[r.Ballot]; ok && was != me {
		fail("%v is led by replica %d in its lives %d and %d", r.Ballot, n.id, was.boot, me.boot)
	}
	h.leaders[r.Ballot] = me
}

// progress: the chosen index of a replica only grows while it lives.
func (h *history) progress(n *node) {
	s := n.r.Status()
	if s.Chosen < h.reached[n.id] {
		fail("replica %d: chosen index goes back from %d to %d", n.id, h.reached[n.id], s.Chosen)
	}
	if s.Chosen < n.applied {
		fail("replica %d: chosen index is %d, slot %d was reported", n.id, s.Chosen, n.applied)
	}
	h.reached[n.id] = s.Chosen
}

// installed: the snapshot stands for all slots up to its own.
func (h *history) installed(n *node, slot paxos.Slot) {
	h.reached[n.id] = max(h.reached[n.id], slot)
}

// left looks at a message as it leaves: promises are remembered, and a ballot
// proposes one value in a slot.
func (h *history) left(n *node, m *paxos.Message) {
	switch m.Kind {
	case paxos.MsgPrepare:
		// Else a crash now would let it use the ballot a second time.
		if n.disk.promised.Less(m.Ballot) {
			fail("replica %d prepares %v before its own promise is on disk", n.id, m.Ballot)
		}
	case paxos.MsgPromise:
		if m.OK && h.promised[n.id].Less(m.Ballot) {
			h.promised[n.id] = m.Ballot
		}
	case paxos.MsgCatchUpReply:
		for i := range m.Entries {
			e := &m.Entries[i]
			if e.Slot > h.top() || !sameValue(&h.chosen[e.Slot-1], &e.Value) {
				fail("replica %d gives slot %d: %s for chosen", n.id, e.Slot, valueText(&e.Value))
			}
		}
	case paxos.MsgValues:
		for i := range m.Entries {
			if e := &m.Entries[i]; e.Named || h.proposed[e.Ballot][e.Slot] != valueText(&e.Value) {
				fail("replica %d gives slot %d at %v: %s, which was never proposed there", n.id, e.Slot, e.Ballot, valueText(&e.Value))
			}
		}
	case paxos.MsgAccept:
		if m.Ballot.Replica != n.id {
			fail("replica %d proposes at %v", n.id, m.Ballot)
		}
		for i := range m.Entries {
			h.propose(m.Ballot, m.Entries[i].Slot, valueText(&m.Entries[i].Value))
		}
	}
}

// propose: one value in a slot at a ballot.
func (h *history) propose(b paxos.Ballot, slot paxos.Slot, text string) {
	slots := h.proposed[b]
	if slots == nil {
		slots = make(map[paxos.Slot]string)
		h.proposed[b] = slots
	}
	if was, ok := slots[slot]; ok && was != text {
		fail("%v proposes %s and %s in slot %d", b, was, text, slot)
	}
	slots[slot] = text
}
