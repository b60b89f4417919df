// Command benchpair measures two builds of lockd against each other: a cell of
// three replicas of each on this machine, the same load on both in turn.
// docs/benchmarks.md tells how to read what it prints.
//
// Usage: benchpair -old REV [-root DIR] [-pairs 20] [-seconds 6] [-only write64,lock1]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type options struct {
	old      string
	root     string
	pairs    int
	duration time.Duration
	tests    []test
	bound    float64
	basePort int
}

func main() {
	o, err := parseFlags(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "benchpair: %v\nSee benchpair -h.\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	ok, err := run(ctx, o)
	if err != nil {
		fmt.Fprintf(os.Stderr, "benchpair: %v\n", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(3)
	}
}

func parseFlags(args []string) (options, error) {
	var o options
	var seconds float64
	var only string
	f := flag.NewFlagSet("benchpair", flag.ContinueOnError)
	f.StringVar(&o.old, "old", "", "git revision to compare with (required)")
	f.StringVar(&o.root, "root", ".", "root of the repository; the new build is its bin/")
	f.IntVar(&o.pairs, "pairs", 20, "pairs of measurements of each workload")
	f.Float64Var(&seconds, "seconds", 6, "how long a measurement is")
	f.StringVar(&only, "only", "", "workloads to run, separated by commas: "+strings.Join(testNames(), ", ")+" (default: all)")
	f.Float64Var(&o.bound, "bound", 0.95, "the new build is slower where the upper end of the interval is below this")
	f.IntVar(&o.basePort, "base-port", 17101, "first port; the cells use it and the 510 above it")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.duration = time.Duration(seconds * float64(time.Second))
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.old == "":
		return o, errors.New("-old REV is missing: the revision to compare with (make bench-pair OLD=REV)")
	case o.pairs < 1 || o.pairs > 1000:
		return o, fmt.Errorf("-pairs %d: must be between 1 and 1000", o.pairs)
	case !(seconds >= 0.1 && seconds <= 3600):
		return o, fmt.Errorf("-seconds %v: must be between 0.1 and 3600", seconds)
	case o.basePort < 1024 || o.basePort > 65_000:
		return o, fmt.Errorf("-base-port %d: must be between 1024 and 65000", o.basePort)
	}
	var err error
	o.tests, err = chooseTests(only)
	return o, err
}

// run builds the old revision, starts both cells, and compares them. It reports
// whether the new build is nowhere slower and allocates nowhere more.
func run(ctx context.Context, o options) (ok bool, err error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return false, err
	}
	tree, err := checkout(ctx, root, o.old)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "benchpair-")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	before := &build{name: o.old, bin: filepath.Join(tree, "bin"), port: o.basePort}
	after := &build{name: "new", bin: filepath.Join(root, "bin"), port: o.basePort + 300}
	for _, b := range []*build{before, after} {
		if err := b.start(ctx, dir); err != nil {
			return false, err
		}
		defer b.stop()
	}
	ok, err = compare(ctx, o, before, after)
	if err != nil {
		return false, err
	}
	// The Go benchmarks share the processors with nothing.
	before.stop()
	after.stop()
	fewer, err := compareAllocations(ctx, tree, root)
	return ok && fewer, err
}
