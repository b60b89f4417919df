package sim

import (
	"errors"
	"io/fs"

	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// opRead stands for a read, which is none of faultfs's counted operations.
const opRead faultfs.Op = 254

// faultOddDisk makes a disk fail in what it does more seldom than to write: in a
// read, a removal, or a change of a file's size.
func (w *World) faultOddDisk() {
	p := w.target()
	s := w.faultRandom
	if n := s.below(10); n < 4 {
		if p.up {
			op := []faultfs.Op{faultfs.Remove, faultfs.Resize}[n%2]
			w.trace.add(w.now, "disk fault", uint64(p.index), uint64(op))
			w.tell(p.name, "its disk will fail a %v", op)
			p.fs.Fail(op, 1, &diskError{op})
		}
		return
	}
	spots := p.spots()
	if len(spots) == 0 || p.unreadable != "" {
		return
	}
	at := pick(s, spots)
	if s.chance(300_000) {
		for _, sp := range spots {
			if sp.fault == FaultRottenSnapshot {
				at = sp // the newest one: another replica may be fetching it
			}
		}
	}
	p.spoilReads(at.name, at.from+s.below(at.to-at.from), s.between(200*millisecond, 3*second))
	if p.up && s.chance(500_000) {
		w.crashAndRestart(p, "killed while its disk cannot be read")
	}
}

// spoilReads makes a byte unreadable for a while, over restarts.
func (p *process) spoilReads(name string, offset, d int64) {
	w := p.w
	if err := p.fs.FailRead(name, offset, -1, &diskError{opRead}); err != nil {
		w.fail("simulator", "cannot make %s unreadable: %v", name, err)
		return
	}
	p.unreadable = name
	w.trace.add(w.now, "unreadable", uint64(p.index), uint64(offset))
	w.tell(p.name, "its disk cannot read byte %d of %s", offset, name)
	w.after(d, func() {
		if w.faulty && p.unreadable == name {
			p.mendReads()
		}
	})
}

// mendReads makes all readable again.
func (p *process) mendReads() {
	if p.unreadable == "" {
		return
	}
	if err := p.fs.MendReads(p.unreadable); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.w.fail("simulator", "cannot mend %s: %v", p.unreadable, err)
	}
	p.w.tell(p.name, "its disk can read %s again", p.unreadable)
	p.unreadable = ""
}
