// Command attack runs hostile clients against a real cell of three replicas and
// prints what each attack does to ten well-behaved ones. docs/attacks.md tells
// how to read it.
//
// As root on Linux the attackers live in a network namespace of their own, with
// a processor quota, so that what they cost is what they make the cell do. Else
// everything runs on loopback without a quota, and the program says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	bin     string
	only    string
	time    time.Duration
	quota   int
	inside  bool
	run     string
	targets string
}

func main() {
	o, err := parseFlags(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "attack: %v\nSee attack -h.\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	switch {
	case o.run != "":
		err = runAttack(ctx, o)
	case o.inside:
		err = measure(ctx, o)
	default:
		err = supervise(ctx, o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "attack: %v\n", err)
		os.Exit(1)
	}
}

func parseFlags(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("attack", flag.ContinueOnError)
	f.StringVar(&o.bin, "bin", "bin", "directory of the programs lockd and lockctl")
	f.StringVar(&o.only, "only", "", "attacks to run, separated by commas: "+strings.Join(attackNames(), ", ")+" (default: all)")
	f.DurationVar(&o.time, "time", 10*time.Second, "how long each attack lasts")
	f.IntVar(&o.quota, "quota", 50, "percent of one processor that the attackers get")
	f.BoolVar(&o.inside, "inside", false, "internal: this process is in the cell's network namespace")
	f.StringVar(&o.run, "run", "", "internal: be the attackers of this name")
	f.StringVar(&o.targets, "targets", "", "internal: addresses of the replicas: client,peer,http of each")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case o.time < time.Second || o.time > time.Hour:
		return o, fmt.Errorf("-time %v: must be between 1s and 1h", o.time)
	case o.quota < 1 || o.quota > 10_000:
		return o, fmt.Errorf("-quota %d: must be between 1 and 10000", o.quota)
	}
	if o.run == "" {
		_, err := chooseAttacks(o.only)
		return o, err
	}
	if _, err := chooseAttacks(o.run); err != nil {
		return o, err
	}
	if o.targets == "" {
		return o, errors.New("-run needs -targets")
	}
	return o, nil
}

func attackNames() (names []string) {
	for _, a := range attacks {
		names = append(names, a.name)
	}
	return names
}

func chooseAttacks(only string) ([]attack, error) {
	if only == "" {
		return attacks, nil
	}
	var out []attack
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("%q is none of %s", name, strings.Join(attackNames(), ", "))
		}
		out = append(out, attacks[i])
	}
	return out, nil
}
