package sim

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/seed70370324/lockd/replog/ondisk"
)

// wound is what was done to a file of a replica: that file, and nothing else,
// explains that the replica refuses its data.
type wound struct {
	file string
	gone bool // it is not there any more
}

// explains reports whether what was done to this very disk explains why the log
// will not open it: a wound of the file that the refusal names (of the log, of
// the segment next to it, which may be the one that tells), or, for what is
// doubtful or missing in the log, a torn write.
func (p *process) explains(err error) bool {
	var foreign *ondisk.ForeignError
	if errors.As(err, &foreign) {
		// Without the identity what else is there is nobody's.
		return foreign.Found != "" && p.wounded("identity", true)
	}
	var damaged *ondisk.DamagedError
	if !errors.As(err, &damaged) {
		return false
	}
	if p.torn && strings.HasPrefix(damaged.File, "log/") {
		return true
	}
	for _, w := range p.wounds {
		if w.file == damaged.File || segmentsMeet(w.file, damaged.File) || (w.gone && damaged.File == "log" && strings.HasPrefix(w.file, "log/")) {
			return true
		}
	}
	return false
}

func (p *process) wounded(file string, gone bool) bool {
	for _, w := range p.wounds {
		if w.file == file && w.gone == gone {
			return true
		}
	}
	return false
}

// segmentsMeet reports whether two files are segments that follow one another.
func segmentsMeet(a, b string) bool {
	m, okA := segmentNumber(a)
	n, okB := segmentNumber(b)
	return okA && okB && (m == n || m+1 == n || n+1 == m)
}

func segmentNumber(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, "log/")
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, ".seg"); !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}

// faultWound spoils a disk for more than a bit: several bits of one file turn
// over, or a file vanishes. As in faultSpoil, no more disks are spoiled than a
// majority can do without.
func (w *World) faultWound() {
	s := w.faultRandom
	p := pick(s, w.replicas)
	if !w.expendable(p) || len(w.history.slots) == 0 {
		return
	}
	var files []string
	switch n := s.below(10); {
	case n < 5:
		if files = p.files("log", ".seg"); len(files) > 0 && s.chance(400_000) {
			files = files[len(files)-1:]
		}
	case n < 9:
		files = p.files("snap", ".snap")
	}
	if len(files) == 0 {
		if _, err := p.fs.ReadFile("identity"); err != nil {
			return
		}
		files = []string{"identity"}
	}
	file := pick(s, files)
	if s.chance(500_000) {
		p.vanish(file)
	} else {
		p.rotMore(file)
	}
	if p.up && s.chance(700_000) {
		w.crashAndRestart(p, "killed after its disk was spoiled")
	}
}

// vanish takes a file away.
func (p *process) vanish(file string) {
	w := p.w
	if err := p.fs.Vanish(file); err != nil {
		w.fail("simulator", "cannot take %s away: %v", file, err)
		return
	}
	w.happened(FaultVanished)
	w.trace.add(w.now, "vanished", uint64(p.index))
	w.tell(p.name, "its disk loses the file %s", file)
	p.wound(file, true)
}

// rotMore turns several bits of one file over.
func (p *process) rotMore(file string) {
	w := p.w
	of := p.spots()
	n := 0
	for _, s := range of {
		if s.name == file {
			of[n] = s
			n++
		}
	}
	if n == 0 {
		return
	}
	at := pick(w.faultRandom, of[:n])
	bits := w.faultRandom.between(2, 9)
	if err := p.fs.FlipBits(rand.New(&w.faultRandom.pcg), file, at.from, at.to, int(bits)); err != nil {
		w.fail("simulator", "cannot turn over bits of %s: %v", file, err)
		return
	}
	w.happened(FaultSeveralBits)
	w.trace.add(w.now, "rot", uint64(p.index), uint64(at.from), uint64(bits))
	w.tell(p.name, "its disk rots: %d bits between the bytes %d and %d of %s", bits, at.from, at.to, file)
	p.wound(file, false)
}

func (p *process) wound(file string, gone bool) {
	p.spoiled = true
	p.wounds = append(p.wounds, wound{file, gone})
}
