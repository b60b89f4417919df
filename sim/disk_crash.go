package sim

import (
	"math/rand/v2"
	"strings"
)

// crashDisk is what the end of a process does to its disk. If only the process
// died, all that it wrote is there. If the power went, what was not flushed is
// lost; where the plan has tearing, some first part of it may be there, or any
// part of it. The last may leave a replica in doubt of what it has said, and
// then it rightly refuses to start: so only as many disks are torn like that as
// a majority can do without.
func (p *process) crashDisk() {
	w := p.w
	power := p.powerGone
	p.powerGone = false
	if p.keeping != keepByChance {
		p.crashAsTold()
		p.keepFull()
		return
	}
	kind := w.diskRandom.below(10)
	unsynced := p.fs.Unsynced()
	switch {
	case (kind < 2 || p.pageCacheLies) && !power:
		w.happened(FaultKilled)
		p.fs = p.fs.Kill()
		p.keepFull()
		return
	case kind < 5 || !w.plan.tearing:
		p.loseTail(unsynced)
	case kind < 7 || !w.expendable(p):
		w.happened(FaultPowerCut)
		if kind == 5 {
			// The records came, their mark did not.
			p.keepOnly(FaultRecordAlone, unsynced, func(offset int64) bool { return offset >= marksEnd })
			break
		}
		p.tear(unsynced)
		p.fs = p.fs.CrashOrdered(rand.New(w.diskRandom.pcg))
	case kind < 9:
		w.happened(FaultPowerCut)
		p.torn = true
		p.keepOnly(FaultMarkAlone, unsynced, func(offset int64) bool { return offset < marksEnd })
	default:
		w.happened(FaultPowerCut)
		p.torn = true
		p.tear(unsynced)
		p.fs = p.fs.Crash(rand.New(w.diskRandom.pcg))
	}
	p.pageCacheLies = false
	p.keepFull()
}

// marksEnd is where the marks of a segment end and its records begin.
const marksEnd = 8192

func (p *process) loseTail(unsynced int) {
	p.w.happened(FaultPowerCut)
	if unsynced > 0 {
		p.w.happened(FaultLostTail)
	}
	p.fs = p.fs.CrashLost()
}

func (p *process) tear(unsynced int) {
	if unsynced > 0 {
		p.w.happened(FaultTornWrite)
	}
}

// keepOnly is a power cut that kept, of what was not synced in the log, only
// some places of each segment.
func (p *process) keepOnly(f Fault, unsynced int, keep func(offset int64) bool) {
	if unsynced > 0 {
		p.w.happened(f)
	}
	p.fs = p.fs.CrashKeep(func(name string, offset int64) bool {
		return !strings.HasPrefix(name, "log/") || keep(offset)
	})
}

// keepFull takes a full disk over into the next life.
func (p *process) keepFull() {
	if p.full {
		p.fs.Limit(0)
	}
}

// keeping says what the end of a process leaves of what was not flushed.
type keeping int

const (
	keepByChance  keeping = iota
	keepPageCache         // only the process ends
	keepNothing
	keepMark
	keepRecord
	keepAll
)

// crashAsTold is crashDisk where a script says what is left.
func (p *process) crashAsTold() {
	unsynced := p.fs.Unsynced()
	switch p.keeping {
	case keepPageCache:
		p.w.happened(FaultKilled)
		p.fs = p.fs.Kill()
	case keepNothing:
		p.loseTail(unsynced)
	case keepMark:
		p.torn = true
		p.keepOnly(FaultMarkAlone, unsynced, func(offset int64) bool { return offset < marksEnd })
	case keepRecord:
		p.keepOnly(FaultRecordAlone, unsynced, func(offset int64) bool { return offset >= marksEnd })
	case keepAll:
		p.w.happened(FaultPowerCut)
		p.fs = p.fs.CrashKeep(func(string, int64) bool { return true })
	}
}
