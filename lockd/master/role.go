package master

import (
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/store"
)

// Role is what the log says about this replica and its master.
type Role struct {
	Leads         bool         // paxos role Leader
	Campaigns     bool         // candidate, or closing open slots
	Ballot        paxos.Ballot // own, or the one followed
	Self          bool         // the leader known is this replica
	MasterName    string       // of the leader known, "" none
	MasterAddress string
}

// roleState is the master's view of its role.
type roleState struct {
	known Role
	// The last Lead entry applied.
	leadBallot paxos.Ballot
	leadEpoch  uint64

	active    bool // serves as master
	leaving   bool // hands the lead over: takes nothing more
	ballot    paxos.Ballot
	epoch     uint64        // of the mastership; 0 when not active
	since     time.Duration // when it began
	campaign  time.Duration // when the campaign began, while campaigning
	campaigns bool

	// Connections to be told where the next master is, and until when they wait
	// for its name.
	farewell      []*conn
	farewellUntil time.Duration
}

// farewellWait is how long clients wait for the name of the next master.
const farewellWait = 300 * time.Millisecond

// serving reports whether requests are taken.
func (m *Master) serving() bool { return m.role.active && !m.role.leaving }

// Leading reports whether this replica is the master, serving or about to hand
// over the lead.
func (m *Master) Leading() bool { return m.role.active }

// Serving reports whether this replica serves as master, and its epoch.
func (m *Master) Serving() (bool, uint64) { return m.serving(), m.role.epoch }

// SetRole tells of a change of role or of the leader known.
func (m *Master) SetRole(now time.Duration, r Role) {
	m.now = now
	m.role.known = r
	busy := r.Campaigns || r.Leads
	if busy && !m.role.campaigns {
		m.role.campaign = now
	}
	m.role.campaigns = busy
	if m.role.active && (!r.Leads || r.Ballot != m.role.ballot) {
		m.stepDown("it does not lead any more")
	}
	m.activate()
	if len(m.role.farewell) > 0 && r.MasterAddress != "" && !r.Self {
		m.sayFarewell()
	}
}

// Lead tells that a leader's first entry was applied.
func (m *Master) Lead(now time.Duration, leader paxos.Ballot, epoch uint64, changes []store.Change) {
	m.now = now
	// Another's entry behind ours: it leads, whatever our role still says. What
	// time causes is void from here on (it carries our epoch), and no lease may
	// be given beside the new master's.
	if m.role.active && leader != m.role.ballot {
		m.stepDown("another replica has taken the lead")
	}
	m.role.leadBallot, m.role.leadEpoch = leader, epoch
	if m.role.active && invariant.Planted(invariant.ServesBeforeClosed) {
		m.role.epoch = epoch
	}
	m.changes(nil, changes)
	m.noteClock(leader, changes)
	m.activate()
}

// noteClock warns the operator whose replica leads if the state has refused to
// follow the clocks.
func (m *Master) noteClock(leader paxos.Ballot, changes []store.Change) {
	for i := range changes {
		if changes[i].Capped && m.role.known.Leads && leader == m.role.known.Ballot {
			m.note("warn", "the wall clocks of a majority of the replicas are in the year 2127 or later; fences do not follow them that far: set the clocks right")
		}
	}
}

// activate makes this replica serve once it leads and its own first entry is
// applied.
func (m *Master) activate() {
	r := &m.role
	early := invariant.Planted(invariant.ServesBeforeClosed)
	if r.active || !r.known.Leads || (r.known.Ballot != r.leadBallot && !early) || r.leadEpoch == 0 {
		return
	}
	invariant.Assert(m.st.Epoch() == r.leadEpoch || early,
		"a master serves under the epoch of its own first entry: state has epoch %d, entry of %v gave %d", m.st.Epoch(), r.leadBallot, r.leadEpoch)
	m.forget()
	r.active, r.leaving = true, false
	r.ballot, r.epoch = r.known.Ballot, m.st.Epoch()
	r.since = m.now
	m.timers.logged = m.now
	m.count.Elections++

	// Whoever led before may have given each session its full lease up to the
	// instant at which a majority turned to us. So nobody is expired before the
	// full lease, counted from now, has passed.
	n := 0
	m.st.Sessions(0, func(v store.SessionView) bool {
		m.adopt(v)
		n++
		return true
	})
	// Forget the farewells of an earlier mastership: those clients can stay.
	for _, c := range r.farewell {
		m.close(c, "the mastership that it knew has ended")
	}
	r.farewell = nil
	m.note("info", "became master", "epoch", r.epoch, "ballot", r.ballot.String(),
		"election", (m.now - r.campaign).Round(time.Millisecond).String(), "sessions", n)
}

// stepDown ends the mastership: everything that only a master has is
// forgotten, and the clients are sent away.
func (m *Master) stepDown(why string) {
	r := &m.role
	level := "warn"
	if r.leaving {
		level, why = "info", "it has handed over the lead"
	}
	m.note(level, "stepped down", "epoch", r.epoch, "ballot", r.ballot.String(), "why", why,
		"led", (m.now - r.since).Round(time.Millisecond).String())
	ids := make([]ConnID, 0, len(m.conns))
	for id, c := range m.conns {
		if !c.closing && (len(c.sessions) > 0 || len(c.watches) > 0 || c.waiting > 0 || c.keep != nil) {
			ids = append(ids, id)
		}
	}
	for _, o := range m.opening {
		if o.conn != nil && !o.conn.closing {
			ids = append(ids, o.conn.id)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	for _, id := range ids {
		r.farewell = append(r.farewell, m.conns[id])
	}
	for _, id := range ids {
		c := m.conns[id]
		out := c.out
		m.release(c)
		c.out = out
		c.waiting, c.waitingBytes = 0, 0
	}
	m.forget()
	r.active, r.leaving, r.epoch, r.ballot = false, false, 0, paxos.Ballot{}
	r.farewellUntil = m.now + farewellWait
	if r.known.MasterAddress != "" && !r.known.Self {
		m.sayFarewell()
	}
}

// sayFarewell tells clients where to go, if that is known, and closes their
// connections so that they do.
func (m *Master) sayFarewell() {
	address := ""
	if !m.role.known.Self {
		address = m.role.known.MasterAddress
	}
	for _, c := range m.role.farewell {
		m.send(c, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Leaving{
			Leaving: &wirepb.Leaving{MasterAddress: address}}})
		m.close(c, "this replica is not the master any more")
	}
	m.role.farewell = nil
}

// tickRole says the farewells that have waited long enough.
func (m *Master) tickRole() {
	if len(m.role.farewell) > 0 && m.now >= m.role.farewellUntil {
		m.sayFarewell()
	}
}

// HandOver stops serving and gives the lead away. The clients are told once the
// lead is gone.
func (m *Master) HandOver(now time.Duration) {
	m.now = now
	if !m.role.active || m.role.leaving {
		return
	}
	m.role.leaving = true
	m.handover = true
	m.note("info", "handing over the lead", "epoch", m.role.epoch)
}
