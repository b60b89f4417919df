package replog_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// A cell of nodes in one goroutine: disks that forget, a network that delays
// and cuts, time that the test moves. The same seed gives the same run.

const stepTime = 5 * time.Millisecond

type cell struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Duration
	hosts   []*host // by ID
	cut     map[[2]int]bool
	flying  []flight
	options func(*replog.NodeOptions)
	names   []string
	random  uint64 // incarnations and identities given out
	filler  int    // bytes that every snapshot carries besides its state
	loss    int    // percent of messages that are lost
	// history is the hash behind each slot as first applied anywhere: no life of
	// any replica may ever apply something else.
	history map[paxos.Slot]uint64
	// values is what was chosen: no log may ever give anything else for chosen.
	values map[paxos.Slot]string
}

type flight struct {
	due      time.Duration
	from, to int
	bytes    []byte
}

type host struct {
	c       *cell
	index   int
	name    string
	fs      *faultfs.FS
	storage *storage.Storage
	node    *replog.Node
	sm      *chain
	opened  *storage.Opened
	o       replog.NodeOptions
	events  []replog.Event // completions
	disk    []replog.Effects
	hello   *pb.PeerHello
	fatal   error
	notes   []string
	// What the disk holds that must not be forgotten: the promise and the newest
	// entry of each slot above base.
	promised paxos.Ballot
	voted    map[paxos.Slot]paxos.Entry
	base     paxos.Slot

	held bool // the disk begins nothing

	saves, installs, dropped int
	stopBefore               func(*replog.Effects) bool // crash instead of performing these
}

// chain is the state machine: a hash over everything applied.
type chain struct {
	c      *cell
	slot   paxos.Slot
	hash   uint64
	count  int // commands
	filler int
}

func (s *chain) Apply(e paxos.Entry) {
	if e.Slot != s.slot+1 {
		s.c.t.Fatalf("slot %d is applied behind %d", e.Slot, s.slot)
	}
	s.slot = e.Slot
	h := fnv.New64a()
	_ = binary.Write(h, binary.BigEndian, []uint64{s.hash, uint64(e.Slot), uint64(e.Value.Kind)})
	for _, c := range e.Value.Commands {
		_, _ = h.Write(c)
		s.count++
	}
	if e.Value.Config != nil {
		_ = binary.Write(h, binary.BigEndian, e.Value.Config.CellIdentity)
	}
	s.hash = h.Sum64()
	if was, ok := s.c.history[e.Slot]; ok && was != s.hash {
		s.c.t.Fatalf("two values were chosen in slot %d, or before it", e.Slot)
	}
	s.c.history[e.Slot] = s.hash
	s.c.values[e.Slot] = valueText(e.Value)
}

func (s *chain) Snapshot() replog.Snapshot { return *s }
func (s *chain) Restore(state any) {
	old := state.(chain)
	s.slot, s.hash, s.count = old.slot, old.hash, old.count
}

func (s chain) WriteSnapshot(w io.Writer) error {
	if err := binary.Write(w, binary.BigEndian, []uint64{uint64(s.slot), s.hash, uint64(s.count)}); err != nil {
		return err
	}
	_, err := w.Write(junk[:s.filler])
	return err
}

// junk fills snapshots; it does not compress.
var junk = func() []byte {
	b := make([]byte, 4<<20)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(b)
	return b
}()

func decodeChain(r io.Reader) (any, error) {
	var v [3]uint64
	if err := binary.Read(r, binary.BigEndian, &v); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	return chain{slot: paxos.Slot(v[0]), hash: v[1], count: int(v[2])}, nil
}

// newCell makes n replicas, none of them started.
func newCell(t testing.TB, seed uint64, n int, options func(*replog.NodeOptions)) *cell {
	c := &cell{t: t, rng: rand.New(rand.NewPCG(seed, 7)), cut: map[[2]int]bool{}, options: options, history: map[paxos.Slot]uint64{}, values: map[paxos.Slot]string{}}
	for i := 0; i < n; i++ {
		c.names = append(c.names, fmt.Sprintf("n%d", i+1))
		c.hosts = append(c.hosts, &host{c: c, index: i, name: c.names[i], fs: faultfs.New()})
	}
	return c
}

func (c *cell) fresh() uint64 { c.random++; return c.random*1000 + 7 }

// helloNow is what the host says of itself on a connection to a peer. It changes
// when the cell is founded.
func (h *host) helloNow() *pb.PeerHello {
	identity := h.node.Configuration().CellIdentity
	return &pb.PeerHello{
		Cell: h.o.Cell, Name: h.o.Name, Replica: uint64(h.index + 1), Incarnation: h.opened.Identity.GetIncarnation(),
		CellIdentity: identity, Founded: identity != 0,
		ClientAddress: h.o.ClientAddress, PeerAddress: h.o.PeerAddress, Version: replog.PeerVersion,
		StateNodes: h.o.State.Nodes, StateBytes: h.o.State.Bytes,
	}
}

func (h *host) start() error {
	c := h.c
	opened, err := storage.Open(storage.Options{
		FS: h.fs, Cell: "demo", Replica: h.name, SegmentBytes: 1, Decode: decodeChain, NewIncarnation: c.fresh,
	})
	if err != nil {
		return err
	}
	h.checkLog(opened)
	o := replog.NodeOptions{
		Paxos:         paxos.Options{Seed: c.rng.Uint64()},
		Cell:          "demo",
		Name:          h.name,
		PeerAddress:   h.name + ":1",
		ClientAddress: h.name + ":2",
		SnapshotSlots: 1 << 30,
		SnapshotBytes: 1 << 40,
		NewIdentity:   c.fresh,
		Now:           c.now,
	}
	for _, name := range c.names {
		o.InitialCluster = append(o.InitialCluster, paxos.Member{Name: name, PeerAddress: name + ":1"})
	}
	if c.options != nil {
		c.options(&o)
	}
	sm := &chain{c: c, filler: c.filler}
	node, err := replog.NewNode(o, &opened.Found, sm)
	if err != nil {
		return errors.Join(err, opened.Storage.Close())
	}
	h.opened, h.storage, h.node, h.sm = opened, opened.Storage, node, sm
	h.promised, h.base, h.voted = opened.Paxos.Promised, opened.Paxos.Applied, map[paxos.Slot]paxos.Entry{}
	for _, e := range opened.Paxos.Entries {
		h.voted[e.Slot] = e
	}
	h.o = o
	h.fatal, h.hello = nil, h.helloNow()
	for _, p := range c.hosts {
		c.connect(h, p)
	}
	h.settle()
	return nil
}

// checkLog reads all that the log on disk gives for chosen, as a peer that lags
// would be given it.
func (h *host) checkLog(o *storage.Opened) {
	for from := o.Paxos.First; from <= o.Paxos.Chosen; {
		entries, trimmed, err := o.Storage.Read(from, 1<<20, o.Paxos.Chosen)
		h.must(err)
		if trimmed || len(entries) == 0 {
			h.c.t.Fatalf("%s: the log begins at slot %d, slot %d is chosen, and slot %d cannot be read", h.name, o.Paxos.First, o.Paxos.Chosen, from)
		}
		for _, e := range entries {
			if was, ok := h.c.values[e.Slot]; ok && was != valueText(e.Value) {
				h.c.t.Fatalf("%s: its log gives %s for chosen in slot %d, where %s was chosen", h.name, valueText(e.Value), e.Slot, was)
			}
			from = e.Slot + 1
		}
	}
}

func valueText(v paxos.Value) string { return fmt.Sprintf("%d %q", v.Kind, v.Commands) }

func (c *cell) mustStart(hosts ...int) {
	c.t.Helper()
	for _, i := range hosts {
		if err := c.hosts[i].start(); err != nil {
			c.t.Fatalf("start n%d: %v", i+1, err)
		}
	}
}

func (h *host) up() bool { return h.node != nil }

func pairOf(a, b *host) [2]int {
	return [2]int{min(a.index, b.index), max(a.index, b.index)}
}

func (c *cell) connect(a, b *host) {
	if a == b || !a.up() || !b.up() || c.cut[pairOf(a, b)] {
		return
	}
	ha, hb := proto.CloneOf(a.hello), proto.CloneOf(b.hello)
	a.node.Step(c.now, replog.PeerConnected{Hello: hb})
	b.node.Step(c.now, replog.PeerConnected{Hello: ha})
}

func (c *cell) disconnect(a, b *host) {
	kept := c.flying[:0]
	for _, f := range c.flying {
		if !(f.from == a.index && f.to == b.index || f.from == b.index && f.to == a.index) {
			kept = append(kept, f)
		}
	}
	c.flying = kept
	for _, x := range [][2]*host{{a, b}, {b, a}} {
		if x[0].up() && x[1].index != x[0].index {
			x[0].node.Step(c.now, replog.PeerDisconnected{Peer: paxos.ReplicaID(x[1].index + 1)})
		}
	}
}

// partition cuts a host off from all others; heal undoes all cuts.
func (c *cell) partition(i int) {
	for _, p := range c.hosts {
		if p.index != i {
			c.disconnect(c.hosts[i], p)
			c.cut[pairOf(c.hosts[i], p)] = true
		}
	}
}

func (c *cell) heal() {
	was := c.cut
	c.cut = map[[2]int]bool{}
	for i := range c.hosts {
		for j := i + 1; j < len(c.hosts); j++ {
			if was[[2]int{i, j}] {
				c.connect(c.hosts[i], c.hosts[j])
			}
		}
	}
}

// crash takes the power away: what was not synced may be lost.
func (c *cell) crash(i int) {
	h := c.hosts[i]
	if !h.up() {
		return
	}
	h.node, h.storage = nil, nil
	h.events, h.disk = nil, nil
	for _, p := range c.hosts {
		if p != h {
			c.disconnect(h, p)
		}
	}
	h.fs = h.fs.Crash(c.rng)
}

// wipe empties the disk of a host that is down.
func (c *cell) wipe(i int) { c.hosts[i].fs = faultfs.New() }

// step lets a little time pass.
func (c *cell) step() {
	c.now += stepTime
	var due []flight
	kept := c.flying[:0]
	for _, f := range c.flying {
		if f.due <= c.now {
			due = append(due, f)
		} else {
			kept = append(kept, f)
		}
	}
	c.flying = kept
	for _, f := range due {
		if h := c.hosts[f.to]; h.up() {
			m := new(pb.PeerMessage)
			if err := proto.Unmarshal(f.bytes, m); err != nil {
				c.t.Fatal(err)
			}
			h.node.Step(c.now, replog.PeerReceived{Peer: paxos.ReplicaID(f.from + 1), Message: m})
		}
	}
	for _, h := range c.hosts {
		if !h.up() {
			continue
		}
		h.flush()
		events := h.events
		h.events = nil
		for _, ev := range events {
			h.node.Step(c.now, ev)
		}
		h.node.Step(c.now, replog.Tick{})
		h.settle()
	}
}

// settle takes what the node owes and performs it.
func (h *host) settle() {
	e := h.node.Take(h.c.now)
	if err := h.node.Check(); err != nil {
		h.c.t.Fatal(err)
	}
	if e.SetFounded != 0 {
		h.checkFounded()
	}
	if h.stopBefore != nil && h.stopBefore(&e) {
		h.stopBefore = nil
		h.c.crash(h.index)
		return
	}
	h.notes = append(append(h.notes, e.Notes...), e.Warnings...)
	if e.Fatal != nil {
		h.c.crash(h.index)
		h.fatal = e.Fatal
		return
	}
	h.dropped += len(e.Dropped)
	for _, s := range e.Send {
		h.send(s)
	}
	if len(e.Append) > 0 || len(e.After) > 0 || e.InstallSnapshot != nil || e.SetFounded != 0 || e.Trim != 0 {
		h.disk = append(h.disk, e)
	}
	h.slow(&e)
	if now := h.helloNow(); !proto.Equal(now, h.hello) {
		h.hello = now
		for _, p := range h.c.hosts {
			if p != h {
				h.send(replog.Send{To: paxos.ReplicaID(p.index + 1), Message: &pb.PeerMessage{Body: &pb.PeerMessage_Hello{Hello: now}}})
			}
		}
	}
}

func (h *host) send(s replog.Send) {
	c := h.c
	to := c.hosts[s.To-1]
	if !to.up() || c.cut[pairOf(h, to)] || c.rng.IntN(100) < c.loss {
		return
	}
	b, err := proto.Marshal(s.Message)
	if err != nil {
		c.t.Fatal(err)
	}
	c.flying = append(c.flying, flight{due: c.now + time.Duration(c.rng.IntN(10))*time.Millisecond, from: h.index, to: to.index, bytes: b})
}

// checkFounded checks that the disk, as it is, tells of the cell that the identity
// file is to name: a crash right behind the file must not leave it alone.
func (h *host) checkFounded() {
	o, err := storage.Open(storage.Options{FS: h.fs.CrashLost(), Cell: "demo", Replica: h.name, SegmentBytes: 1,
		Decode: decodeChain, NewIncarnation: func() uint64 { return 1 }})
	h.must(err)
	if e := o.Paxos.Entries; o.Paxos.Applied == 0 && (len(e) == 0 || e[0].Slot != 1 || e[0].Value.Kind != paxos.Config) {
		h.c.t.Fatalf("the identity file of %s would name a cell that its log on disk does not know", h.name)
	}
}

// flush performs what the disk is owed, as the shell does.
func (h *host) flush() {
	if h.held {
		return
	}
	works := h.disk
	h.disk = nil
	for i := range works {
		e := &works[i]
		if e.SetFounded != 0 {
			h.must(h.storage.SetFounded(e.SetFounded))
		}
		if s := e.InstallSnapshot; s != nil {
			h.checkInstall(s)
			h.must(h.storage.InstallSnapshot(s.Meta, s.Promised, s.Entries))
			h.installs++
			h.events = append(h.events, replog.SnapshotInstalled{Meta: s.Meta})
		}
		sequence := uint64(0)
		var records []*paxos.Record
		for _, a := range e.Append {
			records = append(records, a.Record)
			h.promised = a.Record.Promised
			for _, e := range a.Record.Entries {
				h.voted[e.Slot] = e
			}
			sequence = max(sequence, a.Sequence)
		}
		for _, a := range e.After {
			sequence = max(sequence, a.Sequence)
		}
		if len(records) > 0 {
			h.must(h.storage.Append(records))
			h.must(h.storage.Sync())
		}
		if sequence > 0 {
			h.events = append(h.events, replog.AppendDone{Sequence: sequence})
		}
		for _, a := range e.After {
			h.send(a.Send)
		}
		if e.Trim != 0 {
			h.must(h.storage.Trim(e.Trim))
		}
	}
}

// checkInstall checks that nothing that was written goes with the old log.
func (h *host) checkInstall(s *replog.InstallSnapshot) {
	if s.Promised.Less(h.promised) {
		h.c.t.Fatalf("%s: a snapshot with the promise %v takes the place of %v", h.name, s.Promised, h.promised)
	}
	h.base = paxos.Slot(s.Meta.GetSlot())
	kept := map[paxos.Slot]paxos.Entry{}
	for _, e := range s.Entries {
		if e.Slot <= h.base {
			h.c.t.Fatalf("%s: the entry of slot %d goes with the snapshot of slot %d", h.name, e.Slot, h.base)
		}
		kept[e.Slot] = e
	}
	for slot, e := range h.voted {
		if k, ok := kept[slot]; slot > h.base && (!ok || !k.Chosen && k.Ballot.Less(e.Ballot)) {
			h.c.t.Fatalf("%s: the vote %v in slot %d is lost with the snapshot of slot %d", h.name, e.Ballot, slot, h.base)
		}
	}
	h.voted = kept
}

// slow performs what runs beside the log.
func (h *host) slow(e *replog.Effects) {
	for _, r := range e.DiskRead {
		entries, trimmed, err := h.storage.Read(r.From, int(r.Limit), r.UpTo)
		h.must(err)
		h.events = append(h.events, replog.ReadDone{To: r.To, Entries: entries, Trimmed: trimmed})
	}
	if s := e.SaveSnapshot; s != nil {
		h.saves++
		err := h.storage.SaveSnapshot(s.Meta, s.Snapshot)
		h.events = append(h.events, replog.SnapshotSaved{Slot: paxos.Slot(s.Meta.GetSlot()), Err: err})
	}
	for _, r := range e.SnapshotRead {
		chunk, err := h.storage.ReadSnapshot(r.Slot, r.Offset, r.Limit)
		h.events = append(h.events, replog.SnapshotReadDone{To: r.To, Chunk: chunk, Err: err})
	}
	for _, ch := range e.ReceiveSnapshot {
		meta, state, err := h.storage.ReceiveSnapshot(ch)
		h.events = append(h.events, replog.SnapshotReceived{Meta: meta, State: state, Err: err})
	}
}

func (h *host) must(err error) {
	h.c.t.Helper()
	if err != nil {
		h.c.t.Fatalf("%s: %v", h.name, err)
	}
}

// until lets time pass until ok holds.
func (c *cell) until(what string, ok func() bool) {
	c.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		c.step()
	}
	c.t.Fatalf("after 30 s: not %s\n%s", what, c.story())
}

func (c *cell) pass(d time.Duration) {
	for end := c.now + d; c.now < end; {
		c.step()
	}
}

func (c *cell) story() string {
	var b strings.Builder
	for _, h := range c.hosts {
		fmt.Fprintf(&b, "%s: up %v, fatal %v\n", h.name, h.up(), h.fatal)
		if h.up() {
			fmt.Fprintf(&b, "  %+v\n", h.node.Status())
		}
		for _, n := range h.notes[max(0, len(h.notes)-30):] {
			fmt.Fprintf(&b, "  | %s\n", n)
		}
	}
	return b.String()
}

// leader is the one that leads with all open slots closed.
func (c *cell) leader() *host {
	for _, h := range c.hosts {
		if h.up() && h.node.Status().Paxos.Role == paxos.Leader {
			return h
		}
	}
	return nil
}

func (c *cell) untilLed() *host {
	c.t.Helper()
	c.until("led", func() bool { return c.leader() != nil })
	return c.leader()
}

// write has the leader take n commands, one slot each.
func (c *cell) write(n int) {
	c.t.Helper()
	for i := range n {
		l := c.untilLed()
		before := l.node.Status().Paxos.Last
		l.node.Step(c.now, replog.ProposeCommands{Commands: [][]byte{fmt.Appendf(nil, "command %d", i)}})
		l.settle()
		c.until("written", func() bool {
			s := l.node.Status()
			return !l.up() || s.Paxos.Last > before && s.Applied == s.Paxos.Last
		})
	}
}

// untilSame waits until the hosts (all that are up, if none is named) have
// applied the same, at least slot.
func (c *cell) untilSame(hosts ...int) {
	c.t.Helper()
	if len(hosts) == 0 {
		for i, h := range c.hosts {
			if h.up() {
				hosts = append(hosts, i)
			}
		}
	}
	c.until("the same everywhere", func() bool {
		l := c.leader()
		if l == nil || l.node.Status().Paxos.Last != l.sm.slot {
			return false
		}
		for _, i := range hosts {
			if c.hosts[i].sm.slot != l.sm.slot {
				return false
			}
		}
		return true
	})
	first := c.hosts[hosts[0]]
	for _, i := range hosts {
		if h := c.hosts[i]; h.sm.hash != first.sm.hash || h.sm.count != first.sm.count {
			c.t.Fatalf("%s and %s differ at slot %d: %d and %d commands", h.name, first.name, h.sm.slot, h.sm.count, first.sm.count)
		}
	}
}
