package sim

import (
	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
)

// actReader starts a call of a program that has no session.
func (c *client) actReader() {
	w := c.w
	s := w.workRandom
	k := &call{kind: opGet}
	switch n := s.below(40); {
	case n < 18:
		k.path = c.register()
		c.start(k)
		c.read(k, wirepb.ReadLevel_LINEARIZABLE)
	case n < 26:
		k.kind, k.path = opStale, c.register()
		c.start(k)
		c.read(k, wirepb.ReadLevel_STALE)
	case n < 34:
		c.watch(&call{kind: opWatch})
		return
	case n < 36:
		if m := int64(len(w.granted)); m > 0 {
			c.checkSequencer(w.granted[s.below(m)])
		}
		return
	case n < 38:
		if s.chance(w.plan.load.kinds.floods * 10) {
			c.flood()
		}
		return
	case n < 39:
		c.idleUntil = w.now + s.between(second, 15*second) // it has to find out by itself whether it is heard
		return
	default:
		c.ending = true
		c.w.tell(c.name, "closes its session")
		c.step(machine.Close{})
		c.useClosing()
		return
	}
	if s.chance(60_000) {
		c.giveUpAfter(k, s.skewed(1, 1500*millisecond))
	}
}
