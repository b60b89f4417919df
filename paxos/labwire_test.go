package paxos_test

import (
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// wires give a lab links of a rate: each replica has an uplink, which its links
// to the others share in turn. A bulk message goes in parts, of which only a
// window is on its way before the other end has acknowledged it; small messages
// go between the parts. This is what package replog does with its connections.
type wires struct {
	l      *lab
	rate   int64 // bytes a second of an uplink
	delay  time.Duration
	part   int
	window int
	silent bool // links report nothing
	ups    []*uplink
	bytes  int64 // sent in all
}

type uplink struct {
	from  paxos.ReplicaID
	busy  bool
	turn  int // whose part was the last
	small []*packet
	lanes []*lane // by receiver
}

// lane is what is to go to one receiver, in parts.
type lane struct {
	to      paxos.ReplicaID
	queue   []*packet
	left    int // of queue[0], not yet sent
	onWay   int // sent and not acknowledged
	queued  int // handed over and not acknowledged
	broken  int // how often the connection broke
	arrived time.Duration
	stalled bool // no part is sent
}

// bytesOf is about what a message takes on the wire.
func bytesOf(m *paxos.Message) int {
	n := 60
	for i := range m.Entries {
		n += 30
		for _, c := range m.Entries[i].Value.Commands {
			n += 4 + len(c)
		}
	}
	return n
}

// wired gives the lab links of a rate in bits a second and a delay one way.
func (l *lab) wired(bits int64, delay time.Duration) *wires {
	w := &wires{l: l, rate: bits / 8, delay: delay, part: 16 << 10, window: 64 << 10}
	for _, n := range l.nodes {
		u := &uplink{from: n.id}
		for _, o := range l.nodes {
			u.lanes = append(u.lanes, &lane{to: o.id})
		}
		w.ups = append(w.ups, u)
	}
	l.wires = w
	return w
}

func (w *wires) put(k *packet) {
	u := w.ups[k.m.From-1]
	if k.m.Kind.Bulk() {
		ln := u.lanes[k.m.To-1]
		if len(ln.queue) == 0 {
			ln.left = bytesOf(&k.m)
		}
		ln.queue = append(ln.queue, k)
		ln.queued += bytesOf(&k.m)
	} else {
		u.small = append(u.small, k)
	}
	w.next(u)
}

// next sends the next small message, or the next part, if the uplink is free.
func (w *wires) next(u *uplink) {
	if u.busy {
		return
	}
	if len(u.small) > 0 {
		k := u.small[0]
		u.small = u.small[1:]
		w.send(u, bytesOf(&k.m), func() { w.deliver(k) })
		return
	}
	for i := range u.lanes {
		turn := (u.turn + 1 + i) % len(u.lanes)
		ln := u.lanes[turn]
		if len(ln.queue) == 0 || ln.stalled || ln.onWay >= w.window {
			continue
		}
		u.turn = turn
		n := min(w.part, ln.left)
		ln.left -= n
		ln.onWay += n
		k, broken := ln.queue[0], ln.broken
		whole := ln.left == 0
		if whole {
			if ln.queue = ln.queue[1:]; len(ln.queue) > 0 {
				ln.left = bytesOf(&ln.queue[0].m)
			}
		}
		w.send(u, n, func() {
			if broken == ln.broken {
				w.arrive(u, ln, k, n, whole)
			}
		})
		return
	}
}

func (w *wires) send(u *uplink, bytes int, arrive func()) {
	u.busy = true
	w.bytes += int64(bytes)
	took := time.Duration(int64(bytes) * int64(time.Second) / w.rate)
	w.l.later(took+w.delay, arrive)
	w.l.later(took, func() {
		u.busy = false
		w.next(u)
	})
}

func (w *wires) deliver(k *packet) {
	w.l.net = append(w.l.net, k)
	w.l.cell.deliver(len(w.l.net)-1, false)
}

// arrive: a part is there, and its acknowledgement goes back.
func (w *wires) arrive(u *uplink, ln *lane, k *packet, n int, whole bool) {
	switch to := w.l.node(ln.to); {
	case whole:
		w.deliver(k)
	case to.r != nil && !w.silent && w.l.now-ln.arrived >= 20*time.Millisecond:
		ln.arrived = w.l.now
		w.l.step(to, paxos.Arriving{From: u.from})
	}
	broken := ln.broken
	w.l.later(w.delay, func() {
		if broken != ln.broken {
			return
		}
		ln.onWay -= n
		ln.queued -= n
		w.report(u, ln)
		w.next(u)
	})
}

func (w *wires) report(u *uplink, ln *lane) {
	if n := w.l.node(u.from); n.r != nil && !w.silent {
		w.l.step(n, paxos.Sent{To: ln.to, Queued: ln.queued})
	}
}

// cut breaks the connection from one replica to another: what is on its way, and
// what waits, is lost.
func (w *wires) cut(from, to paxos.ReplicaID) {
	u := w.ups[from-1]
	ln := u.lanes[to-1]
	ln.broken++
	ln.queue, ln.left, ln.onWay, ln.queued = nil, 0, 0, 0
	w.report(u, ln)
}

// down takes a replica off the network, with all that is on its way.
func (w *wires) down(id paxos.ReplicaID) {
	w.ups[id-1].small = nil
	for _, n := range w.l.nodes {
		if n.id != id {
			w.cut(id, n.id)
			w.cut(n.id, id)
		}
	}
}
