package store

import (
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// A session that its master has not heard of for a while is noted: the state
// keeps the end of its lease, in cell time, so that the next master need not give
// it a whole lease again. A note is about time, so it takes no revision, and it
// is void in another epoch than its master's.
//
// Setting a note does not move the session's last_change, and clearing it does.
// An expiry names the last_change that its master saw. The master that notes a
// session is the one that will expire it: its own note must not void that. A
// clear says that the session was heard of and may get leases again: each expiry
// that was decided before it, by whichever master and however late it is applied,
// must be void.
//
// Invariant: a session is expired only by an expiry that was decided after the
// last clear of its note.

// noteSessions executes a NoteSessions. Sessions that have ended since, and what
// is noted so already, are passed over.
func (s *Store) noteSessions(n *pb.NoteSessions) *pb.Result {
	for _, note := range n.GetNotes() {
		id, end := note.GetSession(), note.GetLeaseEndCell()
		if x, ok := s.session(id); !ok || end < 0 || x.leaseEnd == end {
			continue
		}
		x, _ := s.ownSession(id)
		x.leaseEnd = end
		if end != 0 {
			s.noted.ReplaceOrInsert(id)
		} else {
			s.noted.Delete(id)
			if !invariant.Planted(invariant.ClearVoidsNothing) {
				x.lastChange++ // it counts up from the session's number, and nothing else moves it
			}
		}
		s.rehashSession(id, x)
	}
	return &pb.Result{}
}
