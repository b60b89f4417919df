package paxos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// BenchmarkPropose takes commands through three replicas in memory: proposed,
// accepted by all, "flushed" at once, chosen and handed out. An operation is
// one command; batch is how many come with each Take.
func BenchmarkPropose(b *testing.B) {
	for _, batch := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) { benchmarkPropose(b, batch) })
	}
}

func benchmarkPropose(b *testing.B, batch int) {
	now := time.Duration(0)
	conf := members(3)
	var cell [3]*paxos.Replica
	for i := range cell {
		cell[i] = paxos.New(paxos.Options{ID: paxos.ReplicaID(i + 1), Configuration: conf, Seed: uint64(i)}, paxos.Restored{
			Promised: foundingBallot, Chosen: 1, First: 1, Entries: []paxos.Entry{
				{Slot: 1, Ballot: foundingBallot, Chosen: true, Value: paxos.Value{Kind: paxos.Config, Config: &conf}}}})
	}
	now += time.Second
	chosen := 0
	var net, next []paxos.Message
	take := func(i int) {
		for more := true; more; {
			e := cell[i].Take(now)
			next = append(next, e.Now...)
			next = append(next, e.After...)
			if i == 0 {
				for _, c := range e.Chosen {
					chosen += len(c.Value.Commands)
				}
			}
			if more = e.Sequence != 0; more {
				cell[i].Step(now, paxos.Persisted{Sequence: e.Sequence})
			}
		}
	}
	settle := func() {
		for take(0); len(next) > 0; {
			net, next = next, net[:0]
			var got [3]bool
			for i := range net {
				to := net[i].To - 1
				cell[to].Step(now, paxos.Receive{Message: net[i]})
				got[to] = true
			}
			for i := range cell {
				if got[i] {
					take(i)
				}
			}
		}
	}
	cell[0].Step(now, paxos.Campaign{})
	settle()
	if cell[0].Status().Role != paxos.Leader {
		b.Fatal("no leader")
	}
	command := make([]byte, 100)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		k := min(batch, b.N-done)
		commands := make([][]byte, k)
		for i := range commands {
			commands[i] = command
		}
		cell[0].Step(now, paxos.Propose{Commands: commands})
		settle()
		done += k
		now += 10 * time.Microsecond
	}
	b.StopTimer()
	if chosen != b.N {
		b.Fatalf("%d of %d commands chosen", chosen, b.N)
	}
}
