package replica

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// driftingCell are the cell clocks of a few replicas whose own clocks run apart
// by the bound, and the state that they all apply in order.
type driftingCell struct {
	real    int64
	rate    []int64 // of the own clocks, parts per million of real time
	clocks  []cellClock
	entries []drifted
	applied []int
	master  int
}

// drifted is a value in the log.
type drifted struct {
	cell   int64
	leader int // of a Lead entry, else -1
}

func (d *driftingCell) own(i int) time.Duration {
	return time.Duration(d.real / million * d.rate[i])
}

func (d *driftingCell) state(i int) (cell int64) {
	for _, e := range d.entries[:d.applied[i]] {
		cell = max(cell, e.cell)
	}
	return cell
}

// leads counts the Lead entries among the first n.
func (d *driftingCell) leads(n int) (count int) {
	for _, e := range d.entries[:n] {
		if e.leader >= 0 {
			count++
		}
	}
	return count
}

// apply applies the log at replica i up to n entries.
func (d *driftingCell) apply(i, n int) {
	for d.applied[i] < n {
		e := d.entries[d.applied[i]]
		d.applied[i]++
		c, now := &d.clocks[i], d.own(i)
		switch {
		case e.leader == i && d.master == i:
			c.applied(now, d.state(i))
			c.lead(now, true)
		case e.leader >= 0:
			c.follow(now, d.state(i))
		default:
			c.applied(now, d.state(i))
		}
	}
}

// A span of cell time is never shorter than the real time in which it passed,
// whichever replicas led at its two ends: so no lock-delay ends early. And a
// master's cell time falls behind real time by no more than the drift explains.
func TestCellTimeIsNeverAheadOfRealTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drift := rapid.SampledFrom([]int64{0, 100, 10_000, 100_000}).Draw(t, "drift")
		d := &driftingCell{real: 1000 * int64(time.Hour) / million * million}
		for i := range 3 {
			d.rate = append(d.rate, million+rapid.SampledFrom([]int64{-drift, 0, drift}).Draw(t, "rate"))
			d.clocks = append(d.clocks, cellClock{at: d.own(i), drift: drift})
			d.applied = append(d.applied, 0)
		}
		type stamp struct{ cell, real int64 }
		var stamps []stamp
		check := func(cell int64) {
			for _, s := range stamps {
				if span := d.real - s.real; cell-s.cell > span {
					t.Fatalf("%v of cell time passed in %v", time.Duration(cell-s.cell), time.Duration(span))
				}
			}
			stamps = append(stamps, stamp{cell, d.real})
		}
		elect := func(i int) {
			// The cell time that a new leader's entry tells may have been read before
			// the leader had applied all that was chosen; the store drops it if
			// another Lead entry is among that. The entry is applied a while later.
			if rapid.Bool().Draw(t, "read early") {
				read, leads := d.clocks[i].read(d.own(i)), d.leads(d.applied[i])
				d.apply(i, len(d.entries))
				if leads < d.leads(len(d.entries)) {
					read = 0
				}
				d.entries = append(d.entries, drifted{read, i})
			} else {
				d.apply(i, len(d.entries))
				d.entries = append(d.entries, drifted{d.clocks[i].read(d.own(i)), i})
			}
			d.master = i
			d.real += rapid.Int64Range(0, 1000).Draw(t, "round") * million
			d.apply(i, len(d.entries))
			check(d.clocks[i].read(d.own(i)))
		}
		elect(0)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			d.real += rapid.Int64Range(0, int64(time.Hour)/million).Draw(t, "passes") * million
			i := rapid.IntRange(0, 2).Draw(t, "replica")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				elect(i)
			case 1: // the master logs something
				m := d.master
				cell := d.clocks[m].read(d.own(m))
				check(cell)
				d.entries = append(d.entries, drifted{cell, -1})
				d.apply(m, len(d.entries))
			case 2:
				d.apply(i, len(d.entries))
			case 3:
				was := d.clocks[d.master].read(d.own(d.master))
				d.real += int64(time.Second)
				if got := d.clocks[d.master].read(d.own(d.master)) - was; got < int64(time.Second)/million*(million-2*drift-drift*drift/million)-2 {
					t.Fatalf("a second brought the master's cell time on by %d ns, drift %d", got, drift)
				}
			}
		}
	})
}

// A replica that starts goes on from what its state has, also when nobody does
// anything, and the next master from there.
func TestCellTimeGoesOnOverFailovers(t *testing.T) {
	c := newCell(t, 3)
	cl := c.reps[0].dial()
	cl.open(1, long) // logs the first master's cell time
	began := c.reps[0].cell.read(c.now)
	for i := range 30 {
		c.advance(10 * time.Second)
		c.elect(i%3 + 1)
	}
	passed := c.reps[2].cell.read(c.now) - began
	if least := int64(300 * time.Second * 96 / 100); passed < least || passed > int64(300*time.Second) {
		t.Errorf("300 s with 30 elections brought cell time on by %v", time.Duration(passed))
	}
}

// What an earlier master proposed, and a third one finds in an open slot, ends no
// time early that was counted under the master in between; and its request, which
// has no answer, is not done.
func TestAnEarlierMastersCommandIsVoid(t *testing.T) {
	c := newCell(t, 3)
	cl := c.reps[0].dial()
	id := cl.open(1, long)
	c.advance(10 * time.Second)
	c.reps[0].log.hold = true // what it proposes is accepted by itself alone
	cl.post(request(id, 1, put("/late", "x")))
	c.settle()
	old := new(storepb.Command)
	if err := old.UnmarshalVT(c.reps[0].log.kept[0]); err != nil {
		t.Fatal(err)
	}
	c.elect(2)
	before := c.reps[2].cell.read(c.now)
	old.CellTime = before + int64(time.Minute)
	b, err := old.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	c.chooseCommands([][]byte{b})
	c.elect(3)
	if jump := time.Duration(c.reps[2].cell.read(c.now) - before); jump > time.Second {
		t.Errorf("cell time goes on by %v", jump)
	}
	if _, done := c.reps[2].store.Node("/late"); done {
		t.Error("the request is done")
	}
	again := c.reps[2].dial()
	again.send(attach(id, 1, 0))
	if a := again.next().GetAttached(); a.GetLastNumber() != 0 {
		t.Fatalf("attached: %v", a)
	}
	if r := again.do(id, put("/late", "x")); r.GetCode() != storepb.Code_OK || r.GetNumber() != 1 {
		t.Errorf("its repeat is answered %v", r)
	}
}
