package sim

import (
	"slices"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
)

// network carries messages between machines. Machines are numbered: replicas
// first, then clients. cut[a][b] counts the faults that keep a's messages from
// b; the way back is counted apart, so partitions may be one-way.
type network struct {
	cut  [][]int
	last [][]int64 // when the last ordered message from a reaches b
	bulk [][]int64 // the same on the bulk lane
	// stretched[a][b], if not 0, is since when messages from a to b take longer
	// and longer: what was sent within a second arrives within three.
	stretched [][]int64
	pairs     []*pair
	// narrow[a][b] is the way from replica a to b while it is modelled by bytes.
	narrow [][]*narrow
	// partial[a] is set while a machine that is being cut off sends its last
	// batch: nothing more of it arrives.
	partial []bool
}

func newNetwork(machines int) *network {
	n := &network{partial: make([]bool, machines)}
	for i := 0; i < machines; i++ {
		n.cut = append(n.cut, make([]int, machines))
		n.last = append(n.last, make([]int64, machines))
		n.bulk = append(n.bulk, make([]int64, machines))
		n.stretched = append(n.stretched, make([]int64, machines))
		n.narrow = append(n.narrow, make([]*narrow, machines))
	}
	return n
}

func (n *network) blocked(from, to int) bool { return n.cut[from][to] > 0 }

func (w *World) latency() int64 { return w.netRandom.skewed(w.plan.latencyLo, w.plan.latencyHi) }

// sendPeer sends a message from one replica to another. Unlike TCP it may lose,
// double and reorder single messages: the protocol has to bear all of that, for
// a connection that breaks and comes back does it too.
func (w *World) sendPeer(p *process, s replog.Send) {
	to := w.processByID(s.To)
	if to == nil || to == p {
		w.fail("network", "%s sent a message to replica %d, which is not in the cell", p.name, s.To)
		return
	}
	cutOff := w.net.partial[p.index]
	w.checkSaid(p, s.Message)
	data, err := s.Message.MarshalVT()
	if err != nil {
		w.fail("network", "%s sent a message that cannot be encoded: %v", p.name, err)
		return
	}
	copies := 1
	if w.faulty {
		switch {
		case w.netRandom.chance(w.plan.drop):
			copies = 0
			w.happened(FaultLostMessage)
		case w.netRandom.chance(w.plan.duplicate):
			copies = 2
			w.happened(FaultDoubledMessage)
		}
	}
	if w.net.blocked(p.index, to.index) || cutOff || w.deceived(p, to) {
		copies = 0
	}
	w.traceSend(p, to, s.Message, copies)
	w.answerOddly(p, to, s.Message)
	w.dieAtFounding(p, paxos.MessageKind(s.Message.GetPaxos().GetKind()))
	if n := w.net.narrow[p.index][to.index]; n != nil {
		for ; copies > 0; copies-- {
			n.send(s, data)
		}
		return
	}
	boot := p.boot
	for ; copies > 0; copies-- {
		w.at(w.arrival(p, to, s.Bulk), func() { w.deliverPeer(p, boot, to, data) })
	}
}

// arrival draws when a message gets there.
func (w *World) arrival(p, to *process, bulk bool) int64 {
	at := w.now + w.latency()
	if since := w.net.stretched[p.index][to.index]; since != 0 {
		at += 2 * (w.now - since)
	}
	if w.faulty && !w.plan.ordered {
		if w.netRandom.chance(w.plan.late) {
			at += w.netRandom.below(w.plan.lateMost)
			w.happened(FaultLateMessage)
		}
		return at
	}
	lane := w.net.last
	if bulk {
		lane = w.net.bulk
	}
	at = max(at, lane[p.index][to.index]+1)
	lane[p.index][to.index] = at
	return at
}

// deliverPeer: what was under way when the network was cut may arrive still,
// much later, and make a master believe that it is heard. So may what the sender
// sent in an earlier life.
func (w *World) deliverPeer(p *process, boot int, to *process, data []byte) {
	if !to.up || !to.connected[p.index] {
		return
	}
	if p.up && p.boot != boot {
		w.happened(FaultOldBoot)
	}
	m := new(pb.PeerMessage)
	if err := m.UnmarshalVT(data); err != nil {
		w.fail("network", "%s sent a message that cannot be decoded: %v", p.name, err)
		return
	}
	if p.boot == boot {
		w.checkTaken(p, to, m)
	}
	to.post(replog.PeerReceived{Peer: p.id, Message: m})
}

func (w *World) traceSend(p, to *process, m *pb.PeerMessage, copies int) {
	kind, numbers := describePeer(w.numbers[:0], m)
	w.trace.add(w.now, kind, append(numbers, uint64(p.index), uint64(to.index), uint64(copies))...)
	if w.telling() {
		how := ""
		switch copies {
		case 0:
			how = "  (lost)"
		case 2:
			how = "  (twice)"
		}
		kind, text := idlePeer(m)
		if w.story.again(w, p.name, to.name, kind, text+how) {
			return
		}
		w.tell(p.name, "-> %s %s%s", to.name, tellPeer(m), how)
	}
}

// pair is the connection between two replicas, as both see it.
type pair struct {
	a, b       *process
	bootA      int
	bootB      int
	up         bool
	blockedFor int64 // since when neither way or one way is blocked, 0: is not
	patience   int64
	deceived   *process // speaks with a stranger in the other's name; nil: neither does
}

// deceived reports whether a replica has a stranger's connection for another's.
func (w *World) deceived(p, by *process) bool {
	return slices.ContainsFunc(w.net.pairs, func(c *pair) bool {
		return c.deceived == p && (c.a == by || c.b == by)
	})
}

const pairEvery = 60 * millisecond

// watchPair looks now and then how the connection of a pair is, as a
// transport's timers do: it comes up when both run and reach each other, and
// breaks when one has restarted or nothing has come through for long.
func (w *World) watchPair(c *pair) {
	w.after(w.netRandom.between(pairEvery/2, pairEvery*2), func() { w.watchPair(c) })
	same := c.a.up && c.b.up && c.a.boot == c.bootA && c.b.boot == c.bootB
	blocked := w.net.blocked(c.a.index, c.b.index) || w.net.blocked(c.b.index, c.a.index)
	if !blocked {
		c.blockedFor = 0
	} else if c.blockedFor == 0 {
		c.blockedFor = w.now
		c.patience = w.netRandom.between(200*millisecond, 5*second)
	}
	if c.up && (!same || (blocked && w.now-c.blockedFor > c.patience)) {
		w.disconnectPair(c)
	}
	if !c.up && c.a.up && c.b.up && !blocked && c.deceived == nil {
		c.up, c.bootA, c.bootB = true, c.a.boot, c.b.boot
		w.trace.add(w.now, "peers connected", uint64(c.a.index), uint64(c.b.index))
		w.tell("net", "%s and %s are connected", c.a.name, c.b.name)
		c.a.connected[c.b.index], c.b.connected[c.a.index] = true, true
		w.net.reconnected(c.a.index, c.b.index, true)
		c.a.post(replog.PeerConnected{Hello: c.b.hello()})
		c.b.post(replog.PeerConnected{Hello: c.a.hello()})
	}
}

func (w *World) disconnectPair(c *pair) {
	if !c.up {
		return
	}
	c.up = false
	w.net.reconnected(c.a.index, c.b.index, false)
	w.trace.add(w.now, "peers disconnected", uint64(c.a.index), uint64(c.b.index))
	w.tell("net", "%s and %s have lost their connection", c.a.name, c.b.name)
	for _, side := range []struct {
		p, other *process
		boot     int
	}{{c.a, c.b, c.bootA}, {c.b, c.a, c.bootB}} {
		if side.p.up && side.p.boot == side.boot && side.p.connected[side.other.index] {
			side.p.connected[side.other.index] = false
			side.p.post(replog.PeerDisconnected{Peer: side.other.id})
		}
	}
}

func (w *World) processByID(id paxos.ReplicaID) *process {
	if id == 0 || int(id) > len(w.replicas) {
		return nil
	}
	return w.replicas[id-1]
}
