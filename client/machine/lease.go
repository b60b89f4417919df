package machine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// lease is the session and for how long it is known to live.
type lease struct {
	session uint64
	length  time.Duration // as the service gave it; before that, as asked for
	end     time.Duration // on our clock; 0 before the first
	// lapsed is the end that made the session go into jeopardy; grace counts
	// from it.
	lapsed    time.Duration
	kept      []keepAlive   // out and not answered, oldest first
	sentAt    time.Duration // of the last KeepAlive
	leaseless int           // KeepAlives in a row that brought no lease
	next      time.Duration // send the next one then; 0: when the last is answered
}

type keepAlive struct {
	id     uint64
	sentAt time.Duration
}

func (m *Machine) sendOpen() {
	l := &m.link
	m.enterPhase(linkOpening)
	l.openID = m.nextID()
	l.openSentAt = m.now
	m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Open{Open: &pb.OpenSession{
		Id:      l.openID,
		Nonce:   m.o.Nonce,
		LeaseMs: uint64(m.o.Lease / time.Millisecond),
		Client:  &storepb.ClientInfo{Name: m.o.Name, Host: m.o.Host, Pid: uint64(m.o.PID)},
	}}})
}

func (m *Machine) opened(r *pb.OpenSessionReply) {
	if m.link.phase != linkOpening || r.GetId() != m.link.openID || r.GetSession() == 0 {
		return
	}
	m.lease.session = r.GetSession()
	m.lease.length = leaseGiven(r.GetLeaseMs())
	m.linkIsReady()
	// An answer that took longer than the lease leaves nothing of it: then the
	// KeepAlive below brings the first lease.
	m.extend(m.link.openSentAt, r.GetHeldNs(), m.lease.length)
	m.sendKeepAlive(m.state != Live)
}

func (m *Machine) sendAttach() {
	m.enterPhase(linkAttaching)
	m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Attach{Attach: &pb.Attach{
		Session: m.lease.session, Nonce: m.o.Nonce, AckedEvent: m.locks.seenEvent}}})
}

func (m *Machine) attached(r *pb.AttachReply) {
	if m.link.phase != linkAttaching || r.GetSession() != m.lease.session {
		return
	}
	if r.GetCode() != storepb.Code_OK {
		m.expire("the service knows the session no more (" + r.GetCode().String() + ")")
		return
	}
	m.linkIsReady()
	m.locks.ackSent = m.locks.seenEvent
	m.sendKeepAlive(true)
}

// sendKeepAlive asks for a new lease; now: to be answered at once.
func (m *Machine) sendKeepAlive(now bool) {
	s := &m.lease
	s.sentAt = m.now
	s.next = 0
	k := keepAlive{id: m.nextID(), sentAt: m.now}
	if len(s.kept) == keptMax {
		s.kept = slices.Delete(s.kept, 1, 2) // the oldest tells how late the service is
	}
	s.kept = append(s.kept, k)
	m.send(&pb.ClientMessage{Body: &pb.ClientMessage_KeepAlive{KeepAlive: &pb.KeepAlive{
		Id: k.id, Sessions: []uint64{s.session}, Now: now}}})
}

// leaselessMax is how many KeepAlives in a row may be answered without a lease
// before the session is attached anew.
const leaselessMax = 3

var errNoLease = errors.New("the service gives this connection no lease")

// keptMax bounds the KeepAlives that are out: one, and probes.
const keptMax = 8

// kept takes the answer to a KeepAlive.
func (m *Machine) kept(r *pb.KeepAliveReply) {
	s := &m.lease
	if m.link.phase != linkReady || m.o.NoSession {
		return
	}
	if slices.Contains(r.GetGone(), s.session) {
		m.expire("the service says that the session has ended")
		return
	}
	i := slices.IndexFunc(s.kept, func(k keepAlive) bool { return k.id == r.GetId() })
	if i < 0 {
		return // older than one that was answered
	}
	sentAt := s.kept[i].sentAt
	s.kept = slices.Delete(s.kept, 0, i+1)
	s.leaseless++
	for _, l := range r.GetLeases() {
		if l.GetSession() == s.session {
			s.leaseless = 0
			s.length = leaseGiven(l.GetLeaseMs())
			m.extend(sentAt, r.GetHeldNs(), s.length)
		}
	}
	if s.leaseless == leaselessMax {
		// Attached elsewhere, by an Attach that was long on its way.
		m.lostLink(errNoLease, "", 0)
		return
	}
	// The next goes out at once; the service holds it for a third of the lease.
	// One that does not is not asked more often than this.
	if len(s.kept) == 0 {
		s.next = max(m.now, s.sentAt+s.length/30)
	}
}

// extend takes a lease that the service gave in answer to what was sent at
// sentAt: it runs from the proof of leadership, held after the arrival, so at
// the earliest from sentAt + held; less twice the drift, since both clocks may
// be off.
func (m *Machine) extend(sentAt time.Duration, heldNs int64, length time.Duration) {
	// The proof was made before the answer arrived here, whatever it says.
	held := min(max(time.Duration(heldNs), 0), m.now-sentAt)
	end := sentAt + m.lessDrift(held+length)
	if end <= m.lease.end || m.ended() {
		return // a lease is never taken back
	}
	m.lease.end = end
	if m.now >= end {
		return
	}
	if m.state == Connecting || m.state == Jeopardy {
		m.setState(Live)
	}
	m.leaseMoved()
}

// lessDrift returns d less twice what two clocks may differ by in that time. It
// is calculated in two parts, for the product of d and the drift may be out of
// range.
func (m *Machine) lessDrift(d time.Duration) time.Duration {
	const million = 1_000_000
	twice := time.Duration(2 * m.o.DriftPPM)
	return d - d/million*twice - d%million*twice/million
}

// spanMax bounds the lease and the lock-delay that the service names. Both are
// far shorter; a longer one counts as this, which makes this client stop sooner.
const spanMax = 24 * time.Hour

func leaseGiven(ms uint64) time.Duration { return min(span.Millis(ms), spanMax) }

// checkLease: a lease that has run out puts the session in jeopardy, a grace
// period that has run out ends it.
func (m *Machine) checkLease() {
	s := &m.lease
	if m.o.NoSession {
		return
	}
	if m.state == Live && m.now >= s.end {
		s.lapsed = s.end
		m.setState(Jeopardy)
	}
	if m.state == Jeopardy && m.now >= span.Add(s.lapsed, m.o.Grace) {
		if m.closing {
			m.closeUntold()
			return
		}
		m.expire(fmt.Sprintf("no master was reached within the grace period of %v: %s", m.o.Grace, m.Attempts()))
		return
	}
	if m.link.phase == linkReady && s.next > 0 && m.now >= s.next {
		m.sendKeepAlive(false)
	}
}

func (m *Machine) leaseWake() time.Duration {
	s := &m.lease
	if m.o.NoSession {
		return 0
	}
	w := time.Duration(0)
	switch m.state {
	case Live:
		w = s.end
	case Jeopardy:
		w = span.Add(s.lapsed, m.o.Grace)
	}
	if m.link.phase == linkReady && s.next > 0 && (w == 0 || s.next < w) {
		w = s.next
	}
	return w
}

// keepAliveEnd is when the connection is presumed dead because a KeepAlive has
// no answer: it is held for a third of the lease; two thirds leave time to
// reach another master before the lease has run out.
func (m *Machine) keepAliveEnd() time.Duration {
	if len(m.lease.kept) == 0 {
		return 0
	}
	return m.lease.kept[0].sentAt + m.lease.length*2/3
}

func (m *Machine) keepAliveLate() bool {
	end := m.keepAliveEnd()
	return end > 0 && m.now >= end
}

func (m *Machine) keepAlivesUnsent() {
	m.lease.kept = nil
	m.lease.next = 0
	m.lease.leaseless = 0
}

// expire: the session has ended and not by us.
func (m *Machine) expire(reason string) {
	if m.closing {
		m.end(Closed, ErrClosed)
		return
	}
	m.end(Expired, fmt.Errorf("%w: %s", ErrExpired, reason))
}
