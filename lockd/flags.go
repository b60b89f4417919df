package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/internal/environ"
	"github.com/seed70370324/lockd/internal/usage"
	"github.com/seed70370324/lockd/internal/version"
	"github.com/seed70370324/lockd/lockd/server"
	"github.com/seed70370324/lockd/replog/storage"
)

// daemonFlags are what `lockd` is told; each one may also stand in the
// environment, see fromEnvironment.
type daemonFlags struct {
	config         server.Config
	initialCluster string
	logFormat      string
	logLevel       string
	profile        string
	exitWithStdin  bool
	names          []string // of the flags that the environment may set: all of them
}

// define declares the flags. The defaults make a cell of one replica.
func (f *daemonFlags) define(cmd *cobra.Command) {
	flags := cmd.Flags()
	text := func(to *string, name, value, usage string) {
		f.names = append(f.names, name)
		flags.StringVar(to, name, value, usage)
	}
	c := &f.config
	text(&c.Name, "name", "n1", "name of this replica, unique in its cell")
	text(&c.Cell, "cell", "local", "name of the cell")
	text(&c.DataDir, "data-dir", "./lockd-data", "directory that this replica alone keeps its log in")
	text(&c.ListenClient, "listen-client", "127.0.0.1:7101", "address for clients")
	text(&c.ListenPeer, "listen-peer", "127.0.0.1:7201", "address for the other replicas")
	text(&c.ListenHTTP, "listen-http", "127.0.0.1:7301", `address for /healthz, /readyz, /metrics and /debug/pprof/; "" for none`)
	text(&c.AdvertiseClient, "advertise-client", "", "address that clients are told to connect to (default: --listen-client)")
	text(&c.AdvertisePeer, "advertise-peer", "", "address that replicas are told to connect to (default: as in --initial-cluster, or --listen-peer)")
	text(&f.initialCluster, "initial-cluster", "", "all members as name=host:port (peer addresses), with commas between (default: this replica alone)")
	text(&f.logFormat, "log-format", "text", "text or json")
	text(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	text(&f.profile, "profile", "", "cpu or mem: write cpu.pprof or mem.pprof to the current directory at a clean stop")
	flags.BoolVar(&c.Insecure, "insecure", false, "allow listeners that are not on loopback: there is no encryption or authentication yet")
	flags.BoolVar(&f.exitWithStdin, "exit-with-stdin", false, "stop when standard input ends")
	t := &c.Tuning
	flags.IntVar(&t.SnapshotSlots, "snapshot-slots", 0, "take a snapshot after so many log slots (0: the default, 50000)")
	flags.Int64Var(&t.SnapshotBytes, "snapshot-bytes", 0, "or after so many bytes of commands (0: the default, 64 MiB)")
	flags.IntVar(&t.TrailSlots, "trail-slots", 0, "keep so many slots in the log behind the older snapshot (0: the default, 10000)")
	flags.Int64Var(&t.SegmentBytes, "segment-bytes", 0, "size of a log file (0: the default, 64 MiB)")
	flags.IntVar(&c.Limits.MaxStateNodes, "max-state-nodes", 0, "most nodes of the whole state; the smallest of all replicas counts (0: by --max-state-bytes)")
	flags.Int64Var(&c.Limits.MaxStateBytes, "max-state-bytes", 0, "most bytes of the whole state; the smallest of all replicas counts (0: a quarter of the memory)")
	f.names = append(f.names, "max-state-nodes", "max-state-bytes")
	f.names = append(f.names, "insecure", "exit-with-stdin", "snapshot-slots", "snapshot-bytes", "trail-slots", "segment-bytes")
	hidden := []string{"exit-with-stdin"}
	for _, d := range []struct {
		to   *time.Duration
		name string
	}{
		{&t.Heartbeat, "heartbeat"}, {&t.ElectionMin, "election-min"}, {&t.ElectionMax, "election-max"}, {&t.DiskTimeout, "disk-timeout"},
	} {
		flags.DurationVar(d.to, d.name, 0, "for tests; must be the same on all replicas (0: the default)")
		f.names = append(f.names, d.name)
		hidden = append(hidden, d.name)
	}
	for _, name := range hidden {
		if err := flags.MarkHidden(name); err != nil {
			panic(err) // no such flag: a mistake in this file
		}
	}
}

// fromEnvironment sets each flag that was not given from LOCKD_ and its name
// in capitals, with _ for -: LOCKD_LISTEN_CLIENT for --listen-client. The flag
// wins.
func (f *daemonFlags) fromEnvironment(cmd *cobra.Command, lookup func(string) (string, bool)) error {
	flags := cmd.Flags()
	for _, name := range f.names {
		value, ok := lookup(variable(name))
		if !ok || flags.Changed(name) {
			continue
		}
		if err := flags.Set(name, value); err != nil {
			return usageError{fmt.Errorf("environment: %s: %w", variable(name), usage.FlagError(cmd, err))}
		}
	}
	return nil
}

// ofLock are the variables that `lockctl lock` gives its command, which may be
// a lockd.
var ofLock = []string{"LOCKD_FENCE", "LOCKD_HOLD", "LOCKD_SEQUENCER", "LOCKD_LOCK"}

// checkEnvironment refuses a variable that is almost one of a flag, since it
// would be ignored without a word, and returns the others that begin with LOCKD_
// and are none: they may be another program's.
func (f *daemonFlags) checkEnvironment(environment []string) (strange []string, err error) {
	known := slices.Clone(ofLock)
	for _, name := range f.names {
		known = append(known, variable(name))
	}
	mistyped, meant, strange := environ.Check(environment, "LOCKD_", known)
	if mistyped != "" {
		return nil, usageError{fmt.Errorf("environment: %s belongs to no flag: is it %s? Correct or unset it", mistyped, meant)}
	}
	return strange, nil
}

func variable(flag string) string {
	return "LOCKD_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// finish turns the flags into a configuration.
func (f *daemonFlags) finish() (server.Config, error) {
	c := f.config
	members, err := server.ParseCluster(f.initialCluster)
	if err != nil {
		return c, err
	}
	c.InitialCluster = members
	c.Version = version.Version
	c.Logger, err = newLogger(f.logFormat, f.logLevel)
	if err != nil {
		return c, err
	}
	switch f.profile {
	case "", "cpu", "mem":
	default:
		return c, usageError{fmt.Errorf("--profile %q is neither cpu nor mem", f.profile)}
	}
	t := &c.Tuning
	for _, v := range []struct {
		name  string
		value any
		bad   bool
	}{
		{"snapshot-slots", t.SnapshotSlots, t.SnapshotSlots < 0},
		{"snapshot-bytes", t.SnapshotBytes, t.SnapshotBytes < 0},
		{"trail-slots", t.TrailSlots, t.TrailSlots < 0},
		{"segment-bytes", t.SegmentBytes, t.SegmentBytes < 0},
		{"max-state-nodes", c.Limits.MaxStateNodes, c.Limits.MaxStateNodes < 0},
		{"max-state-bytes", c.Limits.MaxStateBytes, c.Limits.MaxStateBytes < 0},
		{"heartbeat", t.Heartbeat, t.Heartbeat < 0},
		{"election-min", t.ElectionMin, t.ElectionMin < 0},
		{"election-max", t.ElectionMax, t.ElectionMax < 0},
		{"disk-timeout", t.DiskTimeout, t.DiskTimeout < 0},
	} {
		if v.bad {
			return c, usageError{fmt.Errorf("--%s %v: cannot be negative", v.name, v.value)}
		}
	}
	if t.SegmentBytes > storage.MaxSegmentBytes {
		return c, usageError{fmt.Errorf("--segment-bytes %d: at most %d (1 GiB) are possible", t.SegmentBytes, storage.MaxSegmentBytes)}
	}
	return c, f.checkTimes()
}

// checkTimes refuses times with which no leader would last: followers must hear
// of it several times before they lose patience.
func (f *daemonFlags) checkTimes() error {
	t := &f.config.Tuning
	heartbeat, least := cmp.Or(t.Heartbeat, 100*time.Millisecond), cmp.Or(t.ElectionMin, 500*time.Millisecond)
	switch {
	case t.ElectionMax != 0 && t.ElectionMax < least:
		return usageError{fmt.Errorf("--election-max %v is less than --election-min %v", t.ElectionMax, least)}
	case least < 2*heartbeat:
		return usageError{fmt.Errorf("--election-min %v must be at least twice the --heartbeat %v", least, heartbeat)}
	}
	return nil
}

func newLogger(format, level string) (*slog.Logger, error) {
	var l slog.Level
	switch level {
	case "debug", "info", "warn", "error":
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, usageError{fmt.Errorf("--log-level %q: %w", level, err)}
		}
	default:
		return nil, usageError{fmt.Errorf("--log-level %q is none of debug, info, warn, error", level)}
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, o)), nil
	}
	return nil, usageError{fmt.Errorf("--log-format %q is neither text nor json", format)}
}
