package sim

import (
	"strings"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// What the raw clients' sessions ask the log for.

// The paths that raw clients write. Some have long beginnings in common.
var rawPaths = []string{rawPath, "/x/a", "/x/a", "/x/b", "/x/a/c", "/x/a-b", "/x/.a", "/x/..b", "/x/é", "/x/longish-name", "/x/longish-name/k",
	"/x/longish-name-2", "/x/longish-name-2/l", "/x/e", "/x/e/under", "/x/c/d/f"}

var badPaths = []string{"", "x", "x/a", "/x/", "//", "/x//a", "/x/../r", "/x/.", "/x/a\x01", "/x/a\u0085é", "/x/" + strings.Repeat("n", 256),
	"/" + strings.Repeat("x/", 600) + "y", "/é/", "/é//b", "/x/é/" + strings.Repeat("n", 256)}

func (r *raw) path() string {
	if r.s.chance(60_000) {
		return pick(r.s, badPaths)
	}
	if r.s.chance(20_000) {
		return "/"
	}
	return pick(r.s, rawPaths)
}

// othersPath is a path that the other clients use.
func (r *raw) othersPath() string {
	return pick(r.s, []string{"/r", "/r/0", "/l", "/l/a", "/l/b", "/s", "/e", "/m/a", counterPath, ephemeralLock, "/", "/no/such"})
}

func (r *raw) drawRequest() {
	s := r.s
	x := r.anySession(s.chance(950_000))
	if x == nil {
		return
	}
	odd := func(m *storepb.Command, codes ...wirepb.ErrorCode) {
		r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Request{Request: &wirepb.Request{Command: m}}},
			&asked{kind: "request", session: m.GetSession(), request: m.GetNumber(), errors: codes, must: true})
	}
	switch n := s.below(100); {
	case n == 0: // not one of a client's
		m := &storepb.Command{Session: x.id, Number: x.next}
		switch s.below(6) {
		case 0:
			m.Op = &storepb.Command_Clock{Clock: &storepb.Clock{}}
		case 1:
			m.Op = &storepb.Command_ExpireSession{ExpireSession: &storepb.ExpireSession{Session: x.id}}
		case 2:
			m.Op = &storepb.Command_OpenSession{OpenSession: &storepb.OpenSession{Nonce: x.nonce}}
		case 3:
			m.Op = &storepb.Command_Timers{Timers: &storepb.Timers{}}
		case 4:
			m.Op = &storepb.Command_NoteSessions{NoteSessions: &storepb.NoteSessions{}}
		}
		odd(m, wirepb.ErrorCode_BAD_MESSAGE)
	case n == 1:
		m := r.drawCommand(x)
		m.Session, m.Number = x.id, 0
		odd(m, wirepb.ErrorCode_INVALID_ARGUMENT)
	case n == 2:
		m := r.drawCommand(x)
		m.Session, m.Number = x.id+1<<50, 5
		odd(m, wirepb.ErrorCode_UNKNOWN_SESSION)
	case n == 3: // a gap
		r.request(x, x.next+uint64(s.between(1, 5)), r.drawCommand(x))
	case n == 4: // all in one segment
		for range s.between(3, 12) {
			r.request(x, x.next, r.drawCommand(x))
		}
		if s.chance(60_000) {
			r.crowd(x)
		}
	default:
		r.request(x, x.next, r.drawCommand(x))
		if m := x.open[x.next-1]; m != nil && s.chance(50_000) {
			m.LowestUnanswered = pick(s, []uint64{0, 1 << 60})
		}
	}
}

// drawCommand draws what a session may ask the log for, mostly sound.
func (r *raw) drawCommand(x *rawSession) *storepb.Command {
	s := r.s
	m := &storepb.Command{}
	switch n := s.below(100); {
	case n < 20:
		m.Op = &storepb.Command_Create{Create: r.create(x)}
	case n < 38:
		m.Op = &storepb.Command_Put{Put: r.put(x)}
	case n < 50:
		m.Op = &storepb.Command_Delete{Delete: r.delete(x)}
	case n < 65:
		a := &storepb.Acquire{Path: r.path(), Mode: storepb.LockMode(s.between(1, 2)), Create: s.chance(700_000),
			LockDelayMs: uint64(pick(s, []int64{0, 0, 300, 60_001}))}
		if s.chance(150_000) {
			a.Path = "/l/a"
		}
		if s.chance(600_000) {
			a.WaitMs = uint64(s.between(1, 3000))
		}
		a.NoDeadline = s.chance(100_000)
		if s.chance(30_000) {
			a.WaitMs = pick(s, []uint64{1 << 62, ^uint64(0)})
		}
		if s.chance(40_000) {
			a.Mode = storepb.LockMode(pick(s, []int32{0, 3, -7}))
		}
		m.Op = &storepb.Command_Acquire{Acquire: a}
	case n < 77:
		m.Op = &storepb.Command_Release{Release: r.release(x)}
	case n < 80:
		m.Op = &storepb.Command_Forfeit{Forfeit: &storepb.Forfeit{Ticket: x.ticket(s).number}}
	case n < 83:
		b := &storepb.Break{Path: r.path(), Fence: x.ticket(s).grant.GetFence()}
		if y := r.anySession(false); s.chance(700_000) {
			t := y.ticket(s)
			b = &storepb.Break{Path: t.path, Fence: t.grant.GetFence()}
		}
		m.Op = &storepb.Command_BreakLock{BreakLock: b}
	case n < 96:
		m.Op = &storepb.Command_Multi{Multi: r.multi(x, s.below(5))}
	case n < 99:
		m.Op = &storepb.Command_VoidRequest{VoidRequest: &storepb.VoidRequest{}}
	default:
		m.Op = &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{WorkEnded: s.chance(500_000)}}
	}
	return m
}

// ticket picks one that the session has had, or none.
func (x *rawSession) ticket(s *stream) rawTicket {
	n := int64(len(x.tickets))
	if n == 0 || s.chance(50_000) {
		return rawTicket{number: uint64(s.below(3)), path: rawPath}
	}
	return x.tickets[n-1-s.skewed(0, min(n-1, 5))]
}

func (r *raw) release(x *rawSession) *storepb.Release {
	t := x.ticket(r.s)
	op := &storepb.Release{Path: t.path, Ticket: t.number}
	switch r.s.below(8) {
	case 0:
		op.Path = ""
	case 1:
		op.Path = r.path()
	}
	return op
}

func (r *raw) data() ([]byte, bool) {
	s := r.s
	switch n := s.below(20); {
	case n == 0:
		return nil, false
	case n == 1:
		return []byte{}, true
	case n == 2:
		return s.bytes(9), false // null, and yet with content
	case n == 3:
		return s.bytes(int(s.between(1000, 9000))), true
	}
	return s.bytes(int(s.skewed(8, 120))), true
}

func (r *raw) create(x *rawSession) *storepb.Create {
	s := r.s
	c := &storepb.Create{Path: r.path(), Kind: storepb.NodeKind(s.below(4)), Parents: s.chance(600_000), Conditions: r.conditions(x, createsOp)}
	c.Data, c.HasData = r.data()
	if s.chance(30_000) {
		c.Kind = storepb.NodeKind(pick(s, []int32{4, -1}))
	}
	if c.Sequential = s.chance(200_000); c.Sequential {
		c.Path = pick(s, []string{c.Path, "/x/q/", "/x/q/n", "/x/q-", "/", "//", "/x//", "/x/" + strings.Repeat("n", 250)})
	}
	return c
}

func (r *raw) put(x *rawSession) *storepb.Put {
	s := r.s
	p := &storepb.Put{Path: r.path(), Create: s.chance(600_000), Parents: s.chance(500_000)}
	on := putsOp
	if p.Create {
		on = createsOp
	}
	p.Conditions = r.conditions(x, on)
	p.Data, p.HasData = r.data()
	return p
}

func (r *raw) delete(x *rawSession) *storepb.Delete {
	return &storepb.Delete{Path: r.path(), Recursive: r.s.chance(500_000), Force: r.s.chance(300_000), Conditions: r.conditions(x, putsOp)}
}

// multi draws a Multi of n operations.
func (r *raw) multi(x *rawSession, n int64) *storepb.Multi {
	m := &storepb.Multi{}
	for range n {
		o := &storepb.MultiOp{}
		switch n := r.s.below(20); {
		case n < 6:
			o.Op = &storepb.MultiOp_Create{Create: r.create(x)}
		case n < 11:
			o.Op = &storepb.MultiOp_Put{Put: r.put(x)}
		case n < 14:
			o.Op = &storepb.MultiOp_Delete{Delete: r.delete(x)}
		case n < 17:
			o.Op = &storepb.MultiOp_Check{Check: &storepb.Check{Path: r.path(), Conditions: r.conditions(x, checksOp)}}
		case n < 19:
			o.Op = &storepb.MultiOp_Release{Release: r.release(x)}
		}
		m.Ops = append(m.Ops, o)
	}
	return m
}

// What conditions stand with.
const (
	createsOp = iota
	putsOp
	checksOp
)

// conditions draws conditions: mostly none, or one that fits; sometimes any.
func (r *raw) conditions(x *rawSession, on int) []*storepb.Condition {
	s := r.s
	if s.chance(500_000) {
		return nil
	}
	n := pick(s, []int64{1, 1, 1, 2, 3})
	if s.chance(10_000) {
		n = store.ConditionsMax + 1
	}
	var all []*storepb.Condition
	for range n {
		all = append(all, r.condition(x, on))
	}
	return all
}

func (r *raw) condition(x *rawSession, on int) *storepb.Condition {
	s := r.s
	stat := &storepb.Stat{}
	if paths := w(r).pool.paths; len(paths) > 0 {
		stat = w(r).pool.stats[pick(s, paths)]
	}
	number := func(n uint64) uint64 {
		switch s.below(6) {
		case 0:
			return 0
		case 1:
			return n + 1
		}
		return n
	}
	kind := s.below(8)
	if on == createsOp && s.chance(700_000) {
		kind = pick(s, []int64{0, 5})
	}
	c := &storepb.Condition{}
	switch kind {
	case 0:
		exists := on != createsOp
		if s.chance(250_000) {
			exists = !exists
		}
		c.Demand = &storepb.Condition_Exists{Exists: exists}
	case 1:
		c.Demand = &storepb.Condition_Generation{Generation: number(stat.GetContentGeneration())}
	case 2:
		c.Demand = &storepb.Condition_Revision{Revision: number(stat.GetModifyRevision())}
	case 3:
		c.Demand = &storepb.Condition_Instance{Instance: number(stat.GetInstance())}
	case 4:
		c.Demand = &storepb.Condition_Fence{Fence: number(x.ticket(s).grant.GetFence())}
	case 5, 6:
		t := x.ticket(s)
		h := &storepb.Holding{Path: t.path, Session: x.id, Ticket: t.number}
		switch s.below(14) {
		case 0:
			h.Path = r.path()
		case 1:
			h.Path = pick(s, badPaths)
		case 2:
			h.Session = 0
		case 3:
			h.Ticket = 0
		case 4:
			h.Session++
		}
		c.Demand = &storepb.Condition_HeldBy{HeldBy: h}
	}
	return c
}
