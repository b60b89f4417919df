package master

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// Leases live in the master's memory, so a new master would give a session that
// is dead its full lease once more, and one after the other for ever where
// masters change more often than the lease is long. So the end of the lease of a
// silent session is *noted* in the log, in cell time, and a new master gives the
// session what is left until then. A session whose KeepAlive is held is not
// silent: that of a client that is well is never noted.
//
// Invariant: a noted session gets no lease, from the proposal of its note until
// an entry has cleared it. So whichever master finds the note knows all of the
// lease that was given.

const (
	noteAfter  = 2 * time.Second // silence, or a third of the lease if that is less
	notesBatch = 256             // notes in one command, and commands a tick
)

// patience is for how long a session may be silent before it is noted.
func (s *session) patience() time.Duration { return min(s.lease/3, noteAfter) }

// heard notes that a session was heard of just now.
func (m *Master) heard(s *session) { s.heard = m.leaseTime(m.now) }

// silentSince returns since when a session without a KeepAlive in hand is silent,
// in lease time.
func (s *session) silentSince() time.Duration {
	if s.hand != nil && !s.hand.open {
		return max(s.heard, s.hand.end)
	}
	return s.heard
}

// listen has noteSilent look at a session when it may have been silent for too
// long.
func (m *Master) listen(s *session, since time.Duration) {
	m.silence.ReplaceOrInsert(deadline{since + s.patience(), s.id})
}

// noteSilent notes the sessions that have been silent for too long.
func (m *Master) noteSilent() {
	now := m.leaseTime(m.now)
	for range notesBatch {
		var notes []*storepb.SessionNote
		for len(notes) < notesBatch {
			d, ok := m.silence.Min()
			if !ok || d.at > now {
				break
			}
			m.silence.DeleteMin()
			s := m.sessions[d.id]
			if s == nil || s.ended || s.noted || s.expiring {
				continue
			}
			if s.inHand() {
				m.listen(s, now)
				continue
			}
			if since := s.silentSince(); since+s.patience() > now {
				m.listen(s, since)
				continue
			}
			s.noted = true
			// A span of cell time takes longer than the same of the own clock, so this
			// is not before the lease ends.
			end := m.cellTime() + int64(max(s.deadline-now, 0))
			notes = append(notes, &storepb.SessionNote{Session: s.id, LeaseEndCell: max(end, 1)})
		}
		if len(notes) == 0 {
			return
		}
		m.proposeNotes(notes)
	}
}

func (m *Master) proposeNotes(notes []*storepb.SessionNote) {
	m.propose(&storepb.Command{Op: &storepb.Command_NoteSessions{NoteSessions: &storepb.NoteSessions{Notes: notes}}})
}

// unnote has a noted session's note cleared, because it is heard of; its lease
// waits for that. An expiry that is under way is decided first.
func (m *Master) unnote(s *session) {
	if s.noted && !s.clearing && !s.expiring && !s.ended {
		s.clearing = true
		m.clears = append(m.clears, s.id)
	}
}

// clearNotes proposes to clear the notes of the sessions that were heard of.
func (m *Master) clearNotes() {
	for len(m.clears) > 0 {
		n := min(len(m.clears), notesBatch)
		notes := make([]*storepb.SessionNote, n)
		for i, id := range m.clears[:n] {
			notes[i] = &storepb.SessionNote{Session: id}
		}
		m.clears = m.clears[n:]
		m.proposeNotes(notes)
	}
	m.clears = nil
}

// noted tells what has come of a NoteSessions of this master: it is applied, or
// nothing has come of it.
func (m *Master) noted(body []byte, applied bool) {
	var c storepb.NoteSessions
	if err := proto.Unmarshal(body, &c); err != nil {
		invariant.Assert(false, "a command that this master encoded cannot be decoded: %v", err)
	}
	for _, n := range c.GetNotes() {
		s := m.sessions[n.GetSession()]
		switch {
		case s == nil || s.ended:
		case n.GetLeaseEndCell() == 0 && applied:
			m.noteGone(s)
		case n.GetLeaseEndCell() == 0:
			s.clearing = false
			m.unnote(s) // with the next tick
		case !applied && !s.clearing:
			m.noteGone(s)
		}
	}
}

// noteGone resumes the renewals of a session whose note the state does not have.
func (m *Master) noteGone(s *session) {
	s.noted, s.clearing = false, false
	m.heard(s)
	m.listen(s, s.heard)
	m.letGo(s)
	if o := s.opening; o != nil {
		s.opening = nil
		m.opened(o)
	}
}

// noteLeft returns what is left of a noted session's lease on this clock: until
// cell time has come to its end, and time for its client to find this master.
func (m *Master) noteLeft(lease time.Duration, end int64) time.Duration {
	const million = 1_000_000
	left := max(end-m.cellTime(), 0)
	keep := int64(million - m.o.DriftPPM)
	stretched := left/keep*million + (left%keep*million+keep-1)/keep
	return min(lease, max(time.Duration(stretched), undecided))
}
