package paxos

import (
	"slices"
	"time"
)

// owedWrite remembers what becomes durable with a sequence number.
type owedWrite struct {
	sequence uint64
	at       time.Duration // when it was handed out
	ballot   Ballot
	upTo     Slot
	promise  Ballot
	chosen   Slot
	bytes    int
}

// owedMost bounds how many writes are handed out to the disk before it has
// finished any. What comes then gathers: entries until diskBehind, and of
// promises and votes the last, which is all that still counts.
const owedMost = 256

// holdsBack reports whether nothing more is handed out to the disk for now.
func (r *Replica) holdsBack() bool { return len(r.owed) >= owedMost && !r.noted }

// dropPrepares forgets prepares of a campaign that is over.
func (r *Replica) dropPrepares() {
	r.afterBox = slices.DeleteFunc(r.afterBox, func(m Message) bool { return m.Kind == MsgPrepare })
}

// persisted says that everything up to sequence is durable: own promise and
// own accepts count from now on.
func (r *Replica) persisted(sequence uint64) {
	done := 0
	for ; done < len(r.owed) && r.owed[done].sequence <= sequence; done++ {
		w := r.owed[done]
		if w.ballot != r.durBallot {
			r.durBallot, r.durUpTo = w.ballot, 0
		}
		r.durSequence = w.sequence
		r.flush.sample(r.now, r.now-w.at)
		r.durUpTo = max(r.durUpTo, w.upTo)
		r.durChosen = max(r.durChosen, w.chosen)
		r.unflushed -= w.bytes
		if r.phase != nil && w.promise == r.phase.ballot && !r.phase.durable {
			r.phase.durable = true
			// The prepares leave only now: silence counts from here.
			r.prepared.at = r.now
			r.resetElection()
			r.phaseOneStep()
		}
		if r.role == Follower && r.leader == 0 && w.promise == r.promised && w.sequence == r.pledged.sequence {
			r.courtedAt = r.now // and so does that of a candidate that was promised
			r.resetElection()
		}
	}
	r.owed = slices.Delete(r.owed, 0, done) // in place: the array serves the next writes
	r.shrink()
	if r.lead != nil {
		r.countVotes()
	}
	if r.catch.dropped && !r.diskBehind() {
		r.askCatchUp()
	}
}
