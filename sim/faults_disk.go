package sim

import (
	"errors"
	"strings"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

var diskOps = []faultfs.Op{faultfs.Sync, faultfs.Write, faultfs.SyncDir, faultfs.Rename, faultfs.Create, faultfs.Remove, faultfs.Resize}

// faultDisk makes a disk fail, or the power go, in the middle of what it does
// next: not between two operations of the log, but within one.
func (w *World) faultDisk() {
	p := w.target()
	if !p.up {
		return
	}
	w.trace.add(w.now, "disk fault", uint64(p.index))
	if w.faultRandom.chance(500_000) {
		op := pick(w.faultRandom, []faultfs.Op{faultfs.Sync, faultfs.Sync, faultfs.Write, faultfs.SyncDir, faultfs.Rename, faultfs.Create})
		w.tell(p.name, "its disk will fail a %v", op)
		p.fs.Fail(op, 1, &diskError{op})
		return
	}
	n := w.faultRandom.skewed(0, 30)
	w.tell(p.name, "its power will go after %d operations of the disk", n)
	p.fs.StopAfter(int(n))
}

// count counts a failure of the disk when the log meets it.
func (d *disk) count(err error) {
	w := d.p.w
	switch {
	case errors.Is(err, faultfs.ErrStopped):
		w.happened(FaultCutShort)
	case errors.Is(err, faultfs.ErrNoSpace):
		w.happened(FaultFullDisk)
	case failedOp(err) == faultfs.Sync:
		w.happened(FaultFsyncError)
	case failedOp(err) == faultfs.Write:
		w.happened(FaultWriteError)
	case failedOp(err) == opRead:
		w.happened(FaultReadError)
	case failedOp(err) == faultfs.Remove:
		w.happened(FaultRemoveError)
	case failedOp(err) == faultfs.Resize:
		w.happened(FaultResizeError)
	default:
		w.happened(FaultOtherError)
	}
}

// diskError is the error of a failing disk in one kind of operation.
type diskError struct{ op faultfs.Op }

func (e *diskError) Error() string { return "input/output error" }

func (e *diskError) Is(target error) bool { return target == errDisk }

// machineLives reports whether after this failure the process alone ends. What
// a failed fsync of a file has left in the page cache is then found again by
// the next process, and no later fsync makes it durable. After a failed fsync of
// a directory the machine starts anew.
func (d *disk) machineLives(err error) bool {
	w := d.p.w
	switch failedOp(err) {
	case faultfs.Sync:
		d.p.pageCacheLies = w.diskRandom.chance(500_000)
		return d.p.pageCacheLies
	case faultfs.Write:
		return w.diskRandom.chance(500_000)
	case opRead:
		return true
	}
	return errors.Is(err, faultfs.ErrNoSpace)
}

func failedOp(err error) faultfs.Op {
	var e *diskError
	if errors.As(err, &e) {
		return e.op
	}
	return 255
}

// faultSlowDisk makes a disk slow for some seconds, or hang.
func (w *World) faultSlowDisk() {
	p := w.target()
	s := w.faultRandom
	d := s.between(1500*millisecond, 6*second)
	if p.disk.hung || p.disk.slow > 0 {
		return
	}
	if s.chance(500_000) {
		p.hang()
		w.after(d, func() {
			if w.faulty && p.disk.hung {
				p.unhang()
			}
		})
		return
	}
	p.slowDown(pick(s, []int64{150, 700, 3000}) * millisecond)
	w.after(d, func() {
		if w.faulty && p.disk.slow > 0 {
			p.speedUp()
		}
	})
}

func (p *process) hang() {
	p.w.happened(FaultHungDisk)
	p.w.trace.add(p.w.now, "disk hangs", uint64(p.index))
	p.w.tell(p.name, "its disk hangs")
	p.disk.hung = true
}

func (p *process) unhang() {
	p.w.tell(p.name, "its disk goes on")
	p.disk.hung = false
	stuck := p.disk.stuck
	p.disk.stuck = nil
	for _, f := range stuck {
		p.disk.later(p.disk.latency(), f)
	}
}

func (p *process) slowDown(most int64) {
	p.w.happened(FaultSlowDisk)
	p.w.trace.add(p.w.now, "disk slow", uint64(p.index), uint64(most))
	p.w.tell(p.name, "its disk takes up to %s for everything", tellTime(most))
	p.disk.slow = most
}

func (p *process) speedUp() {
	p.w.tell(p.name, "its disk is as fast as before")
	p.disk.slow = 0
}

// faultFullDisk lets a disk run full for a while. It counts when the log meets
// it.
func (w *World) faultFullDisk() {
	p := w.target()
	if p.full {
		return
	}
	p.fill(w.faultRandom.skewed(0, 64<<10))
	w.after(w.faultRandom.between(500*millisecond, 4*second), func() {
		if w.faulty {
			p.empty()
		}
	})
}

func (p *process) fill(left int64) {
	p.w.trace.add(p.w.now, "disk full", uint64(p.index), uint64(left))
	p.w.tell(p.name, "its disk has room for %d bytes more", left)
	p.full = true
	p.fs.Limit(left)
}

func (p *process) empty() {
	if p.full {
		p.w.tell(p.name, "its disk has room again")
		p.full = false
		p.fs.Limit(-1)
	}
}

// mendDisk ends the faults of a disk; what has rotted stays.
func (p *process) mendDisk() {
	p.fs.StopAfter(-1)
	for _, op := range diskOps {
		p.fs.Fail(op, 0, nil)
	}
	p.empty()
	p.mendReads()
	if p.disk.hung {
		p.unhang()
	}
	if p.disk.slow > 0 {
		p.speedUp()
	}
}

// faultSecond starts a second process with the data of one that runs: it must be
// told so and change nothing.
func (w *World) faultSecond() {
	if p := w.target(); p.up {
		w.startSecond(p)
	}
}

func (w *World) startSecond(p *process) {
	w.happened(FaultSecondProcess)
	w.trace.add(w.now, "second process", uint64(p.index))
	before := p.fs.Ops()
	opened, err := storage.Open(storage.Options{FS: p.fs, Cell: cellName, Replica: p.name, SegmentBytes: w.plan.segmentBytes,
		Decode: replica.DecodeSnapshot, NewIncarnation: func() uint64 { return 1 }})
	var inUse *vfs.InUseError
	if opened != nil || !errors.As(err, &inUse) || !strings.Contains(err.Error(), "is in use") || p.fs.Ops() != before {
		w.fail("start", "a second process with the data of %s is not kept away: %v", p.name, err)
		return
	}
	w.tell(p.name, "a second process with its data ends: %v", err)
}
