package paxos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// load is what clients want of a cell on slow links, and what came of it.
type load struct {
	l       *lab
	pending map[string]bool // given again to each new leader until they are done
	order   []string
	given   paxos.Ballot
	ballots map[paxos.Ballot]bool // that led
	smalls  []string
}

func (l *lab) load(large ...string) *load {
	x := &load{l: l, pending: map[string]bool{}, ballots: map[paxos.Ballot]bool{}}
	x.order = large
	return x
}

// done reports whether every large write is.
func (x *load) done() bool {
	for _, c := range x.order {
		if !x.l.chose(c) {
			return false
		}
	}
	return true
}

// chose reports whether a write is chosen, in any of the forms in which it was
// given.
func (l *lab) chose(c string) bool {
	for i := range l.tries[c] {
		if _, ok := l.hist.where[try(c, i)]; ok {
			return true
		}
	}
	return false
}

// try is a write as it is given for the i-th time: the history wants each
// command once.
func try(c string, i int) string { return fmt.Sprintf("%d %s", i, c) }

func (l *lab) write(n *node, c string) {
	text := try(c, l.tries[c])
	l.tries[c]++
	commands := [][]byte{[]byte(text)}
	l.hist.given(n, commands)
	l.step(n, paxos.Propose{Commands: commands})
}

func (l *lab) whoLeads() *node {
	var lead *node
	for _, n := range l.nodes {
		if n.r != nil && n.role.Role == paxos.Leader && (lead == nil || lead.role.Ballot.Less(n.role.Ballot)) {
			lead = n
		}
	}
	return lead
}

// until gives each new leader what is not done, and every 100 ms a few bytes,
// until all is done or time is up. It returns how long that took.
func (x *load) until(most time.Duration) time.Duration {
	begin := x.l.now
	for x.l.now-begin < most && !x.done() {
		if n := x.l.whoLeads(); n != nil {
			b := n.role.Ballot
			x.ballots[b] = true
			if x.given != b {
				x.given = b
				for _, c := range x.order {
					if !x.l.chose(c) {
						x.l.write(n, c)
					}
				}
			}
			small := fmt.Sprintf("small %d", len(x.smalls))
			x.smalls = append(x.smalls, small)
			x.l.write(n, small)
			x.l.take(n)
		}
		x.l.run(100*ms, 0)
	}
	return x.l.now - begin
}

// smallDone is how many of the small writes are done.
func (x *load) smallDone() (n int) {
	for _, c := range x.smalls {
		if x.l.chose(c) {
			n++
		}
	}
	return n
}

func large(bytes int) string { return string(make([]byte, bytes)) }

// many are the writes of so many clients at once.
func many(count, bytes int) []string {
	var out []string
	for i := range count {
		out = append(out, fmt.Sprintf("%d %s", i, make([]byte, bytes)))
	}
	return out
}

// A large write, or many at once, on links of any rate. The time that it takes
// is a few times what the bytes need, and the leader stays.
func TestLargeWritesOnSlowLinks(t *testing.T) {
	for _, tc := range []struct {
		mbit    int64
		delay   time.Duration
		most    time.Duration
		ballots int
	}{
		{200, 5 * ms, 2 * time.Second, 1},
		{100, 5 * ms, 2 * time.Second, 1},
		{50, 5 * ms, 4 * time.Second, 1},
		{24, 5 * ms, 8 * time.Second, 1},
		{12, 5 * ms, 15 * time.Second, 2},
		{10, 50 * ms, 20 * time.Second, 2},
		{1, 300 * ms, 170 * time.Second, 2},
	} {
		for _, n := range []int{3, 5} {
			for _, writes := range [][]string{{large(1 << 20)}, many(512, 4<<10)} {
				t.Run(fmt.Sprintf("%d Mbit/s, %v, %d replicas, %d writes", tc.mbit, tc.delay, n, len(writes)), func(t *testing.T) {
					t.Parallel()
					l := newLab(t, members(n), paxos.Options{})
					w := l.wired(tc.mbit*1000*1000, tc.delay)
					l.run(10*time.Second, 0)
					l.campaigns = 0
					w.bytes = 0
					x := l.load(writes...)
					took := x.until(tc.most)
					size := 0
					for _, c := range writes {
						size += len(c)
					}
					line := fmt.Sprintf("%v, %d ballots led, %d campaigns, %d of %d small writes done, %.1f copies sent, %d fetches",
						took, len(x.ballots), l.campaigns, x.smallDone(), len(x.smalls), float64(w.bytes)/float64(size), l.fetched)
					t.Log(line)
					if !x.done() || len(x.ballots) > tc.ballots {
						t.Error(line)
					}
					// Afterwards all is well: the same leader, and whatever is given is done.
					l.run(5*time.Second, 0)
					l.campaigns = 0
					y := l.load("afterwards")
					if took := y.until(10 * time.Second); !y.done() || took > 5*time.Second {
						t.Errorf("afterwards a small write takes %v", took)
					}
				})
			}
		}
	}
}
