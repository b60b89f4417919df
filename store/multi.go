package store

import (
	"github.com/seed70370324/lockd/store/pb"
)

// multi executes all operations of a Multi, or none: they are applied in order,
// each seeing what those before it did, all with one revision; if one fails,
// the state goes back to a clone taken before the first.
func (s *Store) multi(session uint64, m *pb.Multi) *pb.Result {
	if len(m.Ops) > MultiMax {
		return limited(LimitMulti, "the Multi has %d operations, the limit is %d: divide it", len(m.Ops), MultiMax)
	}
	before := s.Clone()
	s.cache.try()
	changes, touched := len(s.changes), len(s.touched)
	results := make([]*pb.Result, len(m.Ops))
	for i, op := range m.Ops {
		results[i] = s.multiOp(session, op)
		if results[i].Code != pb.Code_OK {
			s.cache.undo()
			before.changes, before.touched = s.changes[:changes], s.touched[:touched]
			before.cache, before.command = s.cache, s.command
			*s = *before
			return multiFailed(results, i)
		}
	}
	s.cache.keep()
	return &pb.Result{Results: results}
}

// multiFailed is the answer to a Multi whose operation i failed.
func multiFailed(results []*pb.Result, i int) *pb.Result {
	failed := results[i]
	for k := range results {
		if k != i {
			results[k] = &pb.Result{Code: pb.Code_MULTI_FAILED}
		}
	}
	return &pb.Result{Code: failed.Code, FailedOp: uint32(i), Detail: failed.Detail, Path: failed.Path, Limit: failed.Limit, Results: results}
}

// releaseHeld executes the Release of a Multi: of a lock that the session holds,
// or has lost and not released. A ticket that waits is refused: what the others
// do would pass for done under the lock. The lock passes on when all are done.
func (s *Store) releaseHeld(session uint64, r *pb.Release) *pb.Result {
	if c, ok := s.claim(session, r.GetTicket()); ok && c.state == waiting {
		return refuse(pb.Code_NOT_HELD, "ticket %d waits for %s and does not hold it", c.ticket, c.path)
	}
	return s.release(session, r)
}

func (s *Store) multiOp(session uint64, op *pb.MultiOp) *pb.Result {
	switch op := op.GetOp().(type) {
	case *pb.MultiOp_Create:
		return s.create(session, op.Create)
	case *pb.MultiOp_Put:
		return s.put(op.Put)
	case *pb.MultiOp_Delete:
		return s.delete(op.Delete)
	case *pb.MultiOp_Check:
		return s.checkNode(op.Check)
	case *pb.MultiOp_Release:
		return s.releaseHeld(session, op.Release)
	}
	return refuse(pb.Code_BAD_COMMAND, "a Multi takes Create, Put, Delete, Check and Release")
}
