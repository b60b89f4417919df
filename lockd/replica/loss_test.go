package replica

import (
	"testing"
	"time"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// A lock that leaves a holder whose session lives on: no KeepAlive waits for the
// command that takes it, and the ghost begins with a command of a master that has
// applied the loss.

const delay = time.Second // the lock-delay of what lock asks for

func breakLock(path string, fence uint64) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_BreakLock{BreakLock: &storepb.Break{Path: path, Fence: fence}}}
}

// ghostOf returns the only holder of a path's lock, which is a ghost.
func (r *testReplica) ghostOf(path string) *storepb.Blocker {
	r.c.t.Helper()
	v, ok := r.store.Lock(path)
	if !ok || len(v.Holders) != 1 || !v.Holders[0].GetGhost() {
		r.c.t.Fatalf("%s: want one ghost: %v", path, v.Holders)
	}
	return v.Holders[0]
}

// While the log stands still a client that renews gets every lease, whatever is
// under way that takes locks from others, or from it.
func TestNoKeepAliveWaitsForALoss(t *testing.T) {
	for name, under := range map[string]func(by, fence uint64) *storepb.Command{
		"nothing": nil,
		"a write": func(by, fence uint64) *storepb.Command { return put("/x", "1") },
		"a close": func(by, fence uint64) *storepb.Command {
			return &storepb.Command{Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{WorkEnded: true}}}
		},
		"a break": func(by, fence uint64) *storepb.Command { return breakLock("/l", fence) },
		"a forced deletion": func(by, fence uint64) *storepb.Command {
			c := remove("/l")
			c.GetDelete().Force = true
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t, 1)
			r := c.reps[0]
			holder, other, dead := r.dial(), r.dial(), r.dial()
			s, by := holder.open(1, 3*time.Second), other.open(2, long)
			dead.open(3, 2*time.Second) // its expiry comes into the log as well
			fence := holder.do(s, lock("/l", 0)).GetGrant().GetFence()
			node := put("/e", "")
			node.Op = &storepb.Command_Create{Create: &storepb.Create{Path: "/e", Kind: storepb.NodeKind_EPHEMERAL}}
			other.code(storepb.Code_OK, other.do(by, node))
			r.log.hold = true
			if under != nil {
				other.post(request(by, 2, under(by, fence)))
			}
			leases := 0
			for i := range 20 {
				holder.send(keepAlive(uint64(i+1), true, s))
				for _, m := range holder.all() {
					leases += len(m.GetKept().GetLeases())
				}
				c.advance(500 * time.Millisecond)
			}
			r.log.hold = false
			if leases != 20 || !c.session(s) {
				t.Errorf("%d leases of 20, lives: %v", leases, c.session(s))
			}
		})
	}
}

// The ghost that a break leaves lasts for the holder's lease and the lock-delay
// behind every lease that was given before the news.
func TestGhostOutlastsLeasesGivenBeforeTheNews(t *testing.T) {
	const lease = 4 * time.Second
	c := newCell(t, 1)
	r := c.reps[0]
	holder, operator := r.dial(), r.dial()
	s, by := holder.open(1, lease), operator.open(2, long)
	fence := holder.do(s, lock("/l", 0)).GetGrant().GetFence()
	r.log.hold = true
	operator.post(request(by, 1, breakLock("/l", fence)))
	c.settle()
	c.advance(time.Second)
	holder.send(keepAlive(1, true, s))
	holder.kept(1, s) // of now, long after the break was proposed
	last := c.now
	broken := r.log.kept
	r.log.kept, r.log.hold = nil, false
	c.chooseCommands(broken)
	c.settle()
	holder.event(1, storepb.Code_LOST)
	if g := r.ghostOf("/l"); g.GetGhostUntilCell() != 0 {
		t.Fatalf("a ghost that no master has started has an end: %v", g)
	}
	operator.code(storepb.Code_OK, operator.result(1))
	operator.send(request(by, 2, lock("/l", time.Hour)))
	operator.code(storepb.Code_WAITING, operator.result(2))
	for end := last + lease + delay; c.now < end; c.advance(tick) {
		r.ghostOf("/l")
		operator.none()
	}
	c.advance(200 * time.Millisecond) // more than clocks may differ in that time
	operator.event(1, storepb.Code_GRANTED)
}

// A master that dies before it has started the ghost leaves that to the next,
// which may have given no lease yet, but whose predecessor has.
func TestNewMasterStartsTheGhost(t *testing.T) {
	c := newCell(t, 3)
	old := c.reps[0]
	holder, operator := old.dial(), old.dial()
	s, by := holder.open(1, 4*time.Second), operator.open(2, long)
	fence := holder.do(s, lock("/l", 0)).GetGrant().GetFence()
	old.log.hold = true
	operator.post(request(by, 1, breakLock("/l", fence)))
	c.settle()
	broken := old.log.kept
	holder.send(keepAlive(1, true, s))
	holder.kept(1, s)
	last := c.now
	c.advance(2 * time.Second)
	c.chooseCommands(broken)
	next := c.elect(2)
	if g := next.ghostOf("/l"); g.GetGhostUntilCell() != 0 {
		t.Fatalf("started by nobody: %v", g)
	}
	holder = next.dial()
	holder.post(attach(s, 1, 0))
	holder.send(keepAlive(1, true, s))
	holder.next()
	holder.event(1, storepb.Code_LOST)
	holder.kept(1, s)
	c.advance(2 * tick)
	end := next.ghostOf("/l").GetGhostUntilCell()
	if end == 0 {
		t.Fatal("the new master has not started it")
	}
	if now := next.cell.read(c.now); end < now-int64(c.now-last)+int64(4*time.Second+delay) {
		t.Errorf("it ends at %v, cell time is %v", time.Duration(end), time.Duration(now))
	}
}

// A Forfeit is refused by no limit, like a Release.
func TestNoLimitRefusesAForfeit(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxPending, o.MaxPendingSession = 1, 1 })
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, long)
	cl.code(storepb.Code_OK, cl.do(s, lock("/l", 0)))
	r.log.hold = true
	cl.post(request(s, 2, put("/a", "x")))
	cl.post(request(s, 3, &storepb.Command{Op: &storepb.Command_Forfeit{Forfeit: &storepb.Forfeit{Ticket: 1}}}))
	r.log.hold = false
	c.settle()
	cl.code(storepb.Code_OK, cl.result(2))
	cl.code(storepb.Code_OK, cl.result(3))
	r.ghostOf("/l")
}
