package store

import (
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// A revision is a positive 63-bit number that only grows. Its high 23 bits
// come from founding or restore, its low 40 bits count: a restore that raises
// the high part gives revisions, and so fences, above all that were given
// before it, without knowing them. A count that overflows carries.
//
// A command takes the next revision if it changed nodes, locks or queues, or
// opened or ended a session. All that it changed carries that one revision. A
// command that changed none of these takes none: failed conditions, refusals,
// repeats, voids, acknowledgements, the clock. So two states of the same
// revision have the same nodes, locks and sessions, and differ at most in the
// bookkeeping of answers and in time.

const revisionCountBits = 40

// RevisionFloor is the lowest revision that a cell founded or restored at the
// given wall clock (Unix milliseconds) starts from: the high part is the hours
// since 2025-01-01, and at least one more than that of the old revision.
func RevisionFloor(wallMS int64, old uint64) uint64 {
	start := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	var hours uint64 = 1
	if wallMS > start {
		hours = max(hours, uint64((wallMS-start)/time.Hour.Milliseconds()))
	}
	hours = max(hours, old>>revisionCountBits+1)
	return min(hours, 1<<(63-revisionCountBits)-1) << revisionCountBits
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
