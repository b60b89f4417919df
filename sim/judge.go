package sim

import (
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// compareEvery is how many slots lie between two comparisons of the whole state.
const compareEvery = 50

// judge asks the model what it makes of a command that is applied for the
// first time. It must be what the store has made of it.
func (h *history) judge(m *storepb.Command, result *storepb.Result, changes []store.Change, s *store.Store) {
	if h.model == nil {
		return
	}
	if err := h.model.Judge(m, result, changes, s); err != nil {
		whole := prototext.MarshalOptions{}.Format(m)
		h.w.fail("model", "slot %d, %s => %s: %v (command: %.1000s)", len(h.slots)+1, tellCommand(m), tellResult(result), err, whole)
	}
}

// judgeEntry does the same for entries that are no commands, and compares the
// whole state now and then. The slot of the entry has been taken down already.
func (h *history) judgeEntry(e *paxos.Entry, s *store.Store) {
	if h.model == nil || h.w.failure != nil {
		return
	}
	var err error
	switch c := e.Value.Config; {
	case e.Value.Kind == paxos.Lead:
		err = h.model.JudgeLead(e.Value.WallSeconds, e.Value.CellTime, e.Value.CellEpoch, s)
	case e.Value.Kind == paxos.Config && e.Slot == 1 && c != nil:
		err = h.model.JudgeFound(c.RevisionFloor, s)
	}
	if err == nil && e.Slot%compareEvery == 0 {
		err = h.model.Compare(s)
	}
	if err != nil {
		h.w.fail("model", "behind slot %d (%s): %v", e.Slot, tellValue(&e.Value), err)
	}
}

// judgeEnd compares the whole state of a replica that has applied everything.
func (h *history) judgeEnd(p *process) {
	if h.model == nil || h.w.failure != nil || int(p.applied) != len(h.slots) {
		return
	}
	if err := h.model.Compare(p.rep.Store()); err != nil {
		h.w.fail("model", "at the end, behind slot %d: %v", p.applied, err)
	}
}
