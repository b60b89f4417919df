package sim

import (
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
)

// mood is what a turn has left open, as the daemon's mailbox knows it: what else
// comes waits for the next turn, or the next tick.
type mood struct {
	gather int // so many requests wait for each other
	flush  bool
	votes  paxos.Slot // above it votes count
}

// feels asks the replica what it awaits.
func (p *process) feels() {
	if !p.w.plan.lazyLoop {
		return
	}
	p.mood.flush, p.mood.votes = p.rep.Awaits()
	p.mood.gather = p.rep.Gathering(p.now())
}

// matters reports whether an event that was just put wakes the loop.
func (p *process) matters(ev replica.Event) bool {
	if !p.w.plan.lazyLoop || p.rep == nil {
		return true
	}
	switch ev := ev.(type) {
	case replog.AppendDone:
		return p.mood.flush
	case replog.PeerReceived:
		m := ev.Message.GetPaxos()
		return m.GetKind() != uint32(paxos.MsgAccepted) || !m.GetOk() || paxos.Slot(m.GetSlot()) > p.mood.votes
	case replica.ConnReceived:
		if _, ok := ev.Message.GetBody().(*pb.ClientMessage_Request); ok {
			return len(p.mailbox) >= p.mood.gather
		}
	}
	return true
}
