package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed70370324/lockd/store/pb"
)

// dump writes down what can be seen of the state.
func (m *model) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rev %d epoch %d cell %d\n", m.rev, m.epoch, m.cell)
	for _, p := range slices.SortedFunc(maps.Keys(m.nodes), comparePaths) {
		n, l := m.nodes[p], m.locks[p]
		fmt.Fprintf(&b, "%s %s owner %d gen %d inst %d lock %d/%d children %d %q\n", p, n.kind, n.owner, n.gen, n.inst, l.gen, l.fence, m.children(p), n.data)
	}
	for _, p := range slices.SortedFunc(maps.Keys(m.locks), comparePaths) {
		l := m.locks[p]
		if len(l.holders)+len(l.queue) == 0 {
			continue
		}
		fmt.Fprintf(&b, "lock %s %d/%d\n", p, l.gen, l.fence)
		for _, h := range append(slices.Clone(l.holders), l.queue...) {
			fmt.Fprintf(&b, "  %d/%d %s fence %d ghost %t until %d\n", h.session, h.ticket, h.mode, h.fence, h.ghost, h.until)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.sessions)) {
		x := m.sessions[id]
		fmt.Fprintf(&b, "session %d last %d lease %d change %d noted %d: %v\n", id, x.last, x.lease, x.change, x.noted, x.events[x.acked:])
	}
	return b.String()
}

func dump(s *Store) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rev %d epoch %d cell %d\n", s.Revision(), s.Epoch(), s.CellTime())
	s.Subtree("/", func(n NodeView) bool {
		l, _ := s.Lock(n.Path)
		t := n.Stat
		children := 0
		s.Children(n.Path, "", func(string, NodeView) bool { children++; return true })
		if children != int(t.Children) || t.LockGeneration != l.Generation {
			fmt.Fprintf(&b, "%s: stat %v against %d children, lock generation %d\n", n.Path, t, children, l.Generation)
		}
		fmt.Fprintf(&b, "%s %s owner %d gen %d inst %d lock %d/%d children %d %q\n", n.Path, t.Kind, t.Owner, t.ContentGeneration, t.Instance, l.Generation, l.Fence, t.Children, n.Data)
		return true
	})
	s.Locks("/", "", func(l LockView) bool {
		fmt.Fprintf(&b, "lock %s %d/%d\n", l.Path, l.Generation, l.Fence)
		for _, h := range slices.Concat(l.Holders, l.Waiters) {
			fmt.Fprintf(&b, "  %d/%d %s fence %d ghost %t until %d\n", h.Session, h.Ticket, h.Mode, h.Fence, h.Ghost, h.GhostUntilCell+h.DeadlineCell)
		}
		return true
	})
	s.Sessions(0, func(x SessionView) bool {
		var events []string
		s.Events(x.ID, 0, func(e *pb.SessionEvent) bool {
			events = append(events, fmt.Sprintf("%s %d", e.Code, e.Ticket))
			return true
		})
		noted := int64(0)
		s.Noted(x.ID-1, func(n SessionView) bool {
			if n.ID == x.ID {
				noted = n.LeaseEndCell
			}
			return false
		})
		fmt.Fprintf(&b, "session %d last %d lease %d change %d noted %d: %v\n", x.ID, x.LastNumber, x.LeaseMS, x.LastChange, noted, events)
		return true
	})
	return b.String()
}
