package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	localReplicasMax = 9
	// Ports of a local cell: clients from --base-port on, peers 100 and HTTP 200
	// above.
	peerPorts = 100
	httpPorts = 200

	serveTime = 30 * time.Second // until the cell must serve
	childTime = 5 * time.Second  // for a replica to stop in order
)

// localFlags are what `lockd local` is told.
type localFlags struct {
	replicas int
	dataDir  string
	restart  bool
	basePort int
	logLevel string
}

func localCommand() *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "local",
		Short: "Run a whole cell on this machine, in the foreground",
		Long: `Runs a cell of several replicas as processes on 127.0.0.1, in the foreground.
They end with it, however it ends. Without --data-dir the data is in a temporary
directory that is removed at the end.

Clients connect to --base-port and the ports above it, one a replica; peers use
the ports from 100, HTTP those from 200 above --base-port.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error { return runLocal(&f, os.Stdout, os.Stderr) },
	}
	flags := cmd.Flags()
	flags.IntVar(&f.replicas, "replicas", 3, "how many replicas")
	flags.StringVar(&f.dataDir, "data-dir", "", "keep the data here (default: a temporary directory, removed at the end)")
	flags.BoolVar(&f.restart, "restart", false, "start a replica again when it ends")
	flags.IntVar(&f.basePort, "base-port", 7101, "client port of the first replica")
	flags.StringVar(&f.logLevel, "log-level", "info", "of the replicas' log files: debug, info, warn or error")
	return cmd
}

// check finds what is wrong before anything is started.
func (f *localFlags) check() error {
	switch {
	case f.replicas < 1 || f.replicas > localReplicasMax:
		return usageError{fmt.Errorf("--replicas %d: a local cell has 1 to %d", f.replicas, localReplicasMax)}
	case f.basePort < 1 || f.basePort+httpPorts+f.replicas-1 > 65535:
		return usageError{fmt.Errorf("--base-port %d: it and the ports up to %d above it must be between 1 and 65535",
			f.basePort, httpPorts+f.replicas-1)}
	}
	if err := f.checkData(); err != nil {
		return err
	}
	_, err := newLogger("text", f.logLevel)
	return err
}

// checkData refuses the data of a cell with another number of replicas: a
// cell's members do not change.
func (f *localFlags) checkData() error {
	if f.dataDir == "" {
		return nil
	}
	var have []string
	for i := range localReplicasMax {
		name := "n" + strconv.Itoa(i+1)
		if _, err := os.Stat(filepath.Join(f.dataDir, name, "identity")); err == nil {
			have = append(have, name)
		}
	}
	if len(have) == 0 || len(have) == f.replicas {
		return nil
	}
	return usageError{fmt.Errorf("--replicas %d: --data-dir %s holds the data of %s, and a cell's members do not change: "+
		"give --replicas %d, or another directory", f.replicas, f.dataDir, strings.Join(have, ", "), len(have))}
}

// member is one replica of the local cell.
type member struct {
	name               string
	client, peer, http string // addresses
}

func (f *localFlags) members() []member {
	ms := make([]member, f.replicas)
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	for i := range ms {
		port := f.basePort + i
		ms[i] = member{name: "n" + strconv.Itoa(i+1), client: at(port), peer: at(port + peerPorts), http: at(port + httpPorts)}
	}
	return ms
}

// checkPorts finds ports that are taken before the first process starts.
func checkPorts(ms []member) error {
	for _, m := range ms {
		for _, p := range []struct{ what, address string }{{"clients", m.client}, {"peers", m.peer}, {"HTTP", m.http}} {
			l, err := net.Listen("tcp", p.address)
			if err != nil {
				return fmt.Errorf("%s (for the %s of %s) cannot be had: is another cell running? "+
					"Stop it, or choose other ports with --base-port (%w)", p.address, p.what, m.name, err)
			}
			if err := l.Close(); err != nil {
				return fmt.Errorf("%s: %w", p.address, err)
			}
		}
	}
	return nil
}

// runLocal is the life of a local cell.
func runLocal(f *localFlags, stdout, stderr io.Writer) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	ms := f.members()
	if err := checkPorts(ms); err != nil {
		return err
	}
	// From here on a signal means an orderly end, also of what is half started.
	ctx, stop := stopSignals()
	defer stop()
	dir, remove, err := f.directory()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	c, err := newCell(f, ms, dir, stdout, stderr)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.startAll(); err != nil {
		return err
	}
	master, err := c.waitUntilServing(ctx)
	if err != nil || master == "" {
		return err // "" without an error: a signal
	}
	c.printCell(master, f)
	return c.follow(ctx, master)
}

// directory returns where the data goes, and what removes it if it is
// temporary.
func (f *localFlags) directory() (dir string, remove func() error, err error) {
	if f.dataDir != "" {
		if err := os.MkdirAll(f.dataDir, 0o700); err != nil {
			return "", nil, fmt.Errorf("--data-dir: %w: give a directory that this user can make and write", err)
		}
		return f.dataDir, func() error { return nil }, nil
	}
	dir, err = os.MkdirTemp("", "lockd-local-")
	if err != nil {
		return "", nil, fmt.Errorf("make a temporary directory: %w", err)
	}
	return dir, func() error {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove the temporary data: %w", err)
		}
		return nil
	}, nil
}

// printCell shows the cell and what to try.
func (c *cell) printCell(master string, f *localFlags) {
	kept := "kept"
	if f.dataDir == "" {
		kept = "removed at the end"
	}
	out := c.out
	replicas := "replicas"
	if len(c.members) == 1 {
		replicas = "replica"
	}
	out.printf("A cell of %d %s serves. Data and logs: %s (%s)\n\n", len(c.members), replicas, c.dir, kept)
	pid := 0
	for _, m := range c.members {
		note := ""
		if m.name == master {
			note, pid = "  <- master", c.pid(m.name)
		}
		out.printf("  %s  pid %-7d clients %s  peers %s  http %s%s\n", m.name, c.pid(m.name), m.client, m.peer, m.http, note)
	}
	lockctl := lockctlPath()
	if f.basePort != 7101 {
		var addresses []string
		for _, m := range c.members {
			addresses = append(addresses, m.client)
		}
		lockctl += " --endpoints " + strings.Join(addresses, ",")
	}
	out.printf("\nTry, in other terminals:\n\n")
	out.printf("  %s lock /job -- sleep 60\n", lockctl)
	out.printf("  %s lock /job -- sleep 60\n", lockctl)
	out.printf("  %s why /job\n", lockctl)
	if len(c.members) > 2 { // one or two serve no more without any of them
		out.printf("  kill -9 %d\n", pid)
	}
	out.printf("\nCtrl-C stops the cell.\n")
}

// lockctlPath is how the reader's shell reaches the lockctl that was built with
// this program.
func lockctlPath() string {
	const usual = "bin/lockctl"
	self, err := os.Executable()
	if err != nil {
		return usual
	}
	beside := filepath.Join(filepath.Dir(self), "lockctl")
	if _, err := os.Stat(beside); err != nil {
		return usual
	}
	here, err := os.Getwd()
	if err != nil {
		return beside
	}
	rel, err := filepath.Rel(here, beside)
	if err != nil || strings.HasPrefix(rel, "..") {
		return beside
	}
	if !strings.ContainsRune(rel, filepath.Separator) {
		return "./" + rel
	}
	return rel
}

// waitUntilServing returns the name of the master once there is one; "" if ctx
// ended first.
func (c *cell) waitUntilServing(ctx context.Context) (string, error) {
	timeout := time.NewTimer(serveTime)
	defer timeout.Stop()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if master := c.master(ctx); master != "" {
			return master, nil
		}
		select {
		case <-ctx.Done():
			return "", nil
		case x := <-c.exits:
			c.ended(x)
			return "", fmt.Errorf("%s ended before the cell served (%s): see %s", x.child.member.name, x.how(), c.logFile(x.child.member.name))
		case <-timeout.C:
			return "", fmt.Errorf("the cell does not serve after %v: see the logs in %s", serveTime, c.dir)
		case <-again.C:
		}
	}
}
