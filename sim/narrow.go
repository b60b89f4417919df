package sim

import (
	"cmp"

	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/peer"
	"github.com/seed70370324/lockd/replog/peer/lane"
)

// Narrow links. A link is fast unless SetLink says otherwise, and costs nothing
// then: each message arrives by itself. Of a narrow one every byte is modelled:
// its messages go through the machine that the daemon's links run (package lane),
// in parts, and share one wire with the acknowledgements of the way back. It is
// a stream: nothing on it is lost but with the connection; while it is cut, what
// is under way waits, as behind a TCP connection.

const (
	// frameBytes is what a frame takes on the wire besides its payload.
	frameBytes = 8
	// sealBytes is what a message takes besides its encoding.
	sealBytes = 4
	// narrowQueue may wait on each lane, as in the daemon.
	narrowQueue = 32 << 20
	// narrowMessage limits a message in parts.
	narrowMessage = 64 << 20
	// narrowAgain is how often it is looked whether frames that are held up may arrive.
	narrowAgain = 20 * millisecond
	// arrivingEvery is how often a replica is told that parts arrive, at most.
	arrivingEvery = 50 * millisecond
	// overflow is what a full queue costs besides two delays: packets are lost, and
	// sent again.
	overflow = 200 * millisecond
)

// narrow is the way from one replica to another.
type narrow struct {
	w        *World
	from, to *process

	rate  int64 // bytes a second
	delay int64
	queue int64 // bytes that may wait for the wire; 0: no bound

	free     int64 // when all that was sent has left
	overflew int64 // until when a full queue is being made up for
	last     int64 // when the last frame arrives: none overtakes another when the link changes

	up         bool
	connection int // counts the connections: what was under way by an earlier one is gone
	sender     *lane.Sender
	receivers  [2]*lane.Receiver
	told       int64 // when the receiver last heard of parts

	held    []heldFrame // have arrived, but cannot be taken, in order
	looking bool
	leaving bool // it becomes fast when nothing is queued
}

// heldFrame has arrived and waits to be taken.
type heldFrame struct {
	connection int
	take       func()
}

// SetLink makes the way from one replica (by index) to another one of rate bytes
// a second with a delay, of which queue bytes may wait (0: any number): more are
// lost and sent again, which takes its time. A rate of 0 makes it fast again.
func (w *World) SetLink(from, to int, rate, delay, queue int64) {
	n := w.net.narrow[from][to]
	if rate <= 0 {
		if n != nil {
			n.rate, n.delay, n.queue, n.leaving = 1e9, w.plan.latencyLo, 0, true
			n.leave()
		}
		return
	}
	if n == nil {
		n = &narrow{w: w, from: w.replicas[from], to: w.replicas[to], sender: lane.NewSender(cmp.Or(w.plan.limits.linkBytes, narrowQueue))}
		w.net.narrow[from][to] = n
		n.connect(to < len(n.from.connected) && n.from.connected[to])
	}
	n.rate, n.delay, n.queue, n.leaving = rate, delay, queue, false
	w.trace.add(w.now, "link", uint64(from), uint64(to), uint64(rate), uint64(delay), uint64(queue))
	if w.telling() {
		w.tell("net", "the way from %s to %s carries %d bytes a second and takes %s", n.from.name, n.to.name, rate, tellTime(delay))
	}
}

// leave makes the link fast if nothing is queued on it any more. What is under
// way arrives.
func (n *narrow) leave() {
	if n.leaving && n.sender.Queued() == 0 {
		n.w.net.narrow[n.from.index][n.to.index] = nil
	}
}

// reconnected begins the ways between two replicas anew: their connection has
// come up, or has ended.
func (n *network) reconnected(a, b int, up bool) {
	for _, way := range [][2]int{{a, b}, {b, a}} {
		if l := n.narrow[way[0]][way[1]]; l != nil {
			l.connect(up)
			l.leave()
		}
	}
}

func (n *narrow) connect(up bool) {
	n.connection++
	n.up = up
	for _, id := range []lane.ID{lane.Main, lane.Bulk} {
		n.sender.Disconnected(id)
		if up {
			n.sender.Connected(id)
		}
		n.receivers[id] = lane.NewReceiver(narrowMessage)
	}
	n.report()
}

// send takes a message that is encoded.
func (n *narrow) send(s replog.Send, data []byte) {
	if !n.up {
		return
	}
	id := lane.Main
	if s.Bulk {
		id = lane.Bulk
	}
	n.speaks(peer.SpokenRank(s.Message))
	bulk := peer.IsBulk(s.Message)
	if size := len(data) + sealBytes; n.sender.Whole(id, size, bulk) {
		n.sender.Sent(id, size)
		boot := n.from.boot
		n.carry(size, func() {
			n.receivers[id].Whole(size)
			n.acknowledge(id)
			n.w.deliverPeer(n.from, boot, n.to, data)
		})
		return
	}
	// A message without room is dropped, as if it were lost.
	if !n.sender.Put(id, lane.Message{Payload: data, Bulk: bulk, Rank: peer.AcceptRank(s.Message)}) {
		n.w.counts.noRoom++
	}
	n.pump()
	n.report()
}

// speaks drops accepts of older ballots, on all ways from the replica.
func (n *narrow) speaks(r lane.Rank) {
	if !n.from.spoken.Less(r) {
		return
	}
	n.from.spoken = r
	for _, other := range n.w.net.narrow[n.from.index] {
		if other == nil {
			continue
		}
		if dropped := other.sender.Supersede(r); dropped > 0 {
			n.w.counts.superseded += dropped
			other.report()
		}
	}
}

// pump lets parts go as far as the window allows.
func (n *narrow) pump() {
	boot := n.from.boot
	for {
		id, part := n.sender.Next(nanos(n.w.now), nil)
		if part == nil {
			return
		}
		n.w.counts.parts++
		n.carry(len(part), func() { n.part(id, boot, part) })
	}
}

// part arrives.
func (n *narrow) part(id lane.ID, boot int, part []byte) {
	message, err := n.receivers[id].Part(part)
	if err != nil {
		n.w.fail("network", "a part from %s does not belong where %s finds it: %v", n.from.name, n.to.name, err)
		return
	}
	n.acknowledge(id)
	if message == nil {
		if n.w.now-n.told >= arrivingEvery {
			n.told = n.w.now
			n.to.post(replog.PeerArriving{Peer: n.from.id})
		}
		return
	}
	n.w.deliverPeer(n.from, boot, n.to, message)
}

// acknowledge tells the sender how much has arrived, by the way back.
func (n *narrow) acknowledge(id lane.ID) {
	upTo, _ := n.receivers[id].Ack()
	n.receivers[id].Acked(upTo)
	connection := n.connection
	take := func() {
		if n.connection != connection {
			return
		}
		if err := n.sender.Acked(nanos(n.w.now), id, upTo); err != nil {
			n.w.fail("network", "%s is told nonsense by %s: %v", n.from.name, n.to.name, err)
			return
		}
		n.pump()
		n.report()
		n.leave()
	}
	if back := n.w.net.narrow[n.to.index][n.from.index]; back != nil {
		back.carry(len(lane.AppendAck(nil, upTo)), take)
		return
	}
	n.w.after(n.w.plan.latencyLo, take)
}

// report tells the sending replica what is queued, if that is news.
func (n *narrow) report() {
	if queued, again := n.sender.Report(nanos(n.w.now)); again {
		n.from.post(replog.PeerSent{Peer: n.to.id, Queued: queued})
	}
}

// carry puts a frame on the wire, and has it taken at the other end.
func (n *narrow) carry(bytes int, take func()) {
	now := n.w.now
	n.free = max(n.free, now)
	waiting := (n.free - now) / (second / 1000) * n.rate / 1000
	if n.queue > 0 && waiting > n.queue && now >= n.overflew {
		n.free += overflow + 2*n.delay
		n.overflew = n.free
		n.w.counts.overflows++
	}
	n.free += (int64(bytes) + frameBytes) * second / n.rate
	connection := n.connection
	n.last = max(n.last, n.free+n.delay)
	n.w.at(n.last, func() {
		if n.connection == connection {
			n.arrived(heldFrame{connection, take})
		}
	})
}

// arrived has a frame taken, unless the way is cut or the receiver frozen: then
// it waits, and what comes behind it too.
func (n *narrow) arrived(f heldFrame) {
	if len(n.held) == 0 && n.open() {
		f.take()
		return
	}
	n.held = append(n.held, f)
	n.look()
}

func (n *narrow) open() bool { return !n.w.net.blocked(n.from.index, n.to.index) && n.to.pauses == 0 }

// look takes what was held up when that is possible again.
func (n *narrow) look() {
	if n.looking {
		return
	}
	n.looking = true
	n.w.after(narrowAgain, func() {
		n.looking = false
		for len(n.held) > 0 && n.open() {
			f := n.held[0]
			n.held = n.held[1:]
			if f.connection == n.connection {
				f.take()
			}
		}
		if len(n.held) > 0 {
			n.look()
		}
	})
}
