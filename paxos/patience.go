package paxos

import (
	"slices"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// How long answers take is measured, and every wait for an answer is prolonged
// by that: what has had no time to arrive is no silence. Nothing but liveness
// depends on it.
const (
	// patienceMost bounds what a wait is prolonged by, whatever was measured.
	patienceMost = 5 * time.Second
	// fadeTime is how long a peak is remembered.
	fadeTime = 10 * time.Second
	// slowRate, in bytes a second, is what a link is believed to carry that never
	// says how far it has got (Sent).
	slowRate = 256 << 10
)

// peak is a duration that is measured again and again: what was the longest
// lately. It rises at once and fades slowly.
type peak struct{ d, at time.Duration }

func (p *peak) sample(now, d time.Duration) {
	d = min(max(d, 0), patienceMost)
	if d < p.d {
		d = p.d - faded(p.d-d, now-p.at)
	}
	p.d, p.at = d, now
}

// left is the peak, faded to nothing in the time since it was measured.
func (p *peak) left(now time.Duration) time.Duration { return p.d - faded(p.d, now-p.at) }

// faded is what fades of d within a time. It counts microseconds: votes and
// flushes are measured every few hundred of them, and each counts from the last.
func faded(d, within time.Duration) time.Duration {
	const steps = fadeTime / time.Microsecond
	return d * min(within/time.Microsecond, steps) / steps // patienceMost * steps is no overflow
}

// link is what is known of the way to another member and back.
type link struct {
	trip peak // a message and its answer, without any flush
	vote peak // the same with the other's flush

	// arrived is when bytes of a bulk message last came from there. Never: 0.
	arrived time.Duration
	// queued bytes of bulk messages are on their way there, as of movedAt. reports:
	// the link says so at all.
	queued  int
	movedAt time.Duration
	reports bool

	answered answered // the last request for values that was answered
	reading  int      // so many times the driver reads the log for it
}

// answered names a request for values, to know it when it comes again.
type answered struct {
	kind   MessageKind
	ballot Ballot
	slot   Slot
}

func (r *Replica) link(id ReplicaID) *link {
	l := r.links[id]
	if l == nil {
		l = &link{}
		r.links[id] = l
	}
	return l
}

func (r *Replica) arriving(from ReplicaID) {
	if r.member(from) != nil {
		r.link(from).arrived = r.now
		r.arrivals = true
	}
}

func (r *Replica) linkSent(ev Sent) {
	if r.member(ev.To) == nil {
		invariant.Unreachable("there are links to members alone")
		return
	}
	l := r.link(ev.To)
	if !l.reports || l.queued != ev.Queued {
		l.movedAt = r.now
	}
	l.reports, l.queued = true, max(ev.Queued, 0)
}

// onItsWay reports whether a request for values comes again while the answer to
// it is still on its way. Nothing is sent twice.
func (r *Replica) onItsWay(to ReplicaID, a answered) bool {
	l := r.link(to)
	if l.queued > 0 && l.answered == a {
		return true
	}
	l.answered = a
	return false
}

// ofMajority is within which time as many others have answered as make a
// majority with this replica, as far as it is known.
func (r *Replica) ofMajority(of func(*link) time.Duration) time.Duration {
	var room [16]time.Duration
	known := room[:0]
	for _, m := range r.cfg.Members {
		if l := r.links[m.ID]; m.Voter && m.ID != r.o.ID && l != nil && of(l) > 0 {
			known = append(known, of(l))
		}
	}
	if len(known) == 0 {
		return 0
	}
	slices.Sort(known)
	return known[max(0, min(r.quorum()-2, len(known)-1))]
}

// roundTrip is how long a message and its answer take, for a majority; as of the
// last tick or probe, since it is asked for with every message.
func (r *Replica) roundTrip() time.Duration { return r.trip }

func (r *Replica) measureTrip() {
	r.trip = r.ofMajority(func(l *link) time.Duration { return l.trip.d })
}

// voteTrip is the same for what needs the flushes of others.
func (r *Replica) voteTrip() time.Duration {
	return r.ofMajority(func(l *link) time.Duration { return max(l.trip.d, l.vote.d) })
}

// patience is by how much the silence of a leader may last longer than where
// messages take no time.
func (r *Replica) patience() time.Duration {
	return min(max(r.roundTrip(), r.toldTrip, r.doubt.left(r.now)), patienceMost)
}

// electing is how long an election takes at least: a promise is flushed by the
// candidate, and then by those that it asks.
func (r *Replica) electing() time.Duration {
	return min(max(r.patience(), r.voteTrip()+r.flush.left(r.now)), patienceMost)
}

// silence is for how long a follower may hear nothing before it follows no leader
// any more.
func (r *Replica) silence() time.Duration { return r.o.ElectionMin + r.patience() }

// deaf is for how long a leader may not have heard a follower whose answer
// counts in its majority.
func (r *Replica) deaf(id ReplicaID) time.Duration {
	return r.o.ElectionMin + min(r.link(id).trip.d, patienceMost)
}

// suspicion is of a leader that was not heard: until when it had been.
type suspicion struct {
	ballot Ballot
	heard  time.Duration
}

// alive takes note of a message of a leader. If it had been given up, the
// messages were late, and are given more time from now on. After an outage that
// is no reason.
func (r *Replica) alive(b Ballot) {
	s := r.suspect
	if s.ballot.IsZero() || s.ballot != b {
		return
	}
	r.suspect = suspicion{}
	if late := r.now - s.heard; late < 6*r.o.ElectionMax {
		r.doubt.sample(r.now, late)
	}
}

// beats remembers when heartbeats left, to measure the round trip by the
// answers; also after the office in which they were sent.
type beats struct {
	ballot Ballot
	sent   [64]struct {
		round uint64
		at    time.Duration
	}
	n int
}

// left notes a heartbeat. Of those that leave one after the other, for reads,
// one in a while is enough.
func (b *beats) left(now, apart time.Duration, ballot Ballot, round uint64) {
	if b.ballot != ballot {
		*b = beats{ballot: ballot}
	}
	if last := &b.sent[(b.n+len(b.sent)-1)%len(b.sent)]; last.round != 0 && now-last.at < apart {
		return
	}
	x := &b.sent[b.n%len(b.sent)]
	x.round, x.at = round, now
	b.n++
}

// measure takes the answer to a heartbeat for a sample.
func (r *Replica) measure(m *Message) {
	if m.Ballot != r.beats.ballot {
		return
	}
	for i := range r.beats.sent {
		if x := &r.beats.sent[i]; x.round == m.Sequence && x.round != 0 {
			r.link(m.From).trip.sample(r.now, r.now-x.at)
		}
	}
}
