package machine

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
)

const (
	defaultLease = 12 * time.Second
	defaultGrace = 45 * time.Second
	defaultOpen  = 10 * time.Second
	defaultDrift = 10_000
	// closeWork bounds how long Close waits for the work under locks, whose
	// contexts it has ended, to end too and release them.
	closeWork = time.Second
	// closeTime bounds how long Close tries to tell the service after that.
	closeTime = 3 * time.Second
	// callsMax bounds the calls of each kind that wait in the machine.
	callsMax = 8192
)

// Machine is a client's session; see API. It is not safe for concurrent use.
type Machine struct {
	o    Options
	rand uint64
	now  time.Duration // of the last Step or Take
	out  Effects
	free Effects // empty, with slices to be used again; see Reuse

	state   State
	err     error // why it ended
	openEnd time.Duration
	closing bool
	workEnd time.Duration // closing: do not wait for work under locks any longer
	closeAt time.Duration // give up closing

	cell         string
	cellIdentity uint64

	survey    survey
	strangers []attempt // addresses that are skipped, and why
	link      link
	lease     lease
	reqs      requests
	locks     locks
	reads     reads
	watch     watches
	calls     map[CallID]call
}

// call finds what a CallID stands for: exactly one field is set.
type call struct {
	req   *request
	acq   *acquire
	read  *read
	watch *watch
}

var _ API = (*Machine)(nil)

// New makes a Machine. It dials at the first Take.
func New(o Options) *Machine {
	setDefault(&o.Lease, defaultLease)
	setDefault(&o.Grace, defaultGrace)
	setDefault(&o.OpenTimeout, defaultOpen)
	if o.DriftPPM <= 0 {
		o.DriftPPM = defaultDrift
	}
	m := &Machine{
		o:       o,
		rand:    o.Seed,
		now:     o.Now,
		openEnd: span.Add(o.Now, o.OpenTimeout),
		calls:   make(map[CallID]call),
	}
	m.lease.length = o.Lease
	m.reqs.init()
	m.locks.init()
	m.reads.init()
	m.watch.init()
	m.initLink()
	m.cellIdentity = o.CellIdentity
	m.startSurvey()
	return m
}

func setDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// Step implements API.
func (m *Machine) Step(now time.Duration, ev Event) {
	// The time is looked at before the event: a message that arrives after a
	// deadline has passed cannot undo that it has.
	m.advance(now)
	switch e := ev.(type) {
	case Tick:
	case Asked:
		m.asked(e)
	case Connected:
		m.connected()
	case ConnectFailed:
		if m.link.phase == linkDialing {
			m.lostLink(e.Err, "", 0)
		}
	case Disconnected:
		if m.link.phase > linkDialing {
			m.lostLink(e.Err, "", 0)
		}
	case Received:
		m.received(e.Message)
	case Call:
		m.startCall(e)
	case Acquire:
		m.startAcquire(e)
	case Release:
		m.startRelease(e)
	case Lose:
		m.lose(e.Lock)
	case Read:
		m.startRead(e)
	case Watch:
		m.startWatch(e)
	case Pause:
		m.pauseWatch(e.ID)
	case Resume:
		m.resumeWatch(e.ID)
	case Cancel:
		m.cancel(e.ID)
	case Close:
		m.close()
	}
}

// Take implements API.
func (m *Machine) Take(now time.Duration) Effects {
	m.advance(now)
	if !m.ended() {
		m.dial()
		m.flush()
	}
	out := m.out
	m.out, m.free = m.free, Effects{}
	if !m.ended() {
		out.Wake = m.wake()
	}
	return out
}

// Reuse implements API.
//
// The slices belong to one at a time: to the Machine while it gathers, to the
// driver from Take on, and to the Machine again from Reuse on.
func (m *Machine) Reuse(e Effects) {
	m.free = Effects{
		Ask:       emptied(e.Ask),
		Warnings:  emptied(e.Warnings),
		Send:      emptied(e.Send),
		Done:      emptied(e.Done),
		Waiting:   emptied(e.Waiting),
		Updates:   emptied(e.Updates),
		Lost:      emptied(e.Lost),
		Deadlines: emptied(e.Deadlines),
	}
}

// reuseMax is the longest slice that is kept: a large batch is rare.
const reuseMax = 64

// emptied keeps nothing alive that was in s.
func emptied[T any](s []T) []T {
	if cap(s) > reuseMax {
		return nil
	}
	clear(s)
	return s[:0]
}

// advance lets the time pass: whatever has fallen due happens now.
func (m *Machine) advance(now time.Duration) {
	m.now = max(m.now, now)
	if m.ended() {
		return
	}
	m.checkDeadlines()
	m.checkLease()
	if m.ended() {
		return
	}
	switch {
	case m.closing && m.now >= m.closeAt:
		m.closeUntold()
	case m.state == Connecting && m.now >= m.openEnd:
		m.end(Closed, fmt.Errorf("%w: no master within %v: %s", ErrUnavailable, m.o.OpenTimeout, m.Attempts()))
	default:
		m.checkClose()
		if m.checkSurvey(); m.ended() {
			return
		}
		m.checkLink()
		m.checkReads()
	}
}

// wake is when the next thing falls due.
func (m *Machine) wake() time.Duration {
	var w time.Duration
	at := func(t time.Duration) {
		if t > 0 && (w == 0 || t < w) {
			w = t
		}
	}
	if m.closing {
		at(m.closeAt)
		if m.reqs.closing == nil {
			at(m.workEnd)
		}
	}
	if m.state == Connecting {
		at(m.openEnd)
	}
	at(m.surveyWake())
	at(m.leaseWake())
	at(m.deadlineWake())
	at(m.linkWake())
	at(m.requestWake())
	at(m.readWake())
	at(m.watchWake())
	return w
}

func (m *Machine) ended() bool { return m.state >= Expired }

func (m *Machine) setState(s State) {
	invariant.Assert(m.state < Expired, "session has ended as %v and cannot become %v", m.state, s)
	m.state = s
	m.out.State = &s
}

func (m *Machine) send(msg *pb.ClientMessage) {
	m.out.Send = append(m.out.Send, msg)
}

func (m *Machine) done(d Done) {
	delete(m.calls, d.ID)
	m.out.Done = append(m.out.Done, d)
}

// refuse ends a call that cannot begin; false: it can.
func (m *Machine) refuse(id CallID) bool {
	if err := m.refusal(); err != nil {
		m.done(Done{ID: id, Err: err})
		return true
	}
	// The arguments of an Assert are allocated, so on the way of every call it
	// comes behind its condition.
	if _, used := m.calls[id]; used || id == 0 {
		invariant.Assert(false, "call %d is not new", id)
	}
	return false
}

func (m *Machine) refusal() error {
	switch {
	case m.ended():
		return m.err
	case m.closing:
		return ErrClosed
	default:
		return nil
	}
}

// cancel ends the wait for a call.
func (m *Machine) cancel(id CallID) {
	c, ok := m.calls[id]
	switch {
	case !ok:
		// It was done just before; if it was granted a lock, that goes back.
		m.cancelHeld(id)
	case c.req != nil:
		m.cancelRequest(c.req)
	case c.acq != nil:
		m.cancelAcquire(c.acq)
	case c.read != nil:
		m.cancelRead(c.read)
	case c.watch != nil:
		m.cancelWatch(c.watch)
	}
}

// close begins to end the session: what can be refused is refused, every lock is
// lost, so that the work under it ends, and once the locks are released a
// CloseSession goes behind what is under way.
func (m *Machine) close() {
	if m.ended() || m.closing {
		return
	}
	if m.state == Connecting || m.o.NoSession {
		m.end(Closed, ErrClosed)
		return
	}
	m.closing = true
	m.workEnd = m.now
	if m.locks.working > 0 {
		m.workEnd += closeWork
	}
	m.closeAt = m.workEnd + closeTime
	m.failReads(ErrClosed)
	m.failWatches(ErrClosed)
	m.failQueued(ErrClosed)
	m.failLocks(ErrClosed)
	m.checkClose()
}

// closeUntold ends a session that is being closed, and of which the service could
// not be told that.
func (m *Machine) closeUntold() {
	m.end(Closed, fmt.Errorf("%w: %w: it could not be told; the session ends there when its lease has run out",
		ErrClosed, ErrUnavailable))
}

// checkClose sends the CloseSession when no work goes on under a lock, or when
// that has been waited for long enough.
//
// Invariant: it says that the work has ended only if each lock that was handed
// over has been released. A lock that was lost is no exception: only its Release
// says that the work under it has ended.
func (m *Machine) checkClose() {
	if !m.closing || m.reqs.closing != nil {
		return
	}
	ended := m.locks.working == 0
	if !ended && m.now < m.workEnd {
		return
	}
	m.queueClose(ended || invariant.Planted(invariant.CloseSaysWorkEnded))
}

// end is the end of the session: every call is answered, every lock lost.
func (m *Machine) end(s State, err error) {
	m.err = err
	m.setState(s)
	m.failLocks(err)
	m.failRequests(err)
	m.failReads(err)
	m.failWatches(err)
	invariant.Assert(len(m.calls) == 0, "session has ended with %d calls unanswered", len(m.calls))
	m.hangup()
}

// Err implements API.
func (m *Machine) Err() error { return m.err }

// Session implements API.
func (m *Machine) Session() uint64 { return m.lease.session }

// Lease implements API.
func (m *Machine) Lease() time.Duration { return m.lease.length }

// Cell implements API.
func (m *Machine) Cell() (name string, identity uint64) { return m.cell, m.cellIdentity }

// random is splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
func (m *Machine) random() uint64 {
	m.rand += 0x9e3779b97f4a7c15
	z := m.rand
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// jitter is a random duration below d, which is positive.
func (m *Machine) jitter(d time.Duration) time.Duration {
	return time.Duration(m.random() % uint64(d))
}
