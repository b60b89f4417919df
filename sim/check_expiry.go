package sim

import (
	"slices"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// When a master may propose to expire a session is judged at that moment: what has
// become of the client until the command is applied excuses nothing. Four things
// forbid it, whatever the master reckons:
//
//   - what the client sent to stay alive (a KeepAlive, an Attach) has arrived and is
//     not answered;
//   - it was answered just now, so that the client cannot have been heard again;
//   - the client has a connection that works, all that was sent on it has arrived,
//     and nothing is under way: then the master has left something unanswered;
//   - the lease that the master has given, or owes since its election, is not over.
//     Time in which the master does not run is no part of it.

const (
	// answerGrace is less than what the master gives a client that was answered.
	answerGrace = 900 * millisecond
	// stoodLeast is how long a replica must not run at a time for that not to count
	// against sessions.
	stoodLeast = 105 * millisecond
	// noteLeast is less than what a new master gives a session that was noted.
	noteLeast = 980 * millisecond
)

// renewal is a KeepAlive, or an Attach (id 0), that has arrived and is not answered.
type renewal struct {
	id uint64
	at int64
}

// leaseView is what a run knows of the leases of one mastership.
type leaseView struct {
	epoch uint64
	began int64            // in running time, as all below
	noted map[uint64]bool  // sessions with a note when it began
	until map[uint64]int64 // the end of the longest lease that was given
	told  map[uint64]int64 // which of these ends the story has told of
}

// running converts an instant to the time that a process has run until then, or less:
// pauses that were long enough are no part of it, those since then neither.
func (p *process) running(at int64) int64 { return at - p.stood }

// stand begins a pause, and walk ends it.
func (p *process) stand() { p.stoodAt = p.w.now }

func (p *process) walk() {
	if d := p.w.now - p.stoodAt; d >= stoodLeast {
		p.stood += d
	}
}

// newMastership takes down which sessions a new master finds noted: they are given
// what is left of their lease, the others a full one.
func (p *process) newMastership() {
	v := leaseView{epoch: p.role.Epoch, began: p.running(p.w.now), noted: map[uint64]bool{}, until: map[uint64]int64{}, told: map[uint64]int64{}}
	p.rep.Store().Sessions(0, func(s store.SessionView) bool {
		if s.LeaseEndCell != 0 {
			v.noted[s.ID] = true
		}
		return true
	})
	p.leases = v
}

// hears takes down what a client sends to stay alive.
func (n *conn) hears(m *wirepb.ClientMessage) {
	switch b := m.Body.(type) {
	case *wirepb.ClientMessage_KeepAlive:
		n.renewals = append(n.renewals, renewal{b.KeepAlive.GetId(), n.w.now})
	case *wirepb.ClientMessage_Attach:
		n.renewals = append(n.renewals, renewal{0, n.w.now})
	}
}

// answers takes down what a replica answers to that.
func (n *conn) answers(m *wirepb.ServerMessage) {
	switch b := m.Body.(type) {
	case *wirepb.ServerMessage_Kept:
		at, ok := n.takeRenewal(b.Kept.GetId())
		for _, l := range b.Kept.GetLeases() {
			if ok {
				n.p.gave(l.GetSession(), at, int64(l.GetLeaseMs())*millisecond)
			}
		}
		n.answeredAt, n.attached = n.w.now, true
	case *wirepb.ServerMessage_Attached:
		n.takeRenewal(0)
		if b.Attached.GetCode() == storepb.Code_OK {
			n.answeredAt, n.attached = n.w.now, true
		}
	case *wirepb.ServerMessage_Opened:
		n.answeredAt, n.attached = n.w.now, true
	case *wirepb.ServerMessage_Error:
		if b.Error.GetNumber() == 0 {
			n.takeRenewal(b.Error.GetId())
		}
	}
}

func (n *conn) takeRenewal(id uint64) (arrived int64, ok bool) {
	i := slices.IndexFunc(n.renewals, func(a renewal) bool { return a.id == id })
	if i < 0 {
		return 0, false
	}
	at := n.renewals[i].at
	n.renewals = slices.Delete(n.renewals, i, i+1)
	return at, true
}

// gave takes down a lease: it runs from an instant at or behind the arrival of what
// it answers, and time in which the master stood before it gave it counts.
func (p *process) gave(session uint64, arrived, length int64) {
	end := p.running(p.w.now) - (p.w.now - arrived) + length
	p.leases.until[session] = max(p.leases.until[session], end)
}

// checkExpiries looks at each expiry that a master proposes with this batch, ahead of
// what it answers with the same batch.
func (p *process) checkExpiries(notes []replica.Note) {
	for i := range notes {
		if notes[i].Text != master.NoteExpiring || len(notes[i].Args) != 2 {
			continue
		}
		if id, ok := notes[i].Args[1].(uint64); ok {
			p.w.tell(p.name, "proposes to expire session %s", short(id))
			p.checkExpiry(id)
		}
	}
}

func (p *process) checkExpiry(id uint64) {
	w := p.w
	s := w.history.sessions[id]
	if s == nil {
		w.fail("sessions", "%s proposes to expire session %s, which was not opened", p.name, short(id))
		return
	}
	if until := p.leaseUntil(s); p.running(w.now) < until {
		w.fail("sessions", "%s proposes to expire session %s %s before its lease ends, time in which it did not run left out",
			p.name, short(id), tellTime(until-p.running(w.now)))
		return
	}
	c := s.owner.c
	n := c.conn
	if c.life != s.owner.life || !c.live() || n == nil || n.p != p || n.boot != p.boot || n.broken || n.closed || n.down.fin || !n.attached && len(n.renewals) == 0 {
		return
	}
	switch {
	case len(n.renewals) > 0:
		w.fail("sessions", "%s proposes to expire session %s of %s, which waits for the answer to what arrived %s ago",
			p.name, short(id), c.name, tellTime(w.now-n.renewals[0].at))
	case w.now-n.answeredAt < answerGrace:
		w.fail("sessions", "%s proposes to expire session %s of %s, which it answered %s ago and which is connected",
			p.name, short(id), c.name, tellTime(w.now-n.answeredAt))
	case n.idle():
		w.fail("sessions", "%s proposes to expire session %s of %s, which is connected, has received everything and sent everything",
			p.name, short(id), c.name)
	}
}

// leaseUntil returns the end of the lease that a master has given a session or owes
// it, by a clock that is as fast as may be.
func (p *process) leaseUntil(s *session) int64 {
	v := &p.leases
	length := int64(0)
	if view, ok := p.rep.Store().Session(s.id); ok {
		length = int64(view.LeaseMS) * millisecond
	}
	begin := max(v.began, p.running(s.openedAt))
	end := begin + length
	if v.noted[s.id] {
		end = begin + min(length, noteLeast)
	}
	length = max(length, end-begin)
	end = max(end, v.until[s.id])
	return end - length/1_000_000*driftPPM - millisecond
}

// idle reports whether both ways of a connection work and nothing is under way on it.
func (n *conn) idle() bool {
	c := n.c
	return !n.w.net.blocked(c.index, n.p.index) && !n.w.net.blocked(n.p.index, c.index) && !c.paused() && !c.ending &&
		len(n.up.queue) == 0 && len(n.down.queue) == 0 && len(c.mailbox) == 0 && !c.waking
}
