package paxos_test

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// cell is a small simulated cell, in the hands of a script or of chance: every
// message, flush, tick and crash happens when told to. What is said, stored
// and chosen is checked as it happens (see history).
type cell struct {
	now   time.Duration
	nodes []*node // nodes[i] has the ID i+1
	net   []*packet
	cut   map[[2]paxos.ReplicaID]bool
	hist  *history
	show  watcher
	small paxos.Options // the limits of the replicas
	conf  paxos.Configuration

	thrift paxos.ThriftCounts // of lives that have ended
}

// watcher is told what happens, for the transcripts.
type watcher interface {
	sent(m *paxos.Message)
	lost(m *paxos.Message, why string)
	took(n *node, e *paxos.Effects)
}

// packet is a message on its way.
type packet struct {
	m   paxos.Message
	was string // its text when it was sent, to see that nobody changes it under way
}

// node is a replica with its disk and what its driver remembers.
type node struct {
	id    paxos.ReplicaID
	r     *paxos.Replica // nil while it is down
	boot  int            // counts the starts
	disk  *disk
	slow  bool   // owed is flushed only when told to
	owed  []owed // taken and not yet durable, in order
	dirty bool   // stepped since the last Take

	sequence uint64 // of the last Effects owed
	applied  paxos.Slot
	role     paxos.RoleEvent
	reads    []paxos.ReadLog // wanted from disk, not answered yet
	needs    paxos.ReplicaID // a snapshot is wanted from here
}

// owed is an Effects whose flush has not happened yet.
type owed struct {
	sequence uint64
	record   *paxos.Record
	was      string
	after    []paxos.Message
}

// disk is what survives a crash: the fold of all durable records, and a
// snapshot that stands for everything up to its slot.
type disk struct {
	promised paxos.Ballot
	chosen   paxos.Slot
	entries  map[paxos.Slot]paxos.Entry
	last     paxos.Slot // highest slot with an entry
	snapshot paxos.Slot
	first    paxos.Slot // first slot that the log still has
}

func newDisk() *disk {
	return &disk{entries: make(map[paxos.Slot]paxos.Entry), first: 1}
}

func (d *disk) write(r *paxos.Record) {
	if r.Promised.Less(d.promised) {
		fail("the promise on disk goes back from %v to %v", d.promised, r.Promised)
	}
	d.promised = r.Promised
	d.chosen = max(d.chosen, r.Chosen)
	for _, e := range r.Entries {
		if e.Slot <= d.snapshot {
			continue // the snapshot has it
		}
		if old, ok := d.entries[e.Slot]; ok && !e.Chosen && !old.Chosen && e.Ballot.Less(old.Ballot) {
			fail("slot %d on disk goes back from %v to %v", e.Slot, old.Ballot, e.Ballot)
		}
		d.entries[e.Slot] = e
		d.last = max(d.last, e.Slot)
	}
}

// restored is what a start finds.
func (d *disk) restored() paxos.Restored {
	r := paxos.Restored{
		Promised: d.promised,
		Chosen:   max(d.chosen, d.snapshot),
		Applied:  d.snapshot,
		First:    d.first,
	}
	for s := d.snapshot + 1; s <= d.last; s++ {
		if e, ok := d.entries[s]; ok {
			r.Entries = append(r.Entries, e)
		}
	}
	return r
}

// trim drops the log up to and including slot.
func (d *disk) trim(slot paxos.Slot) {
	for s := d.first; s <= slot; s++ {
		delete(d.entries, s)
	}
	d.first = max(d.first, slot+1)
}

// members returns the configuration of n voters.
func members(n int) paxos.Configuration {
	c := paxos.Configuration{Cell: "test", CellIdentity: 7}
	for i := 1; i <= n; i++ {
		c.Members = append(c.Members, paxos.Member{ID: paxos.ReplicaID(i), Name: fmt.Sprintf("n%d", i), Incarnation: uint64(100 + i), Voter: true})
	}
	return c
}

// foundingBallot is the one at which slot 1 was chosen in a founded cell.
var foundingBallot = paxos.Ballot{Round: 1, Replica: 1}

// newCell starts n replicas. A founded cell has its configuration in slot 1
// on every disk. They have been up for as long as a replica that has just
// started promises nothing.
func newCell(n int, founded bool, small paxos.Options, show watcher) *cell {
	return newCellOf(members(n), founded, small, show)
}

func newCellOf(conf paxos.Configuration, founded bool, small paxos.Options, show watcher) *cell {
	n := len(conf.Members)
	c := &cell{cut: make(map[[2]paxos.ReplicaID]bool), hist: newHistory(n), show: show, small: small, conf: conf}
	for i := 1; i <= n; i++ {
		nd := &node{id: paxos.ReplicaID(i), disk: newDisk()}
		if founded {
			nd.disk.write(&paxos.Record{Promised: foundingBallot, Chosen: 1, Entries: []paxos.Entry{
				{Slot: 1, Ballot: foundingBallot, Chosen: true, Value: paxos.Value{Kind: paxos.Config, Config: &conf}}}})
		}
		c.nodes = append(c.nodes, nd)
	}
	for _, nd := range c.nodes {
		c.start(nd)
	}
	c.now += 500 * time.Millisecond
	return c
}

func (c *cell) node(id paxos.ReplicaID) *node { return c.nodes[id-1] }

// start starts a replica from its disk.
func (c *cell) start(n *node) {
	n.boot++
	n.owed, n.reads, n.needs, n.sequence, n.dirty = nil, nil, 0, 0, false
	n.applied, n.role = n.disk.snapshot, paxos.RoleEvent{}
	o := c.small
	o.ID, o.Configuration = n.id, c.conf
	o.Seed, o.Now = uint64(n.id)*1000+uint64(n.boot), c.now
	n.r = paxos.New(o, n.disk.restored())
	c.hist.started(n)
	c.take(n)
}

// crash stops a replica; of what it owes, the first keep are durable (a flush
// may have ended without anybody being told), the rest is lost. So are the
// messages that waited.
func (c *cell) crash(n *node, keep int) {
	for _, o := range n.owed[:keep] {
		if o.record != nil {
			n.disk.write(o.record)
		}
	}
	c.tally(n)
	n.r, n.owed, n.reads = nil, nil, nil
}

// tally adds what a life of a replica has held back.
func (c *cell) tally(n *node) {
	t := n.r.Status().Thrift
	c.thrift.HeldBack += t.HeldBack
	c.thrift.Hedged += t.Hedged
	c.thrift.Misses += t.Misses
}

// step gives a replica one event.
func (c *cell) step(n *node, ev paxos.Event) {
	n.dirty = true
	n.r.Step(c.now, ev)
	if err := n.r.Check(); err != nil {
		fail("replica %d after %T: %v", n.id, ev, err)
	}
}

// take closes the batch of a replica and does what it owes.
func (c *cell) take(n *node) {
	n.dirty = false
	e := n.r.Take(c.now)
	if err := n.r.Check(); err != nil {
		fail("replica %d after Take: %v", n.id, err)
	}
	if due := n.r.Due(c.now); due <= c.now {
		fail("replica %d has something to do at %v, and at %v Take has left it undone", n.id, due, c.now)
	}
	c.hist.took(c, n, &e)
	if c.show != nil {
		c.show.took(n, &e)
	}
	for i := range e.Now {
		c.send(n, e.Now[i])
	}
	if e.Record != nil || len(e.After) > 0 {
		if e.Sequence != n.sequence+1 {
			fail("replica %d: sequence %d follows %d", n.id, e.Sequence, n.sequence)
		}
		n.sequence = e.Sequence
		o := owed{sequence: e.Sequence, record: e.Record, after: e.After}
		if o.record != nil {
			o.was = fmt.Sprint(recordText(o.record))
		}
		n.owed = append(n.owed, o)
	}
	n.reads = append(n.reads, e.ReadLog...)
	if e.NeedSnapshot != 0 {
		n.needs = e.NeedSnapshot
	}
	if !n.slow && len(n.owed) > 0 {
		c.persist(n, len(n.owed))
		c.take(n)
	}
}

// takeAll closes all open batches.
func (c *cell) takeAll() {
	for _, n := range c.nodes {
		if n.r != nil && n.dirty {
			c.take(n)
		}
	}
}

// persist makes the first count of what n owes durable, tells the replica and
// lets the messages leave that waited for it.
func (c *cell) persist(n *node, count int) {
	if count == 0 {
		return
	}
	done := n.owed[:count:count]
	n.owed = n.owed[count:]
	for _, o := range done {
		if o.record == nil {
			continue
		}
		if now := recordText(o.record); now != o.was {
			fail("replica %d changed a record after handing it out:\n was %s\n now %s", n.id, o.was, now)
		}
		n.disk.write(o.record)
	}
	c.step(n, paxos.Persisted{Sequence: done[count-1].sequence})
	for _, o := range done {
		for i := range o.after {
			c.send(n, o.after[i])
		}
	}
}

// send puts a message on the network.
func (c *cell) send(n *node, m paxos.Message) {
	if m.From != n.id || m.To == n.id || m.To < 1 || int(m.To) > len(c.nodes) {
		fail("replica %d sends a message from %d to %d", n.id, m.From, m.To)
	}
	c.hist.left(n, &m)
	cut := c.cut[[2]paxos.ReplicaID{m.From, m.To}]
	switch {
	case c.show != nil && cut:
		c.show.lost(&m, "cut")
	case c.show != nil:
		c.show.sent(&m)
	}
	if cut {
		return
	}
	c.net = append(c.net, &packet{m: m, was: messageText(&m)})
}

// deliver gives the message at index i of the network to its receiver; keep
// leaves it on the way as well, so that it comes again.
func (c *cell) deliver(i int, keep bool) {
	p := c.net[i]
	if !keep {
		c.net = append(c.net[:i], c.net[i+1:]...)
	}
	if now := messageText(&p.m); now != p.was {
		fail("a message was changed after it was handed out:\n was %s\n now %s", p.was, now)
	}
	if n := c.node(p.m.To); n.r != nil {
		c.step(n, paxos.Receive{Message: p.m})
	} else if c.show != nil {
		c.show.lost(&p.m, "down")
	}
}

// tick lets time pass and tells every running replica.
func (c *cell) tick(d time.Duration) {
	c.now += d
	for _, n := range c.nodes {
		if n.r != nil {
			c.step(n, paxos.Tick{})
		}
	}
}

// answerRead answers the oldest read of the log that n wants from what is
// durable; what waits for its flush may not be in the file yet.
func (c *cell) answerRead(n *node) {
	q := n.reads[0]
	n.reads = n.reads[1:]
	if q.From < n.disk.first {
		c.step(n, paxos.LogRead{To: q.To, Trimmed: true})
		return
	}
	var out []paxos.Entry
	size := uint64(0)
	for s := q.From; s <= q.UpTo && size < q.Limit; s++ {
		e, ok := n.disk.entries[s]
		if !ok {
			break
		}
		e.Chosen = true
		for _, cmd := range e.Value.Commands {
			size += uint64(len(cmd))
		}
		size++
		out = append(out, e)
	}
	c.step(n, paxos.LogRead{To: q.To, Entries: out})
}

// snapshot writes a snapshot of n's state as applied and trims the log behind
// it, except for keep slots.
func (c *cell) snapshot(n *node, keep paxos.Slot) {
	c.persist(n, len(n.owed)) // the log reaches the snapshot's slot
	d := n.disk
	if n.applied <= d.snapshot {
		return
	}
	d.snapshot = n.applied
	if n.applied > keep && n.applied-keep >= d.first {
		d.trim(n.applied - keep)
		c.step(n, paxos.Trimmed{Slot: n.applied - keep})
	}
}

// install gives n the snapshot it needs, if its peer is up and has one. It
// reports whether there was one. Like the node, it first applies what was
// chosen meanwhile; a snapshot that was overtaken only trims the log.
func (c *cell) install(n *node) bool {
	from := c.node(n.needs)
	if from.r == nil || from.disk.snapshot <= n.applied {
		return false
	}
	n.needs = 0
	c.take(n)
	c.persist(n, len(n.owed))
	slot := from.disk.snapshot
	n.disk.snapshot = max(n.disk.snapshot, slot)
	n.disk.trim(slot)
	if slot <= n.applied {
		c.step(n, paxos.Trimmed{Slot: slot})
		return true
	}
	n.applied = slot
	c.hist.installed(n, slot)
	c.step(n, paxos.Installed{Slot: slot, Configuration: c.conf})
	return true
}

// violation is what a failed check panics with.
type violation string

func fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }
