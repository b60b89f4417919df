package store

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// A revision is a positive 63-bit number that only grows: 32 high bits of
// seconds since 2025-01-01, and 31 bits that count. The high part is raised by
// the founding, and by each leader's first entry to the lowest wall clock of the
// majority that promised; it is never lowered. A count that overflows carries:
// for that to outrun the clock a cell would have to apply 2^31 commands a second.
// What is given so, fences among it, exceeds all that was given before a restore
// from a cold copy, without knowing it, as the package says.
//
// A clock that is far ahead must not use the numbers up: what it asks for beyond
// highMax is refused (Change.Capped), and a quarter of all numbers is left above.
//
// A command takes the next revision if it changed nodes, locks or queues, or
// opened or ended a session. All that it changed carries that one revision. A
// command that changed none of these takes none: failed conditions, refusals,
// repeats, voids, acknowledgements, notes of silent sessions, the clock. So two
// states of the same revision have the same nodes, locks and sessions, and differ
// at most in the bookkeeping of answers and in time.

const (
	revisionCountBits = 31
	highMax           = 3 << 30 // a clock of January 2127
)

var revisionStart = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// highPart is that of a wall clock in seconds since 1970, and whether that was
// beyond what revisions take. A clock of before 2025 is taken for unknown.
func highPart(wallSeconds int64) (high uint64, capped bool) {
	switch {
	case wallSeconds <= revisionStart:
		return 0, false
	case wallSeconds-revisionStart > highMax:
		return highMax, true
	}
	return uint64(wallSeconds - revisionStart), false
}

// raise lifts the revision to the high part of a wall clock, if that is higher.
func (s *Store) raise(wallSeconds int64) (capped bool) {
	high, capped := highPart(wallSeconds)
	if high > s.revision>>revisionCountBits {
		s.revision = high << revisionCountBits
	}
	return capped
}

// begin opens a command: what it changes will carry s.now.
func (s *Store) begin() {
	s.now = s.revision + 1
	s.changed = false
	s.changes = s.changes[:0]
	s.touched = s.touched[:0]
	s.removed = 0
}

// commit ends what a command does to nodes, locks and sessions: it settles
// queues and containers and takes the revision if anything was changed.
func (s *Store) commit() {
	s.settle()
	if !s.changed {
		return
	}
	// Revisions are positive as signed 64-bit numbers, for ever.
	if s.now>>63 != 0 { // asked first, since the numbers for the text are allocated
		invariant.Assert(false, "revision %d does not fit 63 bits", s.now)
	}
	s.revision = s.now
	s.changed = false
}

// note records a change of the command that is being applied.
func (s *Store) note(kind ChangeKind, path string, session uint64) {
	s.changed = true
	s.changes = append(s.changes, Change{Kind: kind, Path: path, Session: session, Revision: s.now})
}

// noteLock records what became of a claim.
func (s *Store) noteLock(c *claim, event LockEvent, loss pb.LossReason) {
	l := LockChange{
		Event: event, Loss: loss, Mode: c.mode, Session: c.session, Ticket: c.ticket,
		Client: c.client, Fence: c.fence, LockDelayMS: c.delayMS,
	}
	if of, ok := s.lock(c.path); ok {
		l.Generation = of.generation
	}
	s.changed = true
	s.changes = append(s.changes, Change{Kind: ChangeLock, Path: c.path, Revision: s.now, Lock: l})
}

// touch has settle look at path once the command has done its part.
func (s *Store) touch(path string) {
	s.touched = append(s.touched, path)
}
