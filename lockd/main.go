// Lockd is a replica of a lock cell. Without any flag it is a development cell
// of one replica; `lockd local` runs a whole cell on this machine.
//
// It ends with 0 after a clean stop, 1 if it could not start or had to stop
// (the port is taken, the data directory is damaged, the disk failed), and 2 if
// flags or environment are wrong, in which case nothing was touched.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/internal/usage"
	"github.com/seed70370324/lockd/internal/version"
	"github.com/seed70370324/lockd/lockd/server"
)

// Exit codes.
const (
	exitClean   = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// usageError marks what is wrong with the command line, as server.ConfigError
// does with what it says.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// run executes the command line and says what went wrong in a line or two.
func run(args []string, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitClean
	}
	fmt.Fprintln(stderr, "lockd:", err)
	var usage usageError
	var config *server.ConfigError
	if errors.As(err, &usage) || errors.As(err, &config) {
		fmt.Fprintf(stderr, "Nothing was started. `%s --help` lists the flags.\n", cmd.CommandPath())
		return exitUsage
	}
	return exitFailure
}

func rootCommand() *cobra.Command {
	root := daemonCommand()
	root.Version = version.Version
	root.SetVersionTemplate("lockd {{.Version}}\n")
	root.SilenceUsage = true
	root.SilenceErrors = true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SuggestionsMinimumDistance = 2
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{usage.FlagError(cmd, err)} })
	root.AddCommand(localCommand())
	usage.Strict(root, func(err error) error { return usageError{err} })
	return root
}

// noArgs refuses what is not a flag.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
			return usageError{usage.Unknown(cmd, args[0])}
		}
		return usageError{fmt.Errorf("%q is not a flag or a command of %s", args[0], cmd.CommandPath())}
	}
	return nil
}
