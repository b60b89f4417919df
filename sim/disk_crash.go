package sim

import (
	"bytes"
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
	amid := p.amid
	p.amid = false
	switch {
	case amid && kind < 7:
		w.happened(FaultPowerCut)
		p.tear(unsynced)
		p.tearRecord()
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
			p.keepOnly(FaultRecordAlone, unsynced, false)
			break
		}
		p.tear(unsynced)
		if w.diskRandom.chance(500_000) {
			p.tearRecord()
			break
		}
		p.fs = p.fs.CrashOrdered(rand.New(&w.diskRandom.pcg))
	case kind < 9:
		w.happened(FaultPowerCut)
		p.torn = true
		p.keepOnly(FaultMarkAlone, unsynced, true)
	default:
		w.happened(FaultPowerCut)
		p.torn = true
		p.tear(unsynced)
		p.fs = p.fs.Crash(rand.New(&w.diskRandom.pcg))
	}
	p.pageCacheLies = false
	p.keepFull()
}

// logBlock is the unit in which the log is written, markSlot where the second
// mark of a block of marks stands.
const (
	logBlock = 4096
	markSlot = logBlock / 2
	markSize = 40
)

// markBlocks tells which blocks of a segment are marks.
func markBlocks(segment []byte) map[int64]bool {
	marks := map[int64]bool{}
	for at := 0; at+logBlock <= len(segment); at += logBlock {
		if isMark(segment[at:]) || isMark(segment[at+markSlot:]) {
			marks[int64(at)] = true
		}
	}
	return marks
}

func isMark(b []byte) bool { return bytes.HasPrefix(b, []byte("lckdmark")) }

// withoutMarks gives a segment with zeros for its marks.
func withoutMarks(segment []byte) []byte {
	out := bytes.Clone(segment)
	for at := range markBlocks(segment) {
		clear(out[at : at+logBlock])
	}
	return out
}

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

// tearRecord is a power cut amid the newest record: some of its sectors are
// there, its end and the mark are not.
func (p *process) tearRecord() {
	names := p.files("log", ".seg")
	if len(names) == 0 {
		p.fs = p.fs.CrashLost()
		return
	}
	last := names[len(names)-1]
	end, marks := int64(0), map[int64]bool{}
	if data, err := p.fs.ReadFile(last); err == nil {
		end = int64(len(bytes.TrimRight(withoutMarks(data), "\x00")))
		marks = markBlocks(data)
	}
	cut := end - p.w.diskRandom.skewed(1, 4*logBlock)
	p.fs = p.fs.CrashKeep(func(name string, offset int64) bool {
		return name == last && offset < cut&^511 && !marks[offset&^(logBlock-1)]
	})
}

// keepOnly is a power cut that kept, of what was not synced in the log, only the
// blocks of marks, or only the others.
func (p *process) keepOnly(f Fault, unsynced int, marks bool) {
	if unsynced > 0 {
		p.w.happened(f)
	}
	of := map[string]map[int64]bool{}
	for _, name := range p.files("log", "") {
		if data, err := p.fs.ReadFile(name); err == nil {
			of[name] = markBlocks(data)
		}
	}
	p.fs = p.fs.CrashKeep(func(name string, offset int64) bool {
		return !strings.HasPrefix(name, "log/") || of[name][offset&^(logBlock-1)] == marks
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
		p.keepOnly(FaultMarkAlone, unsynced, true)
	case keepRecord:
		p.keepOnly(FaultRecordAlone, unsynced, false)
	case keepAll:
		p.w.happened(FaultPowerCut)
		p.fs = p.fs.CrashKeep(func(string, int64) bool { return true })
	}
}
