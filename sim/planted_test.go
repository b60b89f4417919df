package sim

import (
	"errors"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// plantedSeeds is the budget within which each planted bug must be found.
const plantedSeeds = "1-60"

// TestPlantedBugs plants known bugs, one at a time, in a build of its own, and
// demands that the simulator finds each; and that the same seeds pass without
// a bug, in the same build.
func TestPlantedBugs(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "sim")
	build := exec.Command("go", "build", "-tags", "plantedbugs", "-o", binary, "./cmd/sim")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the simulator with planted bugs: %v\n%s", err, out)
	}
	for _, bug := range []invariant.Bug{invariant.PromiseBeforeFlush, invariant.OldBallotIsChosen,
		invariant.RepeatAppliedTwice, invariant.DeadSessionKeepLock} {
		t.Run(string(bug), func(t *testing.T) {
			out, err := exec.Command(binary, "-plant", string(bug), "-seeds", plantedSeeds, "-stop").CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Fatalf("the planted bug was not found in the seeds %s: %v\n%s", plantedSeeds, err, out)
			}
			found := regexp.MustCompile(`first failing seed: .*`).Find(out)
			if found == nil {
				t.Fatalf("no failing seed is named:\n%s", out)
			}
			t.Logf("%s", found)
		})
	}
	t.Run("none", func(t *testing.T) {
		if out, err := exec.Command(binary, "-seeds", plantedSeeds).CombinedOutput(); err != nil {
			t.Fatalf("without a bug the seeds %s do not all pass: %v\n%s", plantedSeeds, err, out)
		}
	})
}
