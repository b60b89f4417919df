//go:build !plantedbugs && (amd64 || arm64)

package replog

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// plantedBugs names the tests that notice each planted bug.
var plantedBugs = []struct {
	bug  invariant.Bug
	test string
}{
	{invariant.LostMarkTolerated, "TestOneLostMarkIsBelievedAndNoMore"},
	{invariant.LastFlushNotWrittenAgain, "TestLargeFlushFailedThenPowerCut"},
	{invariant.DirectWritesNotDurable, "TestDurableCalls"},
	{invariant.DirectoriesNotSynced, "TestDurableCalls"},
	{invariant.NoFdatasync, "TestDurableCalls"},
	{invariant.IdentityBeforeSlotOne, "TestIdentityWaitsForSlotOne"},
	{invariant.BelievesBelowInstalled, "TestLateAcceptWhileASnapshotIsInstalled"},
	{invariant.BelievesBelowInstalled, "TestNothingBelowAnInstalledSnapshotIsBelieved"},
	{invariant.SuccessorNotNoted, "TestLastSegmentGone"},
}

// TestPlantedBugs plants each bug in a build of its own and shows that the test
// that is there for it fails; and passes there without the bug.
func TestPlantedBugs(t *testing.T) {
	if canBeDirect(t) == "" {
		t.Skip("no file system on this machine makes direct writes durable: a bug in them cannot be seen")
	}
	dir := t.TempDir()
	binary := filepath.Join(dir, "replog.test")
	if out, err := exec.Command("go", "test", "-c", "-tags", "plantedbugs", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the tests with planted bugs: %v\n%s", err, out)
	}
	run := func(test string, bug invariant.Bug) (string, error) {
		cmd := exec.Command(binary, "-test.run", "^"+test+"$", "-rapid.nofailfile")
		cmd.Env = append(os.Environ(), "LOCKD_PLANTED_BUG="+string(bug))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, p := range plantedBugs {
		t.Run(string(p.bug)+"/"+p.test, func(t *testing.T) {
			if out, err := run(p.test, ""); err != nil || strings.Contains(out, "no tests to run") {
				t.Fatalf("without the bug: %v\n%s", err, out)
			}
			out, err := run(p.test, p.bug)
			if err == nil || !strings.Contains(out, "--- FAIL: "+p.test) {
				t.Fatalf("the planted bug is not noticed: %v\n%s", err, out)
			}
		})
	}
}
