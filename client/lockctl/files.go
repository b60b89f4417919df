package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/client"
)

// readContent is the content that a command was given: the argument, a file,
// or stdin ("-" or nothing). It ends with ctx, although the reading may not.
func readContent(ctx context.Context, args []string, file string) ([]byte, error) {
	type content struct {
		data []byte
		err  error
	}
	read := make(chan content, 1)
	go func() {
		data, err := readAll(args, file)
		read <- content{data, err}
	}()
	select {
	case c := <-read:
		return c.data, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read the content: %w", ctx.Err())
	}
}

func readAll(args []string, file string) ([]byte, error) {
	var in io.Reader = os.Stdin
	switch {
	case len(args) > 0 && args[0] != "-":
		return []byte(args[0]), nil
	case file != "" && file != "-":
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("read the content: %w", err)
		}
		defer f.Close()
		in = f
	}
	// One byte more than the limit is enough to know that it is too large.
	data, err := io.ReadAll(io.LimitReader(in, client.DataMax+1))
	if err != nil {
		return nil, fmt.Errorf("read the content: %w", err)
	}
	if len(data) > client.DataMax {
		return nil, fmt.Errorf("read the content: %w: over %d bytes (1 MiB)", client.ErrTooLarge, client.DataMax)
	}
	return data, nil
}

// checkContent refuses what names no content, or two.
func checkContent(cmd *cobra.Command, args []string, file string) error {
	switch named := cmd.Flags().Changed("file"); {
	case named && file == "":
		return usagef("--file is empty: give the name of a file, or - for stdin")
	case named && len(args) > 1:
		return usagef("give the content as an argument or by --file, not both")
	}
	return nil
}

// notPrinted is the error of a command that was executed, and whose result could
// not be printed; nil without err.
func notPrinted(what, path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: done, but its result could not be printed: %w", what, path, err)
}

func (a *app) createCmd() *cobra.Command {
	var ephemeral, sequential, container, parents, hold bool
	var file string
	var conditions conditionFlags
	c := &cobra.Command{
		Use:   "create PATH [CONTENT]",
		Short: "Create a node; fails if it exists",
		Long: `Creates a node with the given content (empty without CONTENT and --file;
"-" reads stdin) and prints its path.

An ephemeral node lives as long as the session that created it: so lockctl
stays in the foreground with --ephemeral until it receives SIGINT or SIGTERM.`,
		Args: arguments("PATH", "[CONTENT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			if ephemeral && container {
				return usagef("a node is ephemeral or a container, not both")
			}
			if err := cmp.Or(conditions.holdAsContent(args), checkContent(cmd, args, file)); err != nil {
				return err
			}
			data := []byte{}
			if len(args) > 1 || file != "" {
				if data, err = readContent(cmd.Context(), args[1:], file); err != nil {
					return err
				}
			}
			var options []client.CreateOption
			if ephemeral {
				options = append(options, client.Ephemeral())
			}
			if container {
				options = append(options, client.Container())
			}
			if sequential {
				options = append(options, client.Sequential())
			}
			if parents {
				options = append(options, client.WithParents())
			}
			held, err := conditions.held()
			if err != nil {
				return err
			}
			for _, h := range held {
				options = append(options, h)
			}
			hold = ephemeral
			return a.withSession(cmd.Context(), "lockctl create", func(ctx context.Context, s *client.Session) error {
				n, err := s.Create(ctx, args[0], data, options...)
				if err != nil {
					return parentHint(err, !parents)
				}
				if js {
					err = printJSON(nodeJSON(n.Path, n.Stat))
				} else {
					_, err = fmt.Println(n.Path)
				}
				switch {
				case !hold:
					return notPrinted("create", n.Path, err)
				case err != nil:
					return err // the node goes with the session
				}
				return holdSession(cmd.Context(), s, n.Path)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&ephemeral, "ephemeral", false, "delete the node when this session ends; keep running until SIGINT or SIGTERM")
	f.BoolVar(&sequential, "sequential", false, "append the parent's next number (10 digits) to the path")
	f.BoolVar(&container, "container", false, "delete the node automatically once it has been used and is empty")
	f.BoolVarP(&parents, "parents", "p", false, "create missing parents as containers")
	f.StringVarP(&file, "file", "f", "", `content from this file ("-": stdin)`)
	conditions.addHeld(c)
	return c
}

// holdSession keeps an ephemeral node alive until a signal comes (which ends
// ctx) or the session ends.
func holdSession(ctx context.Context, s *client.Session, path string) error {
	fmt.Fprintf(os.Stderr, "lockctl: %s exists until this command receives SIGINT or SIGTERM\n", path)
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	select {
	case <-ctx.Done():
		return nil
	case <-hup:
		return nil
	case <-s.Done():
		return fmt.Errorf("%s is gone: %w", path, s.Err())
	}
}

func (a *app) putCmd() *cobra.Command {
	var file string
	var parents bool
	var conditions conditionFlags
	c := &cobra.Command{
		Use:   "put PATH [CONTENT]",
		Short: "Write a node's content, creating the node if there is none",
		Long: `Writes the whole content of a node: CONTENT, or what --file names, or stdin.
The node is created if there is none. Prints the new content generation and
revision.

All conditions that are given must hold. To read, decide and write: take the
revision of the last write from stat or get -o json (modify_revision) and give
it as --if-revision. A program that 'lockctl lock' runs writes with
--while-held: what it sends is not done once the lock is not its any more.`,
		Args: arguments("PATH", "[CONTENT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			var options []client.PutOption
			demands, err := conditions.conditions()
			if err != nil {
				return err
			}
			for _, d := range demands {
				options = append(options, d)
			}
			held, err := conditions.held()
			if err != nil {
				return err
			}
			for _, h := range held {
				options = append(options, h)
			}
			if conditions.absent {
				options = append(options, client.IfAbsent())
			}
			if parents {
				options = append(options, client.WithParents())
			}
			err = cmp.Or(conditions.contradict(parents), conditions.holdAsContent(args), checkContent(cmd, args, file))
			if err != nil {
				return err
			}
			data, err := readContent(cmd.Context(), args[1:], file)
			if err != nil {
				return err
			}
			return a.withSession(cmd.Context(), "lockctl put", func(ctx context.Context, s *client.Session) error {
				st, err := s.Put(ctx, args[0], data, options...)
				if err != nil {
					return parentHint(err, !parents && len(demands) == 0)
				}
				if js {
					err = printJSON(nodeJSON(args[0], st))
				} else {
					_, err = fmt.Printf("generation %d, revision %d\n", st.ContentGeneration, st.ModifyRevision)
				}
				return notPrinted("put", args[0], err)
			})
		},
	}
	f := c.Flags()
	conditions.add(c)
	conditions.addAbsent(c)
	f.StringVarP(&file, "file", "f", "", `content from this file ("-": stdin)`)
	f.BoolVarP(&parents, "parents", "p", false, "create missing parents as containers")
	return c
}

func (a *app) getCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "get PATH",
		Short: "Print a node's content",
		Long:  "Prints the bare content of a node, without a newline added. With -o json, content (base64) and metadata.",
		Args:  arguments("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, r *client.Reader, js bool) error {
				n, err := r.Get(ctx, args[0])
				if err != nil {
					return err
				}
				if js {
					out := nodeJSON(n.Path, n.Stat)
					out.Data = n.Data
					return printJSON(out)
				}
				_, err = os.Stdout.Write(n.Data)
				return err
			})
		},
	}
}

// parentHint adds what to do about a missing parent. parentAlone says that no other
// node than the parent can be the one that was not found.
func parentHint(err error, parentAlone bool) error {
	if parentAlone && errors.Is(err, client.ErrNotFound) {
		return fmt.Errorf("%w (-p creates missing parents)", err)
	}
	return err
}

func (a *app) lsCmd() *cobra.Command {
	var long bool
	c := &cobra.Command{
		Use:   "ls [PATH]",
		Short: "List a node's children",
		Args:  arguments("[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/"
			if len(args) > 0 {
				path = args[0]
			}
			return a.read(cmd.Context(), func(ctx context.Context, r *client.Reader, js bool) error {
				var rows []nodeRow
				t := newTable("NAME", "KIND", "SIZE", "CHILDREN", "GENERATION", "MODIFIED", "OWNER")
				for c, err := range r.List(ctx, path) {
					if err != nil {
						return err
					}
					if js {
						rows = append(rows, nodeJSON(strings.TrimSuffix(path, "/")+"/"+c.Name, c.Stat))
					} else if long {
						t.row(c.Name, c.Stat.Kind, c.Stat.Size, c.Stat.Children, c.Stat.ContentGeneration,
							stamp(c.Stat.Modified), owner(c.Stat.Owner))
					} else if _, err := fmt.Println(quoteName(c.Name)); err != nil {
						return err
					}
				}
				if js {
					return printJSON(orEmpty(rows))
				}
				if long {
					return t.print()
				}
				return nil
			})
		},
	}
	c.Flags().BoolVarP(&long, "long", "l", false, "with metadata")
	return c
}

func (a *app) statCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "stat PATH",
		Short: "Show a node's metadata",
		Args:  arguments("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, r *client.Reader, js bool) error {
				st, err := r.Stat(ctx, args[0])
				if err != nil {
					return err
				}
				if js {
					return printJSON(nodeJSON(args[0], st))
				}
				t := newTable()
				t.row("path", args[0])
				t.row("kind", st.Kind)
				t.row("size", st.Size)
				t.row("children", st.Children)
				t.row("instance", st.Instance)
				t.row("content generation", st.ContentGeneration)
				t.row("lock generation", st.LockGeneration)
				t.row("ACL generation", st.ACLGeneration)
				t.row("checksum", fmt.Sprintf("%016x", st.Checksum))
				t.row("created", stamp(st.Created), fmt.Sprintf("revision %d", st.CreateRevision))
				t.row("modified", stamp(st.Modified), fmt.Sprintf("revision %d", st.ModifyRevision))
				if st.Owner != 0 {
					t.row("owner", owner(st.Owner))
				}
				return t.print()
			})
		},
	}
}

func (a *app) rmCmd() *cobra.Command {
	var recursive, force bool
	var conditions conditionFlags
	c := &cobra.Command{
		Use:   "rm PATH",
		Short: "Delete a node",
		Long: `Deletes a node; with -r also all below it. That is all or nothing up to
10,000 nodes; a larger tree is deleted in parts, from the leaves up, and if
that fails half way a part of it is gone. All conditions that are given must
hold, for each part.`,
		Args: arguments("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "/" {
				return &exitError{codeUsage, errors.New("rm /: the root cannot be deleted")}
			}
			var options, below []client.DeleteOption
			if recursive {
				options = append(options, client.Recursive())
			}
			if force {
				options = append(options, client.Force())
				below = options[len(options)-1:]
			}
			demands, err := conditions.conditions()
			if err != nil {
				return err
			}
			held, err := conditions.held()
			if err != nil {
				return err
			}
			var checks []client.CheckOption
			for _, d := range demands {
				options, checks = append(options, d), append(checks, d)
			}
			for _, h := range held {
				options, checks = append(options, h), append(checks, h)
			}
			err = a.withSession(cmd.Context(), "lockctl rm", func(ctx context.Context, s *client.Session) error {
				if recursive {
					return a.removeTree(cmd.Context(), s, args[0], below, options, checks)
				}
				return s.Delete(ctx, args[0], options...)
			})
			if errors.Is(err, client.ErrNotEmpty) {
				return fmt.Errorf("%w (rm -r deletes what is below it too)", err)
			}
			if errors.Is(err, client.ErrLocked) {
				return fmt.Errorf("%w ('lockctl why %s' says by whom; --force takes it from them)", err, args[0])
			}
			return err
		},
	}
	f := c.Flags()
	f.BoolVarP(&recursive, "recursive", "r", false, "delete everything below it too")
	f.BoolVar(&force, "force", false, "even if its lock is held or waited for: they lose it")
	conditions.add(c)
	return c
}
