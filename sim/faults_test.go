package sim

import "testing"

// TestEveryFaultHappens: over a fixed row of seeds each kind of fault happens;
// what is only asked for does not count.
func TestEveryFaultHappens(t *testing.T) {
	next := uint64(1)
	b := Batch{Next: func() (uint64, bool) {
		next++
		return next - 1, next-1 <= 150
	}}
	r := b.Run()
	for _, f := range r.Failures {
		t.Errorf("seed %d: %v", f.Seed, f.Failure)
	}
	for f := range Faults {
		if r.Faults[f] == 0 {
			t.Errorf("in %d runs there were no %v", r.Passed+r.Failed, f)
		}
	}
	t.Logf("%d runs: %v", r.Passed+r.Failed, &r.Faults)
}
