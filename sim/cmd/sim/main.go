// Command sim runs the simulator.
//
//	sim -seed N              repeats one run and prints its story
//	sim -for 60s             fresh seeds on all cores for that long
//	sim -n N                 N fresh seeds
//	sim -n N -from SEED -progress FILE   a long row, which goes on where it was interrupted
//	sim -seeds A-B           these seeds
//	sim -seed N -shrink      makes a failing run shorter, writes its plan
//	sim -plan FILE           runs a plan and prints its story
//	sim -script FILE -v      plays a script and prints its story
//
// It ends with the line "N passed, N failed" and exit code 1 if any failed.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/seed70370324/lockd/sim"
)

type options struct {
	seed    string
	seeds   string
	n       int
	from    string
	notes   string
	last    time.Duration
	script  string
	plan    string
	shrink  bool
	out     string
	runs    int
	plant   string
	quiet   bool
	stop    bool
	workers int
	verbose bool
	noModel bool
}

func main() {
	var o options
	flag.StringVar(&o.seed, "seed", "", "repeat the run of this seed and print its story")
	flag.StringVar(&o.seeds, "seeds", "", "run the seeds A-B")
	flag.IntVar(&o.n, "n", 0, "run so many fresh seeds")
	flag.StringVar(&o.from, "from", "", "with -n: the first seed, instead of a fresh one")
	flag.StringVar(&o.notes, "progress", "", "with -n and -from: a file that says what has been run; an interrupted row goes on from there")
	flag.DurationVar(&o.last, "for", 0, "run fresh seeds for so long")
	flag.StringVar(&o.script, "script", "", "play the script in this file; with -v with its story")
	flag.StringVar(&o.plan, "plan", "", "run the plan in this file and print its story")
	flag.BoolVar(&o.shrink, "shrink", false, "with -seed or -plan: make the failing run shorter by machine")
	flag.StringVar(&o.out, "o", "", "with -shrink: where to write the shorter plan (default: seed-N.plan)")
	flag.IntVar(&o.runs, "shrink-runs", 0, "with -shrink: how many runs to make at most (default 500)")
	flag.StringVar(&o.plant, "plant", "", "plant a bug (builds with -tags plantedbugs only)")
	flag.BoolVar(&o.quiet, "quiet", false, "with -seed: no story, only the outcome")
	flag.BoolVar(&o.stop, "stop", false, "end with the first failing seed")
	flag.BoolVar(&o.verbose, "v", false, "a line for each run")
	flag.BoolVar(&o.noModel, "no-model", false, "with many seeds: do not ask sim/model, to see what it costs")
	flag.IntVar(&o.workers, "workers", 0, "runs at a time (default: one for each core)")
	flag.Parse()
	// Little lives for long: most of the time would go into looking for what does.
	// And a heap that shrinks behind each run is fetched from the system anew.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(512 << 20)
	failed, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func run(o options) (failed bool, err error) {
	if flag.NArg() > 0 {
		return false, fmt.Errorf("unexpected argument %q: see sim -h", flag.Arg(0))
	}
	if o.plant != "" {
		if err := plant(o.plant); err != nil {
			return false, err
		}
	}
	if o.script != "" {
		return script(o)
	}
	if o.seed != "" || o.plan != "" {
		plan, err := planOf(o)
		if err != nil {
			return false, err
		}
		if o.shrink {
			return shrink(plan, o)
		}
		return one(plan, o.quiet), nil
	}
	if o.shrink {
		return false, errors.New("-shrink wants a failing run: -seed N or -plan FILE")
	}
	b := sim.Batch{Workers: o.workers, StopAtFailure: o.stop, NoModel: o.noModel}
	if b.Next, err = source(o); err != nil {
		return false, err
	}
	var before *progress
	if o.notes != "" {
		if before, err = progressOf(o); err != nil {
			return false, err
		}
		b.Next = before.next(b.Next)
	}
	b.Each = func(r sim.Report) {
		if o.verbose {
			fmt.Println(line(r))
		}
		if before != nil {
			before.ran(r)
		}
	}
	r := b.Run()
	if before != nil {
		fmt.Printf("seeds run before, by %s: %d passed, %d failed %v\n", o.notes, before.passed, len(before.failed), before.failed)
		r.Passed += before.passed
		r.Failed += len(before.failed)
		err = errors.Join(before.err, before.file.Close())
	}
	report(r, o)
	return r.Failed > 0, err
}

// source makes the seeds that the flags ask for.
func source(o options) (func() (uint64, bool), error) {
	if o.seeds != "" {
		a, b, ok := strings.Cut(o.seeds, "-")
		if !ok {
			b = a
		}
		first, err1 := strconv.ParseUint(a, 0, 64)
		last, err2 := strconv.ParseUint(b, 0, 64)
		if err1 != nil || err2 != nil || last < first {
			return nil, fmt.Errorf("-seeds wants A-B, two numbers, not %q", o.seeds)
		}
		next := first
		return func() (uint64, bool) {
			next++
			return next - 1, next-1 <= last
		}, nil
	}
	if o.n <= 0 && o.last <= 0 {
		o.last = 10 * time.Second
	}
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, fmt.Errorf("drawing the first seed: %w", err)
	}
	base := binary.LittleEndian.Uint64(random[:]) >> 24
	if o.from != "" {
		var err error
		if base, err = strconv.ParseUint(o.from, 0, 64); err != nil {
			return nil, fmt.Errorf("-from wants a number: %w", err)
		}
	}
	fmt.Printf("first seed %d\n", base)
	end := time.Now().Add(o.last)
	next := base
	return func() (uint64, bool) {
		next++
		if o.n > 0 {
			return next - 1, next-1-base < uint64(o.n)
		}
		return next - 1, time.Now().Before(end)
	}, nil
}

// progressOf opens the progress of the row of seeds that the flags name.
func progressOf(o options) (*progress, error) {
	from, err := strconv.ParseUint(o.from, 0, 64)
	if err != nil || o.n <= 0 {
		return nil, errors.New("-progress wants a row of seeds with a name: -n N -from SEED")
	}
	commit := "an unknown commit"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = s.Value
			}
		}
	}
	return openProgress(o.notes, from, o.n, commit)
}

// script plays a script.
func script(o options) (failed bool, err error) {
	text, err := os.ReadFile(o.script)
	if err != nil {
		return false, fmt.Errorf("reading the script: %w", err)
	}
	s, err := sim.ParseScript(string(text))
	if err != nil {
		return false, fmt.Errorf("%s: %w", o.script, err)
	}
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	run := sim.Options{}
	if o.verbose {
		run.Story = out
	}
	r := sim.RunScript(s, run)
	if r.Failure != nil {
		fmt.Fprintf(out, "%s: FAILED: %v\n0 passed, 1 failed\n", o.script, r.Failure)
	} else {
		fmt.Fprintf(out, "%s: passed in %v of simulated time\n1 passed, 0 failed\n", o.script, r.Simulated.Round(time.Millisecond))
	}
	if err := out.Flush(); err != nil {
		return false, fmt.Errorf("writing the story: %w", err)
	}
	return r.Failure != nil, nil
}

// planOf finds the plan that the flags name.
func planOf(o options) (sim.Plan, error) {
	if o.plan == "" {
		seed, err := strconv.ParseUint(o.seed, 0, 64)
		if err != nil {
			return sim.Plan{}, fmt.Errorf("-seed wants a number: %w", err)
		}
		return sim.DrawPlan(seed), nil
	}
	if o.seed != "" {
		return sim.Plan{}, errors.New("-seed and -plan name two runs: give one of them")
	}
	text, err := os.ReadFile(o.plan)
	if err != nil {
		return sim.Plan{}, fmt.Errorf("reading the plan: %w", err)
	}
	plan, err := sim.ParsePlan(string(text))
	if err != nil {
		return sim.Plan{}, fmt.Errorf("%s: %w", o.plan, err)
	}
	return plan, nil
}

// shrink makes a failing run shorter, writes its plan, and tells its story.
func shrink(plan sim.Plan, o options) (failed bool, err error) {
	tell := func(what string, r sim.Report) {
		fmt.Printf("%-48s %3d planned faults, %4d operations, %v to the failure\n", what, r.Planned, r.Done, r.Simulated.Round(time.Microsecond))
	}
	s := sim.Shrink{Runs: o.runs, Each: func(what string, r sim.Report) {
		tell(what, r)
	}}
	before := sim.Run(sim.Options{Plan: &plan})
	if before.Failure == nil {
		fmt.Println(line(before))
		fmt.Println("1 passed, 0 failed: there is nothing to make shorter")
		return false, nil
	}
	fmt.Printf("the run fails: %v\n", before.Failure)
	tell("as it was", before)
	short, _, _ := s.Run(plan)
	name := o.out
	if name == "" {
		name = fmt.Sprintf("seed-%d.plan", before.Seed)
	}
	if err := os.WriteFile(name, []byte(short.String()), 0o644); err != nil {
		return true, fmt.Errorf("writing the plan: %w", err)
	}
	fmt.Printf("the story of what is left:\n\n")
	one(short, false)
	tags, planted := plantFlags(o)
	fmt.Printf("the plan is in %s; repeat it with: go run %s./sim/cmd/sim %s-plan %s\n", name, tags, planted, name)
	return true, nil
}

// plantFlags are what a command line needs to have the same planted bug.
func plantFlags(o options) (tags, planted string) {
	if o.plant == "" {
		return "", ""
	}
	return "-tags plantedbugs ", "-plant " + o.plant + " "
}

// one runs a plan with its story.
func one(plan sim.Plan, quiet bool) (failed bool) {
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	o := sim.Options{Plan: &plan}
	if !quiet {
		o.Story = out
	}
	r := sim.Run(o)
	fmt.Fprintln(out, line(r))
	if r.Failure == nil {
		fmt.Fprintln(out, "1 passed, 0 failed")
	} else {
		fmt.Fprintln(out, "0 passed, 1 failed")
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "sim: writing the story:", err)
	}
	return r.Failure != nil
}

func line(r sim.Report) string {
	s := fmt.Sprintf("seed %d: trace %016x, %d events, %v simulated", r.Seed, r.Trace, r.Events, r.Simulated.Round(time.Millisecond))
	if r.Failure != nil {
		return s + ": FAILED: " + r.Failure.Error() + "\n  " + r.Summary
	}
	return s + ": passed: " + r.Summary
}

func report(r sim.Result, o options) {
	for i, f := range r.Failures {
		if i == 10 {
			fmt.Printf("... and %d more\n", len(r.Failures)-i)
			break
		}
		fmt.Println(line(f))
	}
	cores, by := r.CPU.Seconds(), "by the process's CPU time"
	if r.CPU == 0 {
		cores, by = r.Elapsed.Seconds()*float64(r.Workers), "by real time and workers"
	}
	fmt.Printf("simulated %v in %v of real time; %.0f simulated seconds a core-second (%s); %d seeds run twice; %d searches undecided\n",
		r.Simulated.Round(time.Second), r.Elapsed.Round(100*time.Millisecond), r.Simulated.Seconds()/max(cores, 0.001), by, r.Twice, r.Undecided)
	fmt.Printf("faults: %v\n", &r.Faults)
	if r.First != nil {
		tags, planted := plantFlags(o)
		fmt.Printf("first failing seed: %d (%s)\nrepeat it with: go run %s./sim/cmd/sim %s-seed %d\n"+
			"make it shorter with the same and -shrink\n",
			r.First.Seed, r.First.Failure.Check, tags, planted, r.First.Seed)
	}
	fmt.Printf("%d passed, %d failed\n", r.Passed, r.Failed)
}
