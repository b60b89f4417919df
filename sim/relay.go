package sim

// relayEvery is how often a relay looks whether the lead has passed on.
const relayEvery = 20 * millisecond

// faultRelay lets the lead pass from one replica to another and on, faster than
// what the leaders leave behind can be cleared up: each is cut off from the
// other replicas while it goes on proposing for its clients, and comes back just
// as the next one is cut off. So the quorum of the third finds what the first
// alone has accepted beside what the second has, and what the first has decided
// is proposed again behind the first entry of the second.
//
// Some clients lose the way to the first leader beforehand: it may take them
// for dead while they have a lease of the second.
func (w *World) faultRelay() {
	m := w.master()
	if m == nil || w.plan.replicas == 1 || w.relaying {
		return
	}
	w.relaying = true
	s := w.faultRandom
	w.happened(FaultRelay)
	w.trace.add(w.now, "relay", uint64(m.index))
	w.tell("net", "a relay begins with %s", m.name)
	wait := int64(0)
	if s.chance(700_000) {
		// It steps down half a second after it is cut off: by then it has just
		// given the clients up, or is about to.
		wait = s.between(1400*millisecond, 1700*millisecond)
		w.cutClients(m, wait+second, s.chance(800_000))
	}
	legs := s.between(1, 3)
	w.after(wait, func() { w.relay(m, legs, wait > 0, s) })
}

// cutClients cuts most of the clients off from a replica. They may be idle
// meanwhile, so that they have nothing to repeat.
func (w *World) cutClients(p *process, d int64, idle bool) {
	var cuts [][2]int
	for _, c := range w.clients {
		if w.faultRandom.chance(350_000) {
			continue
		}
		cuts = append(cuts, [2]int{p.index, c.index}, [2]int{c.index, p.index})
		if idle {
			c.idleUntil = w.now + d + second
		}
		if c.conn != nil && c.conn.p == p {
			c.conn.breakUp("reset", 0, 0)
		}
	}
	w.cutLinks(10, cuts, d)
}

// relay cuts m off until another is master, and so on. That one is given the
// time to take over m's clients, or is not.
func (w *World) relay(m *process, legs int64, clients bool, s *stream) {
	if !w.faulty {
		return
	}
	w.tell("net", "%s is cut off from the other replicas", m.name)
	mend := w.isolate(m)
	w.awaitMaster(m, w.now+4*second, func(next *process) {
		if next == nil || legs == 0 {
			mend()
			w.relaying = false
			return
		}
		reign := s.skewed(0, 1500*millisecond)
		if (clients && s.chance(800_000)) || s.chance(300_000) {
			// Long enough for clients to come, and few writes while it lasts.
			reign = s.between(400*millisecond, 2000*millisecond)
			for _, c := range w.clients {
				c.idleUntil = w.now + reign + second
			}
		}
		w.after(reign, func() {
			w.relay(next, legs-1, false, s)
			mend()
		})
	})
}

// isolate cuts a replica off from the others until the function that it returns
// is called.
func (w *World) isolate(p *process) (mend func()) {
	w.counts.partitions++
	change := func(by int) {
		if !w.faulty {
			return // all is mended
		}
		for _, q := range w.replicas {
			if q != p {
				w.net.cut[p.index][q.index] += by
				w.net.cut[q.index][p.index] += by
			}
		}
	}
	change(+1)
	return func() { change(-1) }
}

// awaitMaster waits until another than old is master, and gives nil if that
// takes too long.
func (w *World) awaitMaster(old *process, until int64, then func(*process)) {
	if !w.faulty {
		return
	}
	for _, p := range w.replicas {
		if p != old && p.up && p.role.Master {
			then(p)
			return
		}
	}
	if w.now >= until {
		then(nil)
		return
	}
	w.after(relayEvery, func() { w.awaitMaster(old, until, then) })
}
