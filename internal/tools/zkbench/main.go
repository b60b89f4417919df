// Command zkbench measures lockd against ZooKeeper: three servers of each on
// this machine, the same operations, in turn. docs/benchmarks.md tells how and
// why so. It is a module of its own, so that lockd does not depend on a
// ZooKeeper client.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

type options struct {
	pairs    int
	seconds  time.Duration
	warm     time.Duration
	only     string
	pattern  string
	dir      string
	basePort int
	lockd    string
	java     string
	javaOpts string
	jar      string
	json     bool
}

func main() {
	o, err := parseFlags(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "zkbench: %v\nSee zkbench -h.\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, o); err != nil {
		fmt.Fprintf(os.Stderr, "zkbench: %v\n", err)
		os.Exit(1)
	}
}

// parseFlags reads the command line; help is written to out.
func parseFlags(args []string, out io.Writer) (options, error) {
	var o options
	var seconds, warm float64
	f := flag.NewFlagSet("zkbench", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors are told by the caller
	f.IntVar(&o.pairs, "pairs", 5, "measurements of each system for each test; the median counts")
	f.Float64Var(&seconds, "seconds", 6, "how long a measurement is")
	f.Float64Var(&warm, "warm", 60, "seconds of load on ZooKeeper before the first measurement, for the JIT of its JVM")
	f.StringVar(&o.only, "only", "", "tests to run, separated by commas: "+strings.Join(testNames(), ", ")+" (default: all)")
	f.StringVar(&o.pattern, "pattern", "best", "where ZooKeeper's clients connect to: leader, spread (over all servers), or best (what is faster, tried for each test)")
	f.StringVar(&o.dir, "dir", "", "make the data directory here, on a real disk (default: the directory for temporary files, or else the working directory)")
	f.IntVar(&o.basePort, "base-port", 12181, "first of the 15 ports that the servers use")
	f.StringVar(&o.lockd, "lockd", "bin/lockd", "lockd's program")
	f.StringVar(&o.java, "java", "java", "Java's program")
	f.StringVar(&o.javaOpts, "java-opts", "-Xms1000m -Xmx1000m", "options of each ZooKeeper server's JVM, separated by blanks")
	f.StringVar(&o.jar, "zookeeper-jar", "/usr/share/java/zookeeper.jar", "ZooKeeper, by default that of Debian's package")
	f.BoolVar(&o.json, "json", false, "print one JSON object at the end")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(out, "zkbench measures lockd against ZooKeeper; docs/benchmarks.md tells how.")
			f.SetOutput(out)
			f.PrintDefaults()
		}
		return o, err
	}
	o.seconds = time.Duration(seconds * float64(time.Second))
	o.warm = time.Duration(warm * float64(time.Second))
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("%q is an argument too many: there are only flags", f.Arg(0))
	case o.pairs < 1 || o.pairs > 1000:
		return o, fmt.Errorf("-pairs %d: must be between 1 and 1000", o.pairs)
	case !(seconds >= 0.1 && seconds <= 3600):
		return o, fmt.Errorf("-seconds %v: must be between 0.1 and 3600", seconds)
	case !(warm >= 0 && warm <= 3600):
		return o, fmt.Errorf("-warm %v: must be between 0 and 3600", warm)
	case o.basePort < 1 || o.basePort+portsNeeded-1 > 65535:
		return o, fmt.Errorf("-base-port %d: it and the ports up to %d above it must be between 1 and 65535", o.basePort, portsNeeded-1)
	case o.pattern != "best" && o.pattern != atLeader && o.pattern != spread:
		return o, fmt.Errorf("-pattern %q is none of leader, spread, best", o.pattern)
	}
	_, err := chooseTests(o.only)
	return o, err
}

// Ports, from -base-port on, three of each.
const (
	zkClientPorts = 0
	zkQuorumPorts = 3
	zkVotePorts   = 6
	lockdClients  = 9
	lockdPeers    = 12
	portsNeeded   = 15
)

const servers = 3

// run starts both systems, compares them, and clears everything away.
func run(ctx context.Context, o options) (err error) {
	tests, err := chooseTests(o.only)
	if err != nil {
		return err
	}
	if err := checkPrograms(ctx, o); err != nil {
		return err
	}
	if err := checkPorts(o.basePort); err != nil {
		return err
	}
	dir, err := makeDir(o.dir)
	if err != nil {
		return err
	}
	defer func() {
		if rerr := os.RemoveAll(dir); rerr != nil {
			err = errors.Join(err, fmt.Errorf("remove the data: %w", rerr))
		}
	}()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ps := &processes{fail: fail}
	defer ps.stop()
	z, err := startZooKeeper(ctx, o, dir, ps)
	if err != nil {
		return withCause(ctx, err)
	}
	l, err := startLockd(ctx, o, dir, ps)
	if err != nil {
		return withCause(ctx, err)
	}
	return withCause(ctx, compare(ctx, o, tests, dir, l, z))
}

// withCause tells why ctx ended, if that made err.
func withCause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return errors.New("interrupted")
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
