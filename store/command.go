package store

import (
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// Apply executes an encoded pb.Command; see API.
func (s *Store) Apply(command []byte) (*pb.Result, []Change) {
	s.begin()
	if s.command == nil {
		s.command = new(pb.Command)
	}
	c := s.command
	c.Reset()
	if c.Decode(command) != nil {
		invariant.Unreachable("a master logs what it has encoded itself, of parts that it has decoded")
		// The decoder's own words differ from build to build: they stay out of a
		// result that all replicas must agree on.
		return s.answer(refuse(pb.Code_BAD_COMMAND, "the command cannot be decoded")), nil
	}
	r := s.execute(c)
	return r, s.changes
}

// answer completes a result that is not one of a session's numbered requests.
func (s *Store) answer(r *pb.Result) *pb.Result {
	s.commit()
	r.Revision = s.revision
	return r
}

// tick takes over the clocks of the command. Both only move forward.
func (s *Store) tick(c *pb.Command) {
	s.cellTime = max(s.cellTime, c.CellTime)
	s.wallMS = max(s.wallMS, c.WallMs)
}

// execute executes a command.
//
// Invariant: a command has an effect only in the epoch of the master that proposed
// it. One that was accepted under an earlier leader may be chosen behind a later
// one's Lead entry, when a third leader finds it in an open slot. A deposed
// master's judgement of who is late counts for nothing there. Its cell time may be
// ahead of what the master in between went on from, and would end times early that
// were counted under that master; without it, what a request starts would begin at
// an instant long before the request was made. So it is void: the request is not
// done, and its client has no answer and repeats it.
func (s *Store) execute(c *pb.Command) *pb.Result {
	if c.Epoch != s.epoch && !plantedStale(c) {
		r := refuse(pb.Code_STALE_EPOCH, "proposed in epoch %d, it is epoch %d", c.Epoch, s.epoch)
		r.Number = c.Number
		return s.answer(r)
	}
	if c.Session != 0 {
		s.tick(c)
		if _, ok := s.session(c.Session); !ok {
			r := refuse(pb.Code_UNKNOWN_SESSION, "there is no session %d", c.Session)
			r.Number = c.Number
			return s.answer(r)
		}
		if _, ok := c.Op.(*pb.Command_AckEvents); ok {
			return s.ackEvents(c)
		}
		return s.request(c)
	}
	switch op := c.Op.(type) {
	case *pb.Command_OpenSession:
		s.tick(c)
		return s.answer(s.open(op.OpenSession))
	case *pb.Command_ExpireSession, *pb.Command_Timers, *pb.Command_Clock, *pb.Command_NoteSessions:
		return s.answer(s.timeCaused(c))
	case nil:
		invariant.Unreachable("a master logs no command without an operation")
		return s.answer(refuse(pb.Code_BAD_COMMAND, "the command has no operation that is known here"))
	}
	invariant.Unreachable("a master logs operations of sessions for sessions alone")
	return s.answer(refuse(pb.Code_UNKNOWN_SESSION, "the operation needs a session"))
}

// plantedStale reports whether a planted bug executes the command although it is
// of an earlier epoch.
func plantedStale(c *pb.Command) bool {
	if c.GetExpireSession() != nil {
		return invariant.Planted(invariant.OldExpiryTaken)
	}
	return c.Number != 0 && invariant.Planted(invariant.OldRequestTaken)
}

// timeCaused executes what a master decides by its clock.
func (s *Store) timeCaused(c *pb.Command) *pb.Result {
	s.tick(c)
	switch op := c.Op.(type) {
	case *pb.Command_ExpireSession:
		return s.expire(op.ExpireSession)
	case *pb.Command_Timers:
		return s.applyTimers(op.Timers)
	case *pb.Command_NoteSessions:
		return s.noteSessions(op.NoteSessions)
	}
	return &pb.Result{}
}

// ackEvents executes an AckEvents.
func (s *Store) ackEvents(c *pb.Command) *pb.Result {
	s.rehashSession(c.Session, s.acknowledge(c.Session, c.AckedEvent, c.LowestUnanswered))
	return s.answer(&pb.Result{Session: c.Session})
}

// request executes a numbered request of a session, exactly once.
//
// Invariant: number n is executed, or settled as void, when n-1 has been and n
// has not: so at most once, and in order. Everything else is answered from the
// record and executes nothing.
func (s *Store) request(c *pb.Command) *pb.Result {
	x, _ := s.session(c.Session)
	again := false
	switch {
	case c.Number == 0:
		invariant.Unreachable("a master logs no request without a number")
		return s.answer(refuse(pb.Code_BAD_COMMAND, "requests of a session are numbered from 1"))
	case c.Number > x.last+1 && !invariant.Planted(invariant.GapIgnored):
		r := refuse(pb.Code_RETRY, "the next request is %d", x.last+1)
		r.Number = c.Number
		return s.answer(r)
	case c.Number <= x.last:
		if again = invariant.Planted(invariant.RepeatAppliedTwice); !again {
			return s.repeat(c)
		}
	}
	x = s.acknowledge(c.Session, c.AckedEvent, c.LowestUnanswered)
	if full := s.full(c, x); full != nil && !again {
		s.rehashSession(c.Session, x)
		full.Number = c.Number
		return s.answer(full)
	}
	r := s.perform(c)
	s.commit()
	r.Revision, r.Number = s.revision, c.Number
	for _, one := range r.Results {
		one.Revision = s.revision
	}
	s.record(c.Session, r)
	return r
}

// full returns the refusal of a request for whose result its session has no
// room, in number or in bytes; nil if there is. No limit refuses the end of a
// session or of something it holds or waits for, nor the word that it has lost it;
// and so that no refused request stands before these, a number can be settled as
// void beyond the limit too.
//
// Invariant: a session has at most keptMax results.
func (s *Store) full(c *pb.Command, x *session) *pb.Result {
	kept := c.Number - x.lowest
	most := uint64(WindowMax)
	switch op := c.Op.(type) {
	case *pb.Command_CloseSession:
		return nil
	case *pb.Command_Release:
		if kept < 2*WindowMax {
			return nil
		}
		if _, found := s.claim(c.Session, op.Release.GetTicket()); found {
			return nil
		}
	case *pb.Command_Forfeit:
		if kept < 2*WindowMax {
			return nil
		}
		if h, found := s.claim(c.Session, op.Forfeit.GetTicket()); found && h.state == held {
			return nil
		}
	case *pb.Command_VoidRequest:
		most = 2 * WindowMax
	default:
		if bytes := x.resultBytes; bytes > ResultBytesMax-largestMax && bytes+answerMax(c) > ResultBytesMax {
			return limited(LimitResultBytes, "results of %d bytes wait for the client, and this one may take %d, the limit of a session is %d: not executed, repeat with a higher lowest_unanswered",
				bytes, answerMax(c), ResultBytesMax)
		}
	}
	if kept < most {
		return nil
	}
	return limited(LimitWindow, "%d results wait for the client, the limit of a session is %d: not executed, repeat with a higher lowest_unanswered", kept, WindowMax)
}

// keptMax follows from full: beyond twice the window the claims that a
// session has are forfeited once and end once, and it gets no new ones there.
const keptMax = 2*WindowMax + 2*LocksMax

// repeat answers a request that has been executed.
func (s *Store) repeat(c *pb.Command) *pb.Result {
	var r *pb.Result
	x, _ := s.session(c.Session)
	if kept, ok := x.results.find(c.Number); ok {
		r = kept.Result
	}
	s.rehashSession(c.Session, s.acknowledge(c.Session, c.AckedEvent, c.LowestUnanswered))
	if r != nil {
		s.commit()
		return r
	}
	r = refuse(pb.Code_FORGOTTEN, "request %d was executed, its result has been dropped", c.Number)
	r.Number = c.Number
	return s.answer(r)
}

// perform executes the operation of a request.
func (s *Store) perform(c *pb.Command) *pb.Result {
	if bad := BadConditions(c); bad != nil {
		return bad
	}
	switch op := c.Op.(type) {
	case *pb.Command_CloseSession:
		how := closed
		if op.CloseSession.GetWorkEnded() {
			how = workEnded
		}
		s.endSession(c.Session, how)
		return &pb.Result{Session: c.Session}
	case *pb.Command_VoidRequest:
		return refuse(pb.Code_VOIDED, "the request was settled as void: it has not been and will not be executed")
	case *pb.Command_Create:
		return s.create(c.Session, op.Create)
	case *pb.Command_Put:
		return s.put(op.Put)
	case *pb.Command_Delete:
		return s.delete(op.Delete)
	case *pb.Command_Acquire:
		return s.acquire(c.Session, c.Number, op.Acquire)
	case *pb.Command_Release:
		return s.release(c.Session, op.Release)
	case *pb.Command_Forfeit:
		return s.forfeit(c.Session, op.Forfeit)
	case *pb.Command_Multi:
		return s.multi(c.Session, op.Multi)
	case *pb.Command_BreakLock:
		return s.breakLock(op.BreakLock)
	case nil:
		invariant.Unreachable("a master logs no command without an operation")
		return refuse(pb.Code_BAD_COMMAND, "the command has no operation that is known here")
	}
	invariant.Unreachable("a master logs only operations of sessions for a session")
	return refuse(pb.Code_BAD_COMMAND, "the operation is not one of a session")
}
