package main

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/internal/usage"
)

// envHold is what the lock wrapper gives its command: the text of a client.Hold.
const envHold = "LOCKD_HOLD"

// fromEnvironment is what --while-held without a value means.
const fromEnvironment = "$" + envHold

// conditionFlags are the conditions of a command that writes. All that are given
// must hold.
type conditionFlags struct {
	revision, instance, generation, fence string
	whileHeld                             string
	absent                                bool
	command                               *cobra.Command
}

// add adds the flags of conditions on the node, and --while-held.
func (fl *conditionFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&fl.revision, "if-revision", "", "only if the node's last write was of this revision (stat shows it as modified): compare-and-swap")
	f.StringVar(&fl.instance, "if-instance", "", "only if the node is the one created at this revision")
	f.StringVar(&fl.generation, "if-generation", "", "only if the content generation is this; it starts at 1 again when a node is created anew, --if-revision does not")
	f.StringVar(&fl.fence, "held-fence", "", "only while the node's lock is held, by any session, under this fence")
	for _, name := range []string{"if-revision", "if-instance", "if-generation", "held-fence"} {
		once(c, name)
	}
	fl.addHeld(c)
}

// once has a flag refused that is given twice: the second would take the place of
// the first, which was to hold too.
func once(c *cobra.Command, name string) {
	f := c.Flags().Lookup(name)
	f.Value = &onceValue{Value: f.Value}
}

type onceValue struct {
	pflag.Value
	given bool
}

// Set is pflag.Value's.
func (v *onceValue) Set(text string) error {
	if v.given {
		return usage.ErrTwice
	}
	v.given = true
	return v.Value.Set(text)
}

// addHeld adds --while-held alone.
func (fl *conditionFlags) addHeld(c *cobra.Command) {
	fl.command = c
	f := c.Flags()
	f.StringVar(&fl.whileHeld, "while-held", "", "only while this holding of a lock lasts; without a value, the one in "+envHold+", which 'lockctl lock' sets")
	f.Lookup("while-held").NoOptDefVal = fromEnvironment
	once(c, "while-held")
}

// addAbsent adds --if-absent.
func (fl *conditionFlags) addAbsent(c *cobra.Command) {
	c.Flags().BoolVar(&fl.absent, "if-absent", false, "only if the node does not exist")
	once(c, "if-absent")
}

// contradict refuses conditions that exclude each other. The client does, too,
// and calls them by its own names.
func (fl *conditionFlags) contradict(parents bool) error {
	for _, name := range []string{"if-revision", "if-instance", "if-generation", "held-fence"} {
		switch {
		case !fl.command.Flags().Changed(name):
		case fl.absent:
			return usagef("--if-absent and --%s contradict each other: the node cannot both be absent and exist", name)
		case parents:
			return usagef("--parents and --%s contradict each other: the parents of a node that exists are there", name)
		}
	}
	return nil
}

// holdAsContent refuses content that was to be the value of --while-held: that
// takes one only behind an equals sign.
func (fl *conditionFlags) holdAsContent(args []string) error {
	if len(args) < 2 || fl.whileHeld != fromEnvironment {
		return nil
	}
	if _, err := client.ParseHold(args[1]); err != nil {
		return nil // content like any other
	}
	return usagef("%q is a holding, not content: give it as --while-held=HOLD", args[1])
}

// conditions returns the conditions on the node that are given.
func (fl *conditionFlags) conditions() (list []client.ConditionOption, err error) {
	for _, f := range []struct {
		name, value string
		condition   func(uint64) client.ConditionOption
	}{
		{"if-revision", fl.revision, client.IfRevision},
		{"if-instance", fl.instance, client.IfInstance},
		{"if-generation", fl.generation, client.IfGeneration},
		{"held-fence", fl.fence, client.HeldFence},
	} {
		if !fl.command.Flags().Changed(f.name) {
			continue
		}
		n, err := strconv.ParseUint(f.value, 10, 64)
		switch {
		case err != nil:
			return nil, usagef("--%s %q is not a number", f.name, f.value)
		case n == 0 && f.name == "if-generation":
			return nil, usagef("--if-generation 0 is no condition: a node's generation is 1 or more; for a node that must not exist there is put --if-absent")
		case n == 0:
			return nil, usagef("--%s 0 is no condition: was the number never set?", f.name)
		}
		list = append(list, f.condition(n))
	}
	return list, nil
}

// held returns the condition of --while-held, if it is given.
func (fl *conditionFlags) held() (list []client.HoldOption, err error) {
	if !fl.command.Flags().Changed("while-held") {
		return nil, nil
	}
	text := fl.whileHeld
	if text == fromEnvironment {
		if text = os.Getenv(envHold); text == "" {
			return nil, usagef("--while-held: %s is not set: run this under 'lockctl lock', or give the holding as --while-held=HOLD", envHold)
		}
	}
	h, err := client.ParseHold(text)
	if err != nil {
		return nil, usagef("--while-held: %w", err)
	}
	return []client.HoldOption{client.WhileHeld(h)}, nil
}
