package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/sim"
)

// TestProgressGoesOn: a row that was interrupted, in the middle of a line too,
// runs what is left and nothing twice; another row does not take the file.
func TestProgressGoesOn(t *testing.T) {
	name := filepath.Join(t.TempDir(), "progress")
	p, err := openProgress(name, 10, 4, "abc")
	if err != nil {
		t.Fatal(err)
	}
	p.ran(sim.Report{Seed: 11})
	p.ran(sim.Report{Seed: 10, Failure: &sim.Failure{Check: "agreement"}})
	p.write("12 pas")
	if err := p.file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := openProgress(name, 10, 5, "abc"); err == nil || !strings.Contains(err.Error(), "other seeds") {
		t.Errorf("the progress of another row is taken: %v", err)
	}
	p, err = openProgress(name, 10, 4, "abc")
	if err != nil {
		t.Fatal(err)
	}
	if p.passed != 1 || len(p.failed) != 1 || p.failed[0] != 10 {
		t.Errorf("%d passed and %v failed before, want 1 and [10]", p.passed, p.failed)
	}
	at := uint64(9)
	next := p.next(func() (uint64, bool) { at++; return at, at < 14 })
	var left []uint64
	for seed, ok := next(); ok; seed, ok = next() {
		left = append(left, seed)
		p.ran(sim.Report{Seed: seed})
	}
	if len(left) != 2 || left[0] != 12 || left[1] != 13 {
		t.Errorf("what is left is %v, want 12 and 13", left)
	}
	if err := p.file.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil || !strings.HasSuffix(string(text), "12 pas\n12 passed\n13 passed\n") {
		t.Errorf("the file says %q (%v)", text, err)
	}
}
