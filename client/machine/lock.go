package machine

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

type acquirePhase uint8

const (
	acqQueued  acquirePhase = iota // no number yet
	acqAsked                       // numbered, not answered
	acqWaiting                     // in the service's queue
	acqParked                      // granted, but the lease does not allow to hand it over
	acqHeld                        // handed over to the application
	acqLeaving                     // a Release is under way
	acqOver                        // ended; only its number is not yet answered
)

// acquire is a lock request and, once granted, the holding.
type acquire struct {
	id     CallID
	ticket uint64 // its request's number
	path   string
	delay  time.Duration
	stop   time.Duration
	phase  acquirePhase
	told   bool // Waiting was told
	lost   bool // told to the application; for good
	inTxn  bool // a transaction that was done has released it
	req    *request
	grant  *storepb.Grant
	index  int // in locks.held
}

// locks keeps the lock requests and the locks.
//
// A lock is handed over only while the lease runs and its deadline lies ahead,
// and it is told lost once at the latest when its deadline passes: after that
// the service may grant it to another. The deadline only moves with the lease.
type locks struct {
	byID      map[CallID]*acquire
	byTicket  map[uint64]*acquire
	held      []*acquire // parked or held, and not lost
	working   int        // handed over, and neither released nor given back
	soonest   time.Duration
	stale     bool   // soonest must be found anew
	seenEvent uint64 // last session event taken
	ackSent   uint64 // last one acknowledged on this connection
}

func (k *locks) init() {
	k.byID = make(map[CallID]*acquire)
	k.byTicket = make(map[uint64]*acquire)
}

func (m *Machine) startAcquire(e Acquire) {
	if m.refuse(e.ID) || m.overfull(e.ID) {
		return
	}
	delay := min(span.Millis(e.Acquire.GetLockDelayMs()), spanMax)
	if limit := m.stopLimit(delay); e.Stop < 0 || e.Stop >= limit {
		m.done(Done{ID: e.ID, Err: fmt.Errorf("%w: a time to stop of %v is not less than %v: lock-delay and two thirds of the lease, less %v and twice the drift of clocks",
			ErrInvalid, e.Stop, limit.Truncate(time.Millisecond), stopMargin)})
		return
	}
	a := &acquire{id: e.ID, path: e.Acquire.GetPath(), delay: delay, stop: e.Stop, index: -1}
	r := &struct { // in one piece
		request
		command storepb.Command
		op      storepb.Command_Acquire
	}{}
	a.req = &r.request
	a.req.kind, a.req.acq, a.req.cmd = acquireRequest, a, &r.command
	r.command.Op = &r.op
	r.op.Acquire = e.Acquire
	m.calls[e.ID] = call{acq: a}
	m.locks.byID[e.ID] = a
	m.enqueue(a.req)
}

// stopMargin is what a renewal of the lease may come late by, while nothing is
// wrong, before a lock whose work takes the longest time to stop is lost.
const stopMargin = 50 * time.Millisecond

// stopLimit is what the time to stop must be less than: the lock-delay and two
// thirds of the lease, less twice the drift and stopMargin. The service holds a
// KeepAlive for a third of the lease, and its answer is good for four thirds
// from when it was sent, less twice the drift in them. The next answer comes
// when two thirds are over.
func (m *Machine) stopLimit(delay time.Duration) time.Duration {
	third := m.lease.length / 3
	return m.lessDrift(delay) + m.lessDrift(4*third) - 2*third - stopMargin
}

// ticketed: the request has its number, by which events name it.
func (m *Machine) ticketed(r *request) {
	r.acq.ticket = r.number
	r.acq.phase = acqAsked
	m.locks.byTicket[r.number] = r.acq
}

// acquireReply takes the answer to the request. Its outcome may have come
// before, as an event.
func (m *Machine) acquireReply(r *request, res *storepb.Result) {
	a := r.acq
	a.req = nil
	switch {
	case a.phase == acqOver:
		m.forget(a)
		return
	case a.phase != acqAsked:
		return
	}
	switch code := res.GetCode(); code {
	case storepb.Code_OK, storepb.Code_GRANTED:
		m.granted(a, res.GetGrant())
	case storepb.Code_WAITING:
		a.phase = acqWaiting
		if !a.told {
			a.told = true
			m.out.Waiting = append(m.out.Waiting, Waiting{ID: a.id, Result: res})
		}
	case storepb.Code_FORGOTTEN:
		invariant.Unreachable("the service keeps a result until the client has acknowledged it")
		// It may wait or hold by now: whatever it is, it is given back.
		m.done(Done{ID: a.id, Err: fmt.Errorf("%w: the service has forgotten the result; the lock is not held", ErrUnavailable)})
		m.giveBack(a, 0)
	default:
		r.id = a.id
		m.overWith(a, answer(r, res))
	}
}

// granted takes a grant.
func (m *Machine) granted(a *acquire, g *storepb.Grant) {
	if a.phase != acqAsked && a.phase != acqWaiting {
		invariant.Unreachable("a ticket is granted once, and one that is given back is passed over before")
		return // given back already, or told before
	}
	a.grant = g
	if a.grant == nil {
		invariant.Unreachable("the service grants nothing without a grant")
		a.grant = &storepb.Grant{}
	}
	if g.GetLockDelayMs() != uint64(a.delay/time.Millisecond) {
		invariant.Unreachable("the service refuses a lock-delay that it does not grant")
		// The service's word counts.
		a.delay = min(span.Millis(g.GetLockDelayMs()), spanMax)
	}
	a.phase = acqParked
	a.index = len(m.locks.held)
	m.locks.held = append(m.locks.held, a)
	m.handOver(a)
}

// handOver gives a granted lock to the application if the lease allows it at
// this moment. A grant may come late: the session may be gone at the service,
// and the lock with it. Then it stays parked until a new lease proves that the
// session, and so the lock, lives; nothing has been done under it meanwhile.
func (m *Machine) handOver(a *acquire) {
	if m.state != Live || m.now >= m.lease.end || m.now >= m.deadline(a) {
		return
	}
	a.phase = acqHeld
	m.locks.working++
	m.locks.stale = true
	g := a.grant
	m.out.Deadlines = append(m.out.Deadlines, Deadline{Lock: a.id, At: m.deadline(a)})
	m.done(Done{ID: a.id, Result: &storepb.Result{Code: storepb.Code_GRANTED, Path: a.path, Number: a.ticket, Grant: g}})
}

// deadline is when a lock is lost unless the lease moves: the end of the lease
// plus the lock-delay less twice the drift, less the time to stop.
func (m *Machine) deadline(a *acquire) time.Duration {
	return m.lease.end + m.lessDrift(a.delay) - a.stop
}

// leaseMoved: there is a new lease, so all deadlines move, and what is parked
// can be handed over.
func (m *Machine) leaseMoved() {
	for _, a := range m.locks.held {
		if a.phase == acqParked {
			m.handOver(a)
		} else {
			m.out.Deadlines = append(m.out.Deadlines, Deadline{Lock: a.id, At: m.deadline(a)})
		}
	}
	m.locks.stale = true
}

// checkDeadlines loses the locks whose deadline has passed.
func (m *Machine) checkDeadlines() {
	if w := m.deadlineWake(); w == 0 || m.now < w {
		return
	}
	var lost []*acquire
	for _, a := range m.locks.held {
		if a.phase == acqHeld && m.now >= m.deadline(a) {
			lost = append(lost, a)
		}
	}
	m.loseAll(lost, "the service was not heard of before the lock's deadline")
	m.forfeit(lost)
}

// lose loses a lock that the application takes for lost already.
func (m *Machine) lose(id CallID) {
	a := m.locks.byID[id]
	if a == nil || a.phase != acqHeld || a.lost {
		return
	}
	lost := []*acquire{a}
	m.loseAll(lost, "its deadline passed before the answer of the service was taken")
	m.forfeit(lost)
}

// forfeit tells the service of locks that were lost by this client's own clock,
// while the session may live on. Else the service would go on counting them as
// held, and this session could wait for its own lock for ever. It is told ahead
// of all that is not on its way yet, so that a new Acquire comes behind it.
// That the work has ended is not said: only the Release says that.
func (m *Machine) forfeit(lost []*acquire) {
	rs := make([]*request, len(lost))
	for i, a := range lost {
		rs[i] = &request{kind: forfeitRequest, acq: a, cmd: &storepb.Command{Op: &storepb.Command_Forfeit{
			Forfeit: &storepb.Forfeit{Ticket: a.ticket}}}}
	}
	m.enqueueFirst(rs)
}

func (m *Machine) deadlineWake() time.Duration {
	k := &m.locks
	if k.stale {
		k.stale = false
		k.soonest = 0
		for _, a := range k.held {
			if a.phase == acqHeld {
				if d := m.deadline(a); k.soonest == 0 || d < k.soonest {
					k.soonest = d
				}
			}
		}
	}
	return k.soonest
}

// loseAll tells the locks lost, in the order in which they were asked for.
func (m *Machine) loseAll(lost []*acquire, reason string) {
	slices.SortFunc(lost, func(a, b *acquire) int {
		if a.ticket < b.ticket {
			return -1
		}
		return 1
	})
	for _, a := range lost {
		invariant.Assert(a.phase == acqHeld && !a.lost, "lock %d (%s) is lost a second time", a.ticket, a.path)
		a.lost = true
		m.unhold(a)
		m.out.Lost = append(m.out.Lost, Lost{Lock: a.id, Reason: reason})
	}
}

// unhold takes a out of the list of locks with a deadline.
func (m *Machine) unhold(a *acquire) {
	if a.index < 0 {
		return
	}
	k := &m.locks
	last := len(k.held) - 1
	k.held[a.index] = k.held[last]
	k.held[a.index].index = a.index
	k.held[last] = nil
	k.held = k.held[:last]
	a.index = -1
	k.stale = true
}

// startRelease: the guarded work has ended.
func (m *Machine) startRelease(e Release) {
	// While the session is being closed locks can be released until the service
	// is told.
	if (m.ended() || m.reqs.closing != nil) && m.refuse(e.ID) {
		return
	}
	a := m.locks.byID[e.Lock]
	if a == nil || a.phase != acqHeld {
		m.done(Done{ID: e.ID, Err: fmt.Errorf("%w: the lock to release is not held", ErrInvalid)})
		return
	}
	m.giveBack(a, e.ID)
}

// giveBack queues the Release of a's ticket, which ends the holding, the wait,
// or the ghost; it goes on for as long as the session lives.
func (m *Machine) giveBack(a *acquire, id CallID) {
	m.unhold(a)
	m.leave(a, acqLeaving)
	x := &struct { // in one piece
		request
		command storepb.Command
		op      storepb.Command_Release
		release storepb.Release
	}{}
	r := &x.request
	r.id, r.kind, r.acq, r.cmd = id, releaseRequest, a, &x.command
	x.command.Op = &x.op
	x.op.Release = &x.release
	x.release.Path, x.release.Ticket = a.path, a.ticket
	if id != 0 {
		m.calls[id] = call{req: r}
	}
	m.enqueue(r)
	m.checkClose()
}

// leave gives a another phase, behind acqHeld.
func (m *Machine) leave(a *acquire, phase acquirePhase) {
	if a.phase == acqHeld {
		m.locks.working--
		invariant.Assert(m.locks.working >= 0, "%d locks are handed over", m.locks.working)
	}
	a.phase = phase
}

// releasedIn notes the locks that a request has released, which was done. A
// Release of the same lock may be under way; it finds nothing any more. If
// nobody waits for the request, its caller was told that its outcome is not
// known, and releases them on its own.
func (m *Machine) releasedIn(r *request) {
	for _, id := range r.releases {
		a := m.locks.byID[id]
		switch {
		case a == nil:
		case a.phase == acqHeld && r.id != 0:
			m.forget(a)
			m.checkClose()
		default:
			a.inTxn = true
		}
	}
}

// cancelAcquire ends a lock request that has no outcome yet.
func (m *Machine) cancelAcquire(a *acquire) {
	if a.phase == acqQueued {
		m.reqs.drop(a.req)
		m.overWith(a, Done{ID: a.id, Err: ErrCanceled})
		return
	}
	if a.req != nil {
		a.req.void = true // should it have to be sent again
	}
	m.done(Done{ID: a.id, Err: ErrCanceled})
	m.giveBack(a, 0)
}

// cancelHeld gives back a lock whose grant nobody took.
func (m *Machine) cancelHeld(id CallID) {
	if a := m.locks.byID[id]; a != nil && a.phase == acqHeld {
		m.giveBack(a, 0)
	}
}

// overWith ends a lock request that holds nothing.
func (m *Machine) overWith(a *acquire, d Done) {
	m.unhold(a)
	m.done(d)
	if a.req != nil && a.req.number != 0 {
		m.leave(a, acqOver) // its number is still to be answered
		return
	}
	m.forget(a)
}

func (m *Machine) forget(a *acquire) {
	m.unhold(a)
	m.leave(a, acqOver)
	delete(m.locks.byID, a.id)
	delete(m.locks.byTicket, a.ticket)
}

// sessionEvent takes a numbered event; each once, in order.
func (m *Machine) sessionEvent(e *pb.Event) {
	k := &m.locks
	ev := e.GetEvent()
	if e.GetSession() != m.lease.session || m.link.phase != linkReady {
		return
	}
	switch {
	case ev.GetNumber() <= k.seenEvent:
		k.ackSent = min(k.ackSent, ev.GetNumber()-1) // it did not know
		return
	case ev.GetNumber() > k.seenEvent+1:
		m.lostLink(fmt.Errorf("session event %d came after %d", ev.GetNumber(), k.seenEvent), "", 0)
		return
	}
	k.seenEvent = ev.GetNumber()
	a := k.byTicket[ev.GetTicket()]
	if a == nil || a.phase == acqLeaving || a.phase == acqOver {
		return
	}
	switch ev.GetCode() {
	case storepb.Code_GRANTED:
		m.granted(a, ev.GetGrant())
	case storepb.Code_TIMED_OUT, storepb.Code_WITHDRAWN:
		if a.phase < acqParked {
			m.overWith(a, Done{ID: a.id, Result: &storepb.Result{
				Code: ev.GetCode(), Path: ev.GetPath(), Number: a.ticket, Revision: ev.GetRevision(), Blockers: ev.GetBlockers()}})
		}
	case storepb.Code_LOST:
		m.lostByService(a, ev.GetReason())
	}
}

// lostByService: the service has taken the lock away.
func (m *Machine) lostByService(a *acquire, reason string) {
	if reason == "" {
		invariant.Unreachable("the service says why a lock is lost")
		reason = "the service took the lock away"
	}
	switch {
	case a.phase == acqHeld && !a.lost:
		m.loseAll([]*acquire{a}, reason)
	case a.phase < acqHeld:
		// Nothing was begun under it, so there is nothing to wait for.
		m.done(Done{ID: a.id, Err: fmt.Errorf("%w: %s", ErrLost, reason)})
		m.giveBack(a, 0)
	}
}

// flushAck acknowledges session events if no request has carried that.
func (m *Machine) flushAck() {
	k := &m.locks
	if m.o.NoSession || k.ackSent >= k.seenEvent {
		return
	}
	k.ackSent = k.seenEvent
	m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Ack{Ack: &pb.AckEvents{
		Session: m.lease.session, Number: k.seenEvent}}})
}

// failLocks ends every lock request and loses every lock.
func (m *Machine) failLocks(err error) {
	var lost []*acquire
	for _, a := range m.locks.sorted() {
		switch {
		case a.phase == acqHeld && !a.lost:
			lost = append(lost, a)
		case a.phase < acqHeld:
			if a.phase == acqQueued {
				m.reqs.drop(a.req)
			}
			m.overWith(a, Done{ID: a.id, Err: err})
		}
	}
	m.loseAll(lost, err.Error())
}

// sorted lists the lock requests in the order of their calls.
func (k *locks) sorted() []*acquire {
	all := make([]*acquire, 0, len(k.byID))
	for _, a := range k.byID {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b *acquire) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return all
}
