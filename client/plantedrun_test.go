//go:build !plantedbugs

package client_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// TestPlantedBugsAreFound plants the client's known bugs, one at a time, in a
// build of its own, and demands that the test named fails; and that it passes
// there without.
func TestPlantedBugsAreFound(t *testing.T) {
	for _, x := range []struct {
		bug  invariant.Bug
		pkg  string
		test string
		says string
	}{
		{invariant.OverloadedNotRepeated, "./machine", "TestOverloadedIsRepeated", "before the time that the service named"},
		{invariant.CloseSaysWorkEnded, "./machine", "TestClose", "no Release has said"},
		{invariant.WatchKeepsDeleted, "./machine", "TestWatchTellsTheDifference", "expected"},
		{invariant.WatchMarksNothing, "./machine", "TestWatchTellsTheDifference", "expected"},
		{invariant.AnswerBeforeGuard, ".", "TestReentrant", "handed over before its deadline is watched"},
	} {
		run := func(bug invariant.Bug) (string, error) {
			cmd := exec.Command("go", "test", "-tags", "plantedbugs", "-count=1", "-run", "^"+x.test+"$", x.pkg)
			cmd.Env = append(os.Environ(), "LOCKD_PLANT="+string(bug))
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		t.Run(string(x.bug), func(t *testing.T) {
			if out, err := run(x.bug); err == nil || !strings.Contains(out, x.says) {
				t.Fatalf("%s does not find it: %v\n%s", x.test, err, out)
			}
			if out, err := run(""); err != nil {
				t.Fatalf("%s without the bug: %v\n%s", x.test, err, out)
			}
		})
	}
}
