package sim

import "testing"

// faultSeeds had each kind of fault in at least three of their runs when they
// were picked.
var faultSeeds = []uint64{4, 5, 6, 7, 12, 16, 18, 22, 23, 24, 30, 32, 38, 41, 42, 43, 49, 54, 55, 63, 66, 73, 102, 109, 111, 118, 128, 131, 133, 157,
	188, 189, 192, 212, 240, 252}

// TestEveryFaultHappens: over a fixed row of seeds each kind of fault happens;
// what is only asked for does not count. Where a change of the product has moved
// a rare one to another seed, the row goes on for a while.
func TestEveryFaultHappens(t *testing.T) {
	seeds := faultSeeds
	for seed := uint64(201); seed <= 300; seed++ {
		seeds = append(seeds, seed)
	}
	next := 0
	var seen FaultCounts
	b := Batch{
		Next: func() (uint64, bool) {
			if next == len(seeds) || (next >= len(faultSeeds) && len(seen.missing()) == 0) {
				return 0, false
			}
			next++
			return seeds[next-1], true
		},
		Each: func(r Report) { seen.Add(&r.Faults) },
	}
	r := b.Run()
	for _, f := range r.Failures {
		t.Errorf("seed %d: %v", f.Seed, f.Failure)
	}
	for _, f := range seen.missing() {
		t.Errorf("in %d runs there were no %v", r.Passed+r.Failed, f)
	}
	t.Logf("%d runs: %v", r.Passed+r.Failed, &r.Faults)
}

func (c *FaultCounts) missing() []Fault {
	var out []Fault
	for f, n := range c {
		if n == 0 {
			out = append(out, Fault(f))
		}
	}
	return out
}
