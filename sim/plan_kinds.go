package sim

// kinds say what programs there are beside the plain one, and what they do that a
// careful program would not. Most are shares, in parts per million.
type kinds struct {
	survey     int64 // of the lives of clients: ask all addresses who they are before the first connection
	readers    int64 // of the lives: have no session, and only read and watch
	identity   int64 // of the lives: know the cell's identity
	odd        int64 // of the lives: options are left at their defaults, or extreme
	strangers  int   // addresses that belong to no replica of the cell
	strange    int64 // of the lives: are given some of these
	misuse     int64 // of the operations: something that has to be refused, in their place
	hasty      int64 // of the messages that a client takes: it gives up a call in the same moment
	yields     int64 // of the locks: are given back by a transaction
	floods     int64 // of the operations: thousands of calls at once
	lateSends  int64 // of the connections that a client gives up: what it has sent arrives still
	dialers    int64 // of the dials: the client is frozen meanwhile
	smallFrame int   // bytes: the largest frame that every other replica takes
}

// drawKinds draws them, from a stream of its own.
func (p *plan) drawKinds() {
	s := newStream(p.seed, 61)
	k := &p.load.kinds
	if s.chance(500_000) {
		k.survey = pick(s, []int64{300_000, 1_000_000})
	}
	if s.chance(250_000) {
		k.readers = pick(s, []int64{200_000, 600_000})
	}
	if s.chance(250_000) {
		k.identity = pick(s, []int64{300_000, 900_000})
	}
	if s.chance(200_000) {
		k.odd = pick(s, []int64{200_000, 600_000})
	}
	if s.chance(250_000) {
		k.strangers, k.strange = int(s.between(1, 6)), pick(s, []int64{300_000, 900_000})
	}
	if s.chance(300_000) {
		k.misuse = pick(s, []int64{10_000, 60_000})
	}
	if s.chance(250_000) {
		k.hasty = pick(s, []int64{5_000, 30_000})
	}
	if s.chance(250_000) {
		k.yields = pick(s, []int64{200_000, 700_000})
	}
	if s.chance(30_000) {
		k.floods = 3_000
	}
	if s.chance(300_000) {
		k.lateSends = pick(s, []int64{400_000, 1_000_000})
	}
	if s.chance(200_000) {
		k.dialers = pick(s, []int64{50_000, 250_000})
	}
	if s.chance(100_000) {
		k.smallFrame = int(pick(s, []int64{2500, 4 << 10, 16 << 10}))
	}
}

// fields lists what a plan file has of them.
func (k *kinds) fields() []planField {
	return []planField{
		{name: "survey-ppm", n: &k.survey, off: true}, {name: "readers-ppm", n: &k.readers, off: true},
		{name: "identity-ppm", n: &k.identity, off: true}, {name: "odd-options-ppm", n: &k.odd, off: true},
		{name: "strangers", count: &k.strangers, off: true}, {name: "strange-ppm", n: &k.strange, off: true},
		{name: "misuse-ppm", n: &k.misuse, off: true}, {name: "hasty-ppm", n: &k.hasty, off: true},
		{name: "yields-ppm", n: &k.yields, off: true}, {name: "floods-ppm", n: &k.floods, off: true},
		{name: "late-sends-ppm", n: &k.lateSends, off: true}, {name: "frozen-dials-ppm", n: &k.dialers, off: true},
		{name: "small-frame", count: &k.smallFrame, off: true},
	}
}

// wait is how much longer the leases that programs ask for by their defaults make
// the end of a run.
func (k *kinds) wait() int64 {
	if k.odd == 0 {
		return 0
	}
	return 40 * second
}
