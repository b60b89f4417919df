package replica

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// plantVariable names the bug that a build of these tests with the tag
// plantedbugs plants.
const plantVariable = "LOCKD_PLANT"

// planted says which test finds which bug of the master.
var planted = []struct {
	bug  invariant.Bug
	test string
}{
	{invariant.GhostsSequencer, "TestCheckSequencer"},
	{invariant.DroppedKeepsItsBytes, "TestOpenRenewExpire|TestHandOver|TestRequestBehindAnExpiryIsAnswered"},
	{invariant.LeaseAheadOfNews, "TestLossGoesAheadOfEveryRenewal"},
	{invariant.NotedGetsLease, "TestNoSessionEndsWithinALease"},
	{invariant.ExpiresInHand, "TestNoExpiryWhileAKeepAliveWaitsForItsProof"},
	{invariant.AnsweredIsSilent, "TestNoExpiryJustBehindAnAnswer"},
	{invariant.WatchLastOfBatch, "TestWatchOrder"},
	{invariant.WatchExchangesOrder, "TestWatchOrder"},
	{invariant.WatchSkips, "TestWatchFallsOutOfTheLog"},
	{invariant.WatchLosesReason, "TestWatchTellsWhy"},
	{invariant.OldRequestTaken, "TestAnEarlierMastersCommandIsVoid"},
}

// TestPlantedBugsAreFound runs the tests here in a build in which bugs can be
// planted: with each of them a test must fail that passes without it.
func TestPlantedBugsAreFound(t *testing.T) {
	if os.Getenv(plantVariable) != "" {
		t.Skip("this is the build with a bug")
	}
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "replica.test")
	if out, err := exec.Command("go", "test", "-c", "-tags", "plantedbugs", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the tests with planted bugs: %v\n%s", err, out)
	}
	for _, p := range planted {
		t.Run(string(p.bug), func(t *testing.T) {
			run := func(bug invariant.Bug) ([]byte, error) {
				cmd := exec.Command(binary, "-test.run", "^("+p.test+")$", "-rapid.nofailfile", "-rapid.shrinktime=1s")
				if bug != "" { // some need more than the usual 100 tries
					cmd.Args = append(cmd.Args, "-rapid.checks=800")
				}
				cmd.Env = append(os.Environ(), plantVariable+"="+string(bug))
				return cmd.CombinedOutput()
			}
			if out, err := run(""); err != nil {
				t.Fatalf("fails without the bug: %v\n%s", err, out)
			}
			out, err := run(p.bug)
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("the planted bug is not noticed: %v\n%s", err, out)
			}
			t.Logf("noticed: %.300s", out)
		})
	}
}
