package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestDemo runs the demonstration that the README shows.
func TestDemo(t *testing.T) {
	tmp := t.TempDir()
	cmd := exec.Command(program("lockctl"), "demo", "--lockd", program("lockd"))
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"kill -9 of the master", "have lived on", "its late write is refused", "all processes ended, all files removed"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the demo does not say %q:\n%s", want, out)
		}
	}
	left, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		t.Errorf("the demo leaves %s behind", f.Name())
	}
}
