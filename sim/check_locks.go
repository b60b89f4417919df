package sim

import (
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// lockQueue follows a lock's queue through the log, to see that nobody
// overtakes and that fences grow in the order of the grants.
type lockQueue struct {
	waiting   []request // session and ticket
	fence     uint64    // highest granted
	exclusive bool      // the newest grant was
}

func (h *history) queue(path string) *lockQueue {
	q := h.queues[path]
	if q == nil {
		q = &lockQueue{}
		h.queues[path] = q
	}
	return q
}

func (q *lockQueue) drop(r request) {
	for i, o := range q.waiting {
		if o == r {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			return
		}
	}
}

// takeLocks follows the queues. Who leaves by this command leaves first: a
// grant that its leaving causes may stand before it in the changes. first: no
// request of that number was executed before; raw clients give one number to several.
func (h *history) takeLocks(m *storepb.Command, result *storepb.Result, changes []store.Change, first bool) {
	// Only what was executed takes a ticket away: behind a gap it is a RETRY.
	if op := m.GetRelease(); op != nil && first && (result.GetCode() == storepb.Code_OK || result.GetCode() == storepb.Code_WITHDRAWN) {
		h.dropEverywhere(request{m.GetSession(), op.GetTicket()})
	}
	for i := range changes {
		c := &changes[i]
		if c.Kind == store.ChangeSessionClosed {
			for _, q := range h.queues {
				q.dropSession(c.Session)
			}
		}
		if c.Kind == store.ChangeSessionEvent && c.Event.GetCode() != storepb.Code_GRANTED {
			r := request{c.Session, c.Event.GetTicket()}
			h.queue(c.Event.GetPath()).drop(r)
			if c.Event.GetCode() == storepb.Code_LOST {
				h.taken[r] = true
			}
		}
	}
	for i := range changes {
		if c := &changes[i]; c.Kind == store.ChangeSessionEvent && c.Event.GetCode() == storepb.Code_GRANTED {
			h.granted(c.Session, c.Event)
		}
	}
	if op := m.GetAcquire(); op != nil && len(changes) > 0 {
		h.acquired(m, op, result)
	}
}

func (q *lockQueue) dropSession(id uint64) {
	kept := q.waiting[:0]
	for _, r := range q.waiting {
		if r.session != id {
			kept = append(kept, r)
		}
	}
	q.waiting = kept
}

func (h *history) dropEverywhere(r request) {
	for _, q := range h.queues {
		q.drop(r)
	}
}

// granted: who is granted from the queue was its head.
func (h *history) granted(session uint64, e *storepb.SessionEvent) {
	q := h.queue(e.GetPath())
	r := request{session, e.GetTicket()}
	if len(q.waiting) == 0 || q.waiting[0] != r {
		h.w.fail("fairness", "%s: ticket %d of session %s is granted, but the queue is %v", e.GetPath(), r.number, short(session), q.waiting)
		return
	}
	q.waiting = q.waiting[1:]
	h.fenced(q, e.GetGrant())
}

func (h *history) acquired(m *storepb.Command, op *storepb.Acquire, result *storepb.Result) {
	q := h.queue(op.GetPath())
	r := request{m.GetSession(), m.GetNumber()}
	switch result.GetCode() {
	case storepb.Code_WAITING:
		q.waiting = append(q.waiting, r)
	case storepb.Code_OK, storepb.Code_GRANTED:
		if result.GetGrant() == nil {
			h.w.fail("locks", "%s: ticket %d of session %s is granted without a grant", op.GetPath(), r.number, short(r.session))
			return
		}
		if len(q.waiting) > 0 {
			h.w.fail("fairness", "%s: ticket %d of session %s overtakes the queue %v", op.GetPath(), r.number, short(r.session), q.waiting)
			return
		}
		h.fenced(q, result.GetGrant())
	}
}

// fenced: fences grow in the order of the grants; only the holders of one
// shared period have the same.
func (h *history) fenced(q *lockQueue, g *storepb.Grant) {
	exclusive := g.GetMode() == storepb.LockMode_EXCLUSIVE
	if g.GetFence() < q.fence || (g.GetFence() == q.fence && (exclusive || q.exclusive)) {
		h.w.fail("fences", "%s is granted (%v) with fence %d after fence %d", g.GetPath(), g.GetMode(), g.GetFence(), q.fence)
	}
	q.fence, q.exclusive = g.GetFence(), exclusive
}
