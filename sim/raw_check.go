package sim

import (
	"maps"
	"slices"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// befalls are the refusals that any message may get, because of who is master and
// of what else is under way.
var befalls = []wirepb.ErrorCode{wirepb.ErrorCode_NOT_MASTER, wirepb.ErrorCode_NO_MASTER, wirepb.ErrorCode_OVERLOADED, wirepb.ErrorCode_TOO_MANY}

// received takes a message of the service, and demands that it answers something.
func (r *raw) received(m *wirepb.ServerMessage) {
	switch b := m.GetBody().(type) {
	case *wirepb.ServerMessage_Hello:
		if r.answered("hello", 0, 0, 0) != nil {
			r.phase = rawReady
		}
	case *wirepb.ServerMessage_Opened:
		r.opened(b.Opened)
	case *wirepb.ServerMessage_Attached:
		r.attached(b.Attached)
	case *wirepb.ServerMessage_Kept:
		r.answered("keep alive", b.Kept.GetId(), 0, 0)
		for _, id := range b.Kept.GetGone() {
			if x := w(r).pool.session(id); x != nil {
				x.over = true
			}
		}
	case *wirepb.ServerMessage_Reply:
		r.replied(b.Reply)
	case *wirepb.ServerMessage_Read:
		if a := r.answered("read", b.Read.GetId(), 0, 0); a != nil {
			r.checkRead(a, b.Read)
		}
	case *wirepb.ServerMessage_Watch:
		r.updated(b.Watch)
	case *wirepb.ServerMessage_Event:
		if x := w(r).pool.session(b.Event.GetSession()); x != nil {
			x.news = max(x.news, b.Event.GetEvent().GetNumber())
			x.granted(b.Event.GetEvent().GetGrant())
		}
	case *wirepb.ServerMessage_Error:
		r.refused(b.Error)
	}
}

func (p *rawPool) session(id uint64) *rawSession {
	for _, x := range p.sessions {
		if x.id == id && id != 0 {
			return x
		}
	}
	return nil
}

// wrong is the end of a run in which a raw client was told what it should not be.
func (r *raw) wrong(format string, args ...any) { w(r).fail("raw", r.c.name+": "+format, args...) }

// answered takes out what is answered, nil if nothing is: then the run has failed.
func (r *raw) answered(kind string, id, session, request uint64) *asked {
	i := slices.IndexFunc(r.asked, func(a *asked) bool {
		return a.is(kind, id, session, request) && !a.must && !a.free
	})
	if i < 0 {
		i = slices.IndexFunc(r.asked, func(a *asked) bool { return a.is(kind, id, session, request) && !a.must })
	}
	if i >= 0 {
		return r.answer(i)
	}
	if kind == "attach" { // a refusal may have been taken for its own
		i = slices.IndexFunc(r.asked, func(a *asked) bool { return a.session == session && a.request == request })
		if i >= 0 {
			return r.answer(i)
		}
	}
	r.wrong("an answer to a %s %d (session %s, request %d) that was not asked, or has to be refused", kind, id, short(session), request)
	return nil
}

// refused takes an error: it refuses something that was asked, with a code that the
// protocol has for it.
func (r *raw) refused(e *wirepb.Error) {
	if e.GetFatal() && e.GetId() == 0 && e.GetNumber() == 0 && e.GetSession() == 0 && r.phase != rawReady {
		// Of the first message.
		full := e.GetCode() == wirepb.ErrorCode_TOO_MANY && w(r).plan.limits.connections > 0
		if !full && (len(r.asked) == 0 || !r.asked[0].allows(e)) {
			r.wrong("it is refused with %v (%s)", e.GetCode(), e.GetText())
		}
		r.asked = nil
		return
	}
	if e.GetFatal() {
		switch e.GetCode() {
		case wirepb.ErrorCode_BAD_MESSAGE, wirepb.ErrorCode_TOO_MANY:
		default:
			r.wrong("it is cut off with %v (%s)", e.GetCode(), e.GetText())
		}
		r.asked = nil // nothing more is answered
		return
	}
	mine := func(a *asked) bool {
		switch a.kind {
		case "request", "attach":
			return a.session == e.GetSession() && a.request == e.GetNumber() && e.GetId() == 0
		}
		return a.id == e.GetId() && e.GetSession() == 0 && e.GetNumber() == 0
	}
	// What several may be refused with is taken for one that need not be, and has no answer yet.
	must := func(a *asked) bool { return mine(a) && slices.Contains(a.errors, e.GetCode()) && a.must }
	i := slices.IndexFunc(r.asked, func(a *asked) bool { return must(a) && !a.free })
	if i < 0 {
		i = slices.IndexFunc(r.asked, must)
	}
	if i < 0 {
		i = slices.IndexFunc(r.asked, func(a *asked) bool { return mine(a) && a.allows(e) && !a.must && !a.free })
	}
	if i < 0 && slices.Contains(befalls, e.GetCode()) {
		// Refused may be a repeat, or what has to be refused anyway: that may have another
		// answer, and need not.
		if i = slices.IndexFunc(r.asked, func(a *asked) bool { return mine(a) && !a.must }); i >= 0 {
			for _, a := range r.asked {
				a.free = a.free || mine(a)
			}
		}
	}
	if i < 0 {
		i = slices.IndexFunc(r.asked, func(a *asked) bool { return mine(a) && a.allows(e) && !a.free })
	}
	if i < 0 {
		i = slices.IndexFunc(r.asked, func(a *asked) bool { return mine(a) && a.allows(e) })
	}
	if i < 0 && e.GetNumber() == 0 && e.GetId() == 0 && e.GetCode() == wirepb.ErrorCode_INVALID_ARGUMENT {
		// A request without a number looks as an attach does: the refusal of the one was
		// taken for that of the other.
		i = slices.IndexFunc(r.asked, func(a *asked) bool { return a.kind == "attach" && mine(a) })
	}
	if i < 0 && r.askedElsewhere(e) {
		return
	}
	if i < 0 {
		r.wrong("what it has not asked, or not so, is refused with %v (%s): id %d, session %s, request %d",
			e.GetCode(), e.GetText(), e.GetId(), short(e.GetSession()), e.GetNumber())
		return
	}
	a := r.answer(i)
	switch x := w(r).pool.session(a.session); {
	case a.kind == "watch" && !a.must:
		r.watches = slices.DeleteFunc(r.watches, func(id uint64) bool { return id == a.id })
	case a.kind == "request" && !a.must && x != nil && x.open[a.request] != nil && x.at == r:
		x.next = min(x.next, a.request) // not done: the number is still to be used
		delete(x.open, a.request)
	}
}

// askedElsewhere reports whether an error refuses a request that was sent more often
// than this connection knows of: the session may have been attached to another one.
func (r *raw) askedElsewhere(e *wirepb.Error) bool {
	x := w(r).pool.session(e.GetSession())
	if x == nil || x.sent[e.GetNumber()] == 0 || e.GetId() != 0 {
		return false
	}
	return e.GetCode() == wirepb.ErrorCode_UNKNOWN_SESSION || slices.Contains(befalls, e.GetCode())
}

// allows reports whether the protocol has this refusal for what was asked.
func (a *asked) allows(e *wirepb.Error) bool {
	return slices.Contains(a.errors, e.GetCode()) || slices.Contains(befalls, e.GetCode()) && a.kind != "hello"
}

func (r *raw) opened(o *wirepb.OpenSessionReply) {
	a := r.answered("open", o.GetId(), 0, 0)
	if a == nil {
		return
	}
	if o.GetLeaseMs() < 1000 || o.GetLeaseMs() > 600_000 || o.GetHeldNs() < 0 && o.GetHeldNs() < -60*second {
		r.wrong("session %s has a lease of %d ms, held for %d ns", short(o.GetSession()), o.GetLeaseMs(), o.GetHeldNs())
	}
	x := w(r).pool.session(o.GetSession())
	if x == nil {
		h := w(r).history.sessions[o.GetSession()]
		if h == nil || h.owner.c.raw == nil {
			r.wrong("session %s is opened, which the log does not have as one of a raw client's", short(o.GetSession()))
			return
		}
		for _, y := range w(r).pool.sessions {
			if y.owner == h.owner.c {
				x = y
			}
		}
		x.id, x.next, x.open, x.sent = o.GetSession(), 1, map[uint64]*storepb.Command{}, map[uint64]int{}
	}
	r.take(x)
}

// take notes that a session is attached here.
func (r *raw) take(x *rawSession) {
	if x.at != nil && x.at != r {
		x.at.drop(x.id)
	}
	x.at = r
}

// attaches reports whether another attach of a session has no answer: then it is not
// known which was answered.
func (r *raw) attaches(id uint64) bool {
	return slices.ContainsFunc(r.asked, func(a *asked) bool { return a.is("attach", 0, id, 0) })
}

func (r *raw) attached(m *wirepb.AttachReply) {
	a := r.answered("attach", 0, m.GetSession(), 0)
	if a == nil {
		return
	}
	x := w(r).pool.session(m.GetSession())
	switch {
	case x == nil: // or it was opened anew meanwhile
		if m.GetCode() != storepb.Code_UNKNOWN_SESSION && !w(r).history.ofRaw(m.GetSession()) {
			r.wrong("an attach to session %s, which is none of a raw client's, is answered %v", short(m.GetSession()), m.GetCode())
		}
	case m.GetCode() == storepb.Code_UNKNOWN_SESSION && a.right && !r.attaches(x.id):
		x.over = true
	case m.GetCode() == storepb.Code_OK && x.at == r:
		x.next = max(m.GetLastNumber()+1, 1)
		for n := range x.open {
			x.next = max(x.next, n+1) // they may be under way
		}
	}
}

// replied holds the answer to a request against what the log has made of it.
func (r *raw) replied(m *wirepb.Reply) {
	result := m.GetResult()
	id, number := m.GetSession(), result.GetNumber()
	x := w(r).pool.session(id)
	i := slices.IndexFunc(r.asked, func(a *asked) bool { return a.is("request", 0, id, number) && !a.must })
	if i >= 0 {
		r.answer(i)
	}
	switch {
	case x == nil && w(r).history.ofRaw(id):
		return // its nonce has opened another since
	case x == nil:
		r.wrong("an answer of session %s, which is none of a raw client's", short(id))
		return
	case i < 0 && number > x.most:
		r.wrong("request %d of session %s is answered (%s) and was not sent", number, short(id), tellResult(result))
		return
	} // else it was sent on an earlier connection of the session, or earlier than the session came back here
	x.granted(result.GetGrant())
	w(r).pool.told(result.GetPath(), result.GetStat())
	switch result.GetCode() {
	case storepb.Code_RETRY:
		x.next = min(x.next, number)
		delete(x.open, number)
		return
	case storepb.Code_UNKNOWN_SESSION:
		x.over = true
		return
	case storepb.Code_FORGOTTEN:
		delete(x.open, number)
		return
	}
	delete(x.open, number)
	did := w(r).history.requests[request{id, number}]
	if did == nil || did.result().GetCode() != result.GetCode() || did.result().GetRevision() != result.GetRevision() {
		if result.GetCode() == storepb.Code_LIMIT {
			x.next = min(x.next, number) // perhaps the number is still to be used
			return
		}
		r.wrong("request %d of session %s is answered %s, which the log did not make of it", number, short(id), tellResult(result))
	}
}

// told keeps a Stat, for conditions that hold.
func (p *rawPool) told(path string, s *storepb.Stat) {
	if path == "" || s == nil {
		return
	}
	if p.stats[path] == nil {
		p.paths = append(p.paths, path)
	}
	p.stats[path] = s
}

func (x *rawSession) granted(g *storepb.Grant) {
	for i := range x.tickets {
		if t := &x.tickets[i]; g != nil && t.number == g.GetTicket() {
			t.grant = g
		}
	}
}

// updated takes an update of a watch.
func (r *raw) updated(u *wirepb.WatchUpdate) {
	if !slices.Contains(r.watches, u.GetId()) {
		return // ended; what was on its way does not count
	}
	if slices.ContainsFunc(r.asked, func(a *asked) bool { return a.is("watch", u.GetId(), 0, 0) && !a.must }) {
		r.answered("watch", u.GetId(), 0, 0)
		if !u.GetState() {
			r.wrong("watch %d begins with a change and not with a state", u.GetId())
		}
	}
	for _, it := range u.GetItems() {
		w(r).pool.told(it.GetPath(), it.GetStat())
	}
}

// checkRead holds the answer to a read against the model's state, if that has not
// moved on.
func (r *raw) checkRead(a *asked, m *wirepb.ReadReply) {
	w(r).pool.told(m.GetNode().GetPath(), m.GetNode().GetStat())
	for _, l := range m.GetLocks().GetLocks() {
		if len(l.GetHolders()) != len(l.GetHolderLeaseLeftMs()) {
			r.wrong("%d holders of %s have %d leases", len(l.GetHolders()), l.GetPath(), len(l.GetHolderLeaseLeftMs()))
		}
	}
	if h := w(r).history; h.model != nil {
		if err := h.model.JudgeRead(a.read, m, min(64<<10, w(r).leastFrame())); err != nil {
			r.wrong("read %d: %v", m.GetId(), err)
		}
	}
}

// checkShell asks what the daemon asks of a replica and the simulator has no use for:
// the answers have to make sense.
func (p *process) checkShell() {
	w, now := p.w, p.now()
	if n := p.rep.Gathering(now); n < 0 {
		w.fail("state", "%s gathers %d requests", p.name, n)
	}
	if _, votes := p.rep.Awaits(); int(votes) > len(w.history.slots)+1_000_000 {
		w.fail("state", "%s waits for votes above slot %d", p.name, votes)
	}
	if c := p.rep.Configuration(); c != nil && len(c.Members) != len(w.replicas) {
		w.fail("state", "%s has a configuration of %d members", p.name, len(c.Members))
	}
	named := map[string]bool{}
	for _, l := range (replica.Options{}).Limits() {
		named[l.Name] = true
	}
	met := p.rep.Metrics().Limited
	for _, name := range slices.Sorted(maps.Keys(met)) {
		if !named[name] {
			w.fail("state", "%s has refused %d times because of a limit %q that it does not list", p.name, met[name], name)
		}
	}
}
