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

const (
	// At most windowCount requests, of windowBytes together, are out without an
	// answer, and no number is windowSpan or more above the lowest unanswered
	// one: the service keeps as many results.
	windowCount = 128
	windowBytes = 4 << 20
	windowSpan  = 512

	retryMin = 10 * time.Millisecond
	retryMax = 500 * time.Millisecond
)

type requestKind uint8

const (
	plainRequest requestKind = iota
	acquireRequest
	releaseRequest
	forfeitRequest
	closeRequest
)

// request is a logged command. It gets its number when it is first sent, so
// that what is cancelled before leaves no gap; from then on the number is its
// own until the service has settled it.
type request struct {
	number uint64 // 0: queued
	id     CallID // 0: nobody waits
	kind   requestKind
	cmd    *storepb.Command // the op alone; never changed
	bytes  int
	acq    *acquire // acquire and release
	// releases names the locks that a plain request releases if it is done.
	releases []CallID
	sent     bool // on this connection
	dropped  bool // cancelled while queued
	// void sends VoidRequest in its place: the number is settled as what it was
	// if that was executed, else as never executed.
	void      bool
	refusal   error         // why the service refused it, once void
	notBefore time.Duration // the service asked to wait
	first     requestFrame  // what is sent the first time, once framed
	framed    bool
}

// requestFrame is a message with a request, in one piece.
type requestFrame struct {
	message pb.ClientMessage
	body    pb.ClientMessage_Request
	request pb.Request
	command storepb.Command
}

// frame returns an empty message with a command that is to be filled in. Who is
// to send a message may keep it, so none is used twice: the one that lies in the
// request serves the first time, which is the only one as a rule.
func (r *request) frame() (*pb.ClientMessage, *storepb.Command) {
	f := &r.first
	if r.framed {
		f = &requestFrame{}
	}
	r.framed = true
	f.message.Body = &f.body
	f.body.Request = &f.request
	f.request.Command = &f.command
	return &f.message, &f.command
}

// requests keeps what is numbered and what waits for a number.
//
// Numbers go out in order and without gaps, and each is sent again after a
// reconnect until it is answered: so the service, which executes n only after
// n - 1, executes each request at most once, in the order of the calls.
type requests struct {
	queue    []*request // from head: without a number, in order
	head     int
	dropped  int           // cancelled ones among them, which do not count
	numbered window        // unanswered
	lowest   uint64        // unanswered number, or next
	next     uint64        // to give
	from     uint64        // every unanswered number below it has been sent
	sent     int           // numbered, sent on this connection
	bytes    int           // of numbered
	retryAt  time.Duration // nothing is sent before
	retry    time.Duration // pause after the next RETRY
	closing  *request
}

func (q *requests) init() {
	q.numbered = window{}
	q.lowest, q.next, q.from = 1, 1, 1
}

// queued counts what waits for a number.
func (q *requests) queued() int { return len(q.queue) - q.head - q.dropped }

// drop cancels a request that has no number. When most of a long queue is
// cancelled, what is left is put together: a program that gives up its calls must
// not fill it while there is no connection.
func (q *requests) drop(r *request) {
	r.dropped = true
	q.dropped++
	if q.dropped >= 1024 && 2*q.dropped >= len(q.queue)-q.head {
		q.queue = slices.DeleteFunc(q.queue[q.head:], func(r *request) bool { return r.dropped })
		q.head, q.dropped = 0, 0
	}
}

func (m *Machine) startCall(e Call) {
	if m.refuse(e.ID) || m.overfull(e.ID) {
		return
	}
	r := &request{id: e.ID, kind: plainRequest, cmd: e.Command, releases: e.Releases}
	m.calls[e.ID] = call{req: r}
	m.enqueue(r)
}

// overfull refuses a call when too many wait. Releases are never refused.
func (m *Machine) overfull(id CallID) bool {
	if m.reqs.queued() < callsMax {
		return false
	}
	m.done(Done{ID: id, Err: fmt.Errorf("%w: %d requests wait in this client", ErrLimit, m.reqs.queued())})
	return true
}

func (m *Machine) enqueue(r *request) {
	r.bytes = r.cmd.SizeVT()
	m.reqs.queue = append(m.reqs.queue, r)
}

// flush sends what may go out, at the end of a batch.
func (m *Machine) flush() {
	if m.link.phase != linkReady || m.state != Live {
		return
	}
	if !m.o.NoSession && m.now >= m.reqs.retryAt {
		if m.sendNumbered() {
			m.sendQueued()
		}
	}
	m.flushReads()
	m.flushWatches()
	m.flushAck()
}

// sendNumbered sends again, in order, what is unsent on this connection. False:
// one must wait, and with it all behind it.
func (m *Machine) sendNumbered() bool {
	q := &m.reqs
	for ; q.from < q.next; q.from++ {
		r := q.numbered.get(q.from)
		if r == nil || r.sent {
			continue
		}
		if m.now < r.notBefore {
			return false
		}
		m.sendRequest(r)
	}
	return true
}

// sendQueued numbers and sends what is queued, as far as the window allows.
func (m *Machine) sendQueued() {
	q := &m.reqs
	for q.head < len(q.queue) {
		r := q.queue[q.head]
		if r.dropped {
			q.dropped--
			m.shift()
			continue
		}
		if err := m.oversized(r); err != nil {
			m.shift()
			m.done(Done{ID: r.id, Err: err})
			continue
		}
		if q.numbered.count > 0 && (q.numbered.count >= windowCount || q.bytes+r.bytes > windowBytes ||
			q.next-q.lowest >= windowSpan) {
			return
		}
		m.shift()
		r.number = q.next
		q.next++
		q.numbered.add(r)
		q.bytes += r.bytes
		if r.kind == acquireRequest {
			m.ticketed(r)
		}
		m.sendRequest(r)
		q.from = q.next
	}
}

// frameExtra is what a frame has beside the operation of its request, at most.
const frameExtra = 64

// oversized refuses a request that the service would not take: a frame over its
// limit ends the connection, and would do so again on the next.
func (m *Machine) oversized(r *request) error {
	most := m.link.sendMax - frameExtra
	if m.link.sendMax == 0 || r.bytes <= most || r.kind != plainRequest {
		return nil
	}
	return fmt.Errorf("%w: %d bytes in one request, the service takes %d: divide it", ErrTooLarge, r.bytes, most)
}

func (m *Machine) shift() {
	q := &m.reqs
	q.queue[q.head] = nil
	q.head++
	if q.head == len(q.queue) {
		q.queue, q.head = q.queue[:0], 0
	} else if q.head >= 1024 && q.head*2 >= len(q.queue) {
		n := copy(q.queue, q.queue[q.head:])
		clear(q.queue[n:])
		q.queue, q.head = q.queue[:n], 0
	}
}

func (m *Machine) sendRequest(r *request) {
	if r.sent || r.number < m.reqs.lowest {
		invariant.Assert(false, "request %d is sent twice on a connection", r.number)
	}
	if err := m.oversized(r); err != nil && !r.void {
		// An earlier master took larger ones, and may have executed it.
		r.void, r.refusal = true, err
	}
	m.expect()
	r.sent = true
	m.reqs.sent++
	msg, c := r.frame()
	c.Session = m.lease.session
	c.Number = r.number
	c.LowestUnanswered = m.reqs.lowest
	c.AckedEvent = m.locks.seenEvent
	c.Op = r.cmd.Op
	if r.void {
		c.Op = &storepb.Command_VoidRequest{VoidRequest: &storepb.VoidRequest{}}
	}
	m.locks.ackSent = m.locks.seenEvent
	m.send(msg)
}

// unsent marks a request to be sent again.
func (m *Machine) unsent(r *request) {
	if r.sent {
		r.sent = false
		m.reqs.sent--
	}
	m.reqs.from = min(m.reqs.from, r.number)
}

// requestsUnsent: the connection is lost; all without an answer is to be
// repeated on the next one.
func (m *Machine) requestsUnsent() {
	q := &m.reqs
	for n := q.lowest; n < q.next; n++ {
		if r := q.numbered.get(n); r != nil {
			r.sent = false
		}
	}
	q.sent = 0
	q.from = q.lowest
	q.retryAt, q.retry = 0, 0
}

// replied takes the result of a number.
func (m *Machine) replied(p *pb.Reply) {
	res := p.GetResult()
	if p.GetSession() != m.lease.session || m.o.NoSession {
		return
	}
	r := m.reqs.numbered.get(res.GetNumber())
	switch {
	case r == nil: // answered before
	case res.GetCode() == storepb.Code_RETRY:
		m.repeat(r.number)
	case res.GetCode() == storepb.Code_UNKNOWN_SESSION:
		m.expire("the service knows the session no more")
	case leavesNumber(res):
		m.delayRequest(r, 0)
	default:
		m.settle(r, res)
	}
}

// The limits that the service asks about before it looks at a request. The first
// counts the results that it keeps for the session, the second their bytes.
const (
	limitResults     = "session_results"
	limitResultBytes = "session_result_bytes"
)

// leavesNumber reports whether a refusal leaves the request's number unused: the
// service has no room for the result before it hears that others have arrived. It
// executes nothing of a higher number before this one is used, a Release neither.
// So the request is sent again, with what has arrived since.
func leavesNumber(res *storepb.Result) bool {
	l := res.GetLimit()
	return res.GetCode() == storepb.Code_LIMIT && (l == limitResults || l == limitResultBytes)
}

// repeat takes the answer that number was not executed since one before it is
// missing at the service. If it is known which, number just follows it; else
// everything up to number is sent again, and if that does not help, after
// pauses that grow.
func (m *Machine) repeat(number uint64) {
	q := &m.reqs
	if q.from < number && q.numbered.get(q.from) != nil && !q.numbered.get(q.from).sent {
		m.unsent(q.numbered.get(number))
		return
	}
	for n := q.lowest; n <= number; n++ {
		if r := q.numbered.get(n); r != nil {
			m.unsent(r)
		}
	}
	q.retryAt = max(q.retryAt, m.now+q.retry)
	q.retry = min(max(2*q.retry, retryMin), retryMax)
}

// settle takes the final answer for a number.
func (m *Machine) settle(r *request, res *storepb.Result) {
	q := &m.reqs
	q.numbered.remove(r)
	q.bytes -= r.bytes
	if r.sent {
		q.sent--
	}
	for q.lowest < q.next && q.numbered.get(q.lowest) == nil {
		q.lowest++
	}
	q.from = max(q.from, q.lowest)
	q.retry = 0
	switch r.kind {
	case plainRequest:
		if res.GetCode() == storepb.Code_OK {
			m.releasedIn(r)
		}
		if r.id != 0 {
			m.done(answer(r, res))
		}
	case acquireRequest:
		m.acquireReply(r, res)
	case releaseRequest:
		m.forget(r.acq)
		if r.acq.inTxn && res.GetCode() == storepb.Code_NOT_HELD {
			res = &storepb.Result{Code: storepb.Code_OK, Number: res.GetNumber(), Revision: res.GetRevision()}
		}
		if r.id != 0 {
			m.done(answer(r, res))
		}
	case forfeitRequest: // nothing waits for it, whatever has become of it
	case closeRequest:
		m.end(Closed, ErrClosed)
	}
}

// answer is the Done for a result.
func answer(r *request, res *storepb.Result) Done {
	switch res.GetCode() {
	case storepb.Code_FORGOTTEN:
		invariant.Unreachable("the service keeps a result until the client has acknowledged it")
		return Done{ID: r.id, Err: fmt.Errorf("%w: the service has forgotten the result", ErrUnknownOutcome)}
	case storepb.Code_VOIDED:
		if r.refusal != nil {
			return Done{ID: r.id, Err: r.refusal}
		}
		invariant.Unreachable("a request is void because it was refused, or nobody waits for it")
		return Done{ID: r.id, Err: fmt.Errorf("%w: the request was void", ErrUnavailable)}
	default:
		return Done{ID: r.id, Result: res}
	}
}

// refuseRequest: the service did not take the request and never will. The call
// ends when its number is settled; only that makes "not done" certain.
func (m *Machine) refuseRequest(r *request, err error) {
	r.void = true
	if r.refusal == nil {
		r.refusal = err
	}
	m.unsent(r)
	m.reqs.retryAt = max(m.reqs.retryAt, m.now+m.reqs.retry)
	m.reqs.retry = min(max(2*m.reqs.retry, retryMin), retryMax)
}

// delayRequest: the service asks to repeat it later.
func (m *Machine) delayRequest(r *request, wait time.Duration) {
	if !invariant.Planted(invariant.OverloadedNotRepeated) {
		m.unsent(r)
	}
	r.notBefore = span.Add(m.now, max(wait, retryMin))
}

// cancelRequest ends the wait for a plain call or a release.
func (m *Machine) cancelRequest(r *request) {
	id := r.id
	r.id = 0
	switch {
	case r.kind == releaseRequest:
		// Goes on: the work has ended, and others wait for the lock.
		m.done(Done{ID: id, Err: ErrUnknownOutcome})
	case r.number == 0:
		m.reqs.drop(r)
		m.done(Done{ID: id, Err: ErrCanceled})
	default:
		// It may have been executed. If it must be sent again, it is better that
		// it is not.
		r.void = true
		m.done(Done{ID: id, Err: ErrUnknownOutcome})
	}
}

// enqueueFirst queues requests, in order, ahead of all that have no number yet.
func (m *Machine) enqueueFirst(rs []*request) {
	q := &m.reqs
	for _, r := range rs {
		r.bytes = r.cmd.SizeVT()
	}
	q.queue, q.head = append(rs, q.queue[q.head:]...), 0
}

func (m *Machine) queueClose(workEnded bool) {
	r := &request{kind: closeRequest, cmd: &storepb.Command{Op: &storepb.Command_CloseSession{
		CloseSession: &storepb.CloseSession{WorkEnded: workEnded}}}}
	m.reqs.closing = r
	m.enqueue(r)
}

// failQueued ends the plain calls that have no number; releases stay.
func (m *Machine) failQueued(err error) {
	q := &m.reqs
	for _, r := range slices.Clone(q.queue[q.head:]) {
		if r.kind == plainRequest && !r.dropped {
			q.drop(r)
			m.done(Done{ID: r.id, Err: err})
		}
	}
}

// failRequests ends every call: the session is over.
func (m *Machine) failRequests(err error) {
	q := &m.reqs
	for n := q.lowest; n < q.next; n++ {
		r := q.numbered.get(n)
		if r == nil || r.id == 0 {
			continue
		}
		if r.kind == plainRequest {
			m.done(Done{ID: r.id, Err: fmt.Errorf("%w: %w", ErrUnknownOutcome, err)})
		} else {
			m.done(Done{ID: r.id, Err: err})
		}
	}
	for _, r := range q.queue[q.head:] {
		if r.id != 0 && !r.dropped {
			m.done(Done{ID: r.id, Err: err})
		}
	}
	q.init()
	q.queue, q.head, q.dropped, q.sent, q.bytes = nil, 0, 0, 0, 0
}

func (m *Machine) requestWake() time.Duration {
	q := &m.reqs
	if m.link.phase != linkReady || m.state != Live {
		return 0
	}
	if q.from == q.next && q.queued() == 0 {
		return 0
	}
	w := q.retryAt
	if r := q.numbered.get(q.from); r != nil && !r.sent {
		w = max(w, r.notBefore)
	}
	if w <= m.now {
		return 0 // what is left waits for the window, not for time
	}
	return w
}
