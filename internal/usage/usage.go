// Package usage puts mistakes in a command line into words that say what to do,
// for the programs that use cobra.
package usage

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/internal/environ"
)

var (
	badValue    = regexp.MustCompile(`(?s)^invalid argument (".*") for "(?:-., )?--([a-z-]+)" flag: `)
	unknownFlag = regexp.MustCompile(`^unknown flag: (--[a-z-]+)$`)
)

// ErrTwice is what the Value of a flag answers that takes one value and gets a
// second.
var ErrTwice = errors.New("it is given twice")

// FlagError says of what a flag parser complains what would be right.
func FlagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	if m := badValue.FindStringSubmatch(text); m != nil {
		flag := cmd.Flags().Lookup(m[2])
		if flag == nil {
			flag = cmd.InheritedFlags().Lookup(m[2])
		}
		if flag == nil {
			return err
		}
		if strings.HasSuffix(text, ErrTwice.Error()) {
			return fmt.Errorf("--%s is given twice", m[2])
		}
		switch flag.Value.Type() {
		case "duration":
			return fmt.Errorf("--%s %s: must be a time with its unit, such as 500ms, 2s or 1m", m[2], m[1])
		case "int", "int64", "uint", "uint64":
			return fmt.Errorf("--%s %s: must be a whole number, without a unit", m[2], m[1])
		case "bool":
			return fmt.Errorf("--%s %s: must be true or false", m[2], m[1])
		}
		return err
	}
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		var known []string
		for line := range strings.SplitSeq(cmd.Flags().FlagUsages()+cmd.InheritedFlags().FlagUsages(), "\n") {
			if _, after, ok := strings.Cut(line, "--"); ok {
				name, _, _ := strings.Cut(after, " ")
				known = append(known, "--"+name)
			}
		}
		if _, meant, _ := environ.Check([]string{m[1]}, "--", known); meant != "" {
			return fmt.Errorf("%w: is it %s?", err, meant)
		}
	}
	return err
}

// Unknown says that word is no command below cmd, and which one it resembles.
func Unknown(cmd *cobra.Command, word string) error {
	if s := cmd.SuggestionsFor(word); len(s) > 0 {
		return fmt.Errorf("unknown command %q: is it %s?", word, strings.Join(s, " or "))
	}
	return fmt.Errorf("unknown command %q of %s", word, cmd.CommandPath())
}

// Strict makes the commands for help and completion, which cobra adds, refuse
// what they do not know. wrong marks an error as a mistake of usage. It comes
// after all other commands have been added.
func Strict(root *cobra.Command, wrong func(error) error) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run = nil
			c.RunE = func(_ *cobra.Command, args []string) error {
				found, rest, err := root.Find(args)
				if err != nil || found == root && len(args) > 0 || len(rest) > 0 {
					return wrong(Unknown(root, strings.Join(args, " ")))
				}
				found.InitDefaultHelpFlag()
				return found.Help()
			}
		case "completion":
			c.Args = func(c *cobra.Command, args []string) error {
				if len(args) > 0 {
					return wrong(fmt.Errorf("completion for %q is not known: bash, zsh, fish and powershell are", args[0]))
				}
				return nil
			}
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
}
