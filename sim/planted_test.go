package sim

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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
	{invariant.ServesBeforeClosed, 1, 200},
	{invariant.DoubtfulIsTorn, 1, 200},
	{invariant.RepeatAppliedTwice, 1, 120},
	{invariant.GapIgnored, 1, 120},
	{invariant.ResultsNotSaved, 1, 60},
	{invariant.DeadSessionKeepLock, 1, 60},
	{invariant.GrantsInLockDelay, 1, 60},
	{invariant.WaiterOvertakes, 1, 60},
	{invariant.WatchLastOfBatch, 1, 60},
	{invariant.WatchExchangesOrder, 1, 60},
	{invariant.WatchLosesReason, 1, 60},
	{invariant.WatchKeepsDeleted, 1, 120},
	{invariant.WatchMarksNothing, 1, 60},
	{invariant.GhostsSequencer, 1, 60},
	{invariant.DroppedKeepsItsBytes, 1, 10},
	{invariant.UnwatchNotSaid, 1, 60},
	{invariant.ExpiresInHand, 1, 60},
	{invariant.FrozenTimeCounts, 1, 120},
}

// plantedScripts are planted bugs that chance meets too rarely in so few runs; a
// script meets them at once.
var plantedScripts = []struct {
	bug    invariant.Bug
	script string
}{
	{invariant.HungDiskKeepsLead, "hung-disk-under-writes"},
	{invariant.LastFlushNotWrittenAgain, "failed-fsync-of-many-blocks"},
	{invariant.PartsWithoutWindow, "large-write-on-slow-links"},
	{invariant.WaitInWrongUnit, "queue-outlives-failover"},
}

// plantedElsewhere are found by the tests of a package, which plant them
// themselves.
var plantedElsewhere = map[string][]invariant.Bug{
	"lockd/replica": {invariant.LeaseAheadOfNews, invariant.NotedGetsLease, invariant.AnsweredIsSilent, invariant.WatchSkips},
	"paxos": {invariant.ValueOfAnyBallot, invariant.CatchUpGivesAccepted, invariant.MinorityKeepsLead, invariant.LearnersPromise,
		invariant.LeaderLearns},
	"replog/peer/lane": {invariant.PartsOutOfPlace},
	"store": {invariant.OldCellTimeTaken, invariant.OldRequestTaken, invariant.EphemeralOfNext, invariant.GhostStartsItself, invariant.HeldByAnybody, invariant.ClearVoidsNothing, invariant.OldExpiryTaken,
		invariant.PutOnContainerGoes},
	"client/machine": {invariant.OverloadedNotRepeated, invariant.CloseSaysWorkEnded, invariant.AnswerBeforeGuard},
	"replog":         {invariant.IdentityBeforeSlotOne, invariant.BelievesBelowInstalled},
	"replog/storage": {invariant.LostMarkTolerated, invariant.SuccessorNotNoted},
	"replog/vfs":     {invariant.DirectWritesNotDurable, invariant.DirectoriesNotSynced, invariant.NoFdatasync},
}

// TestEveryPlantedBugHasAFinder: each bug on the list stands in one of the tables
// above, and where a package's tests are to find it, they name it.
func TestEveryPlantedBugHasAFinder(t *testing.T) {
	found := map[invariant.Bug]int{}
	for _, p := range planted {
		found[p.bug]++
	}
	for _, p := range plantedScripts {
		found[p.bug]++
	}
	for dir, bugs := range plantedElsewhere {
		var tests strings.Builder
		for _, files := range []string{"../" + dir + "/*_test.go", "../" + dir + "/../*_test.go"} {
			names, err := filepath.Glob(files)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range names {
				text, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				tests.Write(text)
			}
		}
		for _, b := range bugs {
			found[b]++
			if !strings.Contains(tests.String(), string(b)) && !strings.Contains(tests.String(), "invariant."+nameOf(t, b)) {
				t.Errorf("%s: no test in %s plants it", b, dir)
			}
		}
	}
	for _, b := range invariant.Bugs {
		if found[b] != 1 {
			t.Errorf("%s stands in %d of the tables of what finds a planted bug, not in one", b, found[b])
		}
	}
}

// nameOf returns the name of the constant of a bug.
func nameOf(t *testing.T, b invariant.Bug) string {
	t.Helper()
	text, err := os.ReadFile("../internal/invariant/invariant.go")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(\w+) +Bug = "` + string(b) + `"`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s is not in invariant.go", b)
	}
	return string(m[1])
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
	for _, p := range plantedScripts {
		t.Run(string(p.bug), func(t *testing.T) {
			out, err := exec.Command(binary, "-plant", string(p.bug), "-script", "testdata/"+p.script+".script").CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Fatalf("the script %s does not find the planted bug: %v\n%s", p.script, err, out)
			}
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
