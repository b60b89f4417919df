package paxos_test

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// TestFollowerAsksTheLeaderItHears: a replica has asked one that is dead for what
// it lacks. It does not wait for that answer once it follows a leader, which
// knows all that is chosen.
func TestFollowerAsksTheLeaderItHears(t *testing.T) {
	first, second := paxos.Ballot{Round: 1, Replica: 1}, paxos.Ballot{Round: 2, Replica: 3}
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3)}, paxos.Restored{Promised: first, Chosen: 3, Applied: 3})
	now := time.Second
	asked := func(b paxos.Ballot, of paxos.ReplicaID) (askedAt time.Duration) {
		for end := now + 5*time.Second; now < end; {
			now += 20 * time.Millisecond
			r.Step(now, paxos.Tick{})
			if now%(100*time.Millisecond) == 0 {
				receive(r, now, paxos.Message{Kind: paxos.MsgHeartbeat, From: b.Replica, Ballot: b, Chosen: 10, Sequence: uint64(now)})
			}
			e := r.Take(now)
			r.Step(now, paxos.Persisted{Sequence: e.Sequence})
			for _, m := range append(e.Now, e.After...) {
				if m.Kind == paxos.MsgCatchUp && m.To == of {
					return now
				}
			}
		}
		return 0
	}
	if asked(first, 1) == 0 {
		t.Fatal("it does not ask its leader for what it lacks")
	}
	begun := now
	if at := asked(second, 3); at == 0 || at-begun > 500*time.Millisecond {
		t.Errorf("it follows replica 3 from %v on, and asks it at %v", begun, at)
	}
}

// TestCatchUpGoesOnWithTheDisk: what is given to a follower is more than may wait
// for its disk. It asks for the rest as soon as the disk has room, although its
// leader says that all has been sent: what found no room is not on its way.
func TestCatchUpGoesOnWithTheDisk(t *testing.T) {
	const last, size = 40, 1000
	b := paxos.Ballot{Round: 1, Replica: 1}
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3), WindowBytes: 2 * size}, paxos.Restored{Promised: b, Chosen: 3, Applied: 3})
	entry := func(s paxos.Slot) paxos.Entry {
		return paxos.Entry{Slot: s, Ballot: b, Chosen: true, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{make([]byte, size)}}}
	}
	now := time.Second
	gaveUp := now + 20*time.Second
	questions := 0
	for r.Status().Chosen < last && now < gaveUp {
		now += 20 * time.Millisecond
		r.Step(now, paxos.Tick{})
		receive(r, now, paxos.Message{Kind: paxos.MsgHeartbeat, From: 1, Ballot: b, Chosen: last, Slot: last, Sequence: uint64(now)})
		e := r.Take(now)
		for _, m := range append(e.Now, e.After...) {
			if m.Kind != paxos.MsgCatchUp {
				continue
			}
			if questions++; questions == 1 {
				gaveUp = now + time.Second // from here on nothing is waited for
			}
			reply := paxos.Message{Kind: paxos.MsgCatchUpReply, From: m.To, Slot: m.Slot, Chosen: last, First: 1}
			for s := m.Slot; s <= last; s++ {
				reply.Entries = append(reply.Entries, entry(s))
			}
			receive(r, now, reply)
		}
		// The disk takes its time: what was handed out in this turn is durable in the next.
		if e.Record != nil {
			r.Step(now+time.Millisecond, paxos.Persisted{Sequence: e.Sequence})
		}
	}
	if chosen := r.Status().Chosen; chosen < last {
		t.Fatalf("a second after the first of %d questions it has slot %d of %d", questions, chosen, last)
	}
	if questions < 3 {
		t.Fatalf("%d questions were enough: the disk was never behind", questions)
	}
}
