package sim

import (
	"bytes"
	"errors"
	"sort"
	"strings"

	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// faultSpoil lets the disk of a replica rot by one bit, or exchanges it for an
// empty one. It happens to no more replicas than a majority can do without, and
// once to each. The replica may run on and not notice; when it starts again it
// either knows all that it knew, or refuses with the reason.
func (w *World) faultSpoil() {
	p := pick(w.faultRandom, w.replicas)
	if !w.expendable(p) || len(w.history.slots) == 0 {
		return
	}
	if w.plan.wiping && w.faultRandom.chance(500_000) {
		p.wipe()
		return
	}
	spots := p.spots()
	if len(spots) == 0 {
		return
	}
	kinds := map[Fault]bool{}
	for _, s := range spots {
		kinds[s.fault] = true
	}
	var order []Fault
	for _, f := range []Fault{FaultRottenRecord, FaultRottenMark, FaultRottenSnapshot, FaultRottenIdentity} {
		if kinds[f] {
			order = append(order, f)
		}
	}
	kind := pick(w.faultRandom, order)
	var of []spot
	for _, s := range spots {
		if s.fault == kind {
			of = append(of, s)
		}
	}
	s := pick(w.faultRandom, of)
	offset := s.from + w.faultRandom.below(s.to-s.from)
	if kind == FaultRottenRecord && w.faultRandom.chance(600_000) {
		// The newest bytes: what they held is known nowhere else on that disk.
		s = of[len(of)-1]
		offset = s.to - 1 - w.faultRandom.skewed(0, min(s.to-s.from-1, 512))
	}
	p.rot(s, offset, uint(w.faultRandom.below(8)))
	if p.up && w.faultRandom.chance(700_000) {
		w.crashAndRestart(p, "killed after its disk has rotted")
	}
}

// spot is a part of a file that can rot.
type spot struct {
	fault    Fault
	name     string
	from, to int64
}

// spots lists what there is on the disk of a replica, in order.
func (p *process) spots() []spot {
	var out []spot
	for _, name := range p.files("log", ".seg") {
		data, err := p.fs.ReadFile(name)
		if err != nil {
			continue
		}
		out = append(out, segmentSpots(name, data)...)
	}
	for _, name := range p.files("snap", ".snap") {
		if data, err := p.fs.ReadFile(name); err == nil && len(data) > 0 {
			out = append(out, spot{FaultRottenSnapshot, name, 0, int64(len(data))})
		}
	}
	if data, err := p.fs.ReadFile("identity"); err == nil && len(data) > 0 {
		out = append(out, spot{FaultRottenIdentity, "identity", 0, int64(len(data))})
	}
	return out
}

// segmentSpots gives the newest marks of a segment, and the runs of blocks that
// hold its header and records.
func segmentSpots(name string, segment []byte) (out []spot) {
	marks := markBlocks(segment)
	newest, from := int64(-1), int64(-1)
	for at := int64(0); at <= int64(len(segment)); at += logBlock {
		used := at < int64(len(segment)) && !marks[at]
		switch {
		case used && from < 0:
			from = at
		case !used && from >= 0:
			if n := int64(len(bytes.TrimRight(segment[from:at], "\x00"))); n > 0 {
				out = append(out, spot{FaultRottenRecord, name, from, from + n})
			}
			from = -1
		}
		if marks[at] {
			newest = at
		}
	}
	for slot := newest; newest >= 0 && slot <= newest+markSlot; slot += markSlot {
		if isMark(segment[slot:]) {
			out = append(out, spot{FaultRottenMark, name, slot, slot + markSize})
		}
	}
	return out
}

// files lists the complete files of a directory, in order.
func (p *process) files(dir, suffix string) []string {
	names, err := p.fs.List(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, n := range names {
		if strings.HasSuffix(n, suffix) {
			out = append(out, dir+"/"+n)
		}
	}
	sort.Strings(out)
	return out
}

// rot turns one bit over.
func (p *process) rot(s spot, offset int64, bit uint) {
	w := p.w
	if err := p.fs.Flip(s.name, offset, bit); err != nil {
		w.fail("simulator", "cannot turn over a bit of %s: %v", s.name, err)
		return
	}
	w.happened(s.fault)
	w.trace.add(w.now, "rot", uint64(p.index), uint64(offset), uint64(bit))
	w.tell(p.name, "its disk rots: bit %d of byte %d of %s", bit, offset, s.name)
	p.wound(s.name, false)
}

// wipe kills a replica and gives it an empty disk. It must not come back as the
// one it was.
func (p *process) wipe() {
	w := p.w
	w.happened(FaultEmptied)
	w.trace.add(w.now, "wipe", uint64(p.index))
	p.emptied = true
	w.crashAndRestart(p, "killed for a new disk")
	w.tell(p.name, "its disk is exchanged for an empty one")
	p.fs, p.identity, p.unreadable = faultfs.New(), 0, ""
}

// refusedAsEmptied: a replica with an exchanged disk stops itself because the
// others tell it to.
func (p *process) refusedAsEmptied(fatal error) {
	w := p.w
	var refused *replog.RefusedError
	if !errors.As(fatal, &refused) {
		w.fail("fatal", "%s stops itself: %v", p.name, fatal)
		return
	}
	w.happened(FaultRefusedEmptied)
	p.crash("told that its disk is another one")
	p.out(fatal)
}
