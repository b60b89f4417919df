package sim

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/lockd/replica"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// director plays a script: it does what the commands say and lets the world run
// until what they wait for has come.
type director struct {
	w      *World
	names  map[string]*process
	step   *step
	cuts   [][2]int
	values map[uint64]string // what was written with which token
}

// scriptPlan is a quiet world: no faults but the script's.
func scriptPlan(s *Script) plan {
	p := plan{seed: 1, scripted: true, replicas: s.replicas, clients: s.clients, calm: 50 * millisecond,
		latencyLo: 200 * microsecond, latencyHi: millisecond, flushLo: 500 * microsecond, flushHi: 2 * millisecond,
		ordered: true, snapshotSlots: 50_000, trailSlots: 500, segmentBytes: 64 << 10}
	p.load.lease, p.load.outstanding = 2*second, 1
	for _, set := range s.settings {
		set(&p)
	}
	return p
}

// RunScript plays a script. All checks of other runs hold in it, too. Only Story
// and Search of the options count.
func RunScript(s *Script, o Options) Report {
	w := newWorld(scriptPlan(s))
	w.story.out = o.Story
	d := &director{w: w, names: map[string]*process{}, values: map[uint64]string{}}
	w.guard(func() {
		for i := range s.steps {
			d.step = &s.steps[i]
			w.tell("test", "line %d: %s", d.step.line, d.step.text)
			if d.step.do(d); w.failure != nil {
				return
			}
		}
		w.over = true
		w.checkEnd()
	})
	return w.finish(o)
}

// fail is a failure of the command that is being played.
func (d *director) fail(format string, args ...any) {
	d.w.fail("script", "line %d (%s): %s", d.step.line, d.step.text, fmt.Sprintf(format, args...))
}

// until runs the world until why is "", and fails if that takes longer than a
// bound.
func (d *director) until(bound int64, why func() string) bool {
	w := d.w
	last := why()
	if last != "" && w.failure == nil {
		w.run(w.now+bound, func() bool {
			last = why()
			return last == ""
		})
	}
	if last != "" {
		d.fail("not within %v: %s", time.Duration(bound), last)
	}
	return w.failure == nil
}

func (d *director) wait(t int64) {
	end := d.w.now + t
	passed := false
	d.w.after(t, func() { passed = true })
	d.w.run(end+1, func() bool { return passed })
}

// replicas finds out who is meant.
func (d *director) replicas(list []who) []*process {
	var out []*process
	for _, m := range d.machines(list) {
		out = append(out, d.w.replicas[m])
	}
	return out
}

// machines does the same with clients among them, and gives their numbers.
func (d *director) machines(list []who) []int {
	var out []int
	master := -1
	if m := d.w.master(); m != nil {
		master = m.index
	}
	for _, x := range list {
		before := len(out)
		switch {
		case x.replica >= 0:
			out = append(out, x.replica)
		case x.client > 0:
			out = append(out, len(d.w.replicas)+x.client-1)
		case x.word == "master" && master >= 0:
			out = append(out, master)
		case x.word == "follower" || x.word == "followers":
			for i, r := range d.w.replicas {
				if r.up && r.pauses == 0 && i != master && (x.word == "followers" || len(out) == before) {
					out = append(out, i)
				}
			}
		case x.word == "all":
			for i := range d.w.replicas {
				out = append(out, i)
			}
		case d.names[x.word] != nil:
			out = append(out, d.names[x.word].index)
		}
		if len(out) == before {
			d.fail("there is no %s now", x.word)
		}
	}
	return out
}

func (d *director) client(n int) *client { return d.w.clients[n-1] }

// ---- replicas ----

func (d *director) found() {
	d.w.found()
	d.expectMaster(nil, true, 20*second)
	for _, c := range d.w.clients {
		d.until(20*second, func() string { return inState(c, machine.Live) })
	}
}

func (d *director) start(r *process) {
	if r.up {
		d.fail("%s runs already", r.name)
		return
	}
	r.refused, r.pauses, r.keeping = nil, 0, keepByChance
	r.start()
}

func (d *director) down(r *process, why string) {
	if !r.up {
		d.fail("%s does not run", r.name)
		return
	}
	r.crash(why)
}

func (d *director) kill(r *process) {
	r.keeping = keepPageCache
	d.down(r, "killed")
}

// stop ends a replica in order: a master hands over first.
func (d *director) stop(r *process) {
	if r.up && r.role.Master {
		r.post(replica.HandOver{})
		gone := false
		d.w.after(2*second, func() { gone = true })
		d.w.run(d.w.now+3*second, func() bool { return gone || (!r.role.Master && !r.role.Leaving) })
	}
	r.keeping = keepPageCache
	d.down(r, "stopped")
}

func (d *director) freeze(r *process) {
	d.w.happened(FaultFrozen)
	d.w.tell(r.name, "is frozen")
	r.pause()
}

func (d *director) thaw(r *process) {
	d.w.tell(r.name, "thaws")
	r.resume()
}

// wipe gives a replica that does not run an empty disk.
func (d *director) wipe(r *process) {
	if r.up {
		d.fail("%s runs; stop it first", r.name)
		return
	}
	r.wipe()
}

func (d *director) second(r *process) { d.w.startSecond(r) }

// ---- network ----

func (d *director) cut(a, b []who, rest, both bool) {
	w := d.w
	from, to := d.machines(a), d.machines(b)
	if rest {
		named := map[int]bool{}
		for _, m := range from {
			named[m] = true
		}
		for m := range len(w.replicas) + len(w.clients) {
			if !named[m] {
				to = append(to, m)
			}
		}
	}
	for _, x := range from {
		for _, y := range to {
			if x == y {
				d.fail("%s cannot be cut off from itself", w.machineName(x))
				return
			}
			d.cuts = append(d.cuts, [2]int{x, y})
			w.net.cut[x][y]++
			if both {
				d.cuts = append(d.cuts, [2]int{y, x})
				w.net.cut[y][x]++
			}
		}
	}
	w.happened(FaultPartition)
	w.tell("net", "the network is cut:%s", w.tellCuts(d.cuts))
}

func (d *director) heal() {
	for _, c := range d.cuts {
		d.w.net.cut[c[0]][c[1]]--
	}
	d.cuts = nil
	d.w.tell("net", "the network is whole again")
}

// ---- clients ----

func (d *director) killClient(c *client)   { c.end("killed", 0) }
func (d *director) startClient(c *client)  { c.begin() }
func (d *director) freezeClient(c *client) { d.w.tell(c.name, "is frozen"); c.pause() }
func (d *director) thawClient(c *client)   { d.w.tell(c.name, "thaws"); c.resume() }

// begin lets a client begin a call, as part of its program, and waits for the
// answer unless told not to. It gives nil if there is no answer.
func (d *director) begin(c *client, behind bool, k *call, do func()) *call {
	if c.m == nil {
		d.fail("%s does not run", c.name)
		return nil
	}
	life := c.life
	c.post(do)
	if behind {
		return nil
	}
	d.until(60*second, func() string {
		switch {
		case k.end != 0:
			return ""
		case c.life != life:
			return c.name + "'s program has ended and begun anew"
		}
		return c.name + " has no answer"
	})
	if d.w.failure != nil {
		return nil
	}
	return k
}

// done demands an answer's code.
func (d *director) done(k *call, codes ...storepb.Code) {
	if k == nil {
		return
	}
	for _, c := range codes {
		if k.result != nil && k.result.GetCode() == c {
			return
		}
	}
	d.fail("the answer is %s", answerName(k))
}

func answerName(k *call) string {
	switch {
	case k.result != nil:
		return codeName(k.result.GetCode())
	case k.read != nil:
		return codeName(k.read.GetCode())
	case mayHaveHappened(k):
		return "unknown"
	}
	return fmt.Sprintf("an error: %v", k.failure)
}

func (d *director) write(c *client, key, value string, behind bool) {
	d.writeBytes(c, key, value, 0, behind)
}

// writeBytes writes a value with so many bytes behind it.
func (d *director) writeBytes(c *client, key, value string, more int, behind bool) {
	w := d.w
	w.nextToken++
	k := &call{kind: opPut, path: "/r/" + key, token: w.nextToken}
	d.values[k.token] = value
	d.done(d.begin(c, behind, k, func() {
		c.start(k)
		c.step(machine.Call{ID: k.id, Command: &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{
			Path: k.path, Data: append(w.value(k.token), make([]byte, more)...), HasData: true, Create: true, Parents: true}}}})
	}), storepb.Code_OK)
}

func (d *director) remove(c *client, key string, behind bool) {
	k := &call{kind: opDelete, path: "/r/" + key}
	d.done(d.begin(c, behind, k, func() {
		c.start(k)
		c.step(machine.Call{ID: k.id, Command: &storepb.Command{Op: &storepb.Command_Delete{Delete: &storepb.Delete{Path: k.path}}}})
	}), storepb.Code_OK)
}

func (d *director) acquire(c *client, lock string, o acquireOptions, behind bool) {
	k := &call{kind: opLock, path: "/l/" + lock, shared: o.shared, stop: o.stop}
	a := &storepb.Acquire{Path: k.path, Mode: storepb.LockMode_EXCLUSIVE, Create: true, LockDelayMs: uint64(o.delay / millisecond)}
	if o.shared {
		k.kind, a.Mode = opShared, storepb.LockMode_SHARED
	}
	if o.try {
		k.kind = opTry
	} else {
		a.WaitMs = uint64(o.wait / millisecond)
	}
	answered := d.begin(c, behind, k, func() {
		c.start(k)
		c.step(machine.Acquire{ID: k.id, Acquire: a, Stop: nanos(o.stop)})
	})
	if !o.try && o.wait == 60*second {
		d.done(answered, storepb.Code_GRANTED)
	}
}

func (d *director) release(c *client, lock string, behind bool) {
	h := c.holding("/l/" + lock)
	if h == nil {
		d.fail("%s does not hold %s", c.name, lock)
		return
	}
	life := c.life
	c.post(func() { c.giveBack(h) })
	if behind {
		return
	}
	d.until(60*second, func() string {
		for _, o := range c.holds {
			if o == h && c.life == life {
				return c.name + " has no answer to its release"
			}
		}
		return ""
	})
}

func (d *director) breakLock(c *client, lock string, behind bool) {
	k := &call{kind: opBreak, path: "/l/" + lock}
	d.done(d.begin(c, behind, k, func() {
		c.start(k)
		c.step(machine.Call{ID: k.id, Command: &storepb.Command{Op: &storepb.Command_BreakLock{BreakLock: &storepb.Break{
			Path: k.path, Fence: d.w.history.queue(k.path).fence}}}})
	}), storepb.Code_OK)
}

func (d *director) closeSession(c *client) {
	if c.m == nil {
		d.fail("%s does not run", c.name)
		return
	}
	life := c.life
	c.post(func() {
		c.ending = true
		c.step(machine.Close{})
	})
	d.until(60*second, func() string {
		if c.life == life && c.state != machine.Closed {
			return c.name + "'s session is not closed"
		}
		return ""
	})
}

// holding is the hold of a lock that a client works under.
func (c *client) holding(path string) *hold {
	for _, h := range c.holds {
		if h.path == path && !h.lost && !h.ended && !h.released {
			return h
		}
	}
	return nil
}
