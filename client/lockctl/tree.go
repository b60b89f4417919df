package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/client"
)

func (a *app) treeCmd() *cobra.Command {
	var depth int
	c := &cobra.Command{
		Use:   "tree [PATH]",
		Short: "Show the nodes at and below PATH as a tree, with their locks",
		Long: `Shows PATH (by default /) and everything below it: kind, if it is not permanent,
with the session that owns an ephemeral node; size of the content; who holds the
lock, and how many wait for it.

A large tree is read in pieces, each of them current when it was read. With
-o json, one array: nodes in the order of the tree, each with its depth and lock.`,
		Args: arguments("[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("depth") && depth < 0 {
				return usagef("--depth %d: must not be negative", depth)
			}
			path := "/"
			if len(args) > 0 {
				path = args[0]
			}
			return a.withReader(cmd.Context(), false, func(ctx context.Context, r *client.Reader) error {
				out := bufio.NewWriter(os.Stdout)
				var p treePrinter = &treeText{out: out}
				if js {
					p = &treeJSON{out: out}
				}
				err := walkTree(ctx, r, path, depth, a.timeout, p)
				if ferr := out.Flush(); err == nil && ferr != nil {
					err = fmt.Errorf("print: %w", ferr)
				}
				return err
			})
		},
	}
	c.Flags().IntVar(&depth, "depth", -1, "show so many levels below PATH (default: all)")
	c.Flags().Lookup("depth").DefValue = "0" // help adds no default of its own then
	return c
}

// treeNode is what is shown of a node.
type treeNode struct {
	path   string
	stat   client.Stat
	lock   *client.LockInfo // nil: free
	depth  int              // below the tree's root
	last   bool             // of its siblings
	cut    bool             // its children are not shown
	noNode bool             // a lock whose node is gone, and which is in its lock-delay
}

// treePrinter prints nodes as they come; nothing is kept of them.
type treePrinter interface {
	node(n treeNode) error
	end() error
}

// tree walks through the nodes, and at the same time through the locks, which
// the service yields in the same order. At each level it keeps a page of
// children at most, however large the tree.
type tree struct {
	r       *client.Reader
	limit   int // -1: none
	print   treePrinter
	ctx     context.Context
	timeout time.Duration
	timer   *time.Timer // ends ctx when a read goes unanswered
	root    string

	nextLock func() (client.LockInfo, error, bool)
	lock     client.LockInfo
	more     bool // lock is one that was not shown yet
}

func walkTree(ctx context.Context, r *client.Reader, root string, limit int, timeout time.Duration, print treePrinter) error {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &tree{r: r, limit: limit, print: print, ctx: reading, timeout: timeout, root: root, timer: time.AfterFunc(timeout, cancel)}
	defer t.timer.Stop()
	err := t.walk()
	if err != nil && reading.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("tree %s: %w: no answer within %v", root, client.ErrUnavailable, timeout)
	}
	return err
}

func (t *tree) walk() error {
	st, err := t.r.Stat(t.ctx, t.root)
	if err != nil {
		return err
	}
	next, stop := iter.Pull2(t.r.Locks(t.ctx, t.root))
	defer stop()
	t.nextLock = next
	if err := t.advance(); err != nil {
		return err
	}
	if err := t.visit(treeNode{path: t.root, stat: st, last: true}); err != nil {
		return err
	}
	for t.more { // behind the last node
		if err := t.skip(); err != nil {
			return err
		}
	}
	return t.print.end()
}

// await bounds one read: printing may take its time, for example in a pager.
func await[A any](t *tree, next func() (A, error, bool)) (A, error, bool) {
	t.timer.Reset(t.timeout)
	defer t.timer.Stop()
	return next()
}

// advance takes the next lock.
func (t *tree) advance() (err error) {
	t.lock, err, t.more = await(t, t.nextLock)
	return err
}

// skip passes a lock for which no node was found. Its node is deeper than what
// is shown, or it is gone, and the lock's delay runs.
func (t *tree) skip() error {
	l := t.lock
	depth := levels(l.Path) - levels(t.root)
	gone := len(l.Holders) > 0
	for _, h := range l.Holders {
		gone = gone && h.Ghost
	}
	if gone && (t.limit < 0 || depth <= t.limit) {
		if err := t.print.node(treeNode{path: l.Path, lock: &l, depth: depth, noNode: true}); err != nil {
			return err
		}
	}
	return t.advance()
}

// levels is how deep a path is below the root.
func levels(path string) int {
	return len(path) - len(strings.ReplaceAll(strings.TrimSuffix(path, "/"), "/", ""))
}

// visit shows a node and what is below it.
func (t *tree) visit(n treeNode) error {
	for t.more && treeLess(t.lock.Path, n.path) {
		if err := t.skip(); err != nil {
			return err
		}
	}
	own := t.more && t.lock.Path == n.path
	if own {
		l := t.lock
		n.lock = &l
	}
	n.cut = n.depth == t.limit && n.stat.Children > 0
	if err := t.print.node(n); err != nil {
		return err
	}
	if own {
		if err := t.advance(); err != nil {
			return err
		}
	}
	if n.stat.Children == 0 || n.cut {
		return nil
	}
	next, stop := iter.Pull2(t.r.List(t.ctx, n.path))
	defer stop()
	child, err, ok := await(t, next)
	for ok {
		if errors.Is(err, client.ErrNotFound) && n.depth > 0 {
			return nil // deleted meanwhile
		}
		if err != nil {
			return err
		}
		c := treeNode{path: strings.TrimSuffix(n.path, "/") + "/" + child.Name, stat: child.Stat, depth: n.depth + 1}
		// One ahead: the last of them is drawn differently.
		child, err, ok = await(t, next)
		c.last = !ok
		if err := t.visit(c); err != nil {
			return err
		}
	}
	return nil
}

// treeLess is the order of the walk: a node comes right before what is below it.
func treeLess(a, b string) bool {
	// The slash is to come before every other byte, and no byte of a path is 0.
	return strings.ReplaceAll(a, "/", "\x00") < strings.ReplaceAll(b, "/", "\x00")
}

// treeText draws the tree.
type treeText struct {
	out          io.Writer
	bars         []string // what stands before a node of each depth
	nodes, locks int
	gone         []string // locks without a node
	moreGone     int
}

// goneMax bounds the locks without a node that are kept for the end.
const goneMax = 1000

func (p *treeText) node(n treeNode) error {
	if n.lock != nil {
		p.locks++
	}
	if n.noNode {
		if len(p.gone) == goneMax {
			p.moreGone++
		} else {
			p.gone = append(p.gone, quoteName(n.path)+"  "+lockMark(*n.lock))
		}
		return nil
	}
	p.nodes++
	line := quoteName(n.path)
	if n.depth > 0 {
		p.bars = p.bars[:n.depth-1]
		branch, bar := "├── ", "│   "
		if n.last {
			branch, bar = "└── ", "    "
		}
		line = strings.Join(p.bars, "") + branch + quoteName(n.path[strings.LastIndexByte(n.path, '/')+1:])
		p.bars = append(p.bars, bar)
	}
	if marks := nodeMarks(n); len(marks) > 0 {
		line += "  " + strings.Join(marks, "; ")
	}
	if _, err := fmt.Fprintln(p.out, line); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func (p *treeText) end() error {
	var b strings.Builder
	if len(p.gone) > 0 {
		b.WriteString("\nDeleted nodes whose lock-delay is still running:\n")
		for _, line := range p.gone {
			b.WriteString(line + "\n")
		}
		if p.moreGone > 0 {
			fmt.Fprintf(&b, "and %d more\n", p.moreGone)
		}
	}
	fmt.Fprintf(&b, "\n%s, %s held or waited for\n", plural(p.nodes, "node"), plural(p.locks, "lock"))
	if _, err := io.WriteString(p.out, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// nodeMarks is what is special about a node.
func nodeMarks(n treeNode) (marks []string) {
	switch n.stat.Kind {
	case client.KindPermanent:
	case client.KindEphemeral:
		marks = append(marks, fmt.Sprintf("%v, %s", n.stat.Kind, owner(n.stat.Owner)))
	default:
		marks = append(marks, fmt.Sprint(n.stat.Kind))
	}
	if n.stat.Size > 0 {
		marks = append(marks, plural(n.stat.Size, "byte"))
	}
	if n.lock != nil {
		marks = append(marks, lockMark(*n.lock))
	}
	if n.cut {
		if n.stat.Children == 1 {
			marks = append(marks, "1 child")
		} else {
			marks = append(marks, fmt.Sprintf("%d children", n.stat.Children))
		}
	}
	return marks
}

// lockMark says in a few words what `lockctl why` says in many.
func lockMark(l client.LockInfo) string {
	var parts []string
	for i, h := range l.Holders {
		switch {
		case i == 3 && len(l.Holders) > 4:
			parts = append(parts, fmt.Sprintf("and by %d more", len(l.Holders)-i))
		case i > 3 && len(l.Holders) > 4:
		case h.Ghost:
			parts = append(parts, fmt.Sprintf("lock-delay of %s, fence %d, available in %s", quoteName(h.Client.String()), h.Fence, span(h.GhostLeft)))
		case h.Mode == client.ModeShared:
			parts = append(parts, fmt.Sprintf("held (shared) by %s, fence %d", quoteName(h.Client.String()), h.Fence))
		default:
			parts = append(parts, fmt.Sprintf("held by %s, fence %d", quoteName(h.Client.String()), h.Fence))
		}
	}
	switch n := len(l.Waiters); {
	case n == 1:
		parts = append(parts, "1 waits")
	case n > 1:
		parts = append(parts, fmt.Sprintf("%d wait", n))
	}
	return strings.Join(parts, "; ")
}

// treeRow is a node of the tree in JSON.
type treeRow struct {
	Depth  int      `json:"depth"`
	Exists bool     `json:"exists"` // false: a lock in its lock-delay whose node is gone
	Lock   *lockRow `json:"lock"`   // null: nobody holds it or waits for it
	nodeRow
}

// treeJSON prints one array, an element at a time.
type treeJSON struct {
	out io.Writer
	any bool
}

func (p *treeJSON) node(n treeNode) error {
	row := treeRow{Depth: n.depth, Exists: !n.noNode, nodeRow: nodeJSON(n.path, n.stat)}
	if n.noNode {
		row.nodeRow = nodeRow{Path: n.path}
	}
	if n.lock != nil {
		l := lockJSON(*n.lock)
		l.Exists = row.Exists
		row.Lock = &l
	}
	b, err := json.MarshalIndent(row, "  ", "  ")
	if err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	before := ",\n  "
	if !p.any {
		before = "[\n  "
	}
	p.any = true
	if _, err := fmt.Fprintf(p.out, "%s%s", before, b); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

func (p *treeJSON) end() error {
	if _, err := io.WriteString(p.out, "\n]\n"); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}
