package sim

import (
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
)

// said is what a replica has let out of its hands: promises and votes that
// others may have counted. After a crash it has to know them still; that is
// what "durable before visible" is for.
type said struct {
	promised paxos.Ballot
	voted    map[paxos.Slot]paxos.Ballot
}

// checkTaken looks at a vote of a replica that has lost its disk: it may still
// answer what was sent to it in its former life, but nobody may take that.
func (w *World) checkTaken(from, to *process, m *pb.PeerMessage) {
	px := m.GetPaxos()
	k := paxos.MessageKind(px.GetKind())
	if !from.emptied || !px.GetOk() || k != paxos.MsgPromise && k != paxos.MsgAccepted || to.rep == nil {
		return
	}
	for _, peer := range to.rep.Status(to.now()).GetPeers() {
		if peer.GetName() == from.name && peer.GetConnected() {
			w.fail("memory", "%s has lost its disk, and %s takes its vote all the same: %s", from.name, to.name, tellPaxos(px))
		}
	}
}

// checkSaid takes down what a message promises, and lets faults aim at it: a
// replica may die just after the message has left.
func (w *World) checkSaid(p *process, m *pb.PeerMessage) {
	px := m.GetPaxos()
	if px == nil {
		return
	}
	var aimed int64
	kind := FaultCrashAtVote
	switch paxos.MessageKind(px.GetKind()) {
	case paxos.MsgPromise:
		if px.GetOk() {
			if b := ballotOf(px.GetBallot()); p.said.promised.Less(b) {
				p.said.promised = b
			}
			aimed, kind = w.plan.crashAtPromise, FaultCrashAtPromise
		}
	case paxos.MsgAccept:
		if w.faulty && w.faultRandom.chance(w.plan.cutAtAccept) {
			w.cutAtAccept(p)
		}
	case paxos.MsgHeartbeatAck:
		// Its slot is a vote, too: for all up to there, at the ballot that it names.
		if px.GetOk() && px.GetSlot() > 0 {
			p.said.vote(px)
		}
	case paxos.MsgAccepted:
		if px.GetOk() {
			if b := ballotOf(px.GetBallot()); p.said.promised.Less(b) {
				p.said.promised = b
			}
			p.said.vote(px)
			aimed = w.plan.crashAtVote
		}
	}
	if w.faulty && aimed > 0 && w.faultRandom.chance(aimed) {
		boot := p.boot
		w.after(w.faultRandom.skewed(0, 2*millisecond), func() {
			if w.faulty && p.boot == boot && p.up {
				w.happened(kind)
				w.crashAndRestart(p, "just after it has promised or voted")
			}
		})
	}
}

// cutAtAccept cuts a leader off in the middle of its accepts: this one has left,
// those to the others have not.
func (w *World) cutAtAccept(p *process) {
	w.happened(FaultCutAtAccept)
	w.after(0, func() {
		if !w.faulty {
			return
		}
		var cuts [][2]int
		for _, q := range w.replicas {
			if q != p {
				cuts = append(cuts, [2]int{p.index, q.index}, [2]int{q.index, p.index})
			}
		}
		w.cutLinks(8, cuts, w.faultRandom.between(600*millisecond, 3*second))
	})
	for i := range w.net.partial {
		w.net.partial[i] = i == p.index
	}
	w.after(0, func() { clear(w.net.partial) })
}

// vote takes down an Accepted. A slot that the sender knows to be chosen may be
// held at an older ballot: its value cannot change any more.
func (s *said) vote(m *pb.PaxosMessage) {
	if s.voted == nil {
		s.voted = map[paxos.Slot]paxos.Ballot{}
	}
	slot, b := paxos.Slot(m.GetSlot()), ballotOf(m.GetBallot())
	if m.GetSlot() <= m.GetChosen() {
		b = paxos.Ballot{}
	}
	if old, ok := s.voted[slot]; !ok || old.Less(b) {
		s.voted[slot] = b
	}
}

// checkRemembers holds what a replica finds on its disk against what it has
// said in its earlier lives.
func (p *process) checkRemembers(o *storage.Opened) {
	w := p.w
	if o.Paxos.Promised.Less(p.said.promised) {
		p.tellDisk(o, o.Paxos.Chosen)
		w.fail("memory", "%s had promised %v and after its restart knows only of %v", p.name, p.said.promised, o.Paxos.Promised)
		return
	}
	accepted := map[paxos.Slot]*paxos.Entry{}
	for i := range o.Paxos.Entries {
		accepted[o.Paxos.Entries[i].Slot] = &o.Paxos.Entries[i]
	}
	lowest := paxos.Slot(0)
	for slot, ballot := range p.said.voted {
		e := accepted[slot]
		if slot > o.Paxos.Applied && (e == nil || (!e.Chosen && e.Ballot.Less(ballot))) && (lowest == 0 || slot < lowest) {
			lowest = slot
		}
	}
	if lowest != 0 {
		p.tellDisk(o, lowest)
		w.fail("memory", "%s had voted in slot %d at %v and after its restart does not know it", p.name, lowest, p.said.voted[lowest])
	}
}

// tellDisk says what a disk holds around a slot, ahead of a failed check.
func (p *process) tellDisk(o *storage.Opened, slot paxos.Slot) {
	if !p.w.telling() {
		return
	}
	p.w.tell(p.name, "its disk holds: promised %v, chosen %d, snapshot %d", o.Paxos.Promised, o.Paxos.Chosen, o.Paxos.Applied)
	for i := range o.Paxos.Entries {
		if e := &o.Paxos.Entries[i]; e.Slot+4 >= slot && e.Slot <= slot+4 {
			p.w.tell(p.name, "its disk holds: slot %d at %v (chosen %v), %s", e.Slot, e.Ballot, e.Chosen, tellValue(&e.Value))
		}
	}
}

func ballotOf(b *pb.Ballot) paxos.Ballot {
	return paxos.Ballot{Round: b.GetRound(), Replica: paxos.ReplicaID(b.GetReplica())}
}
