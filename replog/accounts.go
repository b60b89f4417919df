package replog

import "github.com/seed70370324/lockd/paxos"

// InFlight counts what is under way in a node, paxos included. All of it is zero
// at rest.
type InFlight struct {
	paxos.InFlight
	Flying   int // bytes that a leader has sent to peers it is connected to, and that they have not accepted
	Records  int // written and not said to be durable
	Saving   int // snapshots that are being saved
	Fetching int // and fetched, or put in the place of the log
	Giving   int // and pieces that peers wait for
}

// inFlight returns what is under way.
func (n *Node) inFlight(px *paxos.Status) InFlight {
	f := InFlight{InFlight: px.InFlight, Records: int(n.sequence - min(n.durable, n.sequence))}
	for _, p := range px.Peers {
		if peer := n.peer(p.ID); peer != nil && peer.speaks() {
			f.Flying += p.Flying
		}
	}
	if n.keep.saving {
		f.Saving++
	}
	if n.fetch.active || n.fetch.meta != nil {
		f.Fetching++
	}
	for _, p := range n.peers {
		if p.speaks() && (p.serve.reading || p.serve.waiting != nil) {
			f.Giving++
		}
	}
	return f
}
