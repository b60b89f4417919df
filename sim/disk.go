package sim

import (
	"errors"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// disk stands in for the daemon's disk goroutines. One does what has an order
// (appends, the installation of a snapshot, trimming) one thing at a time, and
// all appends that gather while it is busy go under the next flush. Snapshots
// are written and read beside it.
type disk struct {
	p      *process
	busy   bool
	queue  []diskJob
	beside []func() // received pieces of a snapshot, in order
	moving bool

	flushing bool // records are written, and their flush is under way

	hung  bool     // nothing ends
	stuck []func() // what would have ended meanwhile
	slow  int64    // everything takes up to that much longer
}

// diskJob is one thing to do in order: either a record to append (perhaps an
// empty one: only messages that wait for what came before) or an act.
type diskJob struct {
	sequence uint64
	record   *paxos.Record
	sends    []replog.Send
	act      func()
}

// flushed is what a flush makes durable and what may leave then.
type flushed struct {
	sequence uint64
	sends    []replog.Send
}

// take queues everything that the log wants from the disk, in the order in
// which the daemon's disk goroutine does it.
func (d *disk) take(e *replog.Effects) {
	if e.SetFounded != 0 {
		identity := e.SetFounded
		d.queue = append(d.queue, diskJob{act: func() {
			if d.must("write the identity", d.p.storage.SetFounded(identity)) {
				d.p.identity = identity
			}
		}})
	}
	if s := e.InstallSnapshot; s != nil {
		d.queue = append(d.queue, diskJob{act: func() { d.install(s) }})
	}
	d.takeAppends(e)
	if e.Trim != 0 {
		slot := e.Trim
		d.queue = append(d.queue, diskJob{act: func() { d.must("trim the log", d.p.storage.Trim(slot)) }})
	}
	d.takeBeside(e)
	d.next()
}

func (d *disk) takeAppends(e *replog.Effects) {
	i := 0
	for _, a := range e.After {
		for i < len(e.Append) && e.Append[i].Sequence <= a.Sequence {
			d.queue = append(d.queue, diskJob{sequence: e.Append[i].Sequence, record: e.Append[i].Record})
			i++
		}
		last := len(d.queue) - 1
		if last < 0 || d.queue[last].act != nil || d.queue[last].sequence != a.Sequence {
			d.queue = append(d.queue, diskJob{sequence: a.Sequence})
			last++
		}
		d.queue[last].sends = append(d.queue[last].sends, a.Send)
	}
	for ; i < len(e.Append); i++ {
		d.queue = append(d.queue, diskJob{sequence: e.Append[i].Sequence, record: e.Append[i].Record})
	}
}

// next begins the next job or flush, if the disk is free.
func (d *disk) next() {
	if d.busy || len(d.queue) == 0 {
		return
	}
	d.busy = true
	if act := d.queue[0].act; act != nil {
		d.queue = d.queue[1:]
		d.later(d.latency(), func() {
			act()
			d.done()
		})
		return
	}
	var batch flushed
	var records []*paxos.Record
	for len(d.queue) > 0 && d.queue[0].act == nil {
		job := d.queue[0]
		d.queue = d.queue[1:]
		batch.sequence = job.sequence
		batch.sends = append(batch.sends, job.sends...)
		if job.record != nil {
			records = append(records, job.record)
		}
	}
	if len(records) == 0 {
		d.later(0, func() { d.flushDone(batch) })
		return
	}
	if !d.must("append", d.p.storage.Append(records)) {
		return
	}
	d.flushing = true
	wait := d.latency()
	d.p.dieAmid(wait, bytesOf(records))
	d.later(wait, func() {
		d.flushing = false
		if d.must("flush", d.p.storage.Sync()) {
			d.flushDone(batch)
		}
	})
}

// flushDone reports to the replica; what waited for the flush leaves.
func (d *disk) flushDone(batch flushed) {
	p := d.p
	p.w.trace.add(p.w.now, "flushed", uint64(p.index), batch.sequence)
	p.post(replog.AppendDone{Sequence: batch.sequence})
	for _, s := range batch.sends {
		p.w.sendPeer(p, s)
	}
	d.done()
}

func (d *disk) done() {
	d.busy = false
	d.next()
}

// later runs f unless the process has ended by then: what was under way dies
// with it.
func (d *disk) later(wait int64, f func()) {
	p, boot := d.p, d.p.boot
	p.w.after(wait, func() {
		switch {
		case !p.up || p.boot != boot:
		case d.hung:
			d.stuck = append(d.stuck, f)
		case p.pauses > 0:
			p.frozen = append(p.frozen, f)
		default:
			f()
		}
	})
}

func (d *disk) latency() int64 {
	w := d.p.w
	if d.slow > 0 {
		return w.diskRandom.between(d.slow/8, d.slow)
	}
	if w.faulty && w.diskRandom.chance(w.plan.slowFlush) {
		w.happened(FaultSlowFlush)
		return w.diskRandom.between(w.plan.flushHi, w.plan.slowMost)
	}
	return w.diskRandom.skewed(w.plan.flushLo, w.plan.flushHi)
}

func (d *disk) install(s *replog.InstallSnapshot) {
	if !d.must("install a snapshot", d.p.storage.InstallSnapshot(s.Meta, s.Promised, s.Entries)) {
		return
	}
	d.p.installs++
	d.p.w.counts.installs++
	d.p.w.happened(FaultSnapshotInstalled)
	if w := d.p.w; w.telling() {
		w.tell(d.p.name, "has installed the snapshot of slot %d", s.Meta.GetSlot())
	}
	d.p.post(replog.SnapshotInstalled{Meta: s.Meta})
}

// takeBeside starts what needs no order with the appends.
func (d *disk) takeBeside(e *replog.Effects) {
	p := d.p
	for _, r := range e.DiskRead {
		d.later(d.latency(), func() {
			entries, trimmed, err := p.storage.Read(r.From, int(r.Limit), r.UpTo)
			if !d.must("read the log", err) {
				return
			}
			p.w.happened(FaultReadBack)
			p.post(replog.ReadDone{To: r.To, Entries: entries, Trimmed: trimmed})
		})
	}
	if s := e.SaveSnapshot; s != nil {
		d.later(d.latency()*3, func() {
			err := p.storage.SaveSnapshot(s.Meta, s.Snapshot)
			switch {
			case err == nil:
				p.w.counts.snapshots++
				p.w.tell(p.name, "has saved a snapshot of slot %d", s.Meta.GetSlot())
			case !d.bearable("save a snapshot", err):
				return
			}
			p.post(replog.SnapshotSaved{Slot: paxos.Slot(s.Meta.GetSlot()), Err: err})
		})
	}
	for _, r := range e.SnapshotRead {
		d.later(d.latency(), func() {
			chunk, err := p.storage.ReadSnapshot(r.Slot, r.Offset, r.Limit)
			if failedOp(err) == opRead {
				d.count(err)
			}
			p.post(replog.SnapshotReadDone{To: r.To, Chunk: chunk, Err: err})
		})
	}
	for _, c := range e.ReceiveSnapshot {
		d.beside = append(d.beside, func() { d.receive(c) })
	}
	d.nextBeside()
}

func (d *disk) nextBeside() {
	if d.moving || len(d.beside) == 0 {
		return
	}
	d.moving = true
	f := d.beside[0]
	d.beside = d.beside[1:]
	d.later(d.latency(), func() {
		f()
		d.moving = false
		d.nextBeside()
	})
}

func (d *disk) receive(c *pb.SnapshotChunk) {
	meta, state, err := d.p.storage.ReceiveSnapshot(c)
	if isDiskFault(err) && !d.bearable("receive a snapshot", err) {
		return
	}
	if d.p.w.telling() {
		d.p.w.tell(d.p.name, "has received a piece of the snapshot of slot %d (last %v, error %v)", c.GetSlot(), c.GetLast(), err)
	}
	if c.GetLast() && c.GetOffset() > 0 && err == nil {
		d.p.w.happened(FaultSnapshotPieces)
	}
	d.p.post(replog.SnapshotReceived{Meta: meta, State: state, Err: err})
}

// must reports whether the disk did what it was asked for. After a fault of
// the disk the process stops, as the daemon does, and the log takes nothing any
// more; any other error is a bug.
func (d *disk) must(what string, err error) bool {
	p, w := d.p, d.p.w
	switch {
	case err == nil:
		return true
	case isDiskFault(err):
		d.count(err)
		d.checkStopped(what, err)
		p.powerGone = p.powerGone || !d.machineLives(err)
		if w.plan.scripted {
			p.keeping = keepPageCache
		}
		w.crashAndRestart(p, "its disk failed to "+what)
	case p.spoiled:
		// What was durable cannot be read back: the replica stops.
		w.tell(p.name, "stops itself: it cannot %s: %v", what, err)
		w.crashAndRestart(p, "its disk is not to be trusted")
	default:
		w.fail("disk", "%s cannot %s: %v", p.name, what, err)
	}
	return false
}

// bearable handles an error of a snapshot's file: the replica goes on with what
// it had before, unless the whole machine is gone.
func (d *disk) bearable(what string, err error) bool {
	var stopped *ondisk.StoppedError
	switch {
	case errors.Is(err, faultfs.ErrStopped), errors.As(err, &stopped):
		return d.must(what, err)
	case isDiskFault(err):
		d.count(err)
		d.p.w.tell(d.p.name, "its disk failed to %s; it goes on: %v", what, err)
	case !d.p.spoiled:
		d.p.w.fail("disk", "%s cannot %s: %v", d.p.name, what, err)
		return false
	}
	return true
}

// checkStopped: the first failure of the log is its last; an fsync is never
// tried again.
func (d *disk) checkStopped(what string, err error) {
	p := d.p
	if what == "read the log" || errors.Is(err, faultfs.ErrStopped) {
		return // no failure of the log itself; or the whole machine is gone
	}
	before := p.fs.Ops()
	again := p.storage.Sync()
	more := p.storage.Append([]*paxos.Record{{Promised: paxos.Ballot{Round: 1, Replica: p.id}}})
	if again == nil || more == nil || p.fs.Ops() != before {
		p.w.fail("disk", "%s goes on writing after its disk failed to %s (%v): the next flush gave %v, the next record %v", p.name, what, err, again, more)
	}
}

// errDisk is the error of a failing disk.
var errDisk = errors.New("input/output error")

func isDiskFault(err error) bool {
	return errors.Is(err, faultfs.ErrStopped) || errors.Is(err, errDisk) || errors.Is(err, faultfs.ErrNoSpace)
}

// crash loses what was not flushed.
func (d *disk) crash() {
	d.queue, d.beside, d.stuck = nil, nil, nil
	if d.flushing && (d.p.w.plan.scripted || d.p.amid || d.p.w.diskRandom.chance(700_000)) {
		// All of it is written, and the flush does not end.
		d.p.fs.StopAfter(1)
		if err := d.p.storage.Sync(); err == nil {
			d.p.w.fail("simulator", "%s: a flush that was to be interrupted has ended", d.p.name)
		}
	}
	d.flushing = false
	d.p.crashDisk()
}
