package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/client"
)

const (
	// completeTime is how long the Tab key may hang on a cell that is away.
	completeTime = 500 * time.Millisecond
	// completeMax is how many names are offered: more than a terminal shows.
	completeMax = 500
)

// completePaths has the first argument of each of these commands completed with
// the paths that the cell has.
func (a *app) completePaths(commands ...*cobra.Command) {
	for _, c := range commands {
		c.ValidArgsFunction = func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.pathsLike(word), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// completeLock completes PATH, and behind it leaves the command to the shell.
func (a *app) completeLock(c *cobra.Command) {
	c.ValidArgsFunction = func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.pathsLike(word), cobra.ShellCompDirectiveNoFileComp
	}
}

// pathsLike lists the nodes whose path begins with word, one level of them, and
// those with children once more with a slash behind. It is silent: somebody is
// in the middle of typing.
func (a *app) pathsLike(word string) []string {
	if word == "" {
		word = "/"
	}
	slash := strings.LastIndexByte(word, '/')
	addresses, err := a.addresses()
	if slash < 0 || err != nil {
		return nil
	}
	dir, start := word[:slash], word[slash+1:]
	ctx, cancel := context.WithTimeout(context.Background(), completeTime)
	defer cancel()
	r, err := client.Connect(ctx, addresses, a.options("lockctl")...)
	if err != nil {
		return nil
	}
	defer r.Close()
	list := dir
	if list == "" {
		list = "/"
	}
	var paths []string
	for c, err := range r.List(ctx, list) {
		if err != nil || len(paths) >= completeMax {
			break
		}
		if !strings.HasPrefix(c.Name, start) {
			continue
		}
		paths = append(paths, dir+"/"+c.Name)
		if c.Stat.Children > 0 {
			paths = append(paths, dir+"/"+c.Name+"/")
		}
	}
	return paths
}
