package sim

import (
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/sequencer"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// hold is a lock in an application's hands: from the instant at which it was
// told of the grant to the instant at which the guarded work has ended.
type hold struct {
	c        *client
	life     int
	id       machine.CallID // of the Acquire
	path     string
	shared   bool
	fence    uint64
	instance uint64 // of the node
	ticket   request
	sequence string // its sequencer
	since    int64
	stop     int64         // how long the work may go on once it is told to stop
	deadline time.Duration // on the client's clock, 0 unknown
	until    int64         // not given back before then unless it is lost: the holder is cut off
	lost     bool
	late     bool // told of the loss past its deadline, on waking from a freeze
	ended    bool // the work has ended
	released bool // Release was called
	yields   int  // transactions that were to give it back
}

// guard is a service that is guarded by a lock and checks fences: it refuses
// a fence lower than the highest it has seen.
type guard struct{ highest uint64 }

// acquire starts a lock call.
func (c *client) acquire(k *call) {
	s := c.w.workRandom
	l := &c.w.plan.load
	k.path = lockPath(s.below(int64(l.locks)))
	if k.varied {
		k.path = c.variedPath()
	}
	onEphemeral := l.ephemeralLocks && s.chance(250_000)
	if onEphemeral {
		k.path = ephemeralLock
	}
	k.shared = k.kind == opShared || (k.kind == opTry && s.chance(400_000))
	if k.stop == 0 {
		k.stop = pick(s, []int64{0, 10, 200}) * millisecond
	}
	a := &storepb.Acquire{Path: k.path, Mode: storepb.LockMode_EXCLUSIVE, Create: !onEphemeral,
		LockDelayMs: uint64(pick(s, l.lockDelays))}
	if k.shared {
		a.Mode = storepb.LockMode_SHARED
	}
	if k.kind != opTry {
		a.WaitMs = uint64(s.between(50, 5000))
		a.NoDeadline = s.chance(150_000)
	}
	if k.wait = int64(a.WaitMs) * millisecond; a.NoDeadline {
		k.wait = -1
	}
	c.start(k)
	c.step(machine.Acquire{ID: k.id, Acquire: a, Stop: nanos(k.stop)})
}

// ephemeralLock is a node that goes with the session that has created it, also
// while another session holds its lock.
const ephemeralLock = "/e/lock"

func lockPath(n int64) string { return "/l/" + string(rune('a'+n)) }

// acquired takes the answer: with a grant the work begins.
func (c *client) acquired(k *call) {
	w := c.w
	g := k.result.GetGrant()
	if k.result.GetCode() != storepb.Code_GRANTED {
		return
	}
	if k.cancel {
		return // it was given up in the very moment of the grant: the machine gives it back
	}
	if g == nil || g.GetPath() != k.path {
		w.fail("locks", "%s: call %d is granted without a grant of %s: %v", c.name, k.id, k.path, g)
		return
	}
	h := &hold{c: c, life: c.life, id: k.id, path: k.path, shared: k.shared, fence: g.GetFence(), instance: g.GetInstance(), since: w.now, stop: k.stop}
	h.ticket = request{c.session, g.GetTicket()}
	h.sequence = sequencer.Make(sequencer.S{Shared: h.shared, Fence: g.GetFence(), Generation: g.GetLockGeneration(),
		Instance: g.GetInstance(), Cell: w.cellIdentity(), Path: h.path})
	w.checkExclusion(h)
	c.holds = append(c.holds, h)
	w.held[h.path] = append(w.held[h.path], h)
	if w.granted = append(w.granted, h); len(w.granted) > 30 {
		w.granted = w.granted[1:]
	}
	w.counts.grants++
	c.work(h)
	if w.plan.scripted {
		return // the script says when it is given back
	}
	span := w.workRandom.skewed(1, 3000*millisecond)
	if w.workRandom.chance(200_000) {
		span = w.workRandom.between(second, 6*second)
	}
	if c.ending {
		span = 0
	}
	c.later(span, func() { c.giveBack(h) })
	w.seize(h)
}

// seize freezes a holder, or cuts it off while it goes on working.
func (w *World) seize(h *hold) {
	if !w.faulty || !w.faultRandom.chance(w.plan.seizeHolder) {
		return
	}
	w.happened(FaultHolderSeized)
	wait, d := w.faultRandom.skewed(0, 300*millisecond), w.faultRandom.between(1500*millisecond, 6*second)
	if w.faultRandom.chance(500_000) {
		h.c.freezeAfter(wait, d)
		return
	}
	h.until = w.now + wait + d
	w.after(wait, func() {
		if !w.faulty {
			return
		}
		var cuts [][2]int
		for _, p := range w.replicas {
			cuts = append(cuts, [2]int{p.index, h.c.index}, [2]int{h.c.index, p.index})
		}
		w.cutLinks(9, cuts, d)
	})
}

// freezeAfter freezes the program for a while.
func (c *client) freezeAfter(wait, d int64) {
	w := c.w
	w.after(wait, func() {
		if !w.faulty {
			return
		}
		w.happened(FaultClientFrozen)
		w.tell(c.name, "is frozen for %s", tellTime(d))
		c.pause()
		w.after(d, func() {
			if w.faulty {
				w.tell(c.name, "thaws")
				c.resume()
			}
		})
	})
}

// work writes to the guarded service now and then while the lock is held.
func (c *client) work(h *hold) {
	w := c.w
	c.later(w.workRandom.skewed(0, 400*millisecond), func() {
		if h.lost || h.ended {
			return
		}
		c.checkDeadline(h)
		w.after(w.latency(), func() { w.guarded(h) })
		if w.workRandom.chance(100_000) && !w.winding {
			c.checkSequencer(h)
		}
		c.work(h)
	})
}

// checkSequencer asks whether the sequencer of a held lock is valid.
func (c *client) checkSequencer(h *hold) {
	k := &call{kind: opCheck, path: h.path, lock: h}
	c.start(k)
	c.step(machine.Read{ID: k.id, Read: &wirepb.Read{Op: &wirepb.Read_Check{Check: &wirepb.CheckSequencer{Sequencer: h.sequence}}}})
}

// checkedSequencer: while a lock is held its sequencer is valid, unless the
// lock was taken away and the holder is about to hear of it.
func (w *World) checkedSequencer(k *call) {
	h := k.lock
	check := k.read.GetCheck()
	if check == nil || k.c != h.c || h.ended || h.lost || h.c.paused() || w.history.taken[h.ticket] {
		return
	}
	w.counts.checked++
	if !check.GetValid() {
		w.fail("exclusion", "%s holds %s and its sequencer %s is not valid: %s", h.c.name, h.path, h.sequence, check.GetReason())
	}
}

// guarded is a write that reaches the guarded service.
func (w *World) guarded(h *hold) {
	g := w.guards[h.path]
	if g == nil {
		g = &guard{}
		w.guards[h.path] = g
	}
	w.trace.add(w.now, "guarded", h.fence, g.highest)
	if h.fence >= g.highest {
		g.highest = h.fence
		return
	}
	w.counts.fenced++
	w.tell(h.c.name, "its write with fence %d is refused, %d has been seen", h.fence, g.highest)
	if !h.ended && !h.lost && !h.c.paused() {
		w.fail("exclusion", "%s holds %s with fence %d and obeys, yet fence %d has been used",
			h.c.name, h.path, h.fence, g.highest)
	}
}

// checkDeadline: a program that runs is told of a loss by the deadline.
func (c *client) checkDeadline(h *hold) {
	now := c.clock.read(c.w.now)
	if h.deadline != 0 && now > h.deadline+5*time.Millisecond && !h.lost && !c.paused() {
		c.w.fail("exclusion", "%s: the deadline of %s (call %d) passed %v ago and it was not reported lost",
			c.name, h.path, h.id, now-h.deadline)
	}
}

// lost is the machine's word that a lock is lost: the work has stop to end. It
// reports whether the lock is one that the application holds.
func (c *client) lost(l machine.Lost) bool {
	w := c.w
	for _, h := range c.holds {
		if h.id != l.Lock {
			continue
		}
		w.trace.add(w.now, "lost", uint64(c.index), uint64(l.Lock))
		w.tell(c.name, "has lost the lock of call %d: %s", l.Lock, l.Reason)
		w.counts.lost++
		if h.lost {
			w.fail("client", "%s: the loss of %s (call %d) is reported twice", c.name, h.path, h.id)
		}
		h.lost = true
		if w.plan.scripted {
			c.lostLocks[h.path] = true
		}
		// What was frozen past its deadline cannot have stopped in time; on
		// waking it still takes its time to stop.
		h.late = c.paused() && h.deadline != 0 && c.clock.read(w.now) > h.deadline+5*time.Millisecond
		c.later(w.workRandom.below(h.stop*9/10+1), func() { c.giveBack(h) })
		return true
	}
	return false
}

// moved takes a new deadline of a held lock.
func (c *client) moved(d machine.Deadline) {
	for _, h := range c.holds {
		if h.id == d.Lock {
			h.deadline = d.At
		}
	}
}

// giveBack ends the work and releases.
func (c *client) giveBack(h *hold) {
	if h.released || h.life != c.life || c.state == machine.Expired || c.state == machine.Closed {
		c.workEnds(h)
		return
	}
	if c.w.now < h.until && !h.lost && !c.w.winding {
		c.later(h.until-c.w.now, func() { c.giveBack(h) })
		return
	}
	c.checkDeadline(h)
	c.workEnds(h)
	if c.yield(h) {
		return
	}
	h.released = true
	k := &call{kind: opRelease, path: h.path, lock: h}
	c.start(k)
	c.step(machine.Release{ID: k.id, Lock: h.id})
}

func (c *client) workEnds(h *hold) {
	if h.ended {
		return
	}
	h.ended = true
	w := c.w
	w.trace.add(w.now, "work ends", uint64(c.index), uint64(h.id))
	w.tell(c.name, "work under %s (call %d, fence %d) has ended", h.path, h.id, h.fence)
	held := w.held[h.path]
	for i, o := range held {
		if o == h {
			w.held[h.path] = append(held[:i:i], held[i+1:]...)
			return
		}
	}
}

// released takes the answer to a release.
func (c *client) released(k *call) {
	for i, h := range c.holds {
		if h == k.lock {
			c.holds = append(c.holds[:i:i], c.holds[i+1:]...)
			return
		}
	}
}

// checkExclusion: in true time nobody holds what excludes the new holder,
// except a program that was frozen and so could not obey. Its fence is lower.
func (w *World) checkExclusion(h *hold) {
	for _, o := range w.held[h.path] {
		if o.c == h.c && o.life == h.life && o.shared && h.shared {
			continue
		}
		if o.shared && h.shared {
			if o.fence > h.fence {
				w.fail("fences", "%s is granted %s shared with fence %d, below the fence %d of %s", h.c.name, h.path, h.fence, o.fence, o.c.name)
			}
			continue
		}
		if o.fence >= h.fence {
			w.fail("fences", "%s is granted %s with fence %d, not above the fence %d of %s", h.c.name, h.path, h.fence, o.fence, o.c.name)
		}
		// A program that was frozen could not obey. But the deadline that it knew
		// of has passed on its clock: what it does not know can only be later.
		if early := o.c.clock.read(w.now) < o.deadline; (o.c.paused() || o.late) && !early {
			w.counts.zombies++
			continue
		}
		w.fail("exclusion", "%s is granted %s (call %d, shared %v, fence %d) while %s still holds it (call %d, shared %v, fence %d) and obeys",
			h.c.name, h.path, h.id, h.shared, h.fence, o.c.name, o.id, o.shared, o.fence)
	}
}
