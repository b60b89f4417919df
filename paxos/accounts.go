package paxos

import "fmt"

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
func (r *Replica) checkAccounts() error {
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
	switch {
	case bytes != r.log.bytes:
		return fmt.Errorf("paxos: the log in memory counts %d bytes and has %d", r.log.bytes, bytes)
	case unflushed != r.unflushed:
		return fmt.Errorf("paxos: %d bytes count as not durable, %d are under way to the disk", r.unflushed, unflushed)
	case gathered != r.gathered:
		return fmt.Errorf("paxos: %d bytes count as gathered for the disk, %d are", r.gathered, gathered)
	}
	l := r.lead
	if l == nil {
		return nil
	}
	pending := 0
	for _, c := range l.pending {
		pending += len(c)
	}
	if pending != l.pendingBytes {
		return fmt.Errorf("paxos: %d bytes count as waiting for a slot, %d do", l.pendingBytes, pending)
	}
	for _, p := range l.peers {
		flying := 0
		for i := range p.flights {
			x := &p.flights[i]
			flying += x.bytes
			if x.slot <= p.accepted || x.slot > p.sent {
				return fmt.Errorf("paxos: slot %d is under way to replica %d, which has accepted %d and was sent %d", x.slot, p.id, p.accepted, p.sent)
			}
		}
		if flying != p.flying {
			return fmt.Errorf("paxos: %d bytes count as under way to replica %d, %d are", p.flying, p.id, flying)
		}
	}
	return nil
}
