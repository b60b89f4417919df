package model

import "github.com/seed70370324/lockd/store/pb"

// kindOfOp is what conditions depend on.
type kindOfOp int

const (
	createOp kindOfOp = iota
	plainPut
	creatingPut
	deleteOp
	checkOp
)

func putOp(create bool) kindOfOp {
	if create {
		return creatingPut
	}
	return plainPut
}

// badConditions reports whether a condition means nothing, is given twice, or
// contradicts another or the operation. It does not look at the state.
func badConditions(op kindOfOp, path string, all []*pb.Condition, sequential bool) bool {
	absent, present := false, false
	given := map[string]bool{}
	twice := func(name string) bool {
		was := given[name]
		given[name] = true
		return was
	}
	holdings := map[[2]uint64]bool{}
	for _, c := range all {
		if c == nil {
			return true
		}
		number, demanded := uint64(1), ""
		switch d := c.Demand.(type) {
		case nil:
			return true
		case *pb.Condition_Exists:
			demanded = "exists"
			absent, present = absent || !d.Exists, present || d.Exists
		case *pb.Condition_Generation:
			number, demanded, present = d.Generation, "generation", true
		case *pb.Condition_Revision:
			number, demanded, present = d.Revision, "revision", true
		case *pb.Condition_Instance:
			number, demanded, present = d.Instance, "instance", true
		case *pb.Condition_Fence:
			number, demanded, present = d.Fence, "fence", true
		case *pb.Condition_HeldBy:
			h := d.HeldBy
			name := [2]uint64{h.GetSession(), h.GetTicket()}
			if h.GetSession() == 0 || h.GetTicket() == 0 || badPath(h.GetPath()) || holdings[name] {
				return true
			}
			holdings[name] = true
			if h.GetPath() == path && !sequential {
				if op == createOp {
					return true
				}
				present = true
			}
			continue
		}
		if number == 0 || twice(demanded) {
			return true
		}
		if op == createOp && (demanded != "exists" || present) {
			return true
		}
		if op == creatingPut && (demanded != "exists" || !absent) {
			return true
		}
	}
	return absent && (present || op == plainPut || op == deleteOp)
}

// conditions returns OK or the code of the first condition that does not hold.
func (m *Model) conditions(op kindOfOp, path string, all []*pb.Condition) pb.Code {
	n := m.nodes[path]
	for _, c := range all {
		if d, ok := c.Demand.(*pb.Condition_HeldBy); ok {
			if !m.holds(d.HeldBy) {
				return pb.Code_CONFLICT
			}
			continue
		}
		if d, ok := c.Demand.(*pb.Condition_Exists); ok && !d.Exists {
			if n != nil {
				if op == creatingPut {
					return pb.Code_CONFLICT
				}
				return pb.Code_EXISTS
			}
			continue
		}
		if n == nil {
			return pb.Code_NOT_FOUND
		}
		holds := true
		switch d := c.Demand.(type) {
		case *pb.Condition_Generation:
			holds = n.stat.ContentGeneration == d.Generation
		case *pb.Condition_Revision:
			holds = n.stat.ModifyRevision == d.Revision
		case *pb.Condition_Instance:
			holds = n.stat.Instance == d.Instance
		case *pb.Condition_Fence:
			holds = false
			if l := m.locks[path]; l != nil {
				for i := range l.holders {
					holds = holds || !l.holders[i].ghost && l.holders[i].fence == d.Fence
				}
			}
		}
		if !holds {
			return pb.Code_CONFLICT
		}
	}
	return pb.Code_OK
}

func (m *Model) holds(h *pb.Holding) bool {
	l := m.locks[h.GetPath()]
	if l == nil {
		return false
	}
	for i := range l.holders {
		if o := &l.holders[i]; !o.ghost && o.session == h.GetSession() && o.ticket == h.GetTicket() {
			return true
		}
	}
	return false
}
