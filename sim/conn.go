package sim

import (
	"errors"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
)

// conn is a client's connection to a replica and behaves like TCP: what is
// sent arrives in order and once, or the connection breaks and takes all that
// was under way with it. While the network is cut it stalls, as TCP does, and
// breaks only after a while. The two sides need not notice at the same time.
type conn struct {
	w      *World
	id     replica.ConnID
	c      *client
	p      *process
	boot   int // of the process
	life   int // of the client's machine
	up     pipe
	down   pipe
	broken bool
	opened bool // the replica knows it
	stands bool // the client knows that it stands
	closed bool // the replica has been told that it is gone
	ask    bool // it only asks who is there

	// See check_expiry.go.
	renewals   []renewal
	attached   bool  // a session is attached to it, as far as the replica knows
	answeredAt int64 // when what keeps the session alive was answered last
}

// pipe is one direction.
type pipe struct {
	queue   [][]byte
	fin     bool  // ends when what is queued has gone
	last    int64 // when the last piece arrived
	stalled int64 // since when it stalls
	pumping bool
}

var errReset = errors.New("connection reset")

const stallRetry = 80 * millisecond

// dial connects a client's machine to an address.
func (c *client) dial(address string) {
	w := c.w
	p := w.processByAddress(address)
	if p == nil {
		w.fail("client", "%s dials the address %q, which nobody has", c.name, address)
		return
	}
	w.nextConn++
	n := &conn{w: w, id: w.nextConn, c: c, p: p, life: c.life}
	c.conn, c.dialed = n, n
	if w.telling() {
		w.tell(c.name, "dials %s (connection %d)", p.name, n.id)
	}
	w.after(w.latency(), func() { n.arrive() })
	c.freezeDialing()
}

// arrive is the client's SYN reaching the replica's machine.
func (n *conn) arrive() {
	w := n.w
	if n.broken {
		return
	}
	if w.net.blocked(n.c.index, n.p.index) || w.net.blocked(n.p.index, n.c.index) {
		w.after(w.netRandom.between(second, 3*second), func() { n.refuse(errors.New("connection timed out")) })
		return
	}
	if !n.p.up {
		w.after(w.latency(), func() { n.refuse(errors.New("connection refused")) })
		return
	}
	n.boot, n.opened = n.p.boot, true
	n.p.conns[n.id] = n
	n.p.connOrder = append(n.p.connOrder, n)
	n.p.post(replica.ConnOpened{Conn: n.id, Remote: n.c.name + ":9"})
	w.after(w.latency(), func() {
		switch {
		case !n.isCurrent():
		case n.ask:
			n.sendUp(machine.Hello(cellName, "asks"))
		default:
			n.stands = true
			n.c.post(fromConn{n, machine.Connected{}})
		}
	})
}

func (n *conn) refuse(err error) {
	if n.ask {
		n.answered(nil, err)
	} else if n.isCurrent() {
		n.broken = true
		n.c.conn = nil
		n.c.post(fromConn{n, machine.ConnectFailed{Err: err}})
	}
}

func (n *conn) isCurrent() bool {
	return !n.broken && (n.ask || n.c.conn == n) && n.c.life == n.life
}

// sendUp sends a message of the client.
func (n *conn) sendUp(m *pb.ClientMessage) {
	data, err := m.MarshalVT()
	if err != nil {
		n.w.fail("client", "%s sent a message that cannot be encoded: %v", n.c.name, err)
		return
	}
	n.p.checkFrame(n.c, data)
	n.up.queue = append(n.up.queue, data)
	n.pump(&n.up)
}

// sendDown sends a message of the replica.
func (n *conn) sendDown(m *pb.ServerMessage) {
	data, err := m.MarshalVT()
	if err != nil {
		n.w.fail("replica", "%s sent a client a message that cannot be encoded: %v", n.p.name, err)
		return
	}
	if n.broken {
		return
	}
	n.answers(m)
	n.down.queue = append(n.down.queue, data)
	n.pump(&n.down)
}

// finishDown closes the connection once what is queued has left.
func (n *conn) finishDown(reason string) {
	if n.w.telling() {
		n.w.tell(n.p.name, "closes connection %d of %s: %s", n.id, n.c.name, reason)
	}
	n.down.fin = true
	n.pump(&n.down)
}

// pump moves the head of a pipe, one piece at a time.
func (n *conn) pump(d *pipe) {
	if d.pumping || n.broken || (len(d.queue) == 0 && !d.fin) {
		return
	}
	d.pumping = true
	at := max(n.w.now+n.w.latency(), d.last+1)
	d.last = at
	n.w.at(at, func() {
		d.pumping = false
		n.arrived(d)
	})
}

func (n *conn) arrived(d *pipe) {
	w := n.w
	if n.broken {
		return
	}
	from, to := n.c.index, n.p.index
	if d == &n.down {
		from, to = to, from
	}
	if w.net.blocked(from, to) {
		if d.stalled == 0 {
			d.stalled = w.now
		}
		if w.now-d.stalled > 4*second {
			n.breakUp("stalled too long", 0, 0)
			return
		}
		d.pumping = true
		w.after(w.netRandom.between(stallRetry/2, stallRetry*2), func() {
			d.pumping = false
			n.arrived(d)
		})
		return
	}
	d.stalled = 0
	if d == &n.down && n.c.raw.reads(n) > w.now {
		d.pumping = true
		w.at(n.c.raw.reads(n), func() {
			d.pumping = false
			n.arrived(d)
		})
		return
	}
	// All that is queued by now arrives together, as it would in one segment.
	batch := d.queue
	d.queue = nil
	for _, data := range batch {
		n.deliver(d, data)
	}
	if d.fin && !n.broken {
		n.breakUp("closed", 0, 0)
	}
	n.pump(d)
}

func (n *conn) deliver(d *pipe, data []byte) {
	w := n.w
	if d == &n.up {
		m := n.decodeUp(data)
		if m == nil {
			return
		}
		kind, numbers := describeUp(w.numbers[:0], m)
		w.trace.add(w.now, kind, append(numbers, uint64(n.id))...)
		if w.telling() {
			kind, text := idleUp(m)
			if !w.story.again(w, n.c.name, n.p.name, kind, text) {
				w.tell(n.c.name, "-> %s %s", n.p.name, tellUp(m))
			}
		}
		n.hears(m)
		n.p.post(replica.ConnReceived{Conn: n.id, Message: m})
		return
	}
	m := new(pb.ServerMessage)
	if err := m.UnmarshalVT(data); err != nil {
		w.fail("replica", "%s sent a client what cannot be decoded: %v", n.p.name, err)
		return
	}
	kind, numbers := describeDown(w.numbers[:0], m)
	w.trace.add(w.now, kind, append(numbers, uint64(n.id))...)
	if w.telling() {
		kind, text := idleDown(m)
		if !w.story.again(w, n.p.name, n.c.name, kind, text) {
			w.tell(n.p.name, "-> %s %s", n.c.name, tellDown(m))
		}
	}
	switch {
	case !n.isCurrent():
	case n.ask:
		n.answered(m, nil)
	default:
		n.c.post(fromConn{n, machine.Received{Message: m}})
	}
}

// decodeUp decodes what a client sent, once: decoding adds to the lists that a
// message has already. It returns nil for what the service does not act on.
func (n *conn) decodeUp(data []byte) *pb.ClientMessage {
	m := new(pb.ClientMessage)
	if n.c.raw != nil {
		if !n.c.raw.decodes(n, m, data) {
			return nil
		}
		return m
	}
	if err := m.UnmarshalVT(data); err != nil {
		n.w.fail("client", "%s sent what cannot be decoded: %v", n.c.name, err)
		return nil
	}
	return m
}

// breakUp ends the connection. Each side learns it after its own wait.
func (n *conn) breakUp(why string, clientWait, serverWait int64) {
	if n.broken {
		return
	}
	w := n.w
	n.broken = true
	w.trace.add(w.now, "connection broken", uint64(n.id))
	if w.telling() {
		w.tell("net", "connection %d of %s and %s is broken (%s)", n.id, n.c.name, n.p.name, why)
	}
	w.after(clientWait+w.latency(), func() {
		if n.ask {
			n.answered(nil, errReset)
		} else if n.c.conn == n && n.c.life == n.life {
			n.c.conn = nil
			if n.stands {
				n.c.post(fromConn{n, machine.Disconnected{Err: errReset}})
			} else {
				n.c.post(fromConn{n, machine.ConnectFailed{Err: errReset}})
			}
		}
	})
	w.after(serverWait+w.latency(), n.tellServer)
}

// hangUp is the client's own end of the connection.
func (n *conn) hangUp(serverWait int64) {
	n.c.conn = nil
	if n.broken {
		return
	}
	n.broken = true
	n.w.trace.add(n.w.now, "hang up", uint64(n.id))
	serverWait += n.sendLate()
	n.w.after(serverWait+n.w.latency(), n.tellServer)
}

// sendLate lets what the client has sent on a connection that it gives up arrive
// all the same, perhaps when it has another one. It returns how long that takes.
func (n *conn) sendLate() int64 {
	w := n.w
	if len(n.up.queue) == 0 || !n.opened || !w.faulty || !w.netRandom.chance(w.plan.load.kinds.lateSends) {
		return 0
	}
	w.happened(FaultLateSend)
	late := w.netRandom.between(0, 4*second)
	w.after(late, func() {
		if n.closed || !n.p.up || n.p.boot != n.boot {
			return
		}
		for _, data := range n.up.queue {
			n.deliver(&n.up, data)
		}
	})
	return late
}

func (n *conn) tellServer() {
	p := n.p
	if !n.opened || n.closed || !p.up || p.boot != n.boot {
		return
	}
	n.closed = true
	delete(p.conns, n.id)
	for i, o := range p.connOrder {
		if o == n {
			p.connOrder = append(p.connOrder[:i:i], p.connOrder[i+1:]...)
			break
		}
	}
	p.post(replica.ConnClosed{Conn: n.id})
}

// serverDied: the process is gone. If only it died, its kernel says so; if the
// whole machine did, the client finds out when it next waits in vain.
func (n *conn) serverDied() {
	wait := int64(0)
	if n.w.netRandom.chance(300_000) {
		wait = n.w.netRandom.between(200*millisecond, 4*second)
	}
	n.closed = true
	n.breakUp("the replica died", wait, 0)
}

func (w *World) processByAddress(a string) *process {
	for _, p := range w.replicas {
		if p.address() == a {
			return p
		}
	}
	for _, s := range w.strangers {
		if s.p.address() == a {
			return s.p
		}
	}
	return nil
}
