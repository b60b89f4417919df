// Command plans draws the plans of seeds into files, and plays all plans of a
// directory quietly and says what of the processors it took.
//
//	plans -draw 1-200 DIR    the plan of each seed, as DIR/SEED.plan
//	plans DIR                plays them, with all checks and without stories
//
// It needs no more of package sim than revision 2d52896 had, so that
// internal/tools/simpair.sh can build it into an older revision and let both
// play the same files.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed70370324/lockd/sim"
)

func main() {
	draw := flag.String("draw", "", "write the plans of the seeds A-B")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "runs at a time")
	gc := flag.Int("gc", -1, "GOGC: that of ./sim/cmd/sim, which differs by revision")
	limit := flag.Int64("memory", 512, "MiB at which memory is collected whatever -gc says, likewise; 0: no limit")
	cpu := flag.String("cpuprofile", "", "write a CPU profile to this file")
	mem := flag.String("memprofile", "", "write a profile of all allocations to this file")
	verbose := flag.Bool("v", false, "a line for each run")
	flag.Parse()
	failed, err := false, errors.New("name one directory of plans")
	if flag.NArg() == 1 {
		if *draw != "" {
			err = drawPlans(*draw, flag.Arg(0))
		} else {
			debug.SetGCPercent(*gc)
			if *limit > 0 {
				debug.SetMemoryLimit(*limit << 20)
			}
			failed, err = profiled(*cpu, *mem, func() (bool, error) { return play(flag.Arg(0), *workers, *verbose) })
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plans:", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

func drawPlans(seeds, dir string) error {
	a, b, _ := strings.Cut(seeds, "-")
	first, err1 := strconv.ParseUint(a, 0, 64)
	last, err2 := strconv.ParseUint(b, 0, 64)
	if err1 != nil || err2 != nil || last < first {
		return fmt.Errorf("-draw wants A-B, two numbers, not %q", seeds)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the directory of the plans: %w", err)
	}
	for seed := first; seed <= last; seed++ {
		name := filepath.Join(dir, fmt.Sprintf("%06d.plan", seed))
		if err := os.WriteFile(name, []byte(sim.DrawPlan(seed).String()), 0o644); err != nil {
			return fmt.Errorf("writing a plan: %w", err)
		}
	}
	return nil
}

// play runs all plans of the directory.
func play(dir string, workers int, verbose bool) (failed bool, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.plan"))
	if err != nil || len(names) == 0 {
		return false, fmt.Errorf("there is no plan in %q (%w)", dir, err)
	}
	plans := make([]sim.Plan, len(names))
	for i, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return false, fmt.Errorf("reading a plan: %w", err)
		}
		if plans[i], err = sim.ParsePlan(string(text)); err != nil {
			return false, fmt.Errorf("%s: %w", name, err)
		}
	}
	began, user, system := time.Now(), time.Duration(0), time.Duration(0)
	reports := make([]sim.Report, len(plans))
	next := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				reports[i] = sim.Run(sim.Options{Plan: &plans[i]})
			}
		})
	}
	for i := range plans {
		next <- i
	}
	close(next)
	wg.Wait()
	elapsed := time.Since(began)
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return false, fmt.Errorf("asking for the CPU time: %w", err)
	}
	user, system = time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
	bad, undecided, events, simulated := 0, 0, uint64(0), time.Duration(0)
	for i, r := range reports {
		if r.Failure != nil {
			bad++
			fmt.Printf("%s: FAILED: %v\n", names[i], r.Failure)
		} else if verbose {
			fmt.Printf("%s: trace %016x, %d events, %v simulated\n", names[i], r.Trace, r.Events, r.Simulated.Round(time.Millisecond))
		}
		undecided, events, simulated = undecided+r.Undecided, events+r.Events, simulated+r.Simulated
	}
	fmt.Printf("%.2f CPU seconds (user %.2f, system %.2f), %.1f of real time; %v simulated, %d events, %d searches undecided; %d passed, %d failed\n",
		(user + system).Seconds(), user.Seconds(), system.Seconds(), elapsed.Seconds(),
		simulated.Round(time.Second), events, undecided, len(plans)-bad, bad)
	return bad > 0, nil
}

// profiled runs f and writes the profiles that are asked for.
func profiled(cpu, mem string, f func() (bool, error)) (failed bool, err error) {
	if cpu != "" {
		out, err := os.Create(cpu)
		if err != nil {
			return false, fmt.Errorf("writing the CPU profile: %w", err)
		}
		if err := pprof.StartCPUProfile(out); err != nil {
			return false, fmt.Errorf("beginning the CPU profile: %w", err)
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, out.Close())
		}()
	}
	failed, err = f()
	if mem != "" {
		out, err := os.Create(mem)
		if err != nil {
			return failed, fmt.Errorf("writing the profile of allocations: %w", err)
		}
		err = errors.Join(pprof.Lookup("allocs").WriteTo(out, 0), out.Close())
		if err != nil {
			return failed, fmt.Errorf("writing the profile of allocations: %w", err)
		}
	}
	return failed, err
}
