package sim

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// planted says within which seeds each planted bug must be found: some times as
// many as it takes now, since every change of timing moves what a seed does. What
// finds it, and how soon, is told in docs/simulator.md.
var planted = []struct {
	bug         invariant.Bug
	first, last int
}{
	{invariant.PromiseBeforeFlush, 1, 120},
	{invariant.OldBallotIsChosen, 1, 120},
	{invariant.LowestBallotWins, 1, 120},
	{invariant.VotesOfAnyBallot, 1, 60},
	{invariant.ServesBeforeClosed, 1, 400},
	{invariant.DoubtfulIsTorn, 1, 400},
	{invariant.RepeatAppliedTwice, 1, 120},
	{invariant.GapIgnored, 1, 120},
	{invariant.ResultsNotSaved, 1, 60},
	{invariant.OldExpiryTaken, 401, 640},
	{invariant.DeadSessionKeepLock, 1, 60},
	{invariant.GrantsInLockDelay, 1, 60},
	{invariant.WaiterOvertakes, 1, 60},
	{invariant.WatchLastOfBatch, 1, 60},
	{invariant.WatchExchangesOrder, 1, 60},
	{invariant.WatchLosesReason, 1, 60},
	{invariant.WatchKeepsDeleted, 1, 120},
	{invariant.WatchMarksNothing, 1, 60},
}

// TestPlantedBugs plants known bugs, one at a time, in a build of its own, and
// demands that the simulator finds each; and that the same seeds pass without
// a bug, in the same build.
func TestPlantedBugs(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "sim")
	build := exec.Command("go", "build", "-tags", "plantedbugs", "-o", binary, "./cmd/sim")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the simulator with planted bugs: %v\n%s", err, out)
	}
	for _, p := range planted {
		t.Run(string(p.bug), func(t *testing.T) {
			seeds := fmt.Sprintf("%d-%d", p.first, p.last)
			out, err := exec.Command(binary, "-plant", string(p.bug), "-seeds", seeds, "-stop").CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Fatalf("the planted bug was not found in the seeds %s: %v\n%s", seeds, err, out)
			}
			found := regexp.MustCompile(`first failing seed: .*`).Find(out)
			if found == nil {
				t.Fatalf("no failing seed is named:\n%s", out)
			}
			t.Logf("%s", found)
		})
	}
	t.Run("none", func(t *testing.T) {
		for _, seeds := range plantedRanges() {
			if out, err := exec.Command(binary, "-seeds", seeds).CombinedOutput(); err != nil {
				t.Fatalf("without a bug the seeds %s do not all pass: %v\n%s", seeds, err, out)
			}
		}
	})
}

// plantedRanges are the seeds of all planted bugs, each once.
func plantedRanges() (ranges []string) {
	var seeds []int
	for _, p := range planted {
		for seed := p.first; seed <= p.last; seed++ {
			seeds = append(seeds, seed)
		}
	}
	slices.Sort(seeds)
	seeds = slices.Compact(seeds)
	for i := 0; i < len(seeds); {
		j := i
		for j+1 < len(seeds) && seeds[j+1] == seeds[j]+1 {
			j++
		}
		ranges = append(ranges, fmt.Sprintf("%d-%d", seeds[i], seeds[j]))
		i = j + 1
	}
	return ranges
}
