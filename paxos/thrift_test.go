package paxos_test

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

const ms = time.Millisecond

// slow gives a lab's messages to and from one replica a delay of their own.
func (l *lab) slow(id paxos.ReplicaID, d time.Duration) {
	l.delay = func(from, to paxos.ReplicaID) time.Duration {
		if from == id || to == id {
			return d
		}
		return 200 * time.Microsecond
	}
}

// spared are the followers that got less than half as many accepts as there
// were slots.
func (l *lab) spared() (ids []paxos.ReplicaID) {
	for _, n := range l.nodes[1:] {
		if 2*l.accepts[n.id] < l.count {
			ids = append(ids, n.id)
		}
	}
	return ids
}

// Load on a healthy cell: one of two followers gets its slots ten at
// a time, none of them later than the bound, none twice; it fetches nothing, and
// its votes wake nobody.
func TestSpareGetsManySlotsAtATime(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{})
	l.run(1200*ms, ms)
	if s := l.spared(); len(s) != 0 {
		t.Errorf("%v were spared by a new leader", s)
	}
	l.forget()
	l.run(3*time.Second, ms)
	s := l.spared()
	if len(s) != 1 {
		t.Fatalf("%v are spared: %d slots, accepts %v", s, l.count, l.accepts)
	}
	if n := l.accepts[s[0]]; 9*n > l.count || n == 0 {
		t.Errorf("a spare gets %d messages for %d slots", n, l.count)
	}
	if l.lag > 11*ms || l.lag < 9*ms {
		t.Errorf("a slot is held back for %v", l.lag)
	}
	l.run(2*time.Minute, 30*ms)
	if l.fetched > 0 || l.again > 0 || l.woken[s[0]] > 0 {
		t.Errorf("%d fetches, %d slots sent again, %d votes of the spare that wake the leader", l.fetched, l.again, l.woken[s[0]])
	}
	if l.slow1 > 0 || l.thrift().Misses > 0 || l.thrift().Hedged > 0 {
		t.Errorf("%d slots take more than 1 ms, the slowest %v: %+v", l.slow1, l.slowest, l.thrift())
	}
	if top, at := l.hist.top(), l.node(s[0]).r.Status().Last; top-at > 6 {
		t.Errorf("the spare has slots up to %d of %d", at, top)
	}
}

// As many are asked first as make a majority, whatever the size of the cell; a
// learner, which has no vote, always gets its slots late.
func TestWhoIsSpared(t *testing.T) {
	for _, tc := range []struct {
		name             string
		voters, learners int
		spared           int
	}{
		{"one", 1, 0, 0},
		{"one and a learner", 1, 1, 1},
		{"two", 2, 0, 0},
		{"three", 3, 0, 1},
		{"three and a learner", 3, 1, 2},
		{"four", 4, 0, 1},
		{"five", 5, 0, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conf := members(tc.voters + tc.learners)
			for i := range conf.Members[tc.voters:] {
				conf.Members[tc.voters+i].Voter = false
			}
			l := newLab(t, conf, paxos.Options{})
			// A learner is not asked first even if it is the fastest.
			if tc.learners > 0 {
				l.slow(paxos.ReplicaID(tc.voters+1), 50*time.Microsecond)
			}
			l.run(1200*ms, ms)
			l.forget()
			l.run(time.Second, ms)
			s := l.spared()
			if len(s) != tc.spared || tc.learners > 0 && (len(s) == 0 || s[len(s)-1] != paxos.ReplicaID(tc.voters+1)) {
				t.Errorf("%v are spared, accepts %v of %d slots", s, l.accepts, l.count)
			}
			if l.lag > 11*ms || l.slowest > ms {
				t.Errorf("held back for up to %v, chosen after up to %v", l.lag, l.slowest)
			}
			l.run(100*ms, 0)
			for _, n := range l.nodes {
				if got := n.r.Status().Last; got != l.hist.top() {
					t.Errorf("replica %d has slots up to %d of %d", n.id, got, l.hist.top())
				}
			}
			if due := l.nodes[0].r.Due(l.now); due != paxos.Never {
				t.Errorf("with nothing under way the leader is due at %v, now is %v", due, l.now)
			}
		})
	}
}

// A first that becomes slow costs one hedge; then it is a spare.
func TestSlowFirstIsReplaced(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{})
	l.slow(3, ms)
	l.run(3*time.Second, ms) // longer than it is eager
	if s := l.spared(); len(s) != 1 || s[0] != 3 {
		t.Fatalf("%v are spared, not the slow one", s)
	}
	l.slow(2, 60*ms)
	l.forget()
	l.run(5*time.Second, ms)
	if m := l.thrift().Misses; m == 0 || m > 5 {
		t.Errorf("%d misses", m)
	}
	if l.slowest > 6*ms {
		t.Errorf("a slot took %v", l.slowest)
	}
	l.forget()
	l.run(time.Second, ms)
	if s := l.spared(); len(s) != 1 || s[0] != 2 {
		t.Errorf("%v are spared, not the slow one", s)
	}
}

// A slot that nothing follows is hedged in time too: the leader wakes for it.
func TestLoneSlotIsHedged(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{})
	l.slow(3, ms)
	l.run(3*time.Second, ms)
	l.slow(2, time.Hour)
	l.run(l.tock+21*ms-l.now, 0) // just behind a tick
	l.forget()
	l.run(10*ms, time.Hour)
	if l.count != 1 || l.slowest != 2400*time.Microsecond {
		t.Errorf("%d slots are chosen, the slowest after %v", l.count, l.slowest)
	}
}

// Where both followers are slow, they are not hedged all the time: what is slow
// for this cell is twice what is usual.
func TestSlowNetworkIsNotHedged(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{})
	l.delay = func(paxos.ReplicaID, paxos.ReplicaID) time.Duration { return 4 * ms }
	l.run(1200*ms, 5*ms)
	l.forget()
	l.run(10*time.Second, 5*ms)
	if c := l.thrift(); c.HeldBack == 0 || c.Hedged > 0 || l.lag > 11*ms {
		t.Errorf("%+v, held back for up to %v", c, l.lag)
	}
}

// A leader with a disk that is slower than the others' needs all followers, and
// asks all.
func TestLeaderWithASlowDiskIsEager(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{})
	l.flush[1] = 15 * ms
	l.run(5*time.Second, ms)
	if s := l.spared(); len(s) != 0 || l.slowest > ms {
		t.Errorf("%v are spared, and slots take up to %v", s, l.slowest)
	}
	// When it becomes slow only later, it is the same after one miss.
	l.flush[1] = 0
	l.run(2*time.Second, ms)
	l.forget()
	l.flush[1] = 15 * ms
	l.run(5*time.Second, ms)
	if m := l.thrift().Misses; m == 0 || m > 30 || l.slow1 > 30 {
		t.Errorf("%d misses, %d slots late", m, l.slow1)
	}
}

// Misses that follow one another at once make a leader eager for longer and
// longer, up to a bound; those that are rare make it eager for less and less.
func TestMissesMakeEager(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{EagerTime: 1600 * ms})
	eager := func() time.Duration { // until it is thrifty again
		t.Helper()
		for begin := l.now; l.now-begin < 40*time.Second; {
			l.forget()
			l.run(10*ms, 2*ms)
			if len(l.spared()) > 0 {
				return l.now - begin
			}
		}
		t.Fatal("it is never thrifty again")
		return 0
	}
	eager()
	for i, want := range []time.Duration{3200, 6400, 12800, 25600, 25600, 12800, 6400, 3200, 1600, 800, 400, 200, 100, 50, 50} {
		if i >= 5 {
			l.run(100*ms, 2*ms)
			l.forget()
			l.run(10*ms, 2*ms)
		}
		first := paxos.ReplicaID(2)
		if s := l.spared(); len(s) == 1 && s[0] == 2 {
			first = 3
		}
		before := l.thrift().Misses
		l.slow(first, 30*ms)
		l.run(10*ms, 2*ms)
		l.slow(0, 0)
		if l.thrift().Misses == before {
			t.Fatal("there is no miss")
		}
		if got := eager(); got < want*ms-10*ms || got > want*ms+60*ms {
			t.Errorf("eager for %v after miss %d, want %v", got, i+1, want*ms)
		}
	}
}

// Little load makes nobody thrifty before there is something to judge by.
func TestFewSlotsAreNoReasonForThrift(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{})
	l.run(3*time.Second, 500*ms)
	if s := l.spared(); len(s) != 0 {
		t.Errorf("%v are spared after %d slots", s, l.count)
	}
}

// What is held back is bounded in slots and in bytes, however much comes.
func TestBoundsOfWhatIsHeldBack(t *testing.T) {
	l := newLab(t, members(3), paxos.Options{BatchBytes: 1000, WindowSlots: 64})
	l.run(1200*ms, ms)
	l.run(20*ms, 0)
	l.forget()
	l.run(time.Second, 400*time.Microsecond) // 65 bytes and more each: 14 of them are a batch
	if l.lag > 7*ms || len(l.spared()) == 0 {
		t.Errorf("%v spared; a batch is held back for %v", l.spared(), l.lag)
	}
	l = newLab(t, members(3), paxos.Options{WindowSlots: 16})
	l.run(1200*ms, ms)
	l.run(20*ms, 0)
	l.forget()
	l.run(time.Second, ms) // 4 slots are a quarter of the window
	if l.lag > 5*ms || len(l.spared()) == 0 {
		t.Errorf("%v spared; a quarter of the window is held back for %v", l.spared(), l.lag)
	}
}
