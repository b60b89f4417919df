package store

import (
	"fmt"
	"slices"

	"github.com/seed70370324/lockd/store/pb"
	"pgregory.net/rapid"
)

// script draws commands that make sense often enough: for sessions that exist
// and some that do not, with numbers that are mostly the next.
type script struct {
	t        *rapid.T
	sessions []uint64
	next     map[uint64]uint64
	cell     int64
	stale    []*pb.TimerRef // of an earlier state
}

var scriptPaths = []string{"/a", "/a/b", "/a/b/c", "/c", "/c/x", "/c/y", "/a-", "/c/q0000000001"}

// dice is an even choice from 0 to 99; rapid's own integers lean to the small.
var dice = rapid.Custom(func(t *rapid.T) int {
	n := 0
	for range 10 {
		n *= 2
		if rapid.Bool().Draw(t, "bit") {
			n++
		}
	}
	return n % 100
})

func (g *script) roll() int { return dice.Draw(g.t, "dice") }

func (g *script) chance(percent int) bool { return g.roll() < percent }

func pick[T any](g *script, from ...T) T { return from[g.roll()%len(from)] }

func (g *script) number(low, high uint64) uint64 { return low + uint64(g.roll())%(high-low+1) }

func (g *script) path() string { return pick(g, scriptPaths...) }

func (g *script) data() []byte { return []byte(pick(g, "", "x", "yy")) }

func (g *script) create(s *Store) *pb.Create {
	c := &pb.Create{
		Path: g.path(), Kind: pb.NodeKind(g.number(1, 3)),
		Data: g.data(), Parents: g.chance(50),
	}
	if g.chance(20) {
		c.Sequential = true
		c.Path = pick(g, "/a/", "/c/q", "/c/q", "/")
	}
	if g.chance(3) {
		c.Path, c.Sequential = "/a//b", false
	}
	if g.chance(20) {
		c.Conditions = g.conditions(s, c.Path)
	}
	return c
}

func (g *script) put(s *Store) *pb.Put {
	p := &pb.Put{Path: g.path(), Data: g.data(), HasData: true, Create: g.chance(50), Parents: g.chance(50)}
	if g.chance(40) {
		p.Conditions = g.conditions(s, p.Path)
	}
	return p
}

func (g *script) delete(s *Store) *pb.Delete {
	d := &pb.Delete{Path: g.path(), Recursive: g.chance(40), Force: g.chance(40)}
	if g.chance(30) {
		d.Conditions = g.conditions(s, d.Path)
	}
	return d
}

func (g *script) check(s *Store) *pb.Check {
	c := &pb.Check{Path: g.path()}
	if g.chance(70) {
		c.Conditions = g.conditions(s, c.Path)
	}
	return c
}

// conditions are about the node at path; the numbers are mostly those it has.
func (g *script) conditions(s *Store, path string) (list []*pb.Condition) {
	n, _ := s.Node(path)
	l, _ := s.Lock(path)
	off := func(v uint64) uint64 {
		if g.chance(20) {
			return g.number(0, 2)
		}
		return v
	}
	for range g.number(1, 2) {
		list = append(list, pick(g,
			exists(g.chance(50)), exists(g.chance(50)),
			generation(off(n.Stat.GetContentGeneration())),
			ifRevision(off(n.Stat.GetModifyRevision())),
			ifInstance(off(n.Stat.GetInstance())),
			ifFence(off(l.Fence)),
			g.holding(s, path), g.holding(s, path), &pb.Condition{},
		))
	}
	return list
}

func (g *script) holding(s *Store, path string) *pb.Condition {
	h := &pb.Holding{Path: pick(g, path, g.path()), Session: g.number(0, 1100), Ticket: g.number(0, 5)}
	if l, ok := s.Lock(h.Path); ok && len(l.Holders)+len(l.Waiters) > 0 && g.chance(90) {
		b := pick(g, slices.Concat(l.Holders, l.Waiters)...)
		h.Session, h.Ticket = b.Session, b.Ticket
	}
	return heldBy(h)
}

func (g *script) acquire() *pb.Acquire {
	return &pb.Acquire{
		Path: g.path(), Mode: pb.LockMode(g.number(1, 2)), Create: g.chance(80),
		LockDelayMs: pick[uint64](g, 0, 0, 500, 5000),
		WaitMs:      pick[uint64](g, 0, 1000, 20_000), NoDeadline: g.chance(30),
	}
}

// ticket is mostly one of something that the session holds or waits for.
func (g *script) ticket(s *Store, session uint64) uint64 {
	if mine := s.claimsOf(session); len(mine) > 0 && g.chance(85) {
		return pick(g, mine...).ticket
	}
	return g.number(1, g.next[session])
}

func (g *script) op(s *Store, session uint64, c *pb.Command) {
	switch k := g.roll(); {
	case k < 12:
		c.Op = &pb.Command_Create{Create: g.create(s)}
	case k < 22:
		c.Op = &pb.Command_Put{Put: g.put(s)}
	case k < 32:
		c.Op = &pb.Command_Delete{Delete: g.delete(s)}
	case k < 60:
		c.Op = &pb.Command_Acquire{Acquire: g.acquire()}
	case k < 80:
		c.Op = &pb.Command_Release{Release: &pb.Release{Ticket: g.ticket(s, session)}}
	case k < 88:
		m := &pb.Multi{}
		for range g.number(0, 4) {
			m.Ops = append(m.Ops, pick(g,
				&pb.MultiOp{Op: &pb.MultiOp_Create{Create: g.create(s)}}, &pb.MultiOp{Op: &pb.MultiOp_Put{Put: g.put(s)}},
				&pb.MultiOp{Op: &pb.MultiOp_Delete{Delete: g.delete(s)}}, &pb.MultiOp{Op: &pb.MultiOp_Check{Check: g.check(s)}},
				&pb.MultiOp{Op: &pb.MultiOp_Release{Release: &pb.Release{Ticket: g.ticket(s, session)}}},
				&pb.MultiOp{Op: &pb.MultiOp_Release{Release: &pb.Release{Ticket: g.ticket(s, session)}}},
			))
		}
		c.Op = &pb.Command_Multi{Multi: m}
	case k < 91 && g.chance(50):
		c.Op = &pb.Command_Forfeit{Forfeit: &pb.Forfeit{Ticket: g.ticket(s, session)}}
	case k < 91:
		b := &pb.Break{Path: g.path(), Fence: 1}
		if l, ok := s.Lock(b.Path); ok {
			b.Fence = l.Fence
		}
		c.Op = &pb.Command_BreakLock{BreakLock: b}
	case k < 94:
		c.Op = &pb.Command_VoidRequest{VoidRequest: &pb.VoidRequest{}}
	case k < 97:
		c.Op = &pb.Command_CloseSession{CloseSession: &pb.CloseSession{WorkEnded: g.chance(50)}}
	}
}

func (g *script) command(s *Store) *pb.Command {
	g.cell += int64(g.roll()) * 4_000_000
	c := &pb.Command{CellTime: g.cell, WallMs: 1000, Epoch: s.Epoch()}
	if g.chance(3) {
		c.Epoch--
	}
	k := g.roll()
	switch {
	case k < 6 || len(g.sessions) == 0:
		nonce := fmt.Sprintf("nonce---%d", g.number(0, 5))
		c.Op = &pb.Command_OpenSession{OpenSession: &pb.OpenSession{Nonce: []byte(nonce), LeaseMs: pick[uint64](g, 0, 2000, 1<<40)}}
	case k < 10:
		id := pick(g, g.sessions...)
		x, _ := s.Session(id)
		e := &pb.ExpireSession{Session: id, LastChange: x.LastChange}
		if g.chance(20) {
			e.LastChange--
		}
		c.Op = &pb.Command_ExpireSession{ExpireSession: e}
	case k < 25:
		t := &pb.Timers{}
		for _, d := range s.NextDue(4) {
			t.Due = append(t.Due, d.Ref)
		}
		if len(t.Due) > 0 && g.chance(60) {
			g.cell = max(g.cell, pick(g, t.Due...).DueAt) // an unstarted ghost's is 0
			c.CellTime = g.cell
		}
		if g.chance(30) {
			t.Due = append(t.Due, g.stale...)
		}
		g.stale = append(g.stale[:min(len(g.stale), 8)], t.Due...)
		c.Op = &pb.Command_Timers{Timers: t}
	case k < 30:
		n := &pb.NoteSessions{}
		for range g.number(0, 3) {
			n.Notes = append(n.Notes, &pb.SessionNote{Session: pick(g, g.sessions...), LeaseEndCell: pick(g, 0, 0, g.cell+1, g.cell+2, -1)})
		}
		c.Op = &pb.Command_NoteSessions{NoteSessions: n}
	case k < 32:
		c.Op = &pb.Command_Clock{Clock: &pb.Clock{}}
	default:
		c.Session = pick(g, g.sessions...)
		next := g.next[c.Session]
		c.Number = next
		if g.chance(10) {
			c.Number = g.number(1, next+2)
		}
		c.LowestUnanswered = g.number(0, next+1)
		if g.chance(40) {
			c.AckedEvent = g.number(0, 5)
		}
		if g.chance(5) {
			c.Op = &pb.Command_AckEvents{AckEvents: &pb.AckEvents{}}
			return c
		}
		g.op(s, c.Session, c)
	}
	return c
}

// learn keeps up with what the state has become.
func (g *script) learn(s *Store, r *pb.Result) {
	if r.Session != 0 && !slices.Contains(g.sessions, r.Session) {
		g.sessions = append(g.sessions, r.Session)
		g.next[r.Session] = 1
	}
	for _, id := range g.sessions {
		if x, ok := s.Session(id); ok {
			g.next[id] = x.LastNumber + 1
		}
	}
}
