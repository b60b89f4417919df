package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
)

const (
	backoffMin = 20 * time.Millisecond
	// backoffEarly caps the pauses while an outage is young, so that a failover
	// is noticed soon; backoffMax caps them later.
	backoffEarly = 400 * time.Millisecond
	backoffMax   = time.Second
	earlyOutage  = 5 * time.Second
	// stableTime is how long a connection must have served before the back-off
	// begins anew after it.
	stableTime = time.Second
	// spread keeps clients that lose a master at the same moment apart.
	spread = 20 * time.Millisecond
	// An attempt (dial, hello, open or attach) is given up after attemptMin,
	// twice as much after each attempt that ended so, attemptMax at most.
	attemptMin = time.Second
	attemptMax = 8 * time.Second
	// hopsMax is how many hints are followed in a row without a pause.
	hopsMax = 2
	// badTime is for how long hints to an address that has just not answered are
	// not followed: others may not know yet that the master is gone.
	badTime = time.Second
	// idleProbe is after how much silence a Machine without a session makes
	// sure that its connection stands.
	idleProbe = 5 * time.Second
)

type linkPhase uint8

const (
	linkDown      linkPhase = iota
	linkDialing             // Dial is out
	linkGreeting            // Hello is out
	linkOpening             // OpenSession is out
	linkAttaching           // Attach is out
	linkReady
)

// link is the connection: one at a time, to whoever may be master.
type link struct {
	phase      linkPhase
	address    string
	phaseEnd   time.Duration // dialing to attaching: give up then
	nextDial   time.Duration // down
	readyAt    time.Duration // ready since
	outage     time.Duration // not ready since
	addresses  []string      // shuffled, each once
	next       int           // index of the next one to try
	hint       string        // try this one first
	hops       int           // hints followed in a row
	backoff    time.Duration
	timeouts   int // attempts that timed out in a row
	bad        string
	badUntil   time.Duration
	attempts   []attempt
	quiet      time.Duration // nothing has been received since, or nothing was awaited
	probed     bool          // a probe is out since quiet
	openID     uint64
	openSentAt time.Duration
	sendMax    int    // largest frame that the service takes, 0 unknown
	lastID     uint64 // of Read, Watch, Open, KeepAlive
}

type attempt struct {
	address string
	err     error
}

func (m *Machine) initLink() {
	l := &m.link
	for _, a := range m.o.Addresses {
		if !slices.Contains(l.addresses, a) {
			l.addresses = append(l.addresses, a)
		}
	}
	for i := len(l.addresses) - 1; i > 0; i-- {
		j := int(m.random() % uint64(i+1))
		l.addresses[i], l.addresses[j] = l.addresses[j], l.addresses[i]
	}
	l.outage = m.now
}

func (m *Machine) nextID() uint64 {
	m.link.lastID++
	return m.link.lastID
}

// dial begins an attempt if it is time.
func (m *Machine) dial() {
	l := &m.link
	if l.phase != linkDown || m.now < l.nextDial || len(l.addresses) == 0 || m.surveying() {
		return
	}
	l.address = l.hint
	if l.address == "" {
		l.address = l.addresses[l.next%len(l.addresses)]
		l.next++
	}
	l.hint = ""
	m.enterPhase(linkDialing)
	m.out.Hangup = false
	m.out.Dial = l.address
}

func (m *Machine) enterPhase(p linkPhase) {
	l := &m.link
	l.phase = p
	l.phaseEnd = m.now + min(attemptMin<<min(l.timeouts, 8), attemptMax)
}

func (m *Machine) connected() {
	if m.link.phase != linkDialing {
		return
	}
	m.enterPhase(linkGreeting)
	m.send(Hello(m.o.Cell, m.o.Program))
}

// Hello is the first message on a connection. The version is agreed on each
// connection anew.
func Hello(cell, program string) *pb.ClientMessage {
	return &pb.ClientMessage{Body: &pb.ClientMessage_Hello{Hello: &pb.Hello{
		VersionMin: 2, VersionMax: 2, Cell: cell, MaxFrame: maxFrame, Client: program}}}
}

// maxFrame is the largest frame this client takes.
const maxFrame = 4 << 20

// greeted takes the answer to Hello.
func (m *Machine) greeted(r *pb.HelloReply) {
	if m.link.phase != linkGreeting {
		return
	}
	if id := r.GetCellIdentity(); id != 0 {
		if m.cellIdentity != 0 && m.cellIdentity != id {
			err := fmt.Errorf("%w: replica %s of cell %s, identity %x, not %x", ErrWrongCell, r.GetReplica(), r.GetCell(), id, m.cellIdentity)
			if m.skip(m.link.address, err); !m.ended() {
				m.lostLink(err, "", 0)
			}
			return
		}
		m.cellIdentity = id
	}
	m.cell = r.GetCell()
	m.link.sendMax = int(r.GetMaxFrame())
	if !r.GetMaster() {
		err := errors.New("replica " + r.GetReplica() + " is not master and knows none")
		if a := r.GetMasterAddress(); a != "" {
			err = errors.New("replica " + r.GetReplica() + " is not master, names " + a)
		}
		m.lostLink(err, r.GetMasterAddress(), 0)
		return
	}
	switch {
	case m.o.NoSession:
		m.linkIsReady()
		if m.state == Connecting {
			m.setState(Live)
		}
	case m.lease.session == 0:
		m.sendOpen()
	default:
		m.sendAttach()
	}
}

// linkIsReady: requests may go out.
func (m *Machine) linkIsReady() {
	l := &m.link
	l.phase = linkReady
	l.readyAt = m.now
	l.quiet = m.now
	l.probed = false
	l.hops, l.timeouts = 0, 0
	l.bad = ""
	l.attempts = nil
	if m.state == Connecting {
		m.everyAddress()
	}
}

// lostLink gives up the present connection or attempt. hint is where the
// master may be, wait the least pause that the service asked for.
func (m *Machine) lostLink(err error, hint string, wait time.Duration) {
	l := &m.link
	was := l.phase
	m.note(err)
	m.hangup()
	if was == linkReady {
		l.outage = m.now
		if m.now-l.readyAt >= stableTime {
			l.backoff = 0
		}
	}
	follow := hint != "" && hint != l.address && !m.skipped(hint) && l.hops < hopsMax && !(hint == l.bad && m.now < l.badUntil)
	switch {
	case follow:
		l.hops++
		l.hint = hint
		l.nextDial = m.now
		if was == linkReady {
			l.nextDial += m.jitter(spread)
		}
	case was == linkReady && l.backoff == 0:
		l.hops = 0
		l.nextDial = m.now + m.jitter(spread)
		l.backoff = backoffMin
	default:
		l.hops = 0
		l.nextDial = m.now + m.pause()
	}
	l.nextDial = max(l.nextDial, span.Add(m.now, wait))
	m.requestsUnsent()
	m.readsUnsent()
	m.watchesUnsent()
	m.keepAlivesUnsent()
}

// pause is the next pause of the back-off: between half of it and all.
func (m *Machine) pause() time.Duration {
	l := &m.link
	limit := backoffMax
	if m.now-l.outage < earlyOutage {
		limit = backoffEarly
	}
	l.backoff = min(max(l.backoff, backoffMin), limit)
	d := l.backoff/2 + m.jitter(l.backoff/2)
	l.backoff = l.backoff * 8 / 5
	return d
}

// hangup drops the connection and what has not been handed over for it.
func (m *Machine) hangup() {
	if m.link.phase != linkDown {
		m.out.Hangup = true
	}
	m.out.Send = nil
	m.out.Dial = ""
	m.link.phase = linkDown
}

// note keeps the last error of each address.
func (m *Machine) note(err error) { m.noteOf(m.link.address, err) }

func (m *Machine) noteOf(address string, err error) {
	l := &m.link
	if err == nil {
		invariant.Unreachable("the shell says why a connection has failed")
		err = errors.New("connection ended")
	}
	for i := range l.attempts {
		if l.attempts[i].address == address {
			l.attempts[i].err = err
			return
		}
	}
	if len(l.attempts) < 16 {
		l.attempts = append(l.attempts, attempt{address, err})
	}
}

// Attempts implements API.
func (m *Machine) Attempts() string {
	l := &m.link
	var b strings.Builder
	tell := func(address, what string) {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(address)
		b.WriteString(": ")
		b.WriteString(what)
	}
	all := slices.Clone(l.attempts)
	known := func(address string) bool {
		return slices.ContainsFunc(all, func(a attempt) bool { return a.address == address })
	}
	for _, s := range m.strangers {
		if !known(s.address) {
			all = append(all, attempt{s.address, s.err})
		}
	}
	if l.phase > linkDown && l.phase < linkReady && !known(l.address) {
		all = append(all, attempt{l.address, errNoAnswerYet})
	}
	for _, a := range all {
		tell(a.address, a.err.Error())
	}
	if b.Len() == 0 {
		return "no address was tried"
	}
	return b.String()
}

var (
	errNoAnswer    = errors.New("no answer in time")
	errNoAnswerYet = errors.New("no answer yet") // of an address that was not tried before
	errSilent      = errors.New("connection is silent, presumed dead")
)

// checkLink notices attempts that take too long and connections that are dead.
func (m *Machine) checkLink() {
	l := &m.link
	switch {
	case l.phase == linkDown:
	case l.phase != linkReady:
		if m.now >= l.phaseEnd {
			l.timeouts++
			l.bad, l.badUntil = l.address, m.now+badTime
			m.lostLink(errNoAnswer, "", 0)
		}
	case m.keepAliveLate():
		m.lostLink(errSilent, "", 0)
	default:
		due := m.probeDue()
		switch {
		case due == 0 || m.now < due:
		case !l.probed:
			l.probed = true
			m.probe()
		case m.now >= due+m.probeTime():
			m.lostLink(errSilent, "", 0)
		}
	}
}

// probeTime is after how long without a sign of life, while one is awaited, a
// connection is probed, and how long the probe may take.
func (m *Machine) probeTime() time.Duration {
	return min(max(m.lease.length/4, 250*time.Millisecond), 2*time.Second)
}

// probeDue is when the connection is to be probed, 0 if it need not.
func (m *Machine) probeDue() time.Duration {
	l := &m.link
	switch {
	case m.awaiting():
		return l.quiet + m.probeTime()
	case m.o.NoSession && len(m.watch.all) > 0:
		return l.quiet + idleProbe
	default:
		return 0
	}
}

// awaiting reports whether the service owes an answer at once.
func (m *Machine) awaiting() bool {
	return m.reqs.sent > 0 || m.reads.sent > 0 || m.watch.syncing > 0
}

// expect is called before something is sent that is to be answered at once.
func (m *Machine) expect() {
	if !m.awaiting() {
		m.link.quiet = m.now
		m.link.probed = false
	}
}

// probe asks for a sign of life.
func (m *Machine) probe() {
	if m.o.NoSession {
		// Nobody waits for the answer; that it comes is enough.
		m.send(&pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{
			Id: m.nextID(), Op: &pb.Read_Status{Status: &pb.ReadStatus{}}}}})
		return
	}
	m.sendKeepAlive(true)
}

func (m *Machine) linkWake() time.Duration {
	l := &m.link
	switch {
	case l.phase == linkDown:
		return l.nextDial
	case l.phase != linkReady:
		return l.phaseEnd
	}
	due := m.probeDue()
	if due > 0 && l.probed {
		due += m.probeTime()
	}
	if k := m.keepAliveEnd(); k > 0 && (due == 0 || k < due) {
		due = k
	}
	return due
}

// received takes a message of the service.
func (m *Machine) received(msg *pb.ServerMessage) {
	l := &m.link
	if m.ended() || l.phase <= linkDialing {
		return
	}
	l.quiet = m.now
	l.probed = false
	switch b := msg.GetBody().(type) {
	case *pb.ServerMessage_Hello:
		m.greeted(b.Hello)
	case *pb.ServerMessage_Opened:
		m.opened(b.Opened)
	case *pb.ServerMessage_Attached:
		m.attached(b.Attached)
	case *pb.ServerMessage_Kept:
		m.kept(b.Kept)
	case *pb.ServerMessage_Reply:
		m.replied(b.Reply)
	case *pb.ServerMessage_Read:
		m.readReply(b.Read)
	case *pb.ServerMessage_Watch:
		m.watchUpdate(b.Watch)
	case *pb.ServerMessage_Event:
		m.sessionEvent(b.Event)
	case *pb.ServerMessage_Leaving:
		m.lostLink(errors.New("the master gives up its office"), b.Leaving.GetMasterAddress(), 0)
	case *pb.ServerMessage_Error:
		m.refused(b.Error)
	}
}
