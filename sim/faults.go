package sim

import (
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
)

// downTime draws how long a crashed process stays away.
func (w *World) downTime() int64 {
	if w.plan.longDown && w.faultRandom.chance(300_000) {
		return w.faultRandom.between(3*second, 9*second)
	}
	if w.plan.quickRestart {
		return w.faultRandom.skewed(millisecond/2, 60*millisecond)
	}
	return w.faultRandom.skewed(20*millisecond, 5*second)
}

func (w *World) crashAndRestart(p *process, why string) {
	if !p.up {
		return
	}
	w.counts.crashes++
	p.crash(why)
	w.restartLater(p, w.downTime())
}

func (w *World) restartLater(p *process, wait int64) {
	if w.plan.scripted {
		return // the script says when
	}
	boot := p.boot
	w.after(wait, func() {
		// What is set aside while it is down stays so.
		if !p.up && p.boot == boot && p.refused == nil && !p.aside {
			p.start()
		}
	})
}

func (w *World) faultCrash() {
	if w.plan.powerCut && w.faultRandom.chance(150_000) {
		w.happened(FaultPowerCutOfAll)
		for _, p := range w.replicas {
			p.powerGone = true
			w.crashAndRestart(p, "the power of all machines goes")
		}
		return
	}
	p := w.target()
	if w.plan.tearing && p.up && w.faultRandom.chance(500_000) {
		p.doomed = 30
		return
	}
	w.crashAndRestart(p, "killed")
}

func bytesOf(records []*paxos.Record) (n int) {
	for _, r := range records {
		for i := range r.Entries {
			for _, c := range r.Entries[i].Value.Commands {
				n += len(c)
			}
		}
	}
	return n
}

// dieAmid takes the power of a doomed process while its log is being flushed: at
// a time drawn by chance little is ever under way.
func (p *process) dieAmid(flush int64, bytes int) {
	w := p.w
	if p.doomed == 0 || !w.faulty {
		return
	}
	if p.doomed--; bytes < 1000 && p.doomed > 0 {
		return
	}
	p.doomed = 0
	boot := p.boot
	w.after(w.faultRandom.below(flush+1), func() {
		if p.up && p.boot == boot && p.disk.flushing {
			w.happened(FaultDiedAmid)
			p.powerGone, p.amid = true, true
			w.crashAndRestart(p, "its power goes amid a flush")
		}
	})
}

// target draws a replica, the master more often than the others.
func (w *World) target() *process {
	if m := w.master(); m != nil && w.faultRandom.chance(400_000) {
		return m
	}
	return pick(w.faultRandom, w.replicas)
}

func (w *World) master() *process {
	for _, p := range w.replicas {
		if p.up && p.role.Master && !p.aside {
			return p
		}
	}
	return nil
}

func (w *World) roleChanged(p *process) {
	w.trace.add(w.now, "role", uint64(p.index), p.role.Epoch)
	if p.role.Master {
		w.counts.masters++
		p.newMastership()
		for _, q := range w.replicas {
			if q != p && q.up && q.role.Master {
				w.counts.doubled++
				w.tell(p.name, "(%s still takes itself for master)", q.name)
			}
		}
		w.tell(p.name, "is master of epoch %d", p.role.Epoch)
	}
}

func (w *World) faultPause() {
	p := w.target()
	d := w.faultRandom.skewed(20*millisecond, 4*second)
	w.counts.pauses++
	w.happened(FaultFrozen)
	w.trace.add(w.now, "pause", uint64(p.index))
	w.tell(p.name, "is frozen for %s", tellTime(d))
	p.pause()
	w.after(d, func() {
		if w.faulty {
			w.tell(p.name, "thaws")
			p.resume()
		}
	})
}

func (w *World) faultClientPause() {
	c := pick(w.faultRandom, w.clients)
	d := w.faultRandom.skewed(50*millisecond, 9*second)
	if w.faultRandom.chance(400_000) {
		d = w.faultRandom.between(1500*millisecond, 6*second) // beyond a lease
	}
	w.trace.add(w.now, "pause", uint64(c.index))
	c.freezeAfter(0, d)
}

func (w *World) faultClientCrash() {
	c := pick(w.faultRandom, w.clients)
	hang := int64(0)
	if w.faultRandom.chance(400_000) {
		hang = w.faultRandom.between(0, 10*second)
	}
	w.happened(FaultClientKilled)
	c.end("killed", hang)
	life := c.life
	w.after(w.faultRandom.skewed(10*millisecond, 3*second), func() {
		if c.life == life {
			c.begin()
		}
	})
}

// faultReset breaks one connection. Now and then one side, or both, take long
// to notice.
func (w *World) faultReset() {
	w.happened(FaultReset)
	if w.faultRandom.chance(250_000) && len(w.net.pairs) > 0 {
		w.disconnectPair(pick(w.faultRandom, w.net.pairs))
		return
	}
	c := pick(w.faultRandom, w.clients)
	if c.conn == nil {
		return
	}
	var client, server int64
	if w.faultRandom.chance(200_000) {
		client = w.faultRandom.below(4 * second)
	}
	if w.faultRandom.chance(200_000) {
		server = w.faultRandom.below(6 * second)
	}
	c.conn.breakUp("reset", client, server)
}

// faultHandOver stops the master in order, as SIGTERM does.
func (w *World) faultHandOver() {
	p := w.master()
	if p == nil {
		return
	}
	w.happened(FaultHandOver)
	w.trace.add(w.now, "hand over", uint64(p.index))
	w.tell(p.name, "is told to hand over and stop")
	p.post(replica.HandOver{})
	boot := p.boot
	w.after(w.faultRandom.between(50*millisecond, 800*millisecond), func() {
		if w.faulty && p.boot == boot {
			w.crashAndRestart(p, "stopped")
		}
	})
}

// faultPartition cuts some of the network for a while.
func (w *World) faultPartition() {
	s := w.faultRandom
	var cuts [][2]int
	machines := w.plan.replicas + w.plan.clients
	oneWay := func(from, to int) { cuts = append(cuts, [2]int{from, to}) }
	both := func(a, b int) { oneWay(a, b); oneWay(b, a) }
	kind := pick(s, []int64{0, 1, 1, 2, 3, 4, 5})
	switch kind {
	case 0: // one machine, from everybody
		a := s.below(int64(machines))
		for b := 0; b < machines; b++ {
			if b != int(a) {
				both(int(a), b)
			}
		}
	case 1: // one replica from the others; clients still reach it
		a := w.target().index
		for b := 0; b < w.plan.replicas; b++ {
			if b != a {
				both(a, b)
			}
		}
	case 2: // one way, one replica: it hears nobody, or nobody hears it
		w.happened(FaultOneWay)
		a, deaf := w.target().index, s.chance(500_000)
		for b := 0; b < w.plan.replicas; b++ {
			if b != a && deaf {
				oneWay(b, a)
			} else if b != a {
				oneWay(a, b)
			}
		}
	case 3: // groups
		side := s.uint64()
		for a := 0; a < machines; a++ {
			for b := 0; b < a; b++ {
				if side>>uint(a)&1 != side>>uint(b)&1 {
					both(a, b)
				}
			}
		}
	case 4: // single links, each way by itself
		for n := s.between(1, 4); n > 0; n-- {
			a, b := int(s.below(int64(w.plan.replicas))), int(s.below(int64(machines)))
			if a != b && s.chance(500_000) {
				oneWay(a, b)
			} else if a != b {
				oneWay(b, a)
			}
		}
	default: // one client from all replicas
		a := w.plan.replicas + int(s.below(int64(w.plan.clients)))
		for b := 0; b < w.plan.replicas; b++ {
			both(a, b)
		}
	}
	w.cutLinks(kind, cuts, s.skewed(30*millisecond, 6*second))
}

// faultDepose lets another replica become master while the old one believes
// that it still is: its messages do not arrive, while the answers to the earlier
// ones arrive later and later. Some of its clients cannot reach it any more.
func (w *World) faultDepose() {
	m := w.master()
	if m == nil || w.plan.replicas == 1 {
		return
	}
	s := w.faultRandom
	w.happened(FaultStretched)
	w.trace.add(w.now, "depose", uint64(m.index))
	w.tell("net", "the way to %s becomes long", m.name)
	for _, p := range w.replicas {
		if p != m {
			w.net.stretched[p.index][m.index] = w.now
		}
	}
	w.after(s.between(second, 2*second), func() {
		if !w.faulty {
			return
		}
		var cuts [][2]int
		for _, p := range w.replicas {
			if p != m {
				cuts = append(cuts, [2]int{m.index, p.index})
			}
		}
		for _, c := range w.clients {
			if s.chance(500_000) {
				cuts = append(cuts, [2]int{m.index, c.index}, [2]int{c.index, m.index})
				if c.conn != nil && c.conn.p == m {
					c.conn.breakUp("reset", 0, 0)
				}
			}
		}
		w.cutLinks(7, cuts, s.between(2*second, 5*second))
		w.after(s.between(2*second, 5*second), func() {
			for _, p := range w.replicas {
				w.net.stretched[p.index][m.index] = 0
			}
		})
	})
}

func (w *World) cutLinks(kind int64, cuts [][2]int, d int64) {
	w.counts.partitions++
	w.happened(FaultPartition)
	for _, c := range cuts {
		w.net.cut[c[0]][c[1]]++
	}
	w.trace.add(w.now, "partition", uint64(kind), uint64(len(cuts)))
	if w.telling() {
		w.tell("net", "PARTITION for %s: %s", tellTime(d), w.tellCuts(cuts))
	}
	w.after(d, func() {
		if !w.faulty {
			return // all is mended already
		}
		for _, c := range cuts {
			w.net.cut[c[0]][c[1]]--
		}
		w.tell("net", "the partition %s ends", w.tellCuts(cuts))
	})
}

// heal ends all faults: what was frozen runs, what was down starts, what was
// cut is mended.
func (w *World) heal() {
	w.faulty = false
	w.trace.add(w.now, "heal")
	w.tell("net", "ALL FAULTS END")
	for i := range w.net.cut {
		clear(w.net.cut[i])
		clear(w.net.stretched[i])
		for k := range w.net.narrow[i] {
			w.SetLink(i, k, 0, 0, 0)
		}
	}
	w.removeStrangers()
	for _, p := range w.replicas {
		if p.aside {
			w.afflict(p)
			continue
		}
		for p.pauses > 0 {
			p.resume()
		}
		p.mendDisk()
		if !p.up && p.refused == nil {
			w.restartLater(p, w.faultRandom.below(200*millisecond))
		}
	}
	for _, c := range w.clients {
		for c.pauses > 0 {
			c.resume()
		}
	}
}
