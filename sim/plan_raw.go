package sim

import "github.com/seed70370324/lockd/replog"

// drawRaws draws the raw clients (raw.go), and the limits that they meet. It has a
// stream of its own, so that what was drawn before stays what it was.
func (p *plan) drawRaws() {
	s := newStream(p.seed, 60)
	if !s.chance(250_000) {
		return
	}
	p.raws = int(s.between(1, 3))
	p.rawThink = pick(s, []int64{6, 15, 40, 120}) * millisecond
	if s.chance(600_000) {
		p.rawWild = pick(s, []int64{5_000, 20_000})
	}
	l := &p.limits
	some := func() bool { return s.chance(300_000) }
	if some() {
		l.sessions = p.clients + int(s.between(1, 4))
	}
	if some() {
		l.connSessions = int(s.between(1, 2))
	}
	if some() {
		l.connections = p.clients + int(s.between(0, 2))
	}
	if some() {
		l.watchTopic = int(s.between(600, 6000))
	}
	if some() {
		l.watchLog = int(s.between(1000, 9000))
	}
	if l.room == 0 && s.chance(500_000) {
		l.room = int(pick(s, []int64{1000, 10_000, 100_000}))
	}
	if some() {
		l.frame = int(pick(s, []int64{64 << 10, 80 << 10, 1200 << 10}))
	}
	if s.chance(250_000) {
		// Every member has to be able to hold more again before the cell can be well.
		p.healMajority = false
		if s.chance(600_000) {
			l.stateNodes = int(s.between(8, 60))
		}
		if s.chance(600_000) {
			l.stateBytes = s.between(10_000, 200_000)
		}
	}
}

// limits is what the process says that it can hold of the state. While there are
// faults that may be little.
func (p *process) limits() replog.StateLimits {
	l := &p.w.plan.limits
	if !p.w.faulty {
		return replog.StateLimits{}
	}
	return replog.StateLimits{Nodes: uint64(l.stateNodes), Bytes: uint64(l.stateBytes)}
}

// raiseLimits restarts the replicas with larger limits of the state, as an operator
// does when the cell is full: without that it refuses new sessions for ever.
func (w *World) raiseLimits() {
	if w.plan.limits.stateNodes == 0 && w.plan.limits.stateBytes == 0 {
		return
	}
	w.tell("net", "the limits of the state are raised: all replicas restart")
	for _, p := range w.replicas {
		if p.up {
			p.crash("its limits are raised")
			w.restartLater(p, w.faultRandom.below(300*millisecond))
		}
	}
}
