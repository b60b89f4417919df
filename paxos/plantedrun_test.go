//go:build !plantedbugs

package paxos_test

import (
	"os/exec"
	"testing"
)

// TestPlantedBugsAreFound runs TestPlanted in a build in which bugs can be
// planted; this build cannot.
func TestPlantedBugsAreFound(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "test", "-tags", "plantedbugs", "-count=1", "-run", "^TestPlanted$", "-v", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
