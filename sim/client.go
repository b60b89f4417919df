package sim

import (
	"time"

	"github.com/seed70370324/lockd/client/machine"
)

// client is a program that uses the service: the product's session machine,
// the shell around it, and an application that works with it. When it ends (a
// crash, a closed or an expired session) a new one of the same name starts
// with a new session.
type client struct {
	w     *World
	index int // as a machine on the network
	name  string
	clock clock
	// random draws when the program acts. Each of its operations has a stream of
	// its own, so that without one the others stay what they are.
	random    *stream
	ops       int
	idleUntil int64 // it begins nothing before

	nature
	life    int // counts the machines
	m       *machine.Machine
	nonce   string
	state   machine.State
	session uint64 // once the log has it
	conn    *conn  // nil when it is broken
	dialed  *conn  // the last one, until the machine gives it up

	mailbox  []any // machine.Event, fromConn or func()
	spare    []any // memory for the next mailbox
	waking   bool
	turn     func() // a turn of this life's program, made once: a closure for each costs memory
	thought  func() // it thinks of its next call, likewise
	makeCall func() // it makes that call, likewise
	own      stream // chance for the call that it makes now
	daring   bool   // it makes that one even if its session is not known to live
	wakeAt   int64  // true time at which the machine wants a Tick; 0: never
	armedAt  int64  // true time at which it is looked next whether one is due; 0: none
	tickDue  bool
	pauses   int
	resumed  int64 // when the last pause ended

	nextCall machine.CallID
	calls    map[machine.CallID]*call
	open     []*call // calls without an answer, by age
	holds    []*hold
	watches  []*watch
	ending   bool // the session is being closed

	// What is judged, see check_client.go.
	batches int            // counts the turns of its loop
	asks    []*conn        // questions that have no answer yet
	answers []surveyAnswer // of the newest survey
	lived   bool           // it has been live
	liveAt  time.Duration  // on its clock, since when
	heardAt time.Duration  // when a read or watch was last answered
	floods  []flood
	raw     *raw // drives the connection in place of m

	// For scripts.
	lastAnswer string
	lostLocks  map[string]bool
	expired    int // sessions
}

// fromConn is an event of a connection.
type fromConn struct {
	n  *conn
	ev machine.Event
}

// paused reports whether the client cannot be blamed for being late: it is
// frozen, or was until this very moment.
func (c *client) paused() bool {
	return c.pauses > 0 || (c.resumed > 0 && c.w.now-c.resumed < 10*millisecond)
}

// live reports whether a program is running.
func (c *client) live() bool { return c.m != nil }

// begin starts a program with a new session.
func (c *client) begin() {
	w := c.w
	if c.m != nil || w.over {
		return
	}
	c.life++
	nonce := w.workRandom.bytes(16)
	c.nonce = string(nonce)
	c.session, c.state, c.ending = 0, machine.Connecting, false
	c.calls, c.open, c.holds, c.watches = map[machine.CallID]*call{}, nil, nil, nil
	c.mailbox, c.waking, c.tickDue = nil, false, false
	c.wakeAt, c.armedAt = 0, 0
	life := c.life
	c.turn = func() { c.takeTurn(life) }
	c.thought = func() { c.thinks(life) }
	c.makeCall = c.callNow
	w.byNonce[c.nonce] = owner{c, c.life}
	var addresses []string
	first := w.workRandom.below(int64(len(w.replicas)))
	for i := range w.replicas {
		addresses = append(addresses, w.replicas[(int(first)+i)%len(w.replicas)].address())
	}
	options := machine.Options{
		Addresses: addresses, Cell: cellName, Name: c.name, Host: "host-" + c.name, PID: 100*c.index + c.life,
		Lease: nanos(w.plan.load.drawLease(w.workRandom)), Grace: nanos(20 * second), DriftPPM: 10_000,
		Nonce: nonce, Seed: w.workRandom.uint64(), Now: c.clock.read(w.now), OpenTimeout: nanos(40 * second),
	}
	c.dress(&options)
	c.m = machine.New(options)
	w.trace.add(w.now, "begin", uint64(c.index), uint64(c.life))
	w.tell(c.name, "begins (session machine %d)", c.life)
	c.post(machine.Tick{})
	if !w.plan.scripted {
		c.think()
	}
}

// end drops the program. If it was killed or its machine lost, its connection
// may hang on the service's side for a while.
func (c *client) end(why string, hang int64) {
	w := c.w
	if c.m == nil {
		return
	}
	w.trace.add(w.now, "end", uint64(c.index), uint64(c.life))
	w.tell(c.name, "ends: %s", why)
	c.m = nil
	if c.conn != nil {
		c.conn.hangUp(hang)
	}
	for _, n := range c.asks {
		n.endAsking(hang)
	}
	c.asks = nil
	for _, k := range c.open {
		w.history.unanswered(k)
	}
	c.open = nil
	for _, h := range c.holds {
		c.workEnds(h)
	}
	c.holds = nil
	for _, a := range c.watches {
		a.ended = true
	}
}

func (c *client) post(ev any) {
	if c.raw != nil {
		c.raw.happened(ev.(fromConn).ev)
		return
	}
	if c.m == nil {
		return
	}
	c.mailbox = append(c.mailbox, ev)
	c.wake()
}

// later runs f as part of the program, d nanoseconds from now or as soon after
// as the program runs.
func (c *client) later(d int64, f func()) {
	life := c.life
	c.w.after(d, func() {
		if c.life == life {
			c.post(f)
		}
	})
}

func (c *client) wake() {
	if c.waking || c.pauses > 0 || len(c.mailbox) == 0 {
		return
	}
	c.waking = true
	c.w.after(c.w.netRandom.below(100*microsecond), c.turn)
}

// takeTurn runs the program of one life once it has been woken.
func (c *client) takeTurn(life int) {
	if c.life != life || c.m == nil {
		return
	}
	c.waking = false
	if c.pauses == 0 {
		c.loop()
	}
}

func (c *client) loop() {
	w := c.w
	batch := c.mailbox
	c.mailbox, c.spare = c.spare, nil
	c.batches++
	now := c.clock.read(w.now)
	for _, ev := range batch {
		switch e := ev.(type) {
		case func():
			e()
		case machine.Event:
			c.m.Step(now, e)
		case fromConn:
			// What an earlier connection has left in the mailbox is dropped.
			if c.dialed == e.n {
				c.hears(e.ev)
				c.m.Step(now, e.ev)
				c.losePatience()
			}
		}
		if c.m == nil {
			return
		}
	}
	clear(batch)
	c.spare = batch[:0]
	c.perform(c.m.Take(now))
}

// step gives the machine an event of the application's, at once.
func (c *client) step(ev machine.Event) { c.m.Step(c.clock.read(c.w.now), ev) }

func (c *client) perform(e machine.Effects) {
	w := c.w
	c.askAll(e.Ask)
	for _, text := range e.Warnings {
		c.warn(text)
	}
	if e.Hangup || e.Dial != "" {
		c.dialed = nil
		if c.conn != nil {
			c.conn.hangUp(0)
		}
	}
	if e.Dial != "" {
		c.dial(e.Dial)
	}
	if c.conn != nil {
		for _, m := range e.Send {
			c.conn.sendUp(m)
		}
	}
	c.setWake(&e)
	// A lock may be lost in the batch in which it is granted: what was held
	// before is lost before anything is granted.
	var late []machine.Lost
	for _, l := range e.Lost {
		if !c.lost(l) {
			late = append(late, l)
		}
	}
	for _, d := range e.Done {
		c.done(d)
	}
	for _, l := range late {
		if !c.lost(l) && !c.calls[l.Lock].cancel {
			w.fail("client", "%s: the lock of call %d is lost but was never granted", c.name, l.Lock)
		}
	}
	for _, d := range e.Deadlines {
		c.moved(d)
	}
	for _, u := range e.Updates {
		c.update(u)
	}
	if e.State != nil {
		c.stateChanged(*e.State)
	}
	c.checkAnswered(e.Done)
	c.m.Reuse(e)
}

// setWake arms the machine's timer.
func (c *client) setWake(e *machine.Effects) {
	c.wakeAt = 0
	if e.Wake == 0 {
		return
	}
	c.wakeAt = max(c.clock.when(e.Wake), c.w.now)
	c.arm()
}

// arm has the machine's timer looked at when it is due, or earlier: most timers
// are put off before that, and each would be one more thing in the queue.
func (c *client) arm() {
	if c.armedAt != 0 && c.armedAt <= c.wakeAt {
		return
	}
	c.armedAt = c.wakeAt
	at, life := c.wakeAt, c.life
	c.w.at(at, func() {
		if c.life != life || c.armedAt != at {
			return
		}
		c.armedAt = 0
		switch {
		case c.wakeAt == 0:
		case c.wakeAt > c.w.now:
			c.arm()
		case c.pauses > 0:
			c.wakeAt, c.tickDue = 0, true
		default:
			c.wakeAt = 0
			c.post(machine.Tick{})
		}
	})
}

func (c *client) stateChanged(s machine.State) {
	w := c.w
	w.trace.add(w.now, "state", uint64(c.index), uint64(s))
	if w.telling() {
		w.tell(c.name, "session is %v", s)
	}
	c.judgeState(s)
	c.state = s
	if s == machine.Expired {
		c.expired++
	}
	if s != machine.Expired && s != machine.Closed {
		return
	}
	for _, h := range c.holds {
		if !h.lost && !h.released {
			w.fail("client", "%s: the session is over and the lock %s (call %d) was not reported lost", c.name, h.path, h.id)
			return
		}
	}
	// Calls that are still open have had their last chance with this batch.
	for _, k := range c.open {
		w.fail("client", "%s: the session is over and call %d (%v %s) has no answer", c.name, k.id, k.kind, k.path)
		return
	}
	c.useEnded()
	life := c.life
	w.after(w.workRandom.between(0, 800*millisecond), func() {
		if c.life == life {
			c.end("its session is over", 0)
			c.begin()
		}
	})
}

func (c *client) pause() { c.pauses++ }

func (c *client) resume() {
	if c.pauses == 0 {
		return
	}
	c.pauses--
	if c.pauses > 0 || c.m == nil {
		return
	}
	c.resumed = c.w.now
	if c.tickDue {
		c.tickDue = false
		if c.w.faultRandom.chance(500_000) {
			c.mailbox = append([]any{machine.Tick{}}, c.mailbox...)
		} else {
			c.mailbox = append(c.mailbox, machine.Tick{})
		}
	}
	c.wake()
}

var _ machine.API = (*machine.Machine)(nil)

// remove takes a call out of the open ones.
func (c *client) remove(k *call) {
	for i, o := range c.open {
		if o == k {
			c.open = append(c.open[:i:i], c.open[i+1:]...)
			return
		}
	}
}
