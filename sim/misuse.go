package sim

import (
	"time"

	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// misuse does in the place of an operation what a careful program would not do: it
// has to be refused, or to have no effect.
func (c *client) misuse() {
	w := c.w
	s := w.workRandom
	w.happened(FaultMisuse)
	switch s.below(8) {
	case 0:
		c.acquire(&call{kind: opLock, stop: int64(time.Hour), want: machine.ErrInvalid})
	case 1, 2: // careful enough: just possible
		c.acquire(&call{kind: opLock, stop: min(int64(c.m.Lease())/2, 3*second)})
	case 3:
		c.releaseWrong()
	case 4: // what is over cannot be given up
		c.step(machine.Cancel{ID: c.nextCall + 1000})
		for _, k := range c.open {
			if k.kind == opGet && !k.cancel {
				k.cancel = true
				c.step(machine.Cancel{ID: k.id})
				c.step(machine.Cancel{ID: k.id})
				break
			}
		}
	case 5:
		c.watchRefused("/r//", machine.ErrInvalid)
		for _, a := range c.watches {
			c.step(machine.Resume{ID: a.id}) // of one that goes on
			c.step(machine.Pause{ID: a.id})
			c.step(machine.Pause{ID: a.id})
			c.step(machine.Resume{ID: a.id})
		}
	case 6:
		w.nextToken++
		k := &call{kind: opPut, path: "/r/0", token: w.nextToken, want: machine.ErrTooLarge}
		c.start(k)
		c.step(machine.Call{ID: k.id, Command: &storepb.Command{Op: &storepb.Command_Put{
			Put: &storepb.Put{Path: k.path, Data: tooMuch, HasData: true, Create: true}}}})
	default:
		if c.state == machine.Connecting {
			c.ending = true
			c.w.tell(c.name, "closes its session")
			c.step(machine.Close{})
			c.useClosing()
		}
	}
}

// tooMuch is more than any replica takes in a frame.
var tooMuch = make([]byte, 2<<20+1)

// releaseWrong releases what is not held: never was, or is on its way back already.
func (c *client) releaseWrong() {
	k := &call{kind: opRelease, path: "/l/none", want: machine.ErrInvalid}
	lock := c.nextCall + 1000
	for _, h := range c.holds {
		if h.released {
			k.path, lock = h.path, h.id
		}
	}
	c.start(k)
	c.step(machine.Release{ID: k.id, Lock: lock})
}

// watchRefused begins a watch that has to be refused.
func (c *client) watchRefused(path string, want error) {
	c.nextCall++
	c.floods = append(c.floods, flood{c.nextCall, c.nextCall, want})
	c.step(machine.Watch{ID: c.nextCall, Watch: &wirepb.Watch{Path: path}})
}

// useClosing goes on as if the session were not being closed.
func (c *client) useClosing() {
	share := c.w.plan.load.kinds.misuse
	if share == 0 || !c.w.workRandom.chance(500_000) {
		return
	}
	c.step(machine.Close{})
	c.refusedCalls(machine.ErrClosed)
}

// useEnded goes on as if the session had not ended.
func (c *client) useEnded() {
	share := c.w.plan.load.kinds.misuse
	if share == 0 || !c.w.workRandom.chance(500_000) {
		return
	}
	c.later(c.w.workRandom.skewed(0, 500*millisecond), func() {
		c.refusedCalls(c.m.Err())
		c.step(machine.Close{})
		for _, h := range c.holds {
			if h.released {
				continue
			}
			c.workEnds(h)
			h.released = true
			k := &call{kind: opRelease, path: h.path, lock: h, want: c.m.Err()}
			c.start(k)
			c.step(machine.Release{ID: k.id, Lock: h.id})
			break // the answer takes it out of the list
		}
	})
}

// refusedCalls starts one call of each sort, and all have to be refused.
func (c *client) refusedCalls(want error) {
	if !c.reader {
		c.command(&call{kind: opPut, want: want})
		c.acquire(&call{kind: opTry, want: want})
	}
	k := &call{kind: opGet, path: c.register(), want: want}
	c.start(k)
	c.read(k, wirepb.ReadLevel_LINEARIZABLE)
	c.watchRefused("/r", want)
}

// flood names watches that have to be refused; the name is that of what most of
// them are part of.
type flood struct {
	first, last machine.CallID
	want        error
}

const (
	// callsMost is how many calls of a sort wait in a machine at most.
	callsMost = 8192
	floodOver = 8 // and so many more are asked for
)

// flood starts more calls at once than the machine keeps, and gives most of them up
// in the same moment. Those that are too many are refused, and nothing else is.
func (c *client) flood() {
	w := c.w
	w.happened(FaultFlood)
	w.tell(c.name, "starts thousands of calls and gives most of them up")
	keep := 40 // one of so many goes on
	if l := &w.plan.limits; l.pending > 0 || l.pendingSession > 0 {
		keep = callsMost / 4
	}
	kind := w.workRandom.below(3)
	if c.reader {
		kind = w.workRandom.between(1, 2)
	}
	switch kind {
	case 0:
		c.floodCalls(keep, func() *call {
			k := &call{kind: opPut, flood: true}
			c.command(k)
			return k
		})
	case 1:
		c.floodCalls(callsMost/20, func() *call {
			k := &call{kind: opGet, path: "/r/0", flood: true}
			c.start(k)
			c.read(k, wirepb.ReadLevel_LINEARIZABLE)
			return k
		})
	default:
		before := len(c.watches)
		first := c.nextCall + 1
		for range callsMost + floodOver {
			c.nextCall++
			c.step(machine.Watch{ID: c.nextCall, Watch: &wirepb.Watch{Path: "/none"}})
		}
		for id := first; id < c.nextCall; id++ {
			c.step(machine.Cancel{ID: id})
		}
		c.floods = append(c.floods, flood{first + machine.CallID(callsMost-before), c.nextCall, machine.ErrLimit})
	}
}

func (c *client) floodCalls(keep int, start func() *call) {
	var all []*call
	for range callsMost + floodOver {
		all = append(all, start())
	}
	for i, k := range all {
		if i%keep != 0 {
			k.cancel = true
			c.step(machine.Cancel{ID: k.id})
		}
	}
	c.later(0, func() { c.judgeFlood(all) })
}

// freezeDialing freezes the program while it connects.
func (c *client) freezeDialing() {
	w := c.w
	if share := w.plan.load.kinds.dialers; share > 0 && w.faulty && w.faultRandom.chance(share) {
		c.freezeAfter(w.faultRandom.skewed(0, 2*millisecond), w.faultRandom.between(500*millisecond, 2500*millisecond))
	}
}

// losePatience gives up a call in the very moment in which a message is taken that
// may be its answer.
func (c *client) losePatience() {
	s, share := c.nature.random, c.w.plan.load.kinds.hasty
	if share == 0 || len(c.open) == 0 || !s.chance(share) {
		return
	}
	k := pick(s, c.open)
	if k.cancel || k.end != 0 {
		return
	}
	k.cancel = true
	c.w.happened(FaultGaveUpAtOnce)
	c.w.tell(c.name, "gives up on call %d", k.id)
	c.step(machine.Cancel{ID: k.id})
}
