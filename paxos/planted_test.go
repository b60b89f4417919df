//go:build plantedbugs

package paxos_test

import (
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// TestPlanted shows that the random schedules find what they are for: with a
// known bug planted, one of the first seeds fails.
func TestPlanted(t *testing.T) {
	for _, k := range kinds {
		t.Run(string(k.bug), func(t *testing.T) {
			invariant.Plant(k.bug)
			defer invariant.Plant("")
			err := told(t, k.tell)
			if err == nil {
				t.Fatal("not found")
			}
			t.Log(err)
		})
	}
	const budget = 3000
	for _, bug := range []invariant.Bug{invariant.PromiseBeforeFlush, invariant.OldBallotIsChosen, invariant.VotesOfAnyBallot,
		invariant.LowestBallotWins, invariant.CatchUpGivesAccepted, invariant.LeaderLearns} {
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
