package sim

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// trace is the running hash of everything that happens in a run, in order.
type trace struct {
	hash   uint64
	events uint64
}

func (t *trace) mix(v uint64) {
	h := bits.RotateLeft64(t.hash^v, 29) * 0x9fb21c651e98df25
	t.hash = h ^ h>>32
}

// add takes an event into the hash: its kind and the numbers that make it.
func (t *trace) add(at int64, kind string, numbers ...uint64) {
	t.events++
	t.mix(uint64(at))
	t.mix(hashText(kind))
	for _, n := range numbers {
		t.mix(n)
	}
}

func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// hashBytes takes eight bytes at a time: values are long.
func hashBytes(h uint64, b []byte) uint64 {
	h = (h ^ uint64(len(b))) * 1099511628211
	for len(b) >= 8 {
		h = (h ^ binary.LittleEndian.Uint64(b)) * 0x9fb21c651e98df25
		h ^= h >> 32
		b = b[8:]
	}
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// story writes one readable line for each event, if anyone wants to read it.
type story struct {
	out      io.Writer
	lines    int // told, without messages that go again and again
	repeated map[string]*repeated
}

func (w *World) telling() bool { return w.story.out != nil }

// tell writes a line: time, who, what. Callers on busy paths ask telling
// first.
func (w *World) tell(who, format string, args ...any) {
	if w.story.out == nil {
		return
	}
	w.story.lines++
	_, err := fmt.Fprintf(w.story.out, "%4d.%06d  %-4s  %s\n",
		w.now/1_000_000_000, w.now%1_000_000_000/1000, who, fmt.Sprintf(format, args...))
	if err != nil {
		w.story.out = nil // the reader has gone; the run goes on without
	}
}
