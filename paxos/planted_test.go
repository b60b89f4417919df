//go:build plantedbugs

package paxos_test

import (
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// TestPlanted shows that the random schedules find what they are for: with a
// known bug planted, one of the first seeds fails.
func TestPlanted(t *testing.T) {
	const budget = 3000
	for _, bug := range []invariant.Bug{invariant.PromiseBeforeFlush, invariant.OldBallotIsChosen} {
		t.Run(string(bug), func(t *testing.T) {
			invariant.Plant(bug)
			defer invariant.Plant("")
			for seed := uint64(1); seed <= budget; seed++ {
				if _, err := runSeed(seed, nil); err != nil {
					t.Logf("found with seed %d: %v", seed, err)
					return
				}
			}
			t.Fatalf("not found by %d seeds", budget)
		})
	}
}
