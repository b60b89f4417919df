package replica

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// cellClock is a replica's cell time, in which locks' deadlines, the ends of
// ghosts and those of noted sessions' leases are counted. It goes on, on the
// replica's own clock slowed by the drift bound, from the larger of itself and
// each value that the replica applies: so it goes on over any number of
// failovers, also in a cell in which nothing else happens.
//
// A span of cell time must never be shorter than the real time in which it
// passed, whichever replicas read its two ends: else a lock-delay ends early behind a
// failover. Two rules keep that:
//
//   - No replica's cell time is ahead of the master's. A master slows its clock
//     by the drift bound d, so its cell time gains at least (1-d)² on real time;
//     the others slow theirs by three times d, so they gain at most (1-3d)(1+d),
//     which is less. And what they apply is the master's, of earlier.
//   - A new master's cell time is the one of the cell from its Lead entry on. A
//     replica that was master before, and may be ahead of that, takes the entry's
//     value although it is lower. The state never goes back: it keeps the largest
//     value that it was given. For the same reason a Lead entry's value counts only
//     if its leader read it after it had applied the Lead entry before
//     (paxos.Value.CellEpoch): what it read while it still went on from its own
//     former mastership may be ahead of the master in between.
type cellClock struct {
	base  int64         // cell time at
	at    time.Duration // this instant of the own clock
	leads bool          // this replica is the master
	drift int64         // parts per million
}

const million = 1_000_000

// read returns the cell time in nanoseconds.
func (c *cellClock) read(now time.Duration) int64 {
	slow := 3 * c.drift
	if c.leads {
		slow = c.drift
	}
	since, keep := int64(now-c.at), max(million-slow, 0)
	// Split, so that nothing overflows and rounding is downwards everywhere.
	return c.base + since/million*keep + since%million*keep/million
}

// applied takes the state's cell time after something was applied to it.
func (c *cellClock) applied(now time.Duration, state int64) {
	if state > c.read(now) {
		invariant.Assert(!c.leads, "no replica's cell time is ahead of the master's: it applied %d at %d", state, c.read(now))
		c.base, c.at = state, now
	}
}

// lead notes whether this replica is the master, which decides how fast its cell
// time goes.
func (c *cellClock) lead(now time.Duration, leads bool) {
	if c.leads != leads {
		c.base, c.at = c.read(now), now
		c.leads = leads
	}
}

// follow takes the cell time from another's Lead entry, also a lower one.
func (c *cellClock) follow(now time.Duration, state int64) {
	c.base, c.at, c.leads = state, now, false
}
