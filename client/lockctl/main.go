// Command lockctl looks into a lockd cell and works with it: files, locks,
// sessions, and commands run under a lock.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/client/lockctl/child"
	"github.com/seed70370324/lockd/internal/environ"
	"github.com/seed70370324/lockd/internal/usage"
	"github.com/seed70370324/lockd/internal/version"
)

// defaultEndpoints are those of `lockd local --replicas 3`.
const defaultEndpoints = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103"

// The exit codes of every command but lock, which has its own (lock.go). They
// are documented in docs/lockctl.md; scripts rely on them.
const (
	codeOK          = 0
	codeFailed      = 1 // anything without a code of its own
	codeUsage       = 2 // bad flags, arguments, paths
	codeNotFound    = 3
	codeCondition   = 4 // exists, generation differs, has children, lock in the way
	codeInvalid     = 5 // sequencer check: not valid
	codeUnavailable = 6 // no master reached in time, or the session expired
	codeUnknown     = 7 // it may or may not have been done
)

// exitError carries an exit code; a nil Err prints nothing.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// app is what the commands share.
type app struct {
	endpoints string
	cell      string
	output    string
	timeout   time.Duration
}

func main() {
	child.Main(os.Args[1:]) // lock starts this program again, as watchdog and gate
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	a := &app{}
	root := a.root()
	root.SetArgs(args)
	// The first signal ends what is under way in order, a second one at once.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, child.NotIgnored(syscall.SIGINT, syscall.SIGTERM)...)
	ctx, stop := untilSignal(signals)
	defer stop()
	defer context.AfterFunc(ctx, func() { signal.Stop(signals) })()
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return codeOK
	}
	code := exitCode(err)
	if cmd.Name() == "lock" {
		code = lockExitCode(err)
	} else if sig := interrupted(ctx, err); sig != nil {
		err, code = sig, 128+int(sig.sig)
	}
	var exit *exitError
	if errors.As(err, &exit) && exit.err == nil {
		return code
	}
	fmt.Fprintf(os.Stderr, "lockctl: %v\n", err)
	var wrong *usageError
	if errors.As(err, &wrong) {
		fmt.Fprintf(os.Stderr, "usage: %s\nSee '%s --help'.\n", cmd.UseLine(), cmd.CommandPath())
	}
	if h := hint(err.Error()); h != "" {
		fmt.Fprintf(os.Stderr, "lockctl: %s\n", h)
	}
	return code
}

// hint returns what to do about an error, "" if the error says that itself.
func hint(text string) string {
	switch {
	case strings.Contains(text, "name different cells"):
		return cellHint
	case strings.Contains(text, "is not master and knows none"):
		return majorityHint
	case strings.Contains(text, syscall.ECONNREFUSED.Error()):
		return startHint
	}
	return ""
}

// cellHint is for those whose endpoints belong to several cells.
const cellHint = "give the endpoints of one cell only, or its name with --cell or LOCKCTL_CELL"

// interrupted returns the signal that ended ctx if it is the reason of err, and
// nothing was done.
func interrupted(ctx context.Context, err error) *signalError {
	var sig *signalError
	var partly *partlyError
	if !errors.As(context.Cause(ctx), &sig) || !errors.Is(err, context.Canceled) ||
		errors.Is(err, client.ErrUnknownOutcome) || errors.As(err, &partly) {
		return nil
	}
	return sig
}

// startHint is for those who have not started a cell, or not there.
const startHint = "is a cell running there? start one on this machine with 'lockd local', or point --endpoints / LOCKCTL_ENDPOINTS at yours"

// majorityHint is for those whose cell runs, but not enough of it.
const majorityHint = "the cell has no master: a majority of its replicas must be running (all of them the first time); 'lockctl status' shows which are"

// exitCode of an error, for every command but lock.
func exitCode(err error) int {
	var exit *exitError
	var usage *usageError
	switch {
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage), errors.Is(err, client.ErrBadPath), errors.Is(err, client.ErrInvalid),
		errors.Is(err, client.ErrTooLarge):
		return codeUsage
	case errors.Is(err, client.ErrUnknownOutcome):
		return codeUnknown
	case errors.Is(err, client.ErrNotFound):
		return codeNotFound
	case errors.Is(err, client.ErrExists), errors.Is(err, client.ErrConflict), errors.Is(err, client.ErrNotEmpty),
		errors.Is(err, client.ErrLocked), errors.Is(err, client.ErrEphemeralParent), errors.Is(err, client.ErrHeld),
		errors.Is(err, client.ErrLost):
		return codeCondition
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrExpired), errors.Is(err, client.ErrWrongCell),
		errors.Is(err, context.DeadlineExceeded):
		return codeUnavailable
	default:
		return codeFailed
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "lockctl COMMAND",
		Short: "Work with a lockd cell: locks, small files, sessions",
		Long: `lockctl works with a lockd cell: it takes locks around commands, reads and
writes small files, and shows who holds what, who waits, and why.

Endpoints come from --endpoints or LOCKCTL_ENDPOINTS, by default those of
'lockd local'. Any replica will do; it redirects to the
master.`,
		Version:       version.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return usage.Unknown(cmd, args[0])
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			mistyped, meant, _ := environ.Check(os.Environ(), "LOCKCTL_", []string{"LOCKCTL_ENDPOINTS", "LOCKCTL_CELL"})
			if mistyped != "" {
				return usagef("environment: %s is not known: is it %s? Correct or unset it", mistyped, meant)
			}
			if a.timeout <= 0 {
				return usagef("--timeout %v: must be positive", a.timeout)
			}
			if a.cell == "" && cmd.Flags().Changed("cell") {
				return usagef("--cell is empty: give the name of the cell that is meant, or leave the flag out")
			}
			_, err := a.json() // also where nothing is printed
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		SuggestionsMinimumDistance: 2,
	}
	root.SetVersionTemplate("lockctl {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{usage.FlagError(cmd, err)} })
	endpoints := os.Getenv("LOCKCTL_ENDPOINTS")
	if endpoints == "" {
		endpoints = defaultEndpoints
	}
	f := root.PersistentFlags()
	f.StringVar(&a.endpoints, "endpoints", endpoints, "client addresses of replicas, separated by commas (LOCKCTL_ENDPOINTS)")
	f.StringVar(&a.cell, "cell", os.Getenv("LOCKCTL_CELL"), "only talk to the cell of this name (LOCKCTL_CELL)")
	f.StringVarP(&a.output, "output", "o", "table", "output: table or json")
	f.DurationVar(&a.timeout, "timeout", 10*time.Second, "give up after this long without an answer (not while waiting for a lock or watching)")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	lock := a.lockCmd()
	files := []*cobra.Command{a.createCmd(), a.putCmd(), a.getCmd(), a.lsCmd(), a.treeCmd(), a.statCmd(), a.rmCmd(),
		a.watchCmd(), a.locksCmd(), a.whyCmd(), a.breakCmd()}
	a.completePaths(files...)
	a.completeLock(lock)
	root.AddCommand(files...)
	root.AddCommand(lock, a.statusCmd(), a.sessionsCmd(), a.sequencerCmd(), a.benchCmd(), a.demoCmd(), demoWorkerCmd())
	wrapArgs(root)
	usage.Strict(root, func(err error) error { return &usageError{err} })
	return root
}

// wrapArgs turns complaints about the number of arguments into usage errors,
// for the command and those below it.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return &usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

// arguments is what a command takes besides flags; a name in brackets may be
// left out.
func arguments(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q (quote arguments that contain spaces)", args[len(names)])
		case len(args) < len(names) && !strings.HasPrefix(names[len(args)], "["):
			return fmt.Errorf("missing argument %s", names[len(args)])
		}
		return nil
	}
}

// addresses of the replicas.
func (a *app) addresses() ([]string, error) {
	var out []string
	for _, s := range strings.Split(a.endpoints, ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		host, port, err := net.SplitHostPort(s)
		if err != nil || host == "" || port == "" {
			return nil, usagef("endpoint %q is not HOST:PORT", s)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, usagef("endpoint %q: its port must be a number between 1 and 65535", s)
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, usagef("no endpoints: give --endpoints HOST:PORT,... or LOCKCTL_ENDPOINTS")
	}
	return out, nil
}

func (a *app) json() (bool, error) {
	switch a.output {
	case "json":
		return true, nil
	case "table":
		return false, nil
	}
	return false, usagef("unknown output %q: table or json", a.output)
}

func (a *app) options(name string) []client.Option {
	options := []client.Option{client.WithName(name), client.WithOpenTimeout(a.timeout)}
	if a.cell != "" {
		options = append(options, client.WithCell(a.cell))
	}
	return options
}

// withReader runs f with a connection that leaves no trace in the cell.
func (a *app) withReader(ctx context.Context, limit bool, f func(context.Context, *client.Reader) error) error {
	addresses, err := a.addresses()
	if err != nil {
		return err
	}
	r, err := client.Connect(ctx, addresses, a.options("lockctl")...)
	if err != nil {
		return err
	}
	if limit {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.timeout)
		defer cancel()
	}
	err = f(ctx, r)
	return errors.Join(err, r.Close())
}

// read is withReader for commands that print once, with the output wanted.
func (a *app) read(ctx context.Context, f func(ctx context.Context, r *client.Reader, js bool) error) error {
	js, err := a.json()
	if err != nil {
		return err
	}
	return a.withReader(ctx, true, func(ctx context.Context, r *client.Reader) error { return f(ctx, r, js) })
}

// withSession runs f with a session, which is closed afterwards.
func (a *app) withSession(ctx context.Context, name string, f func(context.Context, *client.Session) error, more ...client.Option) error {
	addresses, err := a.addresses()
	if err != nil {
		return err
	}
	s, err := client.Dial(ctx, addresses, append(a.options(name), more...)...)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err = f(ctx, s)
	if cerr := s.Close(); err == nil && cerr != nil {
		// No failure of the command, which has been executed.
		fmt.Fprintf(os.Stderr, "lockctl: done, but the service could not be told that the session has ended: %v\n", cerr)
	}
	return err
}
