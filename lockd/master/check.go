package master

import (
	"fmt"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/sequencer"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// checkSequencer says whether a sequencer is valid now, or what has changed. It
// is valid while the lock is held, by a live holder, in the mode, of the
// generation and of the node instance that it names, in this cell.
func (m *Master) checkSequencer(text string) (bool, string) {
	s, err := sequencer.Parse(text)
	if err != nil {
		return false, err.Error()
	}
	if name, identity := m.st.Cell(); s.Cell != identity {
		return false, fmt.Sprintf("it was made by another cell (identity %x; this is %s, %x)", s.Cell, name, identity)
	}
	v, ok := m.st.Lock(s.Path)
	if !ok {
		return false, "the node does not exist any more"
	}
	if n, ok := m.st.Node(s.Path); ok && n.Stat.GetInstance() != s.Instance {
		return false, "the node was deleted and created again"
	}
	mode := storepb.LockMode_EXCLUSIVE
	if s.Shared {
		mode = storepb.LockMode_SHARED
	}
	ghost := false
	for _, h := range v.Holders {
		if h.GetFence() != s.Fence || h.GetMode() != mode {
			continue
		}
		if h.GetGhost() && !invariant.Planted(invariant.GhostsSequencer) {
			ghost = true
			continue
		}
		if v.Generation != s.Generation || v.Instance != s.Instance {
			return false, "the lock is held under that fence, but generation or instance differ: not one that this service gave out"
		}
		return true, ""
	}
	if ghost {
		return false, "its holder lost the lock; its lock-delay is running"
	}
	for _, h := range v.Holders {
		if h.GetFence() != s.Fence {
			return false, fmt.Sprintf("the lock has passed on: it is held under fence %d", h.GetFence())
		}
	}
	return false, "the lock was released; nobody holds it"
}
