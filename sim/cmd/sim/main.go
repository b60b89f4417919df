// Command sim runs the simulator.
//
//	sim -seed N              repeats one run and prints its story
//	sim -for 60s             fresh seeds on all cores for that long
//	sim -n N                 N fresh seeds
//	sim -seeds A-B           these seeds
//	sim -script FILE -v      plays a script and prints its story
//
// It ends with the line "N passed, N failed" and exit code 1 if any failed.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
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
	last    time.Duration
	script  string
	plan    string
	shrink  bool
	plant   string
	quiet   bool
	stop    bool
	workers int
	verbose bool
}

func main() {
	var o options
	flag.StringVar(&o.seed, "seed", "", "repeat the run of this seed and print its story")
	flag.StringVar(&o.seeds, "seeds", "", "run the seeds A-B")
	flag.IntVar(&o.n, "n", 0, "run so many fresh seeds")
	flag.DurationVar(&o.last, "for", 0, "run fresh seeds for so long")
	flag.StringVar(&o.script, "script", "", "play the script in this file; with -v with its story")
	flag.StringVar(&o.plant, "plant", "", "plant a bug (builds with -tags plantedbugs only)")
	flag.BoolVar(&o.quiet, "quiet", false, "with -seed: no story, only the outcome")
	flag.BoolVar(&o.stop, "stop", false, "end with the first failing seed")
	flag.BoolVar(&o.verbose, "v", false, "a line for each run")
	flag.IntVar(&o.workers, "workers", 0, "runs at a time (default: one for each core)")
	flag.Parse()
	debug.SetGCPercent(300)
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
	if o.seed != "" {
		seed, err := strconv.ParseUint(o.seed, 0, 64)
		if err != nil {
			return false, fmt.Errorf("-seed wants a number: %w", err)
		}
		return one(seed, o.quiet), nil
	}
	b := sim.Batch{Workers: o.workers, StopAtFailure: o.stop}
	if b.Next, err = source(o); err != nil {
		return false, err
	}
	if o.verbose {
		b.Each = func(r sim.Report) { fmt.Println(line(r)) }
	}
	r := b.Run()
	report(r, o)
	return r.Failed > 0, nil
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

// one runs a seed with its story.
func one(seed uint64, quiet bool) (failed bool) {
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	o := sim.Options{Seed: seed}
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
	cores := r.Elapsed.Seconds() * float64(r.Workers)
	fmt.Printf("simulated %v in %v of real time; %.0f simulated seconds a core-second; %d seeds run twice; %d searches undecided\n",
		r.Simulated.Round(time.Second), r.Elapsed.Round(100*time.Millisecond), r.Simulated.Seconds()/max(cores, 0.001), r.Twice, r.Undecided)
	fmt.Printf("faults: %v\n", &r.Faults)
	if r.First != nil {
		tags, planted := "", ""
		if o.plant != "" {
			tags, planted = "-tags plantedbugs ", "-plant "+o.plant+" "
		}
		fmt.Printf("first failing seed: %d (%s)\nrepeat it with: go run %s./sim/cmd/sim %s-seed %d\n",
			r.First.Seed, r.First.Failure.Check, tags, planted, r.First.Seed)
	}
	fmt.Printf("%d passed, %d failed\n", r.Passed, r.Failed)
}
