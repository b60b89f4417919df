package sim

import "slices"

// setAside draws the replicas whose faults do not end with the others: all but
// some majority. A cell has to get well with that majority alone; a run in which
// everything is mended at once would not show what a rest of trouble prevents.
func (w *World) setAside() {
	if !w.plan.healMajority || w.plan.scripted {
		return
	}
	var usable []*process
	for _, p := range w.replicas {
		if p.refused == nil {
			usable = append(usable, p)
		}
	}
	// What is torn, spoiled or emptied may refuse to start yet.
	for spare := (len(w.replicas)-1)/2 - w.spent(); spare > 0; spare-- {
		i := w.faultRandom.below(int64(len(usable)))
		p := usable[i]
		usable = append(usable[:i:i], usable[i+1:]...)
		if w.foundedBeside(p) && !p.torn && !p.spoiled && !p.emptied { // to be founded a cell needs every member
			p.aside = true
		}
	}
}

// foundedBeside reports whether a replica that goes on without p knows that the cell
// is founded.
func (w *World) foundedBeside(p *process) bool {
	return slices.ContainsFunc(w.replicas, func(q *process) bool {
		return q != p && !q.aside && q.refused == nil && q.identity != 0
	})
}

// afflict gives a replica that is set aside one lasting fault.
func (w *World) afflict(p *process) {
	w.happened(FaultSetAside)
	kind := w.faultRandom.below(5)
	w.trace.add(w.now, "set aside", uint64(p.index), uint64(kind))
	w.tell(p.name, "is left with its fault, %s", [...]string{"down", "frozen", "with a hung disk", "cut off from the others", "unheard by the others"}[kind])
	for p.pauses > 0 && kind != 1 {
		p.resume()
	}
	p.fs.StopAfter(-1)
	switch {
	case kind == 0:
		p.crash("for good")
		return
	case !p.up:
		return // the others do without it, too
	case kind == 1 && p.pauses == 0:
		p.pause()
	case kind == 2 && !p.disk.hung:
		p.hang()
	}
	for _, q := range w.replicas {
		if q == p || kind < 3 {
			continue
		}
		w.net.cut[p.index][q.index]++
		if kind == 3 {
			w.net.cut[q.index][p.index]++
		}
	}
}

// takeBack mends what was set aside, and reports whether anything was.
func (w *World) takeBack() bool {
	any := false
	for _, p := range w.replicas {
		any = any || p.aside
	}
	if !any {
		return false
	}
	for i := range w.net.cut {
		clear(w.net.cut[i])
	}
	w.tell("net", "WHAT WAS LEFT OUT IS MENDED, TOO")
	for _, p := range w.replicas {
		if !p.aside {
			continue
		}
		p.aside = false
		for p.pauses > 0 {
			p.resume()
		}
		p.mendDisk()
		if !p.up && p.refused == nil {
			w.restartLater(p, w.faultRandom.below(200*millisecond))
		}
	}
	return true
}
