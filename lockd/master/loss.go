package master

import (
	"time"

	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// A lock that is broken, or whose node is deleted, is granted on when the
// longest lease that its holder may still have is over, and then its lock-delay.
// The state counts that from the command's cell time, which is that of its
// proposal. So while such a command is under way no lease may be given as of a
// later instant than its proposal: the KeepAlives proven later wait for its
// outcome, and the news of the loss goes ahead of their answers.

// loss is a command under way that may take locks from sessions that live on.
type loss struct {
	session, number uint64 // of the request; the session that expires, and 0
	at              time.Duration
}

// lateKeep is a KeepAlive that is proven and waits for the outcome of a loss.
type lateKeep struct {
	w     waiter
	since time.Duration
}

// mayTake says whether a request may take locks from other sessions.
func (m *Master) mayTake(s *session, c *storepb.Command) bool {
	switch op := c.GetOp().(type) {
	case *storepb.Command_BreakLock:
		return true
	case *storepb.Command_Delete:
		return op.Delete.GetForce()
	case *storepb.Command_Multi:
		for _, o := range op.Multi.GetOps() {
			if o.GetDelete().GetForce() {
				return true
			}
		}
	case *storepb.Command_CloseSession:
		v, ok := m.st.Session(s.id)
		return ok && s.leavesNodes(v)
	}
	return false
}

// leavesNodes says whether ephemeral nodes, which others may have locked, may go
// with the session.
func (s *session) leavesNodes(v store.SessionView) bool {
	return v.Ephemerals > 0 || len(s.requests) > 0
}

func (m *Master) losing(session, number uint64) {
	m.losses = append(m.losses, loss{session, number, m.now})
}

// lost tells that a command has an outcome; the news of it is on its way.
func (m *Master) lost(session, number uint64) {
	for i := range m.losses {
		if l := &m.losses[i]; l.session == session && l.number == number {
			m.losses = append(m.losses[:i], m.losses[i+1:]...)
			break
		}
	}
	for len(m.late) > 0 && !m.tooLate(m.late[0].since) {
		k := m.late[0]
		m.late = m.late[1:]
		k.w.conn.waiting--
		m.kept(&k.w, k.since)
	}
	if len(m.late) == 0 {
		m.late = nil
	}
}

// tooLate says whether no lease may be given as of since at the moment.
func (m *Master) tooLate(since time.Duration) bool {
	return len(m.losses) > 0 && m.losses[0].at < since
}
