package sim

import "github.com/seed70370324/lockd/replog"

// faultHalfCut ends a connection between two replicas for one side: the other
// goes on with it until it finds out, or forever longer than a lease lasts.
func (w *World) faultHalfCut() {
	var up []*pair
	for _, c := range w.net.pairs {
		if c.up {
			up = append(up, c)
		}
	}
	if len(up) == 0 {
		return
	}
	s := w.faultRandom
	c := pick(s, up)
	knows, other, boot := c.a, c.b, c.bootA
	if s.chance(500_000) {
		knows, other, boot = c.b, c.a, c.bootB
	}
	if !knows.up || knows.boot != boot || !knows.connected[other.index] {
		return
	}
	w.happened(FaultHalfCut)
	w.trace.add(w.now, "half cut", uint64(knows.index), uint64(other.index))
	w.tell("net", "%s has lost its connection to %s, which does not know it", knows.name, other.name)
	knows.connected[other.index] = false
	knows.post(replog.PeerDisconnected{Peer: other.id})
	bootA, bootB := c.bootA, c.bootB
	w.after(s.skewed(100*millisecond, 5*second), func() {
		if c.up && c.bootA == bootA && c.bootB == bootB {
			w.disconnectPair(c)
		}
	})
}

// faultMasterCrash kills whatever replica is master.
func (w *World) faultMasterCrash() {
	if m := w.master(); m != nil {
		w.happened(FaultMasterKilled)
		w.crashAndRestart(m, "killed as the master")
	}
}
