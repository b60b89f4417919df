package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
)

// damage changes what is on the disk of a replica that does not run.
func (d *director) damage(r *process, what string) {
	if r.up {
		d.fail("%s runs; stop it first", r.name)
		return
	}
	segments, snapshots := r.files("log", ".seg"), r.files("snap", ".snap")
	if len(segments) == 0 || (strings.HasPrefix(what, "snapshot") && len(snapshots) == 0) {
		d.fail("%s has no %s to damage", r.name, strings.TrimSuffix(what, "s"))
		return
	}
	last := segments[len(segments)-1]
	data, err := r.fs.ReadFile(last)
	if err != nil {
		d.fail("reading %s of %s: %v", last, r.name, err)
		return
	}
	records := withoutMarks(data)
	end := int64(len(bytes.TrimRight(records, "\x00")))
	switch what {
	case "last-record":
		d.flip(r, FaultRottenRecord, last, end-1)
	case "first-record":
		d.flip(r, FaultRottenRecord, last, firstRecord(records)+24)
	case "mark", "marks":
		for _, s := range newestMarks(last, data) {
			d.flip(r, FaultRottenMark, last, s.from+16)
			if what == "mark" {
				break
			}
		}
	case "snapshot":
		d.flipSnapshot(r, snapshots[len(snapshots)-1])
	case "snapshots":
		for _, s := range snapshots {
			d.flipSnapshot(r, s)
		}
	case "identity":
		d.flip(r, FaultRottenIdentity, "identity", 20)
	case "torn-tail":
		// Behind the last record stands the beginning of one that was never
		// flushed.
		if err := r.fs.Overwrite(last, (end+7)&^7, []byte("LkF1, and then the power was gone")); err != nil {
			d.fail("tearing %s of %s: %v", last, r.name, err)
		}
		d.w.tell(r.name, "a torn write stands at byte %d of %s", (end+7)&^7, last)
	case "cut-short":
		if err := r.fs.Cut(last, end-10); err != nil {
			d.fail("cutting %s of %s: %v", last, r.name, err)
		}
		d.w.tell(r.name, "%s ends at byte %d", last, end-10)
		r.wound(last, false)
	}
}

// newestMarks gives the marks behind the last record, the newest first.
func newestMarks(name string, segment []byte) (out []spot) {
	for _, s := range segmentSpots(name, segment) {
		if s.fault == FaultRottenMark {
			out = append(out, s)
		}
	}
	flush := func(s spot) uint64 { return binary.LittleEndian.Uint64(segment[s.from+16:]) }
	slices.SortFunc(out, func(a, b spot) int { return cmp.Compare(flush(b), flush(a)) })
	return out
}

// firstRecord finds the second frame of a segment: the first is its header.
func firstRecord(segment []byte) int64 {
	at := bytes.Index(segment[4:], []byte("LkF1"))
	return int64(4 + max(at, 0))
}

func (d *director) flip(r *process, f Fault, name string, offset int64) {
	r.rot(spot{fault: f, name: name}, offset, 3)
}

func (d *director) flipSnapshot(r *process, name string) {
	data, err := r.fs.ReadFile(name)
	if err != nil {
		d.fail("reading %s of %s: %v", name, r.name, err)
		return
	}
	d.flip(r, FaultRottenSnapshot, name, int64(len(data)/2))
}
