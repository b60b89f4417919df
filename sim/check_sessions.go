package sim

import (
	"errors"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// takeSessions follows the sessions through the log. The service may expire a
// session only when its client cannot believe in it any more: a client that
// runs must at that time see its lease run out.
func (h *history) takeSessions(m *storepb.Command, result *storepb.Result, changes []store.Change, s *store.Store) {
	for i := range changes {
		c := &changes[i]
		switch c.Kind {
		case store.ChangeSessionOpened:
			h.sessionOpened(c.Session, s)
		case store.ChangeSessionClosed:
			h.sessionClosed(c.Session, m.GetExpireSession() != nil)
		}
	}
}

func (h *history) sessionOpened(id uint64, s *store.Store) {
	w := h.w
	view, ok := s.Session(id)
	if !ok {
		w.fail("sessions", "session %s was opened and is not there", short(id))
		return
	}
	o, ok := w.byNonce[string(view.Nonce)]
	if !ok {
		w.fail("sessions", "session %s has a nonce that no client made", short(id))
		return
	}
	if o.c.life == o.life && o.c.reader {
		w.fail("sessions", "%s only reads, and has opened session %s", o.c.name, short(id))
		return
	}
	if h.sessions[id] != nil {
		w.fail("sessions", "session %s was opened twice", short(id))
		return
	}
	for _, other := range w.sessionsOf(o) {
		if !other.ended {
			w.fail("sessions", "one nonce of %s made the sessions %s and %s", o.c.name, short(other.id), short(id))
		}
	}
	h.sessions[id] = &session{id: id, owner: o, openedAt: w.now}
	w.opened[o] = append(w.opened[o], h.sessions[id])
	if o.c.life == o.life {
		o.c.session = id
	}
}

func (w *World) sessionsOf(o owner) []*session { return w.opened[o] }

func (h *history) sessionClosed(id uint64, expired bool) {
	w := h.w
	s := h.sessions[id]
	if s == nil || s.ended {
		w.fail("sessions", "session %s ended, but was not open", short(id))
		return
	}
	s.ended = true
	left := ""
	for path, owner := range h.owners {
		if owner == id && (left == "" || path < left) {
			left = path
		}
	}
	if left != "" {
		w.fail("sessions", "session %s ended and left the ephemeral node %s", short(id), left)
		return
	}
	if !expired {
		return
	}
	w.counts.expired++
	c := s.owner.c
	if c.life != s.owner.life || !c.live() {
		return
	}
	if c.paused() {
		w.counts.expiredPaused++
		return
	}
	if c.state == machine.Live {
		w.fail("sessions", "session %s of %s expired although its client runs and has a lease", short(id), c.name)
	}
}

// checkAnswered: while its session lives a client is told what has become of
// each request that it does not give up, however often it had to be repeated.
func (c *client) checkAnswered(answers []machine.Done) {
	if c.state == machine.Expired || c.state == machine.Closed {
		return
	}
	for _, d := range answers {
		if k := c.calls[d.ID]; errors.Is(d.Err, machine.ErrUnknownOutcome) && !k.cancel {
			c.w.fail("exactly-once", "%s has a live session and is not told what has become of call %d: %v", c.name, k.id, d.Err)
		}
	}
}
