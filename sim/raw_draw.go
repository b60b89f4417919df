package sim

import (
	"slices"
	"strings"

	"github.com/seed70370324/lockd/internal/sequencer"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// act draws and does one operation.
func (r *raw) act() {
	switch r.phase {
	case rawAway:
		r.dial()
		return
	case rawDialing:
		if r.s.chance(20_000) {
			r.leave()
		}
		return
	case rawSilent:
		r.greet()
		return
	}
	if w(r).now < r.deaf && r.s.chance(500_000) {
		return
	}
	switch n := r.s.below(1000); {
	case n < 60:
		r.openSession()
	case n < 110:
		r.attach()
	case n < 190:
		r.keepAlive()
	case n < 570:
		r.drawRequest()
	case n < 780:
		r.drawRead()
	case n < 850:
		r.drawWatch()
	case n < 880:
		r.unwatch()
	case n < 920:
		r.ackEvents()
	case n < 940:
		r.deaf = w(r).now + r.s.skewed(10*millisecond, 3*second)
		w(r).tell(r.c.name, "reads nothing for %s", tellTime(r.deaf-w(r).now))
	case n < 950:
		r.leave()
	case n < 960:
		r.oddFrame()
	default:
		r.again()
	}
	if r.wild < 5 && r.phase == rawReady && r.s.chance(w(r).plan.rawWild) {
		r.wild++
		r.large()
	}
}

// greet says Hello, or what is none.
func (r *raw) greet() {
	r.phase = rawDialing
	h := &wirepb.Hello{VersionMin: 2, VersionMax: 2, Cell: pick(r.s, []string{cellName, "", "local"}), Client: "raw",
		Features: []string{"none"}, MaxFrame: pick(r.s, []uint32{0, 64 << 10, 100_000, 1 << 31})}
	a := &asked{kind: "hello"}
	refused := func(c wirepb.ErrorCode) { a.errors, a.must = []wirepb.ErrorCode{c}, true }
	if r.s.chance(200_000) {
		switch r.s.below(5) {
		case 0:
			h.Cell = strings.Repeat("another", 60)
			refused(wirepb.ErrorCode_WRONG_CELL)
		case 1:
			h.VersionMin, h.VersionMax = 3, 9
			refused(wirepb.ErrorCode_BAD_VERSION)
		case 2:
			h.VersionMin, h.VersionMax = 0, 1
			refused(wirepb.ErrorCode_BAD_VERSION)
		case 3:
			h.MaxFrame = uint32(r.s.between(1, 64<<10-1))
			refused(wirepb.ErrorCode_INVALID_ARGUMENT)
		case 4:
			refused(wirepb.ErrorCode_BAD_MESSAGE)
			r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Id: r.id()}}}, a)
			return
		}
	}
	r.hello = h
	r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Hello{Hello: h}}, a)
}

// oddFrame sends what a client never does. Most of it ends the connection.
func (r *raw) oddFrame() {
	switch r.s.below(4) {
	case 0: // a second Hello
		r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Hello{Hello: r.hello}}, &asked{kind: "hello", must: true, errors: []wirepb.ErrorCode{wirepb.ErrorCode_BAD_MESSAGE}})
	case 1: // nothing
		r.send(&wirepb.ClientMessage{}, nil)
	case 2: // no UTF-8
		r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Id: r.id(),
			Op: &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: "/x\xff"}}}}}, nil)
	case 3: // a KeepAlive that names more than a connection can have
		if r.s.chance(100_000) {
			r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_KeepAlive{KeepAlive: &wirepb.KeepAlive{Id: r.id(), Sessions: make([]uint64, 1<<16+1)}}},
				&asked{kind: "keep alive", id: r.nextID, must: true, errors: []wirepb.ErrorCode{wirepb.ErrorCode_TOO_MANY}})
		}
	}
}

func (r *raw) openSession() {
	p := &w(r).pool
	s := r.s
	o := &wirepb.OpenSession{Id: r.id(), LeaseMs: pick(s, []uint64{0, 1, 1000, 1500, 2000, 3000}), Client: &storepb.ClientInfo{Name: r.c.name, Host: "raw", Pid: 1}}
	a := &asked{kind: "open", id: o.Id}
	defer func() {
		for _, o := range w(r).raws { // the last is answered alone
			for _, b := range o.asked {
				b.free = b.free || b != a && b.kind == "open" && a.nonce != "" && b.nonce == a.nonce
			}
		}
	}()
	live := 0
	for _, x := range p.sessions {
		if !x.over {
			live++
		}
	}
	switch n := s.below(10); {
	case n < 2 && len(p.sessions) > 0: // a repeat
		if o.Nonce = pick(s, p.sessions).nonce; len(o.Nonce) == 0 {
			return
		}
		a.errors = []wirepb.ErrorCode{wirepb.ErrorCode_UNKNOWN_SESSION}
	case n == 2:
		o.Nonce = s.bytes(int(pick(s, []int64{0, 7, 65})))
		a.must, a.errors = true, []wirepb.ErrorCode{wirepb.ErrorCode_INVALID_ARGUMENT}
	case n == 3:
		o.Nonce = s.bytes(16)
		o.Client.Host = strings.Repeat("h", 256)
		a.must, a.errors = true, []wirepb.ErrorCode{wirepb.ErrorCode_INVALID_ARGUMENT}
	case live >= 4:
		return
	default:
		o.Nonce = s.bytes(int(s.between(store.NonceMin, store.NonceMax)))
		x := r.newSession(o.Nonce)
		switch s.below(6) {
		case 0:
			o.Client = nil
		case 1:
			o.Client.Name, o.Client.Host, x.long = strings.Repeat("n", store.TextMax), strings.Repeat("h", store.TextMax), true
		}
	}
	for _, x := range p.sessions {
		if len(x.nonce) > 0 && string(x.nonce) == string(o.Nonce) {
			if x.over { // a nonce may be used again, for another session
				x.nonce = nil
				r.newSession(o.Nonce)
			}
			break
		}
	}
	a.nonce = string(o.Nonce)
	r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Open{Open: o}}, a)
}

// newSession makes a session of the pool, to be opened.
func (r *raw) newSession(nonce []byte) *rawSession {
	x := &rawSession{nonce: nonce, owner: &client{w: w(r), index: r.c.index, name: r.c.name, raw: r}}
	w(r).pool.sessions = append(w(r).pool.sessions, x)
	w(r).byNonce[string(nonce)] = owner{x.owner, 0}
	return x
}

// anySession returns one of the pool that was opened, nil if there is none.
func (r *raw) anySession(mine bool) *rawSession {
	var some []*rawSession
	for _, x := range w(r).pool.sessions {
		if x.id != 0 && !x.over && (!mine || x.at == r) {
			some = append(some, x)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return pick(r.s, some)
}

func (r *raw) attach() {
	s, x := r.s, r.anySession(false)
	if x == nil {
		return
	}
	at := &wirepb.Attach{Session: x.id, Nonce: x.nonce, AckedEvent: x.acked}
	a := &asked{kind: "attach", session: x.id}
	switch n := s.below(10); {
	case n == 0:
		at.Nonce = s.bytes(16)
	case n == 1:
		at.Session += pick(s, []uint64{1, 1 << 40})
		a.session = at.Session
	case n == 2:
		at.AckedEvent = x.news + 100
		fallthrough
	default:
		a.right = true
		r.take(x)
		a.free = r.races(x.id)
	}
	r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Attach{Attach: at}}, a)
	if x.at == r && s.chance(700_000) { // as a client does that comes back
		for _, m := range x.requests() {
			r.ask(m)
		}
	}
}

// races reports whether an attach of a session through another connection has no
// answer: it may come after this one, and only the last is answered for sure. Then
// none of them is sure.
func (r *raw) races(session uint64) bool {
	races := false
	for _, o := range w(r).raws {
		for _, a := range o.asked {
			if o != r && a.kind == "attach" && a.session == session {
				races = true
			}
		}
	}
	for _, a := range r.asked {
		a.free = a.free || races && a.kind == "attach" && a.session == session
	}
	return races
}

// requests returns what a session has no answer to, by number.
func (x *rawSession) requests() []*storepb.Command {
	var all []*storepb.Command
	for _, m := range x.open {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *storepb.Command) int { return int(a.GetNumber()) - int(b.GetNumber()) })
	return all
}

func (r *raw) keepAlive() {
	k := &wirepb.KeepAlive{Id: r.id(), Now: r.s.chance(300_000)}
	for _, x := range w(r).pool.sessions {
		if x.id != 0 && (x.at == r || r.s.chance(300_000)) {
			k.Sessions = append(k.Sessions, x.id)
		}
	}
	if r.s.chance(50_000) {
		k.Sessions = append(k.Sessions, r.s.uint64())
	}
	r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_KeepAlive{KeepAlive: k}}, &asked{kind: "keep alive", id: k.Id})
}

func (r *raw) ackEvents() {
	if x := r.anySession(r.s.chance(800_000)); x != nil {
		n := x.news
		if r.s.chance(300_000) {
			n = uint64(r.s.below(int64(x.news) + 3))
		}
		if x.at == r {
			x.acked = max(x.acked, min(n, x.news))
		}
		r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Ack{Ack: &wirepb.AckEvents{Session: x.id, Number: n}}}, nil)
	}
}

// again repeats a request: one without an answer, or an old one.
func (r *raw) again() {
	x := r.anySession(true)
	if x == nil {
		return
	}
	if all := x.requests(); len(all) > 0 && r.s.chance(600_000) {
		r.ask(pick(r.s, all))
		return
	}
	if number := 1 + uint64(r.s.below(int64(x.next))); x.open[number] == nil && number < x.next {
		r.request(x, number, r.drawCommand(x))
	}
}

func (r *raw) drawRead() {
	s := r.s
	m := &wirepb.Read{Id: r.id(), Level: wirepb.ReadLevel(pick(s, []int32{0, 0, 0, 1, 1}))}
	a := &asked{kind: "read", id: m.Id, read: m}
	path := r.path()
	if s.chance(300_000) {
		path = r.othersPath()
	}
	switch n := s.below(16); {
	case n < 3:
		m.Op = &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: path, NoData: s.chance(200_000)}}
	case n < 6:
		c := &wirepb.ReadChildren{Path: pick(s, []string{path, "/", rawPath}), Limit: uint32(pick(s, []int64{0, 0, 1, 3})), Stats: s.chance(500_000)}
		c.After = pick(s, []string{"", "", "a", "l"})
		m.Op = &wirepb.Read_Children{Children: c}
	case n < 9:
		c := &wirepb.ReadLocks{Path: pick(s, []string{path, "/", rawPath, "/l"}), Subtree: s.chance(700_000), Limit: uint32(pick(s, []int64{0, 0, 1, 2}))}
		c.After = pick(s, []string{"", "", "/l/a", "/x/a", "/zz"})
		m.Op = &wirepb.Read_Locks{Locks: c}
	case n < 11:
		c := &wirepb.ReadSessions{Limit: uint32(pick(s, []int64{0, 0, 1, 2}))}
		if x := r.anySession(false); x != nil && s.chance(400_000) {
			c.After = x.id
		}
		m.Op = &wirepb.Read_Sessions{Sessions: c}
	case n < 12:
		m.Op = &wirepb.Read_Status{Status: &wirepb.ReadStatus{}}
	case n < 14:
		m.Op = &wirepb.Read_Check{Check: &wirepb.CheckSequencer{Sequencer: r.sequencer()}}
	case n < 15:
		m.Level = wirepb.ReadLevel(pick(s, []int32{2, -1, 99}))
		m.Op = &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: path}}
		a.must, a.errors = true, []wirepb.ErrorCode{wirepb.ErrorCode_INVALID_ARGUMENT}
	default:
		a.must, a.errors = true, []wirepb.ErrorCode{wirepb.ErrorCode_BAD_MESSAGE}
	}
	times := int64(1)
	if s.chance(20_000) {
		times = s.between(10, 60) // reads in one segment
	}
	for ; times > 0; times-- {
		r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: m}}, a)
		next := *a
		m = &wirepb.Read{Id: r.id(), Level: m.Level, Op: m.Op}
		next.id, next.read = m.Id, m
		a = &next
	}
}

// sequencer makes one of what is known of locks, mostly with something wrong.
func (r *raw) sequencer() string {
	s := r.s
	q := sequencer.S{Cell: w(r).cellIdentity(), Path: r.path(), Fence: s.uint64() >> 2, Generation: 1, Instance: 1}
	if x := r.anySession(false); x != nil && len(x.tickets) > 0 {
		if t := pick(s, x.tickets); t.grant != nil {
			q = sequencer.S{Shared: t.grant.GetMode() == storepb.LockMode_SHARED, Fence: t.grant.GetFence(), Generation: t.grant.GetLockGeneration(),
				Instance: t.grant.GetInstance(), Cell: q.Cell, Path: t.path}
		}
	} else if n := int64(len(w(r).granted)); n > 0 && s.chance(500_000) {
		h := w(r).granted[s.below(n)]
		return h.sequence
	}
	switch s.below(10) {
	case 0:
		q.Cell++
	case 1:
		q.Generation++
	case 2:
		q.Instance++
	case 3:
		q.Fence++
	case 4:
		q.Shared = !q.Shared
	case 5:
		return "lockd1:nonsense"
	}
	return sequencer.Make(q)
}

func (r *raw) drawWatch() {
	s := r.s
	m := &wirepb.Watch{Id: r.id(), Path: pick(s, []string{r.path(), rawPath, rawPath, "/", r.othersPath()}), Scope: wirepb.WatchScope(s.below(3)),
		NoData: s.chance(200_000), Locks: s.chance(400_000)}
	a := &asked{kind: "watch", id: m.Id}
	switch s.below(5) {
	case 0:
		m.Since = w(r).history.revision - uint64(s.below(40))
	case 1:
		m.Since = w(r).history.revision + 1_000_000
	}
	invalid := func() { a.must, a.errors = true, []wirepb.ErrorCode{wirepb.ErrorCode_INVALID_ARGUMENT} }
	switch n := s.below(12); {
	case slices.Contains(badPaths, m.Path):
		invalid()
	case n == 1:
		m.Scope = wirepb.WatchScope(pick(s, []int32{-1, 3, 77}))
		invalid()
	case n == 2 && len(r.begun()) > 0:
		m.Id = pick(s, r.begun())
		a.id = m.Id
		invalid()
	default:
		r.watches = append(r.watches, m.Id)
	}
	r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Watch{Watch: m}}, a)
}

// begun returns the watches that the service has answered.
func (r *raw) begun() []uint64 {
	return slices.DeleteFunc(slices.Clone(r.watches), func(id uint64) bool {
		return slices.ContainsFunc(r.asked, func(a *asked) bool { return a.is("watch", id, 0, 0) })
	})
}

func (r *raw) unwatch() {
	id := uint64(r.s.below(10))
	if len(r.watches) > 0 && r.s.chance(900_000) {
		id = pick(r.s, r.watches)
		r.watches = slices.DeleteFunc(r.watches, func(o uint64) bool { return o == id })
		for _, a := range r.asked {
			a.free = a.free || a.is("watch", id, 0, 0) && !a.must
		}
	}
	r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: id}}}, nil)
}

// large does something large: it meets the bounds of a session or a message.
func (r *raw) large() {
	s, x := r.s, r.anySession(true)
	if x == nil {
		return
	}
	switch s.below(10) {
	case 0: // more operations than a Multi may have
		r.request(x, x.next, &storepb.Command{Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: make([]*storepb.MultiOp, 0)}}})
		m := &storepb.Multi{}
		for range store.MultiMax + 1 {
			m.Ops = append(m.Ops, &storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: rawPath}}})
		}
		r.request(x, x.next, &storepb.Command{Op: &storepb.Command_Multi{Multi: m}})
	case 1: // answers that fill the session's room
		for range 6 {
			m := &storepb.Multi{}
			for range store.MultiMax - 24 {
				m.Ops = append(m.Ops, &storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: "/"}}})
			}
			r.hoard(x, &storepb.Command{Op: &storepb.Command_Multi{Multi: m}})
		}
	case 2: // more answers than the session's window has
		for range store.WindowMax + 40 {
			r.hoard(x, &storepb.Command{Op: &storepb.Command_Release{Release: &storepb.Release{Ticket: 1}}})
		}
		r.hoard(x, &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{Path: rawPath}}})
	case 3: // more requests than any client has under way
		for range 2*store.WindowMax + 300 {
			r.hoard(x, &storepb.Command{Op: &storepb.Command_VoidRequest{VoidRequest: &storepb.VoidRequest{}}})
		}
		r.hoard(x, &storepb.Command{Op: &storepb.Command_Forfeit{Forfeit: &storepb.Forfeit{Ticket: 1}}})
		r.hoard(x, &storepb.Command{Op: &storepb.Command_Release{Release: &storepb.Release{Ticket: 1}}})
	case 4: // a content that no node may have
		r.request(x, x.next, &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{Path: rawPath, Create: true, Data: make([]byte, store.DataMax+1)}}})
		r.request(x, x.next, &storepb.Command{Op: &storepb.Command_Create{Create: &storepb.Create{Path: "/x/large", Data: make([]byte, store.DataMax+1)}}})
	case 5: // more reads than may wait at a time, and what may wait beside them
		for range 4100 {
			m := &wirepb.Read{Id: r.id(), Op: &wirepb.Read_Status{}}
			m.Op = &wirepb.Read_Check{Check: &wirepb.CheckSequencer{}}
			r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: m}}, &asked{kind: "read", id: m.Id, read: m})
		}
		r.openSession()
		r.drawWatch()
		for range s.below(8) {
			r.attach()
		}
	case 6: // a lock whose holders do not fit the smallest frame
		o := &wirepb.OpenSession{Id: r.id(), Nonce: s.bytes(16), LeaseMs: 2000, Client: &storepb.ClientInfo{Name: strings.Repeat("n", 255), Host: strings.Repeat("h", 255)}}
		r.newSession(o.Nonce).long = true
		r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Open{Open: o}}, &asked{kind: "open", id: o.Id, nonce: string(o.Nonce)})
		for _, y := range w(r).pool.sessions {
			if y.at == r && y.long && !y.over {
				x = y
			}
		}
		for range 160 {
			r.hoard(x, &storepb.Command{Op: &storepb.Command_Acquire{Acquire: &storepb.Acquire{Path: "/x/crowd", Mode: storepb.LockMode_SHARED, Create: true}}})
		}
		for range 3 {
			m := &wirepb.Read{Id: r.id(), Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: "/x/crowd"}}}
			r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: m}}, &asked{kind: "read", id: m.Id, read: m})
		}
	default: // contents that do not fit the smallest frame, and reads that nobody takes
		for _, path := range []string{"/x/large", "/x/larger", "/x/longish-name"} {
			r.request(x, x.next, &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{Path: path, Create: true, Parents: true, HasData: true,
				Data: s.bytes(int(s.between(20_000, 90_000)))}}})
		}
		r.deaf = w(r).now + s.between(100*millisecond, 2*second)
		for range s.between(3, 12) {
			m := &wirepb.Read{Id: r.id(), Op: &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: "/x/large"}}}
			r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: m}}, &asked{kind: "read", id: m.Id, read: m})
		}
	}
}

// hoard sends a request and acknowledges no answer.
func (r *raw) hoard(x *rawSession, m *storepb.Command) {
	number := x.next
	m.Session, m.Number = x.id, number
	x.next++
	x.most = max(x.most, number)
	x.open[number] = m
	r.ask(m)
}
