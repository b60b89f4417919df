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
