package sim

// What a daemon has if nothing else is said.
const (
	defaultSnapshot = 50_000
	defaultTrail    = 10_000
)

// drawLog draws what the log's disk and the links between replicas may have
// besides. It has a stream of its own, so that what was drawn before stays what
// it was.
func (p *plan) drawLog() {
	s := newStream(p.seed, 31)
	if s.chance(180_000) {
		p.every[planOddDisk] = s.between(700, 5000) * millisecond
	}
	if s.chance(150_000) {
		p.every[planWound] = s.between(1500, 9000) * millisecond
	}
	if p.replicas > 1 && s.chance(120_000) {
		p.drawNarrow(s)
	}
	if p.replicas > 1 && s.chance(150_000) {
		p.every[planStray] = s.between(500, 4000) * millisecond
		p.oddAnswers = pick(s, []int64{5_000, 50_000, 300_000})
		if s.chance(500_000) {
			// Replicas that have to fetch snapshots, and get others.
			p.snapshotSlots, p.trailSlots, p.longDown = int(s.between(12, 40)), int(s.between(1, 5)), true
			p.every[planCrash] = s.between(700, 3000) * millisecond
			p.load.valueBytes = max(p.load.valueBytes, 1000)
		}
	}
	if s.chance(120_000) {
		p.every[planWrongStart] = s.between(200, 1500) * millisecond
	}
	if p.replicas > 1 {
		p.strangeFounding = s.chance(100_000)
		p.foundingCrash = s.chance(100_000)
	}
	if p.snapshotSlots == defaultSnapshot && s.chance(500_000) {
		p.trailSlots = defaultTrail
	}
	p.lazyLoop = s.chance(350_000)
}

// drawNarrow draws links that are narrow at times, and values for which that
// matters.
func (p *plan) drawNarrow(s *stream) {
	p.every[planNarrow] = s.between(1000, 5000) * millisecond
	p.noise = true
	p.load.valueBytes = max(p.load.valueBytes, pick(s, []int64{4_000, 20_000, 60_000, 60_000, 200_000}))
	p.load.think = max(p.load.think, 25*millisecond)
	if s.chance(500_000) {
		// Leaders that find another in their place, with much queued still.
		p.every[planPause] = s.between(800, 3000) * millisecond
	}
	if s.chance(400_000) {
		p.snapshotSlots, p.trailSlots, p.longDown = int(s.between(12, 40)), int(s.between(1, 5)), true
		p.every[planCrash] = s.between(1500, 5000) * millisecond
	}
	if s.chance(400_000) {
		p.limits.linkBytes = int(pick(s, []int64{100_000, 500_000}))
	}
}
