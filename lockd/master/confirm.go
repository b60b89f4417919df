package master

import (
	"fmt"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
)

// A proof of leadership is a round to a majority (Ongaro and Ousterhout call
// the scheme read index; here it is used for leases as well). All that arrived
// before a round begins shares it.

// waiter waits for a proof of leadership begun after it arrived. One of the
// fields after arrival is set.
type waiter struct {
	conn    *conn
	arrival time.Duration

	read   *wirepb.Read
	watch  *watch
	attach *wirepb.Attach
	keep   *wirepb.KeepAlive
	hand   *hand // of keep
	open   *opening
}

// rounds are the proofs asked for.
type rounds struct {
	lastID uint64
	gather []waiter // for the next round
	flying []round  // asked for, by ID
	proven []round  // proven; wait for their slot to be applied
	reads  int      // reads and watches among all of them
	bytes  int      // that their messages take besides
}

type round struct {
	id      uint64
	begun   time.Duration
	lease   time.Duration // the same in lease time
	waiters []waiter
	since   time.Duration
	slot    paxos.Slot
}

func (r *rounds) forget() { r.gather, r.flying, r.proven, r.reads, r.bytes = nil, nil, nil, 0, 0 }

const (
	// maxWaiting is how many reads, watches and openings of one connection may wait
	// for a proof. KeepAlives and Attaches come on top, as many as there can be
	// sessions on it: more are no honest client's.
	maxWaiting = 4096
	// maxWaitingBytes is the same of the bytes of a connection's messages, and
	// mostWaitingBytes that of an honest client's: sixteen KeepAlives of all
	// sessions that a connection may have.
	maxWaitingBytes  = 4 << 20
	mostWaitingBytes = 16 * 8 * maxKeepAlive
)

// weight is what a message takes besides its waiter. Its texts and lists are as
// long as a client likes: what is wrong with them is said with the answer.
func (w *waiter) weight() int {
	switch {
	case w.read != nil:
		return readBytes(w.read)
	case w.attach != nil:
		return len(w.attach.GetNonce())
	case w.keep != nil:
		return 8 * len(w.keep.GetSessions())
	}
	return 0
}

func readBytes(r *wirepb.Read) int {
	switch op := r.GetOp().(type) {
	case *wirepb.Read_Node:
		return len(op.Node.GetPath())
	case *wirepb.Read_Children:
		return len(op.Children.GetPath()) + len(op.Children.GetAfter())
	case *wirepb.Read_Locks:
		return len(op.Locks.GetPath()) + len(op.Locks.GetAfter())
	case *wirepb.Read_Check:
		return len(op.Check.GetSequencer())
	}
	return 0
}

// wait adds a waiter to the next round.
func (m *Master) wait(w waiter) {
	if n := w.conn.waiting; n >= maxWaiting+m.o.MaxSessionsPerConn {
		m.cutOff(w.conn, LimitConnReads, wirepb.ErrorCode_TOO_MANY, fmt.Sprintf(
			"%d messages of this connection wait for an answer; read the answers first", n))
		return
	}
	weight := w.weight()
	if n := w.conn.waitingBytes + weight; n > mostWaitingBytes {
		m.cutOff(w.conn, LimitConnReads, wirepb.ErrorCode_TOO_MANY, fmt.Sprintf(
			"messages of %d bytes of this connection wait for an answer; read the answers first", n))
		return
	}
	w.conn.waitingBytes += weight
	m.rounds.bytes += weight
	if w.read != nil || w.watch != nil {
		m.rounds.reads++
	}
	w.conn.waiting++
	m.rounds.gather = append(m.rounds.gather, w)
}

// ready reports whether a round can begin.
func (r *rounds) ready() bool { return len(r.gather) > 0 && len(r.flying) < maxConfirmRounds }

// begin starts a round for all that wait, if there may be another.
func (r *rounds) begin(now, lease time.Duration) []uint64 {
	if !r.ready() {
		return nil
	}
	r.lastID++
	r.flying = append(r.flying, round{id: r.lastID, begun: now, lease: lease, waiters: r.gather})
	r.gather = nil
	return []uint64{r.lastID}
}

// Confirmed tells that a proof has come. It also counts for the rounds begun
// before: whatever they wait for arrived earlier still.
func (m *Master) Confirmed(now time.Duration, c paxos.Confirm) {
	m.now = now
	if !m.serving() {
		return
	}
	r := &m.rounds
	n := 0
	for n < len(r.flying) && r.flying[n].id <= c.ID {
		f := r.flying[n]
		invariant.Assert(c.Since >= f.begun && c.Since <= now,
			"leadership is proven at an instant after the round began: begun %v, proven %v, now %v", f.begun, c.Since, now)
		f.since, f.slot = c.Since, c.Slot
		r.proven = append(r.proven, f)
		n++
	}
	clear(r.flying[:n])
	r.flying = r.flying[n:]
	if len(r.flying) == 0 {
		r.flying = nil
	}
	m.serveProven()
}

// serveProven answers what is proven and whose slot is applied.
func (m *Master) serveProven() {
	r := &m.rounds
	if len(r.proven) == 0 || !m.serving() {
		return
	}
	n := 0
	for ; n < len(r.proven) && r.proven[n].slot <= m.applied; n++ {
	}
	if n == 0 {
		return
	}
	ready := r.proven[:n:n]
	r.proven = r.proven[n:]
	if len(r.proven) == 0 {
		r.proven = nil
	}
	for i := range ready {
		for j := range ready[i].waiters {
			m.answer(&ready[i].waiters[j], ready[i].since)
		}
	}
}

// answer answers one waiter under a proof as of since.
func (m *Master) answer(w *waiter, since time.Duration) {
	if w.read != nil || w.watch != nil {
		m.rounds.reads--
	}
	w.conn.waiting--
	weight := w.weight()
	w.conn.waitingBytes -= weight
	m.rounds.bytes -= weight
	switch {
	case w.open != nil:
		// A repeat on a later connection has a waiter of its own.
		if o := w.open; o.conn == w.conn && o.arrival == w.arrival {
			o.proven, o.since = true, since
			m.opened(o)
		}
	case w.conn.closing:
		if w.hand != nil {
			w.hand.drop(m)
		}
	case w.read != nil:
		m.answerRead(w.conn, w.read, 0)
	case w.watch != nil:
		m.watches.start(m, w.watch)
	case w.attach != nil:
		m.attached(w)
	case w.keep != nil:
		m.kept(w, since)
	}
}
