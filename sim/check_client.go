package sim

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// What the machine says of itself is held against what the run knows: who the cell
// is, which session it has, why it has ended, and why a call has failed.

// judgeState judges a new state of the session; c.state is the one before.
func (c *client) judgeState(s machine.State) {
	w, err := c.w, c.m.Err()
	now := c.clock.read(w.now)
	if (err != nil) != (s == machine.Expired || s == machine.Closed) {
		w.fail("client", "%s: its session is %v and its error is: %v", c.name, s, err)
		return
	}
	switch s {
	case machine.Live:
		c.liveAt = now
		if !c.lived {
			c.lived = true
			c.judgeOpened()
		}
	case machine.Jeopardy:
		if c.reader {
			w.fail("client", "%s has no session, and it is in jeopardy", c.name)
		}
	case machine.Expired:
		switch {
		case !errors.Is(err, machine.ErrExpired) || c.m.Session() == 0:
			w.fail("client", "%s: session %s has expired with: %v", c.name, short(c.m.Session()), err)
		case strings.Contains(err.Error(), "grace period") && now-c.liveAt < c.grace:
			w.fail("client", "%s: the grace period of %v is over, and %v ago its session was live", c.name, c.grace, now-c.liveAt)
		}
	case machine.Closed:
		if !c.mayEnd(err, now) {
			w.fail("client", "%s: its session %s has ended by itself: %v", c.name, short(c.m.Session()), err)
		}
	}
}

// judgeOpened looks at what the machine knows when it is live for the first time.
func (c *client) judgeOpened() {
	w := c.w
	name, identity := c.m.Cell()
	if !c.strange && (name != cellName || identity != w.knownIdentity()) {
		w.fail("client", "%s takes its cell for %q, %x; it is %q, %x", c.name, name, identity, cellName, w.knownIdentity())
	}
	want := c.session
	if c.reader {
		want = 0
	}
	if c.m.Session() != want {
		w.fail("client", "%s: its session is %s, in the log it is %s", c.name, short(c.m.Session()), short(want))
	}
	if d := c.lease - c.m.Lease(); d < 0 || d >= time.Millisecond {
		w.fail("client", "%s has asked for a lease of %v, and has one of %v", c.name, c.lease, c.m.Lease())
	}
}

// mayEnd reports whether there is a reason for a session that is closed.
func (c *client) mayEnd(err error, now time.Duration) bool {
	switch {
	case c.ending:
		return errors.Is(err, machine.ErrClosed)
	case c.lived: // before, a session that was opened late may never have come to live
		return false
	case strings.Contains(err.Error(), "no master within"):
		return errors.Is(err, machine.ErrUnavailable) && now-c.begun >= c.opening
	case errors.Is(err, machine.ErrWrongCell):
		return c.strange && (!c.hasReplicas || c.nature.identity == 0 && (!c.survey || c.outvoted()))
	case errors.Is(err, machine.ErrLimit):
		return c.strange || c.w.plan.limits != (limits{})
	}
	return c.strange || errors.Is(err, machine.ErrUnavailable)
}

// warn takes a line for the program's log.
func (c *client) warn(text string) {
	c.w.tell(c.name, "warns: %s", text)
	address, _, skipped := strings.Cut(text, " is skipped: ")
	if skipped && c.w.replicaAt(address) && (!c.strange || c.nature.identity != 0) {
		c.w.fail("client", "%s leaves out a replica of its cell: %s", c.name, text)
	}
}

// hears takes down when a call of a program without a session was last answered.
func (c *client) hears(ev machine.Event) {
	if r, ok := ev.(machine.Received); ok && (r.Message.GetRead() != nil || r.Message.GetWatch() != nil) {
		c.heardAt = c.clock.read(c.w.now)
	}
}

// judgeCall holds the error of a call against the reasons that there can be.
func (c *client) judgeCall(k *call) {
	err, over := k.failure, c.m.Err()
	switch {
	case err == nil:
		if k.want != nil {
			c.w.fail("client", "%s: call %d was to be refused with %v, and was answered", c.name, k.id, k.want)
		}
	case k.want != nil && errors.Is(err, k.want):
	case over != nil && errors.Is(err, over), c.ending && errors.Is(err, machine.ErrClosed):
	case errors.Is(err, machine.ErrCanceled), errors.Is(err, machine.ErrUnknownOutcome):
		if !k.cancel {
			c.w.fail("client", "%s: call %d was not given up, and it is told: %v", c.name, k.id, err)
		}
	case k.want != nil || !c.mayFail(k, err):
		c.w.fail("client", "%s: call %d (%v %s) fails for no reason, or another than it has to: %v", c.name, k.id, k.kind, k.path, err)
	}
}

// mayFail reports whether there is a reason for the error of a call that nobody has
// given up, while its session lives.
func (c *client) mayFail(k *call, err error) bool {
	var limit *machine.LimitError
	switch {
	case errors.Is(err, machine.ErrTooLarge):
		return k.bytes > c.w.leastFrame()-100 || c.reader && c.strange
	case errors.As(err, &limit):
		return c.w.plan.limits != (limits{}) || c.strange
	case errors.Is(err, machine.ErrLimit):
		return k.flood
	case errors.Is(err, machine.ErrLost):
		return k.kind == opLock || k.kind == opShared || k.kind == opTry
	case errors.Is(err, machine.ErrInvalid):
		// The transaction has released the lock while its Release was on its way here.
		return k.kind == opRelease && k.lock != nil && k.lock.yields > 0 || c.reader && c.strange
	case c.reader && errors.Is(err, machine.ErrUnavailable):
		return c.strange || c.clock.read(c.w.now)-max(c.heardAt, c.begun) >= c.grace
	}
	return c.reader && c.strange
}

// judgeFlood looks whether just as many calls were refused as were too many.
func (c *client) judgeFlood(all []*call) {
	refused := 0
	var service *machine.LimitError // a limit of the service, not of the client
	for i, k := range all {
		switch {
		case k.end == 0 || !errors.Is(k.failure, machine.ErrLimit) || errors.As(k.failure, &service):
		case i < callsMost/2:
			c.w.fail("client", "%s: call %d is one too many although only %d wait: %v", c.name, k.id, i, k.failure)
		default:
			refused++
		}
	}
	if refused < floodOver && c.m.Err() == nil && !c.ending {
		c.w.fail("client", "%s: %d calls were begun at once, and only %d were too many", c.name, len(all), refused)
	}
}

// refusedUpdate takes the end of a watch that has to be refused; false: it is
// another one.
func (c *client) refusedUpdate(u machine.Update) bool {
	i := slices.IndexFunc(c.floods, func(f flood) bool { return f.first <= u.ID && u.ID <= f.last })
	if i < 0 {
		return false
	}
	over := c.m.Err()
	if !errors.Is(u.Err, c.floods[i].want) && (over == nil || !errors.Is(u.Err, over)) && !(c.ending && errors.Is(u.Err, machine.ErrClosed)) && !c.strange {
		c.w.fail("client", "%s: watch %d was to be refused with %v, and has: %v, %v", c.name, u.ID, c.floods[i].want, u.Err, u.Update)
	}
	return true
}

// knownIdentity is the cell's as soon as any replica can name it.
func (w *World) knownIdentity() uint64 {
	for _, p := range w.replicas {
		if p.rep != nil {
			if _, identity := p.rep.Store().Cell(); identity != 0 {
				return identity
			}
		}
	}
	return w.cellIdentity()
}

// leastFrame is the smallest frame that all replicas take.
func (w *World) leastFrame() int {
	least := 2 << 20
	for _, n := range []int{w.plan.load.kinds.smallFrame, w.plan.limits.frame} {
		if n > 0 {
			least = min(least, n)
		}
	}
	return least
}

// smallFrames reports whether a replica takes only small frames: every other one,
// the only one too.
func (p *process) smallFrames() bool {
	return p.w.plan.load.kinds.smallFrame > 0 && (p.index%2 == 1 || len(p.w.replicas) == 1)
}

// checkFrame demands that a client's machine sends nothing that the replica does not
// take.
func (p *process) checkFrame(c *client, data []byte) {
	if c.raw == nil && p.smallFrames() && len(data) > p.w.plan.load.kinds.smallFrame {
		p.w.fail("client", "%s sends %s a frame of %d bytes, it takes %d", c.name, p.name, len(data), p.w.plan.load.kinds.smallFrame)
	}
}

// judgeNoRead takes a read that was answered and has not found out what is there:
// only because no frame has room for it.
func (h *history) judgeNoRead(k *call) {
	v := h.versionAt(k.path, k.read.GetRevision())
	if k.read.GetCode() != storepb.Code_TOO_LARGE || v.bytes+len(k.path)+1024 <= h.w.leastFrame()-1024 {
		h.w.fail("answers", "call %d of %s has read %s of %d bytes as %v %s", k.id, k.c.name, k.path, v.bytes, k.read.GetCode(), k.read.GetDetail())
	}
}

// leavesOut reports whether a watch may leave content out that it has not shown: no
// frame has room for it.
func (h *history) leavesOut(path string, it *wirepb.WatchItem) (version, bool) {
	v := h.versionAt(path, it.GetStat().GetModifyRevision())
	return v, v.bytes+len(path)+1024 > h.w.leastFrame()-1024
}
