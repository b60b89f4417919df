package sim

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestPlanFileSaysEverything: a plan that is written and read again is the same,
// and each of its numbers is in use in some plan.
func TestPlanFileSaysEverything(t *testing.T) {
	used := map[string]bool{}
	for seed := uint64(1); seed <= 400; seed++ {
		want := DrawPlan(seed)
		if seed%3 == 0 {
			want.p.skip(1, 3, 5)
			want.p.skip(2, 7, 7)
		}
		got, err := ParsePlan(want.String())
		if err != nil {
			t.Fatalf("seed %d: %v\n%v", seed, err, want)
		}
		for _, f := range want.p.fields() {
			if !f.zero() {
				used[f.name] = true
			}
		}
		want.p.every = got.p.every // what the faults were drawn from is not kept
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: written\n%v\nread\n%v", seed, want, got)
		}
	}
	for _, f := range new(plan).fields() {
		if !used[f.name] {
			t.Errorf("no plan of 400 has %q", f.name)
		}
	}
}

// TestPlanRunsLikeItsSeed: the written plan gives the run of the seed.
func TestPlanRunsLikeItsSeed(t *testing.T) {
	p, err := ParsePlan(DrawPlan(41).String())
	if err != nil {
		t.Fatal(err)
	}
	if a, b := Run(Options{Seed: 41}), Run(Options{Plan: &p}); a.Trace != b.Trace || a.Events != b.Events {
		t.Errorf("the seed has trace %016x, its plan %016x", a.Trace, b.Trace)
	}
}

func TestParsePlanNamesTheMistake(t *testing.T) {
	good := DrawPlan(5).String()
	for _, c := range []struct{ text, wants string }{
		{"", "no run can be made"},
		{good + "colour red\n", `a plan has no "colour"`},
		{good + "work soon\n", "(work soon)"},
		{good + "work -5s\n", "between 0 and an hour"},
		{good + "replicas 99\n", "1 to 9 replicas"},
		{good + "clients 0\n", "clients are possible"},
		{good + "drop-ppm x\n", "(drop-ppm x)"},
		{good + "tearing perhaps\n", "(tearing perhaps)"},
		{good + "fault 1s crash\n", "3 words"},
		{good + "fault 1s flood 3\n", `no fault "flood"`},
		{good + "fault x crash 3\n", "(fault x crash 3)"},
		{good + "skip 1 2 many\n", "(skip 1 2 many)"},
		{good + "think 0s\n", "think"},
		{good + "flush-most 1ns\n", "flush"},
		{"seed 1\nseed x\n", "line 2"},
	} {
		if _, err := ParsePlan(c.text); err == nil || !strings.Contains(err.Error(), c.wants) {
			t.Errorf("%q: %v, not %q", c.text[max(0, len(c.text)-40):], err, c.wants)
		}
	}
}

// TestOneFaultLessLeavesTheOthers: without one planned fault, or one operation,
// the run is the same up to it.
func TestOneFaultLessLeavesTheOthers(t *testing.T) {
	p := DrawPlan(42)
	if len(p.p.planned) < 2 {
		t.Fatalf("seed 42 plans %d faults; take another one", len(p.p.planned))
	}
	last := p.p.planned[len(p.p.planned)-1]
	less := Plan{p.p.clone()}
	less.p.planned = less.p.planned[:len(less.p.planned)-1]
	upTo := func(p Plan) string {
		var s strings.Builder
		Run(Options{Plan: &p, Story: &s})
		var kept []string
		for _, line := range strings.Split(s.String(), "\n") {
			if f := strings.Fields(line); len(f) > 1 && f[1] != "plan" {
				if at, err := strconv.ParseFloat(f[0], 64); err == nil && int64(at*1e6) < last.at/1000-1 {
					kept = append(kept, line)
				}
			}
		}
		return strings.Join(kept, "\n")
	}
	if a, b := upTo(p), upTo(less); a != b || len(a) == 0 {
		t.Errorf("the runs differ before the fault that one of them leaves out (%d and %d bytes)", len(a), len(b))
	}
}

// TestShrink: the failing run of a planted bug becomes markedly shorter, still
// fails for the same reason, and comes out the same each time.
func TestShrink(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "sim")
	if out, err := exec.Command("go", "build", "-tags", "plantedbugs", "-o", binary, "./cmd/sim").CombinedOutput(); err != nil {
		t.Fatalf("building the simulator with planted bugs: %v\n%s", err, out)
	}
	sim := func(args ...string) string {
		out, err := exec.Command(binary, append([]string{"-plant", "repeat-applied-twice"}, args...)...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Fatalf("sim %v: %v, not a failing run\n%s", args, err, out)
		}
		return string(out)
	}
	found := regexp.MustCompile(`first failing seed: (\d+) \(([a-z-]+)\)`).FindStringSubmatch(sim("-seeds", "1-60", "-stop"))
	if found == nil {
		t.Fatal("no failing seed is named")
	}
	seed, check := found[1], found[2]
	plans := [3]string{}
	for i, runs := range []string{"900", "40", "40"} {
		file := filepath.Join(dir, "plan"+strconv.Itoa(i))
		out := sim("-seed", seed, "-shrink", "-shrink-runs", runs, "-o", file)
		if !strings.Contains(out, "-plan "+file) || !strings.Contains(out, "FAIL  "+check) {
			t.Errorf("the way to repeat the shorter run, or its story, is not told:\n%.300s", out)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		plans[i] = string(text)
	}
	if plans[1] != plans[2] {
		t.Errorf("two times two plans:\n%s\n%s", plans[1], plans[2])
	}
	again := sim("-plan", filepath.Join(dir, "plan0"))
	if !strings.Contains(again, "FAILED: "+check+":") {
		t.Errorf("the shorter plan does not fail as %s", check)
	}
	// What is left to read: the planned faults, and the calls of clients.
	calls := regexp.MustCompile(`  call \d+: `)
	before := sim("-seed", seed)
	short, long := len(calls.FindAllString(again, -1)), len(calls.FindAllString(before, -1))
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	was, is := DrawPlan(n), mustPlan(t, plans[0])
	short, long = short+len(is.p.planned), long+len(was.p.planned)
	if 2*short > long {
		t.Errorf("%d calls and planned faults are left of %d", short, long)
	}
	t.Logf("seed %s (%s): %d clients became %d, %d planned faults %d, %d calls and faults %d", seed, check, was.p.clients, is.p.clients,
		len(was.p.planned), len(is.p.planned), long, short)
}

func mustPlan(t *testing.T, text string) Plan {
	t.Helper()
	p, err := ParsePlan(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestKindOfFailure(t *testing.T) {
	a := &Failure{Check: "panic", Text: "invariant broken: slot 12 at b3.1\ngoroutine 7"}
	b := &Failure{Check: "panic", Text: "invariant broken: slot 9 at b14.2\ngoroutine 1"}
	c := &Failure{Check: "panic", Text: "index out of range"}
	if a.Kind() != b.Kind() || a.Kind() == c.Kind() || (*Failure)(nil).Kind() != "" {
		t.Errorf("kinds %q, %q, %q", a.Kind(), b.Kind(), c.Kind())
	}
}
