package sim

// faultNarrow makes links narrow for a while: those between two replicas, those
// of one replica, or all.
func (w *World) faultNarrow() {
	s := w.faultRandom
	var links [][2]int
	only := w.target().index
	other := pick(s, w.replicas).index
	kind := s.below(10)
	for a := range w.replicas {
		for b := range w.replicas {
			one := kind < 3 && (a == only && b == other || a == other && b == only)
			its := kind >= 3 && kind < 7 && (a == only || b == only)
			if a != b && w.net.narrow[a][b] == nil && (one || its || kind >= 7) {
				links = append(links, [2]int{a, b})
			}
		}
	}
	if len(links) == 0 {
		return
	}
	const bytes = 125_000 // a second: 1 Mbit/s
	rate := bytes * pick(s, []int64{1, 2, 5, 12, 24})
	delay := s.skewed(5*millisecond, 300*millisecond)
	queue := pick(s, []int64{0, 16 << 10, 128 << 10, 1 << 20})
	w.happened(FaultNarrow)
	for _, l := range links {
		w.SetLink(l[0], l[1], rate, delay, queue)
	}
	w.after(s.between(1500*millisecond, 8*second), func() {
		if !w.faulty {
			return // all are fast already
		}
		for _, l := range links {
			w.SetLink(l[0], l[1], 0, 0, 0)
		}
	})
}

// countLinks counts what narrow links did with parts.
func (w *World) countLinks() {
	w.faults[FaultParts] += uint64(w.counts.parts)
	w.faults[FaultSuperseded] += uint64(w.counts.superseded)
	w.faults[FaultOverflow] += uint64(w.counts.overflows)
	w.faults[FaultNoRoom] += uint64(w.counts.noRoom)
}
