// Package plantedtest shows of a package's tests that they notice the bugs that
// package invariant can plant.
package plantedtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// Variable is the environment variable that says which bug is planted, to the test
// binaries that Run builds.
const Variable = "LOCKD_PLANTED_BUG"

// Case is a bug and the name of a test that notices it.
type Case struct {
	Bug  invariant.Bug
	Test string
}

// Run builds the tests of the package in the working directory with the tag
// plantedbugs, plants each bug, and shows that the test that is there for it
// fails; and passes there without the bug. The package plants the bug that
// Variable names in a test file with that tag. The flags are for its tests.
func Run(t *testing.T, cases []Case, flags ...string) {
	binary := filepath.Join(t.TempDir(), "planted.test")
	if out, err := exec.Command("go", "test", "-c", "-tags", "plantedbugs", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("building the tests with planted bugs: %v\n%s", err, out)
	}
	run := func(test string, bug invariant.Bug) (string, error) {
		cmd := exec.Command(binary, append([]string{"-test.run", "^" + test + "$"}, flags...)...)
		cmd.Env = append(os.Environ(), Variable+"="+string(bug))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, c := range cases {
		t.Run(string(c.Bug)+"/"+c.Test, func(t *testing.T) {
			if out, err := run(c.Test, ""); err != nil || strings.Contains(out, "no tests to run") {
				t.Fatalf("without the bug: %v\n%s", err, out)
			}
			out, err := run(c.Test, c.Bug)
			if err == nil || !strings.Contains(out, "--- FAIL: "+c.Test) {
				t.Fatalf("the planted bug is not noticed: %v\n%s", err, out)
			}
		})
	}
}
