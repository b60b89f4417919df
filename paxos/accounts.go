package paxos

import "github.com/seed70370324/lockd/internal/invariant"

// InFlight counts what is under way in a replica. At rest all of it is zero, but for
// the bytes that were sent to a follower that is down (PeerProgress.Flying): what was
// sent to it counts until it has answered or is known to need it from elsewhere.
type InFlight struct {
	Commands, Bytes int // that wait for a slot
	Slots           int // of a leader, proposed and not chosen
	Writes          int // records and messages behind them, handed out and not durable
	Unflushed       int // bytes of these, and of what is not handed out yet
	Held            int // messages and entries that wait for room at the disk
	Reads           int // proofs of the lead that were asked for
	Salvaged        int // values that a campaign has fetched and not used
}

func (r *Replica) inFlight() InFlight {
	f := InFlight{Writes: len(r.owed), Unflushed: r.unflushed, Held: len(r.records) + len(r.afterBox), Salvaged: len(r.salvage)}
	if l := r.lead; l != nil {
		f.Commands, f.Bytes, f.Reads = len(l.pending), l.pendingBytes, len(l.reads)
		f.Slots = int(l.next - 1 - r.chosen)
		if l.round != nil {
			f.Reads += len(l.round.ids)
		}
	}
	return f
}

// checkAccounts compares each count with what it counts.
func (r *Replica) checkAccounts(f *invariant.Faults) {
	bytes, unflushed, gathered := 0, r.gathered, 0
	for i := range r.log.e {
		bytes += r.log.e[i].size
	}
	for i := range r.owed {
		unflushed += r.owed[i].bytes
	}
	for i := range r.records {
		gathered += r.records[i].Value.size()
	}
	f.Count("bytes of the log in memory", r.log.bytes, bytes)
	f.Count("bytes under way to the disk", r.unflushed, unflushed)
	f.Count("bytes gathered for the disk", r.gathered, gathered)
	l := r.lead
	if l == nil {
		return
	}
	pending := 0
	for _, c := range l.pending {
		pending += len(c)
	}
	f.Count("bytes that wait for a slot", l.pendingBytes, pending)
	for _, p := range l.peers {
		flying := 0
		for i := range p.flights {
			x := &p.flights[i]
			flying += x.bytes
			f.That(x.slot > p.accepted && x.slot <= p.sent, "a slot is under way to a replica that has accepted it or was not sent it: %+v", x)
		}
		f.Count("bytes under way to a replica", p.flying, flying)
	}
}
