package master

import (
	"time"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// What time causes goes through the log like everything else: the store keeps
// deadlines in cell time and who waits; the master has the clock and says when
// a time has come. Its commands carry its epoch and are void under another.
//
// The time of a ghost that a lock leaves whose holder lives on begins with a
// command too (GHOST_START). Its holder may still be given leases by a master that
// does not know of the loss: of a KeepAlive proven before the loss was applied, or
// by the master before. So the state starts no ghost by itself; a master that has
// applied the loss proposes it, a new one first of all. From the apply on, the news
// of the loss goes ahead of every lease (see grant); so all leases that were given
// without knowing of it run from an instant before that proposal, and the ghost
// lasts for the longest lease and then the lock-delay behind it.

const (
	timersBatch = 256              // timers in one command
	clockEvery  = 20 * time.Second // an idle master logs cell time so often
	ackPatience = 5 * time.Second  // how long an acknowledgement waits for a command to carry it
	acksBatch   = 256              // acknowledgements proposed a tick
)

type timers struct {
	known   bool          // some and next are what the store says
	some    bool          // there is a next one,
	next    int64         // at this cell time
	pending bool          // a Timers command is proposed
	logged  time.Duration // when the last command with a cell time was proposed
}

// ackDue is a session whose acknowledgement has not been logged.
type ackDue struct {
	id uint64
	at time.Duration
}

// cellTime is the replica's, but never behind what its state has.
func (m *Master) cellTime() int64 { return max(m.o.CellTime(m.now), m.st.CellTime()) }

// proposeTimers proposes what has fallen due, one command at a time.
func (m *Master) proposeTimers() {
	t := &m.timers
	if t.pending {
		return
	}
	if !t.known {
		due := m.st.NextDue(1)
		t.known, t.some = true, len(due) > 0
		if t.some {
			t.next = due[0].At
		}
	}
	if !t.some {
		return
	}
	now := m.cellTime()
	if t.next > now {
		// A failover must set what is pending back by little.
		if m.now-t.logged >= clockEvery {
			m.propose(&storepb.Command{Op: &storepb.Command_Clock{Clock: &storepb.Clock{}}})
		}
		return
	}
	refs := make([]*storepb.TimerRef, 0, 16)
	for _, d := range m.st.NextDue(timersBatch) {
		if d.At > now {
			break
		}
		refs = append(refs, d.Ref)
	}
	t.pending = true
	m.propose(&storepb.Command{Op: &storepb.Command_Timers{Timers: &storepb.Timers{Due: refs}}})
}

// proposeAcks logs acknowledgements that no command of their session has
// carried for a while, so that the events leave the state.
func (m *Master) proposeAcks() {
	n := 0
	for len(m.acks) > 0 && m.acks[0].at <= m.now && n < acksBatch {
		s := m.sessions[m.acks[0].id]
		m.acks = m.acks[1:]
		if s == nil || s.ended {
			continue
		}
		s.ackWait = false
		if s.logged >= s.acked {
			continue
		}
		s.logged = s.acked
		n++
		m.propose(&storepb.Command{Session: s.id, AckedEvent: s.acked,
			Op: &storepb.Command_AckEvents{AckEvents: &storepb.AckEvents{}}})
	}
	if len(m.acks) == 0 {
		m.acks = nil
	}
}
