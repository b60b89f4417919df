package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// raw is a client that no session machine drives: it speaks the native protocol by
// itself, and what a well-behaved client never sends too. It has a connection at a
// time, which may have sessions that other raw clients had before. Each message that
// asks for something must be answered while the connection stands, with what the
// protocol says (raw_check.go); the rest of the run must not notice.
type raw struct {
	c      *client // its machine on the network; no program runs there
	number int     // from 0
	random *stream // when it acts
	s      *stream // of the present operation
	ops    int

	phase   rawPhase
	hello   *wirepb.Hello // as sent on this connection
	asked   []*asked      // has no answer yet, by age
	watches []uint64
	nextID  uint64
	deaf    int64 // reads nothing before
	wild    int   // large things it has done
}

// rawPhase is how far its connection is.
type rawPhase int

const (
	rawAway    rawPhase = iota // no connection
	rawDialing                 // or the answer to its Hello has not come
	rawReady                   // its Hello was answered
	rawSilent                  // it has a connection and has said nothing yet
)

const (
	rawNumber  = 61 // how plans count the first of them: clients end before
	rawWeight  = 40 // how much a byte that waits for one counts: its connection holds little
	rawPath    = "/x"
	rawFirstID = 1000
)

// asked is something that has to be answered.
type asked struct {
	kind    string
	id      uint64             // of an open, read, watch or KeepAlive
	session uint64             // of an attach or request
	request uint64             // its number
	nonce   string             // of an open
	right   bool               // an attach with the session's own nonce
	read    *wirepb.Read       // what is to be read
	errors  []wirepb.ErrorCode // how it may be refused, besides what may befall any message
	must    bool               // it must be refused so
	sent    int                // how often
	free    bool               // it need not be answered any more, and may be
	at      int64
}

// rawPool is what the raw clients of a run share.
type rawPool struct {
	sessions []*rawSession
	stats    map[string]*storepb.Stat // as last told
	paths    []string                 // with a Stat, in the order in which they were told
}

// rawSession is a session of a raw client.
type rawSession struct {
	owner   *client
	nonce   []byte
	id      uint64
	at      *raw // whose connection it is attached to, as far as the clients know
	over    bool
	next    uint64 // number of the next request
	most    uint64 // highest that was ever sent
	acked   uint64
	news    uint64
	open    map[uint64]*storepb.Command // requests without an answer
	sent    map[uint64]int              // how often each number was
	tickets []rawTicket
	long    bool // its client's name is as long as may be
}

type rawTicket struct {
	number uint64
	path   string
	grant  *storepb.Grant
}

// newRaws makes the raw clients of the plan.
func (w *World) newRaws() {
	w.pool.stats = map[string]*storepb.Stat{}
	for i := range w.plan.raws {
		r := &raw{number: i, random: newStream(w.seed, 2000+uint64(i)), nextID: rawFirstID}
		r.c = &client{w: w, index: w.plan.replicas + w.plan.clients + len(w.strangers) + i, name: fmt.Sprintf("x%d", i+1), raw: r}
		w.raws = append(w.raws, r)
	}
}

// ofRaw reports whether a session belongs to a raw client.
func (h *history) ofRaw(session uint64) bool {
	s := h.sessions[session]
	return s != nil && s.owner.c.raw != nil
}

// think plans the next operation. Each has random numbers of its own.
func (r *raw) think() {
	w := r.c.w
	w.after(r.random.skewed(1, 4*w.plan.rawThink), func() {
		switch {
		case w.over:
			return
		case w.winding:
			r.windUp()
			return
		}
		r.ops++
		own := newStream(w.seed, 1<<41|uint64(r.number)<<24|uint64(r.ops))
		if !w.plan.skips(rawNumber+r.number, r.ops) {
			w.acted++
			r.s = own
			r.act()
		}
		r.think()
	})
}

// windUp ends what is open: its sessions are closed, or expire.
func (r *raw) windUp() {
	for _, x := range w(r).pool.sessions {
		if x.at == r && !x.over && r.phase == rawReady {
			r.request(x, x.next, &storepb.Command{Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{WorkEnded: true}}})
		}
	}
	w(r).after(second, r.depart)
}

// depart ends the connection once everything is answered, or after a while.
func (r *raw) depart() {
	if r.unsettled() != "" && !w(r).over {
		w(r).after(100*millisecond, r.depart)
		return
	}
	r.leave()
}

func w(r *raw) *World { return r.c.w }

// unsettled says what has no answer.
func (r *raw) unsettled() string {
	a := r.owed()
	if r.phase == rawAway || a == nil || r.c.conn == nil || r.c.conn.p.aside {
		return ""
	}
	return fmt.Sprintf("%s has no answer to its %s %d (session %s, request %d), sent at %s", r.c.name, a.kind, a.id, short(a.session), a.request, tellTime(a.at))
}

// dial begins a connection, mostly to the master.
func (r *raw) dial() {
	p := pick(r.s, w(r).replicas)
	if m := w(r).master(); m != nil && r.s.chance(850_000) {
		p = m
	}
	r.phase, r.asked, r.watches, r.deaf = rawDialing, nil, nil, 0
	r.c.dial(p.address())
}

// leave hangs up.
func (r *raw) leave() {
	if r.c.conn != nil {
		r.c.conn.hangUp(0)
	}
	r.gone()
}

func (r *raw) gone() {
	r.phase, r.asked, r.watches = rawAway, nil, nil
	for _, x := range w(r).pool.sessions {
		if x.at == r {
			x.at = nil
		}
	}
}

// reads returns when the client takes the next of what has arrived for it.
func (r *raw) reads(n *conn) int64 {
	if r == nil || r.c.conn != n {
		return 0
	}
	return r.deaf
}

// decodes does what the daemon does with a frame ahead of the replica: what cannot
// be decoded ends the connection, what says nothing is left out.
func (r *raw) decodes(n *conn, m *wirepb.ClientMessage, data []byte) bool {
	if err := m.Decode(data); err != nil {
		n.breakUp("a message cannot be decoded", 0, 0)
		return false
	}
	return m.Body != nil
}

// happened takes what becomes of the connection.
func (r *raw) happened(ev machine.Event) {
	switch e := ev.(type) {
	case machine.Connected:
		r.phase = rawSilent
	case machine.ConnectFailed, machine.Disconnected:
		r.gone()
	case machine.Received:
		r.received(e.Message)
	default:
		w(r).fail("simulator", "%s: %v", r.c.name, errors.New("an event that no connection has"))
	}
}

// send sends a message; a is what must be answered, nil: nothing.
func (r *raw) send(m *wirepb.ClientMessage, a *asked) {
	if r.c.conn == nil {
		return
	}
	if a != nil {
		a.at, a.sent = w(r).now, max(a.sent, 1)
		r.asked = append(r.asked, a)
	}
	r.c.conn.sendUp(m)
}

func (r *raw) id() uint64 {
	r.nextID++
	return r.nextID
}

// request sends a command as a request of a session.
func (r *raw) request(x *rawSession, number uint64, m *storepb.Command) {
	m.Session, m.Number = x.id, number
	m.AckedEvent = x.acked
	m.LowestUnanswered = x.lowest()
	if number == x.next {
		x.next++
	}
	x.most = max(x.most, number)
	x.open[number] = m
	if m.GetAcquire() != nil {
		x.tickets = append(x.tickets, rawTicket{number: number, path: m.GetAcquire().GetPath()})
	}
	r.ask(m)
}

// ask sends a request, perhaps again.
func (r *raw) ask(m *storepb.Command) {
	a := &asked{kind: "request", session: m.GetSession(), request: m.GetNumber(),
		errors: []wirepb.ErrorCode{wirepb.ErrorCode_UNKNOWN_SESSION}}
	if x := w(r).pool.session(a.session); x != nil {
		x.sent[a.request]++
		a.sent = x.sent[a.request]  // what was sent on an earlier connection may be answered here
		a.free = r.races(a.session) // and this one at the connection that the session moves to
	}
	for _, o := range r.asked {
		if o.is("request", 0, a.session, a.request) && !o.must {
			o.sent, a = o.sent+1, nil // a repeat may have no answer of its own
			break
		}
	}
	r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Request{Request: &wirepb.Request{Command: m}}}, a)
}

// lowest is the lowest number without an answer.
func (x *rawSession) lowest() uint64 {
	least := x.next
	for n := range x.open {
		least = min(least, n)
	}
	return least
}

// drop notes that a session is attached elsewhere now: the answers go there, but for
// those that are on their way.
func (r *raw) drop(session uint64) {
	for _, a := range r.asked {
		a.free = a.free || a.session == session
	}
}

func (a *asked) is(kind string, id, session, request uint64) bool {
	return a.kind == kind && a.id == id && a.session == session && a.request == request
}

// answer notes an answer: a repeat may have one of its own, and need not.
func (r *raw) answer(i int) *asked {
	a := r.asked[i]
	a.free = true
	if a.sent--; a.sent <= 0 {
		r.asked = slices.Delete(r.asked, i, i+1)
	}
	return a
}

// owed returns the oldest that must be answered, nil if there is none.
func (r *raw) owed() *asked {
	for _, a := range r.asked {
		if !a.free {
			return a
		}
	}
	return nil
}
