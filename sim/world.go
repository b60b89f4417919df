package sim

import (
	"fmt"
	"runtime/debug"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// World is one run: everything there is, and the one queue of what will happen.
type World struct {
	seed uint64
	plan plan
	now  int64 // true time, nanoseconds since the start
	queue

	netRandom, diskRandom, clockRandom, faultRandom, workRandom *stream

	net       *network
	replicas  []*process
	clients   []*client
	strangers []*stranger
	raws      []*raw
	pool      rawPool
	nextConn  replica.ConnID
	faulty    bool // faults may happen
	relaying  bool // the lead is being passed on
	winding   bool // applications begin nothing new
	over      bool

	history   *history
	byNonce   map[string]owner
	opened    map[owner][]*session
	held      map[string][]*hold
	granted   []*hold // the newest grants, whatever has become of them
	guards    map[string]*guard
	nextToken uint64
	undecided int

	trace   trace
	numbers [16]uint64 // scratch for what goes into it
	story   story
	failure *Failure
	counts  counts
	faults  FaultCounts

	workOnly    bool // the run ends where its faults do
	plannedCame int  // planned faults that came
	acted       int  // operations of clients
}

// counts say how much of everything a run had: a check that never had anything
// to check shows here.
type counts struct {
	commands, answers, unknown, repeats           int
	watched, missed                               int // changes that watches told, and those marked as missed
	grants, lost, zombies, fenced                 int
	expired, expiredPaused                        int
	crashes, partitions, pauses, masters, refused int
	snapshots, installs, breaks, checked, doubled int
	parts, superseded, overflows, noRoom          int // on narrow links
}

// Failure is a broken property.
type Failure struct {
	Check string // which
	Text  string
	At    int64 // true time
}

func (f *Failure) Error() string {
	return fmt.Sprintf("%s: %s (at %s)", f.Check, f.Text, tellTime(f.At))
}

// fail notes the first failure; the run ends with it.
func (w *World) fail(check, format string, args ...any) {
	if w.failure != nil {
		return
	}
	w.failure = &Failure{Check: check, Text: fmt.Sprintf(format, args...), At: w.now}
	w.tell("FAIL", "%s: %s", check, w.failure.Text)
}

func (w *World) at(at int64, do func()) { w.queue.push(max(at, w.now), do) }

func (w *World) after(d int64, do func()) { w.queue.push(w.now+d, do) }

func newWorld(p plan) *World {
	seed := p.seed
	w := &World{seed: seed, plan: p, byNonce: map[string]owner{}, opened: map[owner][]*session{}, held: map[string][]*hold{}, guards: map[string]*guard{}}
	w.netRandom, w.diskRandom = newStream(seed, 1), newStream(seed, 2)
	w.clockRandom, w.faultRandom, w.workRandom = newStream(seed, 3), newStream(seed, 4), newStream(seed, 5)
	w.trace.hash = seed
	w.history = newHistory(w)
	w.net = newNetwork(w.plan.replicas + w.plan.clients + w.plan.load.kinds.strangers + w.plan.raws)
	for i := 0; i < w.plan.replicas; i++ {
		p := &process{w: w, index: i, id: paxos.ReplicaID(i + 1), name: fmt.Sprintf("n%d", i+1), clock: w.drawClock()}
		if w.plan.scripted {
			p.name = fmt.Sprintf("n%d", i) // as scripts count
		}
		p.fs = faultfs.New()
		w.replicas = append(w.replicas, p)
	}
	for i := 0; i < w.plan.clients; i++ {
		c := &client{w: w, index: w.plan.replicas + i, name: fmt.Sprintf("c%d", i+1), clock: w.drawClock(),
			random: newStream(seed, 1000+uint64(i)), lostLocks: map[string]bool{}}
		w.clients = append(w.clients, c)
	}
	w.newStrangers(w.plan.replicas + w.plan.clients)
	w.newRaws()
	return w
}

// cellIdentity is the cell's, once it is founded.
func (w *World) cellIdentity() uint64 {
	for _, p := range w.replicas {
		if p.identity != 0 {
			return p.identity
		}
	}
	return 0
}

func (w *World) drawClock() clock {
	c := clock{offset: w.clockRandom.between(second, 1000*second)}
	if w.plan.drifting {
		c.ppm = pick(w.clockRandom, []int64{-driftPPM, driftPPM, w.clockRandom.between(-driftPPM, driftPPM)})
	}
	return c
}

// run runs the queue until the time is over, something fails, or done says so.
func (w *World) run(until int64, done func() bool) {
	for w.failure == nil && w.now < until {
		h, ok := w.queue.pop()
		if !ok {
			w.fail("simulator", "nothing is left to happen")
			return
		}
		w.now = h.at
		h.do()
		if done != nil && done() {
			return
		}
	}
}

// play plays the whole run.
func (w *World) play() {
	w.guard(w.playParts)
}

// guard runs f; a panic in the product is a failure like another.
func (w *World) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			w.fail("panic", "%v\n%s", r, debug.Stack())
		}
	}()
	f()
}

func (w *World) playParts() {
	w.tellPlan()
	w.found()
	w.faulty = true
	w.startFaults()
	w.run(w.now+w.plan.work, nil)
	if w.workOnly {
		return
	}
	w.setAside()
	w.heal()
	w.raiseLimits()
	w.getWell()
	if w.unfoundable() {
		// Founding needs every member. Nothing was chosen, nobody was served.
		w.tell("net", "a member was lost before the cell was founded: it cannot be")
		w.over = true
		return
	}
	if w.failure == nil && w.plan.restartAtEnd {
		w.restartAll()
	}
	w.over = true
	if w.failure == nil {
		w.checkEnd()
	}
}

// unfoundable reports whether a member does not start any more, and no other
// knows that the cell is founded: the founding may have been applied by the one
// that is lost, but by then nothing else was chosen.
func (w *World) unfoundable() bool {
	lost := false
	for _, p := range w.replicas {
		if p.refused == nil && p.identity != 0 {
			return false
		}
		lost = lost || p.refused != nil
	}
	return lost && len(w.history.slots) <= 1
}

// found starts the replicas, then the clients, which do not wait.
func (w *World) found() {
	for _, p := range w.replicas {
		w.after(w.faultRandom.below(400*millisecond), p.start)
	}
	for i, p := range w.replicas {
		for _, q := range w.replicas[i+1:] {
			c := &pair{a: p, b: q}
			w.net.pairs = append(w.net.pairs, c)
			w.after(pairEvery, func() { w.watchPair(c) })
		}
	}
	for _, c := range w.clients {
		w.after(w.workRandom.below(w.plan.calm), c.begin)
	}
	w.troubleAtFounding()
	for _, r := range w.raws {
		w.after(w.plan.calm, r.think)
	}
	w.after(second, w.patrol)
}

// patrol runs the checks that cost time, now and then.
func (w *World) patrol() {
	w.checkAccounts()
	w.after(2*second, w.patrol)
}
