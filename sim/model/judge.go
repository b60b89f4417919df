package model

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/store"
	"github.com/seed70370324/lockd/store/pb"
)

// Judge applies a command to the model and compares what the store has made of
// it: result and changes. The error names what differs.
func (m *Model) Judge(c *pb.Command, got *pb.Result, changes []store.Change, s store.API) error {
	if got.GetCode() == pb.Code_LIMIT {
		v, ok := s.Session(c.GetSession())
		m.Refused(c, got, ok && v.LastNumber == c.GetNumber())
		if len(changes) > 0 || got.GetRevision() > m.revision || s.Revision() != m.revision {
			return fmt.Errorf("a command that a limit (%s) has refused changed something: %s", got.GetLimit(), tellChanges(changes))
		}
		return nil
	}
	want, wanted := m.Apply(c)
	if d := resultDiffers(want, got); d != "" {
		return fmt.Errorf("the result's %s", d)
	}
	if d := changesDiffer(wanted, changes); d != "" {
		return fmt.Errorf("the changes differ: %s", d)
	}
	return m.now(s)
}

// now compares the numbers that every command may move.
func (m *Model) now(s store.API) error {
	if s.Revision() != m.revision || s.Epoch() != m.epoch || s.CellTime() != m.cellTime {
		return fmt.Errorf("expected revision %d, epoch %d and cell time %d, got %d, %d and %d",
			m.revision, m.epoch, m.cellTime, s.Revision(), s.Epoch(), s.CellTime())
	}
	return nil
}

// JudgeLead applies a leader's first entry and compares.
func (m *Model) JudgeLead(wallSeconds, cellTime int64, cellEpoch uint64, s store.API) error {
	m.Lead(wallSeconds, cellTime, cellEpoch)
	return m.now(s)
}

// JudgeFound applies the founding entry and compares.
func (m *Model) JudgeFound(floor uint64, s store.API) error {
	m.Found(floor)
	return m.now(s)
}

func resultDiffers(want, got *pb.Result) string {
	differ := func(what string, a, b any) string { return fmt.Sprintf("%s: expected %v, got %v", what, a, b) }
	switch {
	case want.GetCode() != got.GetCode():
		return differ("code", want.GetCode(), got.GetCode())
	case want.GetRevision() != got.GetRevision():
		return differ("revision", want.GetRevision(), got.GetRevision())
	case want.GetNumber() != got.GetNumber():
		return differ("number", want.GetNumber(), got.GetNumber())
	case want.GetCode() == pb.Code_OK && want.GetStat() != nil && want.GetPath() != got.GetPath():
		return differ("path", want.GetPath(), got.GetPath())
	case !sameStat(want.GetStat(), got.GetStat()):
		return differ("stat", want.GetStat(), got.GetStat())
	case want.GetSession() != got.GetSession() || want.GetLastChange() != got.GetLastChange() || want.GetLeaseMs() != got.GetLeaseMs():
		return differ("session", want, got)
	case !sameGrant(want.GetGrant(), got.GetGrant()):
		return differ("grant", want.GetGrant(), got.GetGrant())
	case want.GetPosition() != got.GetPosition():
		return differ("position", want.GetPosition(), got.GetPosition())
	case want.GetCode() != pb.Code_LOCKED && !slices.EqualFunc(want.GetBlockers(), got.GetBlockers(), sameBlocker):
		return differ("blockers", tellBlockers(want.GetBlockers()), tellBlockers(got.GetBlockers()))
	}
	return multiDiffers(want, got)
}

func multiDiffers(want, got *pb.Result) string {
	if want.GetFailedOp() != got.GetFailedOp() {
		return fmt.Sprintf("failed operation: expected %d, got %d", want.GetFailedOp(), got.GetFailedOp())
	}
	if want.GetCode() != pb.Code_OK {
		return ""
	}
	if len(want.GetResults()) != len(got.GetResults()) {
		return fmt.Sprintf("results: expected %d, got %d", len(want.GetResults()), len(got.GetResults()))
	}
	for i, w := range want.GetResults() {
		g := got.GetResults()[i]
		if w.GetCode() != g.GetCode() || w.GetPath() != g.GetPath() && w.GetStat() != nil || !sameStat(w.GetStat(), g.GetStat()) {
			return fmt.Sprintf("operation %d: expected %v, got %v", i, w, g)
		}
	}
	return ""
}

func sameBlocker(a, b *pb.Blocker) bool {
	return a.GetSession() == b.GetSession() && a.GetTicket() == b.GetTicket() && a.GetMode() == b.GetMode() && a.GetGhost() == b.GetGhost()
}

func tellBlockers(all []*pb.Blocker) string {
	var s strings.Builder
	for _, b := range all {
		fmt.Fprintf(&s, "session %d ticket %d %v ghost %v; ", b.GetSession(), b.GetTicket(), b.GetMode(), b.GetGhost())
	}
	return s.String()
}

func sameGrant(a, b *pb.Grant) bool {
	return (a == nil) == (b == nil) && a.GetPath() == b.GetPath() && a.GetMode() == b.GetMode() && a.GetFence() == b.GetFence() &&
		a.GetLockGeneration() == b.GetLockGeneration() && a.GetInstance() == b.GetInstance() && a.GetTicket() == b.GetTicket() &&
		a.GetLockDelayMs() == b.GetLockDelayMs()
}

func sameStat(a, b *pb.Stat) bool {
	return (a == nil) == (b == nil) && a.GetInstance() == b.GetInstance() && a.GetContentGeneration() == b.GetContentGeneration() &&
		a.GetLockGeneration() == b.GetLockGeneration() && a.GetAclGeneration() == b.GetAclGeneration() && a.GetChecksum() == b.GetChecksum() &&
		a.GetCreateRevision() == b.GetCreateRevision() && a.GetModifyRevision() == b.GetModifyRevision() && a.GetCreateMs() == b.GetCreateMs() &&
		a.GetModifyMs() == b.GetModifyMs() && a.GetKind() == b.GetKind() && a.GetOwner() == b.GetOwner() && a.GetDataLength() == b.GetDataLength() &&
		a.GetChildren() == b.GetChildren() && a.GetChildGeneration() == b.GetChildGeneration() && a.GetChildRevision() == b.GetChildRevision()
}

// changesDiffer compares what was done, in order: what a session's end takes goes
// by ticket, then its nodes go; what is granted comes behind, by path.
func changesDiffer(want, got []store.Change) string {
	same := len(want) == len(got)
	for i := 0; same && i < len(want); i++ {
		same = sameChange(&want[i], &got[i])
	}
	if same {
		return ""
	}
	w, g := tellEach(want), tellEach(got)
	return fmt.Sprintf("missing %q, not expected %q, or in another order than %s, of %s", lacks(g, w), lacks(w, g), tellChanges(want), tellChanges(got))
}

// lacks returns what is in all and not in some.
func lacks(some, all []string) (rest []string) {
	have := map[string]int{}
	for _, s := range some {
		have[s]++
	}
	for _, s := range all {
		if have[s]--; have[s] < 0 {
			rest = append(rest, s)
		}
	}
	return rest
}

func sameChange(a, b *store.Change) bool {
	return a.Kind == b.Kind && a.Reason == b.Reason && a.Path == b.Path && a.Session == b.Session && a.Revision == b.Revision &&
		sameLockChange(&a.Lock, &b.Lock) && sameEvent(a.Event, b.Event)
}

func sameLockChange(a, b *store.LockChange) bool {
	return a.Event == b.Event && a.Loss == b.Loss && a.Mode == b.Mode && a.Session == b.Session && a.Ticket == b.Ticket &&
		a.Fence == b.Fence && (a.Generation == b.Generation || a.Event == store.LockEventNone) && a.LockDelayMS == b.LockDelayMS
}

// sameEvent leaves out the numbers: compared in the state, and there in order.
func sameEvent(a, b *pb.SessionEvent) bool {
	return (a == nil) == (b == nil) && a.GetCode() == b.GetCode() && a.GetTicket() == b.GetTicket() && a.GetPath() == b.GetPath() &&
		a.GetLoss() == b.GetLoss() && a.GetRevision() == b.GetRevision() && sameGrant(a.GetGrant(), b.GetGrant())
}

func tellChanges(all []store.Change) string { return "[" + strings.Join(tellEach(all), "; ") + "]" }

func tellEach(all []store.Change) []string {
	told := make([]string, len(all))
	for i := range all {
		c := &all[i]
		told[i] = fmt.Sprintf("kind %d %s %v session %d revision %d", c.Kind, c.Path, c.Reason, c.Session, c.Revision)
		if c.Kind == store.ChangeLock {
			l := c.Lock
			if l.Event == store.LockEventNone {
				l.Generation = 0
			}
			told[i] += fmt.Sprintf(" lock event %d %v %v session %d ticket %d fence %d generation %d delay %d", l.Event, l.Loss, l.Mode,
				l.Session, l.Ticket, l.Fence, l.Generation, l.LockDelayMS)
		}
		if e := c.Event; e != nil {
			g := e.GetGrant()
			told[i] += fmt.Sprintf(" event %v ticket %d %s %v revision %d fence %d generation %d instance %d", e.GetCode(), e.GetTicket(), e.GetPath(),
				e.GetLoss(), e.GetRevision(), g.GetFence(), g.GetLockGeneration(), g.GetInstance())
		}
	}
	return told
}

// Compare holds the whole state against the store's.
func (m *Model) Compare(s store.API) error {
	if err := m.now(s); err != nil {
		return err
	}
	if err := m.compareNodes(s); err != nil {
		return err
	}
	if err := m.compareLocks(s); err != nil {
		return err
	}
	return m.compareSessions(s)
}

func (m *Model) compareNodes(s store.API) (err error) {
	seen := 0
	s.Subtree("/", func(v store.NodeView) bool {
		n := m.nodes[v.Path]
		seen++
		switch {
		case n == nil:
			err = fmt.Errorf("%s exists and should not", v.Path)
		case !sameStat(m.stat(v.Path), v.Stat):
			err = fmt.Errorf("%s: expected stat %v, got %v", v.Path, m.stat(v.Path), v.Stat)
		case !sameData(n, v):
			err = fmt.Errorf("%s: expected %d bytes of other content, got %d (null: %v, %v)", v.Path, len(n.data), len(v.Data), !n.hasData, !v.HasData)
		}
		return err == nil
	})
	if err == nil && seen != len(m.nodes) {
		missing := ""
		for path := range m.nodes {
			if _, ok := s.Node(path); !ok && (missing == "" || path < missing) {
				missing = path // the same one in every run
			}
		}
		return fmt.Errorf("%d nodes are missing, the first of them %s", len(m.nodes)-seen, missing)
	}
	return err
}

func (m *Model) compareLocks(s store.API) (err error) {
	seen, busy := 0, 0
	for _, l := range m.locks {
		if len(l.holders)+len(l.waiters) > 0 {
			busy++
		}
	}
	s.Locks("/", "", func(v store.LockView) bool {
		seen++
		l := m.locks[v.Path]
		if l == nil {
			err = fmt.Errorf("%s has a lock and should not", v.Path)
			return false
		}
		if l.generation != v.Generation || (len(l.holders) > 0 && l.fence != v.Fence) {
			err = fmt.Errorf("%s: expected lock generation %d, fence %d, got %d, %d", v.Path, l.generation, l.fence, v.Generation, v.Fence)
			return false
		}
		if want, got := tellClaims(l.holders), tellViews(v.Holders); want != got {
			err = fmt.Errorf("%s: expected holders %s got %s", v.Path, want, got)
		} else if want, got := tellClaims(l.waiters), tellViews(v.Waiters); want != got {
			err = fmt.Errorf("%s: expected waiters %s got %s", v.Path, want, got)
		}
		return err == nil
	})
	if err == nil && seen != busy {
		err = fmt.Errorf("expected %d locks with holders, ghosts or waiters, got %d", busy, seen)
	}
	return err
}

func tellClaims(all []claim) string {
	views := make([]*pb.Blocker, len(all))
	for i := range all {
		c := &all[i]
		views[i] = &pb.Blocker{Session: c.session, Ticket: c.ticket, Client: c.client, Mode: c.mode, Fence: c.fence, SinceWallMs: c.wall, SinceCell: c.cell,
			Ghost: c.ghost, GhostUntilCell: c.until, LockDelayMs: c.delay, DeadlineCell: c.deadline, LeaseMs: c.lease, Revision: c.revision}
	}
	return tellViews(views)
}

func tellViews(all []*pb.Blocker) string {
	var s strings.Builder
	for _, b := range all {
		fmt.Fprintf(&s, "(session %d ticket %d %q %v fence %d since %d, %d ghost %v until %d delay %d deadline %d lease %d revision %d) ",
			b.GetSession(), b.GetTicket(), b.GetClient().GetName(), b.GetMode(), b.GetFence(), b.GetSinceWallMs(), b.GetSinceCell(), b.GetGhost(),
			b.GetGhostUntilCell(), b.GetLockDelayMs(), b.GetDeadlineCell(), b.GetLeaseMs(), b.GetRevision())
	}
	return s.String()
}

func (m *Model) compareSessions(s store.API) (err error) {
	count := map[uint64]*[4]int{}
	for id := range m.sessions {
		count[id] = &[4]int{}
	}
	add := func(id uint64, what int) {
		if n := count[id]; n != nil {
			n[what]++
		}
	}
	for _, l := range m.locks {
		for i := range l.holders {
			if l.holders[i].ghost {
				add(l.holders[i].session, 1)
			} else {
				add(l.holders[i].session, 0)
			}
		}
		for i := range l.waiters {
			add(l.waiters[i].session, 2)
		}
	}
	for _, n := range m.nodes {
		add(n.stat.Owner, 3)
	}
	seen := 0
	s.Sessions(0, func(v store.SessionView) bool {
		seen++
		o := m.sessions[v.ID]
		if o == nil {
			err = fmt.Errorf("session %d is there and should not", v.ID)
			return false
		}
		want := store.SessionView{LeaseMS: o.lease, LastNumber: o.last, LastChange: o.lastChange, OpenedMS: o.opened, LeaseEndCell: o.leaseEnd,
			Locks: count[v.ID][0], Lost: count[v.ID][1], Waiting: count[v.ID][2], Ephemerals: count[v.ID][3]}
		got := v
		got.ID, got.Nonce, got.Client = 0, nil, nil
		if string(v.Nonce) != o.nonce || !proto.Equal(v.Client, o.client) || fmt.Sprint(want) != fmt.Sprint(got) {
			err = fmt.Errorf("session %d: expected %+v, got %+v", v.ID, want, got)
			return false
		}
		err = compareEvents(o, s)
		return err == nil
	})
	if err == nil && seen != len(m.sessions) {
		err = fmt.Errorf("expected %d sessions, got %d", len(m.sessions), seen)
	}
	return err
}

func compareEvents(o *session, s store.API) (err error) {
	i := 0
	s.Events(o.id, 0, func(e *pb.SessionEvent) bool {
		if i >= len(o.events) || !sameEvent(o.events[i], e) || o.events[i].Number != e.GetNumber() {
			err = fmt.Errorf("session %d: event %v should not be there, or has another number; expected are %v", o.id, e, o.events)
		}
		i++
		return err == nil
	})
	if err == nil && i != len(o.events) {
		err = fmt.Errorf("session %d: expected %d events, got %d", o.id, len(o.events), i)
	}
	return err
}
