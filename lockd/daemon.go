package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pkg/profile"
	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/lockd/server"
)

// stopTime bounds a stop in order, failTime one after a failure: a disk that
// does not answer must not keep the process.
const (
	stopTime = 15 * time.Second
	failTime = 3 * time.Second
)

func daemonCommand() *cobra.Command {
	var f daemonFlags
	cmd := &cobra.Command{
		Use:   "lockd",
		Short: "A replica of a lock and coordination cell",
		Long: `lockd is one replica of a cell: a small, consistent store with locks, sessions
and events, kept by a majority of its replicas.

Without flags it is a development cell of one replica in ./lockd-data.
"lockd local" runs a cell of several replicas on this machine.

Every flag may stand in the environment as LOCKD_ and its name in capitals
(LOCKD_LISTEN_CLIENT for --listen-client); the flag wins.

SIGTERM or SIGINT stops in order: a master hands the lead over first. A second
one stops at once. Exit codes: 0 stopped in order; 1 could not start, or had to
stop; 2 flags or environment are wrong and nothing was touched.`,
		Example: `  lockd
  lockd --name n1 --cell demo --data-dir /var/lib/lockd \
    --listen-client 127.0.0.1:7101 --listen-peer 127.0.0.1:7201 --listen-http 127.0.0.1:7301 \
    --initial-cluster n1=127.0.0.1:7201,n2=127.0.0.1:7202,n3=127.0.0.1:7203`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.fromEnvironment(cmd, os.LookupEnv); err != nil {
				return err
			}
			strange, err := f.checkEnvironment(os.Environ())
			if err != nil {
				return err
			}
			return runDaemon(&f, strange)
		},
	}
	f.define(cmd)
	return cmd
}

// runDaemon runs the replica until it is told to stop or fails. strange are
// variables of the environment that are ignored.
func runDaemon(f *daemonFlags, strange []string) error {
	config, err := f.finish()
	if err != nil {
		return err
	}
	if len(strange) > 0 {
		config.Logger.Warn("variables of the environment that belong to no flag are ignored", "names", strings.Join(strange, " "))
	}
	s, err := server.New(config)
	if err != nil {
		return err
	}
	defer s.Close()
	stopProfile, err := startProfile(f.profile)
	if err != nil {
		return err
	}
	ctx, stop := stopSignals()
	defer stop()
	if f.exitWithStdin {
		ctx = endsWithStdin(ctx)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	err = waitFor(ctx, s, done)
	if err == nil {
		stopProfile()
	}
	return err
}

// waitFor returns what Run returns, or an error if it cannot be waited for any
// longer. Whoever gets an error ends the process.
func waitFor(ctx context.Context, s *server.Server, done <-chan error) error {
	var patience time.Duration
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		patience = stopTime
	case <-s.Failed():
		patience = failTime
	}
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case err := <-done:
		return err
	case <-timeout.C:
		return errors.Join(s.Failure(), fmt.Errorf("something (the disk?) does not answer; gave up waiting after %v", patience))
	}
}

// stopSignals returns a context that ends with the first signal to stop; the
// second one ends the process. A hang-up that was ignored when the process
// started (nohup) stays so.
func stopSignals() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-signals:
			cancel()
		case <-quit:
			return
		}
		select {
		case <-signals:
			fmt.Fprintln(os.Stderr, "lockd: stopped at once by a second signal")
			os.Exit(exitFailure)
		case <-quit:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-ended
		cancel()
	}
}

// endsWithStdin returns a context that also ends when standard input does: the
// process that started this one has gone.
func endsWithStdin(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	// The goroutine lives as long as the process: a read of standard input
	// cannot be ended.
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return ctx
}

// startProfile begins the profile that was asked for and returns what ends it.
func startProfile(kind string) (stop func(), err error) {
	if kind == "" {
		return func() {}, nil
	}
	name, mode := kind+".pprof", profile.CPUProfile
	if kind == "mem" {
		mode = profile.MemProfile
	}
	// The library ends the process if it cannot write; say it in our own words
	// first.
	file, err := os.Create(name)
	if err != nil {
		return nil, fmt.Errorf("--profile %s: %w", kind, err)
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("--profile %s: %w", kind, err)
	}
	return profile.Start(mode, profile.ProfilePath("."), profile.NoShutdownHook, profile.Quiet).Stop, nil
}
