package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/peer/lane"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
	"github.com/seed70370324/lockd/store"
)

const (
	cellName    = "sim"
	wallStart   = int64(1_750_000_000_000) // Unix milliseconds at the start of every run
	tickEvery   = 20 * millisecond
	loopLatency = 150 * microsecond
	roomReserve = 512 << 10 // twice what the master keeps free for other answers
	roomIdle    = 768 << 10 // the largest update of a watch, and that
)

// process is the shell around one replica: what goroutines, sockets and files
// are in the daemon. It has a mailbox; a loop that Steps all that is in it and
// Takes what is owed; a disk that does one thing at a time.
type process struct {
	w     *World
	index int
	id    paxos.ReplicaID
	name  string
	fs    *faultfs.FS
	clock clock

	up          bool
	boot        int // counts the starts: what was under way for an earlier one is void
	refused     error
	aside       bool // its fault outlasts all others
	pauses      int  // pauses in force
	role        replica.Role
	rep         *replica.Replica
	storage     *storage.Storage
	opened      *storage.Opened
	identity    uint64 // of the cell, once known
	mailbox     []replica.Event
	spare       []replica.Event // memory for the next mailbox
	looping     bool
	turn        func() // takeTurn of this life, made once: a closure for each costs memory
	look        func() // lookDue of this life, likewise
	due         bool   // the loop is to run although nothing came
	dueAt       int64  // true time at which it is looked next whether it is; 0: none
	lastTick    time.Duration
	frozen      []func() // ends of disk work that came during a pause
	torn        bool     // what is on the disk may be doubtful
	spoiled     bool     // the disk has rotted, or lost a file
	wounds      []wound  // what was done to it then
	emptied     bool     // the disk was exchanged for an empty one
	powerGone   bool     // the next crash takes the power too
	doomed      int      // and it comes amid the next long flush of the log, or the last of so many
	amid        bool     // it has come so
	warned      bool     // a stranger has refused it in this life
	founderDied int      // so often while the cell was founded
	mood        mood     // what the last turn has left open
	full        bool     // nothing more fits on the disk
	unreadable  string   // a file of which a byte cannot be read at the moment
	// pageCacheLies: a flush has failed and only the process has ended: what was
	// not flushed is still seen and will never be durable.
	pageCacheLies bool
	keeping       keeping  // a script says what its next end leaves on the disk
	notes         []string // of the last start
	installs      int
	disk          disk
	connected     []bool // by index: the connection to that replica stands
	conns         map[replica.ConnID]*conn
	connOrder     []*conn // the same, by age
	said          said
	spoken        lane.Rank // highest ballot in which it has spoken on narrow links
	applied       paxos.Slot
	checked       paxos.Slot          // the state behind this slot has been checked in this life
	alien         func(replica.Event) // takes what comes: no replica runs here

	// See check_expiry.go.
	stood, stoodAt int64
	leases         leaseView

	// What the story has told last of a leader.
	askedFirst string
	thrift     paxos.ThriftCounts
}

func (p *process) now() time.Duration { return p.clock.read(p.w.now) }

func (p *process) address() string { return p.name + ":7101" }

// incarnation is that of the replica's disk.
func (p *process) incarnation() uint64 { return p.opened.Identity.GetIncarnation() }

// hello is what a replica says first on a connection to another.
func (p *process) hello() *pb.PeerHello {
	return &pb.PeerHello{
		Cell: cellName, Name: p.name, Replica: uint64(p.id),
		Incarnation:  p.incarnation(),
		CellIdentity: p.identity, Founded: p.identity != 0,
		ClientAddress: p.address(), PeerAddress: p.name + ":7201", Version: replog.PeerVersion, Lane: "main",
		StateNodes: p.limits().Nodes, StateBytes: p.limits().Bytes,
	}
}

// start opens the data and starts the replica, as a new process would.
func (p *process) start() {
	w := p.w
	p.boot++
	p.askedFirst, p.thrift = "", paxos.ThriftCounts{}
	p.mailbox, p.looping, p.frozen, p.lastTick, p.dueAt = nil, false, nil, p.now(), 0
	p.connected = make([]bool, len(w.replicas))
	p.conns, p.connOrder = map[replica.ConnID]*conn{}, nil
	p.spoken = lane.Rank{}
	p.doomed, p.warned, p.mood = 0, false, mood{flush: true}
	p.disk = disk{p: p, hung: p.disk.hung, slow: p.disk.slow}
	if w.faulty && w.faultRandom.chance(w.plan.crashInOpen) {
		p.fs.StopAfter(int(w.faultRandom.below(12)))
	}
	opened, err := storage.Open(storage.Options{
		FS: p.fs, Cell: cellName, Replica: p.name, SegmentBytes: w.plan.segmentBytes,
		Decode: replica.DecodeSnapshot, NewIncarnation: func() uint64 { return w.diskRandom.uint64()>>1 | 1 },
	})
	if err != nil {
		p.refuse(err)
		return
	}
	p.notes = opened.Notes
	p.opened, p.storage, p.identity = opened, opened.Storage, opened.Identity.GetCellIdentity()
	if opened.Empty && p.wounded("identity", true) {
		// Nothing had been written behind it yet: this is a new disk.
		p.emptied = true
	}
	if !p.emptied {
		p.checkRemembers(opened)
	}
	p.applied, p.checked = opened.Paxos.Applied, 0
	if s, ok := opened.State.(*store.Store); ok {
		w.history.checkState(p, p.applied, s)
	}
	if w.telling() {
		w.tell(p.name, "starts: promised %v, chosen %d, snapshot %d, %d entries above it",
			opened.Paxos.Promised, opened.Paxos.Chosen, opened.Paxos.Applied, len(opened.Paxos.Entries))
		for _, note := range opened.Notes {
			w.tell(p.name, "found at its start: %s", note)
		}
	}
	for _, note := range opened.Notes {
		if strings.Contains(note, "torn last write") {
			w.happened(FaultTailCut)
		}
	}
	if p.pageCacheLies {
		p.pageCacheLies = false
		w.happened(FaultPageCacheLies)
	}
	p.up, p.torn = true, false
	rep, err := replica.New(p.options(), &opened.Found)
	if err != nil {
		w.fail("start", "%s cannot start from its own data: %v", p.name, err)
		return
	}
	p.rep = rep
	w.trace.add(w.now, "start", uint64(p.index), uint64(p.boot), uint64(opened.Paxos.Chosen))
	boot := p.boot
	p.turn = func() { p.takeTurn(boot) }
	p.look = func() { p.lookDue(boot) }
	p.due = true
	p.wake()
}

// refuse handles data that the log will not open. It is right to refuse when a
// crash may have left doubtful bytes, the disk has rotted or a file is gone, and
// the refusal names what was done to this disk; the run sees to it that a majority
// is spared.
func (p *process) refuse(err error) {
	w := p.w
	var damaged *ondisk.DamagedError
	switch {
	case isDiskFault(err):
		w.tell(p.name, "its disk fails while it starts: %v", err)
		if failedOp(err) == opRead {
			w.happened(FaultReadError)
		}
		p.powerGone = p.powerGone || !(errors.Is(err, faultfs.ErrNoSpace) || failedOp(err) == opRead)
		p.crashDisk()
		wait := w.downTime()
		if p.unreadable != "" {
			wait += 100 * millisecond
		}
		w.restartLater(p, wait)
		return
	case !p.explains(err):
		w.fail("start", "%s cannot open its own data, and nothing that was done to its disk explains it: %v", p.name, err)
		return
	case errors.As(err, &damaged) && damaged.Doubtful:
		w.happened(FaultRefusedDoubtful)
	default:
		w.happened(FaultRefusedDamaged)
	}
	p.out(err)
}

// out takes down that a replica has refused its data, for good.
func (p *process) out(err error) {
	w := p.w
	p.refused = err
	w.counts.refused++
	text := err.Error()
	var damaged *ondisk.DamagedError
	if errors.As(err, &damaged) && !strings.Contains(text, damaged.File) {
		w.fail("start", "%s refuses to start and does not say where its data are damaged: %s", p.name, text)
	}
	w.trace.add(w.now, "refused", uint64(p.index), uint64(len(text)))
	w.tell(p.name, "refuses to start: %v", err)
}

// spent counts the replicas that are out, or may be found to be at their next
// start: never more than a majority can do without.
func (w *World) spent() int {
	n := 0
	for _, p := range w.replicas {
		if p.torn || p.spoiled || p.emptied || p.refused != nil {
			n++
		}
	}
	return n
}

// expendable reports whether the cell can do without this replica, too.
func (w *World) expendable(p *process) bool {
	return !p.torn && !p.spoiled && !p.emptied && p.refused == nil && w.spent() < (len(w.replicas)-1)/2
}

func (p *process) options() replica.Options {
	w := p.w
	o := replica.Options{
		Version:  "simulated",
		WallMS:   p.wallMS,
		DriftPPM: 10_000,
		Observer: &observer{p: p, boot: p.boot},
	}
	o.Node = replog.NodeOptions{
		Cell: cellName, Name: p.name, PeerAddress: p.name + ":7201", ClientAddress: p.address(),
		SnapshotSlots: unlessDefault(w.plan.snapshotSlots, defaultSnapshot), TrailSlots: unlessDefault(w.plan.trailSlots, defaultTrail),
		NewIdentity: func() uint64 { return w.diskRandom.uint64()>>1 | 1 },
		Now:         p.now(),
	}
	l := &w.plan.limits
	o.Node.SnapshotBytes = l.snapshotBytes
	o.Node.Paxos = paxos.Options{Seed: w.diskRandom.uint64(), Now: p.now(),
		WindowSlots: l.windowSlots, WindowBytes: l.windowBytes, BatchBytes: l.batchBytes, MemoryBytes: l.memoryBytes}
	o.MaxPending, o.MaxPendingSession, o.MaxWatchesPerConn = l.pending, l.pendingSession, l.watches
	if l.room > 0 {
		o.Room = p.room
	}
	o.MaxSessions, o.MaxSessionsPerConn, o.MaxConnections, o.MaxFrame = l.sessions, l.connSessions, l.connections, l.frame
	if p.smallFrames() {
		o.MaxFrame = w.plan.load.kinds.smallFrame
	}
	o.WatchTopicBytes, o.WatchLogBytes = l.watchTopic, l.watchLog
	o.Node.State = p.limits()
	for _, q := range w.replicas {
		o.Node.InitialCluster = append(o.Node.InitialCluster,
			paxos.Member{Name: q.name, PeerAddress: q.name + ":7201"})
	}
	return o
}

// unlessDefault is 0 for what the daemon takes by itself.
func unlessDefault(n, standard int) int {
	if n == standard {
		return 0
	}
	return n
}

// wallMS is the replica's wall clock, which differs from those of the others.
func (p *process) wallMS() int64 { return wallStart + int64(p.index)*700 + p.w.now/millisecond }

// room says how much a client can be sent now: what is queued for it has taken
// its part. Enough for every state of a watch is there only while nothing is.
func (p *process) room(id replica.ConnID, deep bool) int {
	c := p.conns[id]
	if c == nil {
		return 0
	}
	queued := 0
	for _, data := range c.down.queue {
		queued += len(data)
	}
	if c.c.raw != nil {
		queued *= rawWeight
	}
	switch {
	case deep && queued == 0:
		return 64 << 20
	case deep:
		return 0
	}
	// The first state of a watch has to fit, and what the master keeps free for
	// answers, twice; and while nothing is queued every update of a watch.
	l := &p.w.plan.load
	n := max(0, p.w.plan.limits.room+l.pathsOfEach*(int(l.valueBytes)+1000)+roomReserve-queued)
	if queued == 0 {
		n = max(n, roomIdle)
	}
	return n
}

// post puts an event into the mailbox and wakes the loop.
func (p *process) post(ev replica.Event) {
	if !p.up {
		return
	}
	if p.alien != nil {
		p.alien(ev)
		return
	}
	p.mailbox = append(p.mailbox, ev)
	if p.matters(ev) {
		p.wake()
	}
}

func (p *process) wake() {
	if p.looping || p.pauses > 0 || (len(p.mailbox) == 0 && !p.due) {
		return
	}
	p.looping = true
	late := loopLatency
	if p.index < p.w.plan.slowReplicas && p.w.faulty {
		late += p.w.plan.turnMost
	}
	p.w.after(p.w.netRandom.below(late), p.turn)
}

// takeTurn runs the loop of one life once it has been woken.
func (p *process) takeTurn(boot int) {
	if p.boot == boot && p.up {
		p.looping = false
		p.loop()
	}
}

// loop is one turn: everything in the mailbox, the time if it is due, then
// what is owed.
func (p *process) loop() {
	if p.pauses > 0 {
		return
	}
	batch := p.mailbox
	p.mailbox, p.due, p.spare = p.spare, false, nil
	now := p.now()
	for _, ev := range batch {
		p.rep.Step(now, ev)
	}
	clear(batch)
	p.spare = batch[:0]
	if now-p.lastTick >= nanos(tickEvery) {
		p.lastTick = now
		p.rep.Step(now, replog.Tick{WallSeconds: p.wallMS() / 1000})
	}
	first := p.rep.Begin(now)
	p.performLog(&first)
	if p.rep == nil {
		return // it did not survive that
	}
	p.perform(p.rep.Take(now))
	if p.rep == nil {
		return
	}
	p.feels()
	p.sleep()
}

// nextDue is the time at which the loop runs although nothing comes.
func (p *process) nextDue() time.Duration {
	return min(p.rep.Due(p.now()), p.lastTick+nanos(tickEvery))
}

// sleep wakes the loop in time for the next Tick, and for what the replica does
// although nothing comes.
func (p *process) sleep() {
	if !p.up {
		return
	}
	w := p.w
	at := max(p.clock.when(p.nextDue()), w.now)
	if p.dueAt != 0 && p.dueAt <= at {
		return // it is looked earlier
	}
	p.dueAt = at
	w.at(at, p.look)
}

// lookDue looks whether the loop is due; one that an earlier look has replaced
// looks at nothing.
func (p *process) lookDue(boot int) {
	if p.boot != boot || !p.up || p.dueAt != p.w.now {
		return
	}
	p.dueAt = 0
	if p.nextDue() <= p.now() {
		p.due = true
		p.wake()
		return
	}
	p.sleep()
}

// performLog hands disk and peers their part.
func (p *process) performLog(e *replog.Effects) {
	for _, s := range e.Send {
		p.w.sendPeer(p, s)
	}
	p.disk.take(e)
}

// perform does what the replica asks for, in the order in which the daemon's
// shell does it.
func (p *process) perform(e replica.Effects) {
	w := p.w
	p.tellEffects(&e)
	p.checkExpiries(e.Notes)
	if e.Log.Fatal != nil {
		if p.emptied {
			p.refusedAsEmptied(e.Log.Fatal)
			return
		}
		if p.refusedByStranger(e.Log.Fatal) {
			return
		}
		w.fail("fatal", "%s stops itself: %v", p.name, e.Log.Fatal)
		return
	}
	p.performLog(&e.Log)
	if p.rep == nil {
		return // it did not survive that
	}
	for _, s := range e.Conns {
		if c := p.conns[s.Conn]; c != nil {
			c.sendDown(s.Message)
		}
	}
	for _, s := range e.Close {
		if c := p.conns[s.Conn]; c != nil {
			c.finishDown(s.Reason)
		}
	}
	if e.Role != p.role {
		p.role = e.Role
		w.roleChanged(p)
	}
	if w.telling() {
		p.tellLeader()
	}
}

func (p *process) tellEffects(e *replica.Effects) {
	w := p.w
	if !w.telling() {
		return
	}
	for _, n := range e.Log.Notes {
		w.tell(p.name, "log: %s", n)
	}
	for _, n := range e.Log.Warnings {
		w.tell(p.name, "log warns: %s", n)
	}
	for _, n := range e.Notes {
		if n.Text == master.NoteExpiring {
			continue // see checkExpiries
		}
		w.tell(p.name, "tells its operator (%s): %s %v", n.Level, n.Text, fmt.Sprint(n.Args...))
	}
}

// crash ends the process as kill -9 or a power cut does. What was not flushed
// is lost, or, with tearing, any part of it.
func (p *process) crash(why string) {
	if !p.up {
		return
	}
	w := p.w
	w.trace.add(w.now, "crash", uint64(p.index))
	w.tell(p.name, "CRASH (%s)", why)
	p.countThrift()
	p.up, p.role, p.mailbox, p.rep = false, replica.Role{}, nil, nil
	p.boot++
	p.disk.crash()
	for _, c := range p.connOrder {
		c.serverDied()
	}
	p.conns, p.connOrder = nil, nil
	w.roleChanged(p)
}

// countThrift counts what the replica held back in this life.
func (p *process) countThrift() {
	if p.rep == nil {
		return // it could not start
	}
	m := p.rep.Metrics()
	for _, n := range m.Limited {
		p.w.faults[FaultRefusedByLimit] += n
	}
	t := m.Thrift
	p.w.faults[FaultHeldBack] += t.HeldBack
	p.w.faults[FaultHedged] += t.Hedged
	p.w.faults[FaultThriftMissed] += t.Misses
}

// pause freezes the process (SIGSTOP, a hung host) until resume.
func (p *process) pause() {
	if p.pauses == 0 {
		p.stand()
	}
	p.pauses++
}

func (p *process) resume() {
	if p.pauses == 0 {
		return
	}
	p.pauses--
	if p.pauses == 0 {
		p.walk()
	}
	if p.pauses > 0 || !p.up {
		return
	}
	thawed := p.frozen
	p.frozen = nil
	for _, f := range thawed {
		f()
	}
	p.due = true
	p.wake()
}

var _ replica.API = (*replica.Replica)(nil)
