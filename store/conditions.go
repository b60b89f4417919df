package store

import (
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// subject is the operation that conditions belong to, as far as they can
// contradict it.
type subject struct {
	path    string // its node; "" if the name is not known yet
	needs   bool   // it fails anyway where the node does not exist
	makes   bool   // it fails anyway where the node exists
	mayMake bool   // it creates the node where that does not exist
}

func onCreate(c *pb.Create) subject {
	if c.GetSequential() {
		return subject{makes: true}
	}
	return subject{path: c.GetPath(), makes: true}
}

func onPut(p *pb.Put) subject {
	return subject{path: p.GetPath(), needs: !p.GetCreate(), mayMake: p.GetCreate()}
}

func onDelete(d *pb.Delete) subject { return subject{path: d.GetPath(), needs: true} }

func onCheck(c *pb.Check) subject { return subject{path: c.GetPath()} }

// BadConditions returns the answer of Apply to a command whose conditions mean
// nothing, are given twice, or contradict each other or their operation; nil if
// there is nothing wrong with them. It does not depend on the state, so it can
// be asked before the command is logged.
func BadConditions(c *pb.Command) *pb.Result {
	switch op := c.GetOp().(type) {
	case *pb.Command_Create:
		return badConditions(op.Create.GetConditions(), onCreate(op.Create))
	case *pb.Command_Put:
		return badConditions(op.Put.GetConditions(), onPut(op.Put))
	case *pb.Command_Delete:
		return badConditions(op.Delete.GetConditions(), onDelete(op.Delete))
	case *pb.Command_Multi:
		return badMultiConditions(op.Multi.GetOps())
	}
	return nil
}

// badMultiConditions is BadConditions for a Multi. One that has too many
// operations is refused for that.
func badMultiConditions(ops []*pb.MultiOp) *pb.Result {
	if len(ops) > MultiMax {
		return nil
	}
	for i, one := range ops {
		var bad *pb.Result
		switch op := one.GetOp().(type) {
		case *pb.MultiOp_Create:
			bad = badConditions(op.Create.GetConditions(), onCreate(op.Create))
		case *pb.MultiOp_Put:
			bad = badConditions(op.Put.GetConditions(), onPut(op.Put))
		case *pb.MultiOp_Delete:
			bad = badConditions(op.Delete.GetConditions(), onDelete(op.Delete))
		case *pb.MultiOp_Check:
			bad = badConditions(op.Check.GetConditions(), onCheck(op.Check))
		}
		if bad != nil {
			results := make([]*pb.Result, len(ops))
			results[i] = bad
			return multiFailed(results, i)
		}
	}
	return nil
}

// The kinds of demand about the operation's own node, each allowed once.
const (
	demandExists = iota
	demandGeneration
	demandRevision
	demandInstance
	demandFence
	demands
)

var demandNames = [demands]string{"exists", "generation", "revision", "instance", "fence"}

// badConditions is BadConditions for the conditions of one operation.
//
// Invariant: an operation is executed only if each of its conditions can hold
// beside the others and says something: a client that forgot to set a number,
// or set two that exclude each other, must not get a write that it did not
// guard.
func badConditions(list []*pb.Condition, on subject) *pb.Result {
	if len(list) > ConditionsMax {
		return limited(LimitConditions, "the operation has %d conditions, the limit is %d: use a transaction with a check for the rest", len(list), ConditionsMax)
	}
	var given [demands]bool
	absent, ownLock := on.makes, false
	for i, c := range list {
		kind, number := demands, uint64(1)
		switch d := c.GetDemand().(type) {
		case *pb.Condition_Exists:
			kind = demandExists
			absent = absent || !d.Exists
			if on.needs && !d.Exists {
				return refuse(pb.Code_BAD_COMMAND, "condition %d, exists = false, contradicts the operation, which needs the node", i)
			}
			if (on.makes || on.mayMake) && d.Exists {
				return refuse(pb.Code_BAD_COMMAND, "condition %d, exists = true, contradicts the operation, which creates the node", i)
			}
		case *pb.Condition_Generation:
			kind, number = demandGeneration, d.Generation
		case *pb.Condition_Revision:
			kind, number = demandRevision, d.Revision
		case *pb.Condition_Instance:
			kind, number = demandInstance, d.Instance
		case *pb.Condition_Fence:
			kind, number = demandFence, d.Fence
		case *pb.Condition_HeldBy:
			if bad := badHolding(list, i); bad != nil {
				return bad
			}
			ownLock = ownLock || d.HeldBy.Path == on.path
			continue
		default:
			return refuse(pb.Code_BAD_COMMAND, "condition %d demands nothing that is known here", i)
		}
		name := demandNames[kind]
		switch {
		case number == 0:
			return refuse(pb.Code_BAD_COMMAND, "condition %d, %s = 0, means nothing: it was not set", i, name)
		case given[kind]:
			return refuse(pb.Code_BAD_COMMAND, "condition %d, %s, is given twice", i, name)
		case kind != demandExists && (on.makes || on.mayMake):
			return refuse(pb.Code_BAD_COMMAND, "condition %d, %s, contradicts the operation, which creates the node", i, name)
		}
		given[kind] = true
	}
	if !absent {
		return nil
	}
	for kind := demandGeneration; kind < demands; kind++ {
		if given[kind] {
			return refuse(pb.Code_BAD_COMMAND, "the conditions exists = false and %s contradict each other", demandNames[kind])
		}
	}
	if ownLock {
		return refuse(pb.Code_BAD_COMMAND, "the lock of %s cannot be held while the node does not exist", on.path)
	}
	return nil
}

// badHolding is badConditions for one held_by, beside those before it. A ticket
// is for one path, so it cannot hold two.
func badHolding(list []*pb.Condition, i int) *pb.Result {
	h := list[i].GetHeldBy()
	if h.GetPath() == "" || h.GetSession() == 0 || h.GetTicket() == 0 {
		return refuse(pb.Code_BAD_COMMAND, "condition %d, held_by, means nothing without path, session and ticket", i)
	}
	if reason := badPath(h.Path); reason != "" {
		r := refuse(pb.Code_BAD_COMMAND, "condition %d, held_by, means nothing: of its path, %s", i, reason)
		r.Limit = PathLimit(h.Path)
		return r
	}
	for _, other := range list[:i] {
		o := other.GetHeldBy()
		if o == nil || o.Session != h.Session || o.Ticket != h.Ticket {
			continue
		}
		if o.Path == h.Path {
			return refuse(pb.Code_BAD_COMMAND, "condition %d, held_by, is given twice", i)
		}
		return refuse(pb.Code_BAD_COMMAND, "condition %d: ticket %d of session %d cannot hold two locks", i, h.Ticket, h.Session)
	}
	return nil
}

// unmet returns the answer to an operation on the node at path, nil if there is
// none, of whose conditions one does not hold; nil if all hold. The first that
// does not is answered. Taken is the code of that answer where the node exists
// against exists = false.
func (s *Store) unmet(list []*pb.Condition, path string, n *node, taken pb.Code) *pb.Result {
	for _, c := range list {
		if r := s.unmetOne(c, path, n, taken); r != nil {
			if n != nil {
				r.Stat = s.stat(path, n)
			}
			return r
		}
	}
	return nil
}

func (s *Store) unmetOne(c *pb.Condition, path string, n *node, taken pb.Code) *pb.Result {
	if h := c.GetHeldBy(); h != nil {
		if s.heldBy(h) {
			return nil
		}
		return refuse(pb.Code_CONFLICT, "%s is not held by ticket %d of session %d", h.Path, h.Ticket, h.Session)
	}
	demand, isExists := c.Demand.(*pb.Condition_Exists)
	switch {
	case isExists && !demand.Exists && n == nil:
		return nil
	case isExists && !demand.Exists:
		return refuse(taken, "%s exists", path)
	case n == nil:
		return refuse(pb.Code_NOT_FOUND, "%s does not exist", path)
	}
	switch d := c.Demand.(type) {
	case *pb.Condition_Generation:
		if n.contentGen != d.Generation {
			return refuse(pb.Code_CONFLICT, "%s has content generation %d, the condition was %d", path, n.contentGen, d.Generation)
		}
	case *pb.Condition_Revision:
		if n.modifyRev != d.Revision {
			return refuse(pb.Code_CONFLICT, "%s was last written at revision %d, the condition was %d", path, n.modifyRev, d.Revision)
		}
	case *pb.Condition_Instance:
		if n.instance != d.Instance {
			return refuse(pb.Code_CONFLICT, "%s is instance %d, the condition was %d", path, n.instance, d.Instance)
		}
	case *pb.Condition_Fence:
		if !s.heldUnder(path, d.Fence) {
			return refuse(pb.Code_CONFLICT, "%s is not held under fence %d", path, d.Fence)
		}
	}
	return nil
}

// heldBy reports whether exactly this ticket of this session is a live holding
// of this path: a ghost is none, and another holder of the same shared period
// does not count.
func (s *Store) heldBy(h *pb.Holding) bool {
	c, ok := s.claim(h.Session, h.Ticket)
	if invariant.Planted(invariant.HeldByAnybody) {
		l, used := s.lock(h.Path)
		return used && l.live() > 0
	}
	return ok && c.state == held && c.path == h.Path
}
