//go:build !plantedbugs

package lane

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// TestPlantedBugsAreFound runs the tests in a build in which bugs can be planted:
// each makes the test fail that is for it, and none does without.
func TestPlantedBugsAreFound(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "lane.test")
	if out, err := exec.Command("go", "test", "-c", "-tags", "plantedbugs", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, p := range []struct {
		bug  invariant.Bug
		test string
	}{
		{invariant.PartsWithoutWindow, "TestMessagesArriveWhole"},
		{invariant.PartsWithoutWindow, "TestLinks"},
		{invariant.PartsOutOfPlace, "TestPartOutOfPlace"},
		{"", "TestMessagesArriveWhole"},
		{"", "TestPartOutOfPlace"},
	} {
		run := exec.Command(binary, "-test.run", "^"+p.test+"$", "-rapid.nofailfile")
		run.Env = append(os.Environ(), "LANE_PLANT="+string(p.bug))
		out, err := run.CombinedOutput()
		if failed := bytes.Contains(out, []byte("--- FAIL: "+p.test)); failed != (p.bug != "") || failed != (err != nil) {
			t.Errorf("%s with %q planted: %v\n%s", p.test, p.bug, err, out)
		}
	}
}
