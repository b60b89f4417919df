package paxos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// What was too much for one leader's link is in the way of the next one, too. It
// finishes it all the same: the winner fetches what it lacks, and no other
// candidate disturbs it while bytes come.
func TestNextLeaderFinishesTheLargeWrite(t *testing.T) {
	for _, n := range []int{3, 5} {
		for have := 0; have <= n/2; have++ {
			// Without any, the winner is made one that lacks it.
			lacking := have == 0
			have := max(have, 1)
			t.Run(fmt.Sprintf("%d replicas, %d followers have it, the winner lacks it: %v", n, have, lacking), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, members(n), paxos.Options{})
				l.flush = flushes(n, 10*ms)
				w := l.wired(1000*1000, 300*ms)
				l.run(10*time.Second, 0)
				value := large(1 << 20)
				lead := l.whoLeads()
				wait := have // for so many followers it is sent at all
				for i, f := range l.nodes {
					if f != lead && wait > 0 {
						wait--
						continue
					}
					w.ups[lead.id-1].lanes[i].stalled = true
				}
				l.write(lead, value)
				l.take(lead)
				slot := l.hist.top() + 1
				having := func() (k int) {
					for _, f := range l.nodes {
						if f != lead && f.r.Status().Last >= slot {
							k++
						}
					}
					return k
				}
				for begin := l.now; having() < have; l.run(20*ms, 0) {
					if l.now-begin > time.Minute {
						t.Fatal("it does not get there")
					}
				}
				l.crash(lead, len(lead.owed))
				w.down(lead.id)
				l.campaigns, l.values = 0, 0
				begin := l.now
				if lacking {
					l.run(1150*ms, 0)
					for _, f := range l.nodes {
						if f.r != nil && f.r.Status().Last < slot && l.campaigns == 0 {
							l.step(f, paxos.Campaign{})
							l.take(f)
							l.run(20*ms, 0)
						}
					}
				}
				for l.now-begin < 4*time.Minute && (!l.chose(value) || l.whoLeads() == nil) {
					l.run(100*ms, 0)
				}
				t.Logf("done %v after %v with %d campaigns and %d fetches", l.chose(value), l.now-begin, l.campaigns, l.values)
				if lacking && l.values == 0 {
					t.Error("nothing was fetched")
				}
				// A fetch and an accept to each, at worst.
				if l.now-begin > time.Duration(8+9*(n-1)*2)*time.Second || !l.chose(value) || l.campaigns > 3 {
					t.Errorf("done %v after %v with %d campaigns", l.chose(value), l.now-begin, l.campaigns)
				}
			})
		}
	}
}

func flushes(n int, d time.Duration) map[paxos.ReplicaID]time.Duration {
	f := map[paxos.ReplicaID]time.Duration{}
	for i := range n {
		f[paxos.ReplicaID(i+1)] = d
	}
	return f
}

// Connections that break lose what is on them, and only that is sent again.
func TestLargeWriteOverBreakingLinks(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{})
	w := l.wired(10*1000*1000, 20*ms)
	l.run(5*time.Second, 0)
	x := l.load(large(1 << 20))
	for range 4 {
		x.until(600 * ms)
		w.cut(1, 2)
		w.cut(1, 3)
	}
	took := x.until(20 * time.Second)
	if !x.done() || took > 4*time.Second || len(x.ballots) != 1 {
		t.Errorf("done %v, %v after the last break, %d ballots", x.done(), took, len(x.ballots))
	}
	if l.fetched > 0 {
		t.Errorf("%d times something was fetched that was on its way", l.fetched)
	}
}

// The first election of a cell with long ways needs no luck.
func TestElectionsOnLongWays(t *testing.T) {
	for _, n := range []int{3, 5} {
		for _, delay := range []time.Duration{50 * ms, 300 * ms, 500 * ms} {
			t.Run(fmt.Sprintf("%d replicas, %v", n, delay), func(t *testing.T) {
				t.Parallel()
				var slowest time.Duration
				var campaigns int
				for i := range 20 {
					l := newLab(t, members(n), paxos.Options{Seed: uint64(i)})
					l.flush = flushes(n, 5*ms)
					l.wired(1000*1000, delay)
					if l.run(50*ms, 0); i%2 == 0 {
						l.run(10*time.Second, 0)
					}
					lead := l.whoLeads()
					l.crash(lead, 0)
					l.wires.down(lead.id)
					l.campaigns = 0
					begin := l.now
					for l.whoLeads() == nil && l.now-begin < time.Minute {
						l.run(50*ms, 0)
					}
					slowest = max(slowest, l.now-begin)
					campaigns = max(campaigns, l.campaigns)
				}
				t.Logf("the slowest of 20 elections took %v, the most campaigns were %d", slowest, campaigns)
				if slowest > 10*time.Second || campaigns > 4 {
					t.Errorf("the slowest of 20 elections took %v, the most campaigns were %d", slowest, campaigns)
				}
			})
		}
	}
}

// Where each flush takes long, so do elections: a candidate's promise, then those
// of the others, then the Lead entry. But they need no second ballot, and the
// lead is handed over in the time of these flushes.
func TestElectionsOnSlowDisks(t *testing.T) {
	for _, n := range []int{3, 5} {
		for _, how := range []string{"handed over", "crashed"} {
			for _, flush := range []time.Duration{100 * ms, 300 * ms, 600 * ms} {
				t.Run(fmt.Sprintf("%d replicas, %v, flushes of %v", n, how, flush), func(t *testing.T) {
					t.Parallel()
					var slowest time.Duration
					var campaigns int
					for i := range 20 {
						l := newLab(t, members(n), paxos.Options{Seed: uint64(i)})
						l.flush = flushes(n, flush)
						l.run(3*time.Second, 30*ms)
						was := l.nodes[0].role.Ballot
						if l.nodes[0].role.Role != paxos.Leader {
							t.Fatal("slow flushes alone cost the leader its office")
						}
						if how == "crashed" {
							l.crash(l.nodes[0], 0)
						} else {
							l.step(l.nodes[0], paxos.Handover{})
							l.take(l.nodes[0])
						}
						l.campaigns = 0
						begin := l.now
						for (l.whoLeads() == nil || l.whoLeads().role.Ballot == was) && l.now-begin < time.Minute {
							l.run(10*ms, 0)
						}
						slowest = max(slowest, l.now-begin)
						campaigns = max(campaigns, l.campaigns)
					}
					line := fmt.Sprintf("the slowest of 20 took %v, the most campaigns were %d", slowest, campaigns)
					t.Log(line)
					// What was open when the lead is handed over is chosen first: two
					// flushes at most. The election takes three, and may begin just
					// behind the begin of one of each disk.
					bound, most := 9*flush+200*ms, 1
					if how == "crashed" {
						bound, most = 9*flush+2*time.Second, 2
					}
					if slowest > bound || campaigns > most {
						t.Error(line, "bound", bound)
					}
				})
			}
		}
	}
}
