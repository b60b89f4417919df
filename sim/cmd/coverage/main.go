// Command coverage says which statements of what decides a run of the simulator
// has reached. It reads a coverage profile (go tool covdata textfmt) and prints,
// for each package, the statements that were reached, those that are marked with
// invariant.Unreachable, and those that were missed; with -missed each block of
// these, to see what a plan would have to draw to get there.
//
//	coverage [-missed] [-root DIR] PROFILE
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

const module = "github.com/seed70370324/lockd/"

// block is a run of statements.
type block struct {
	file                     string
	line, column, end, endAt int
	statements               int
	reached                  bool
	marked                   bool
}

func main() {
	missed := flag.Bool("missed", false, "list each block that was missed")
	root := flag.String("root", ".", "directory of the module")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "coverage: which profile? Make one with: make sim-coverage")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *root, *missed); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

func run(profile, root string, missed bool) error {
	blocks, err := read(profile)
	if err != nil {
		return err
	}
	source := map[string][]string{}
	for _, b := range blocks {
		if source[b.file] == nil {
			text, err := os.ReadFile(filepath.Join(root, b.file))
			if err != nil {
				return fmt.Errorf("reading the source: %w", err)
			}
			source[b.file] = strings.Split(string(text), "\n")
		}
		b.mark(source[b.file])
	}
	tell(blocks)
	if missed {
		for _, b := range blocks {
			if !b.reached && !b.marked {
				fmt.Printf("%s:%d: %d: %s\n", b.file, b.line, b.statements, strings.TrimSpace(source[b.file][b.line-1]))
			}
		}
	}
	return nil
}

// read gives the blocks of a profile by file and line. A block may be in it
// several times, once for each program.
func read(profile string) ([]*block, error) {
	f, err := os.Open(profile)
	if err != nil {
		return nil, fmt.Errorf("opening the profile: %w", err)
	}
	defer f.Close()
	all := map[string]*block{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		b, reached := &block{}, 0
		name, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok || name == "mode" {
			continue
		}
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.line, &b.column, &b.end, &b.endAt, &b.statements, &reached); err != nil {
			return nil, fmt.Errorf("the profile has a line that is none: %q", lines.Text())
		}
		if b.file = strings.TrimPrefix(name, module); b.statements == 0 || strings.HasPrefix(b.file, "sim/") {
			continue
		}
		key, _, _ := strings.Cut(lines.Text(), " ")
		if all[key] == nil {
			all[key] = b
		}
		all[key].reached = all[key].reached || reached > 0
	}
	var out []*block
	for _, b := range all {
		out = append(out, b)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := out[i], out[j]
		if a.file != b.file {
			return a.file < b.file
		}
		return a.line < b.line || (a.line == b.line && a.column < b.column)
	})
	return out, lines.Err()
}

// mark looks for an assertion that says that the block is never reached.
func (b *block) mark(source []string) {
	for line := b.line; line <= min(b.end, len(source)); line++ {
		text := source[line-1]
		if strings.Contains(text, "invariant.Unreachable(") || strings.Contains(text, "invariant.Assert(false") {
			b.marked = !b.reached
		}
	}
}

func tell(blocks []*block) {
	type sum struct{ reached, marked, missed int }
	sums, total := map[string]*sum{}, &sum{}
	var names []string
	for _, b := range blocks {
		dir := path.Dir(b.file)
		if sums[dir] == nil {
			sums[dir] = &sum{}
			names = append(names, dir)
		}
		for _, s := range []*sum{sums[dir], total} {
			switch {
			case b.reached:
				s.reached += b.statements
			case b.marked:
				s.marked += b.statements
			default:
				s.missed += b.statements
			}
		}
	}
	line := func(name string, s *sum) {
		all := max(1, s.reached+s.marked+s.missed)
		fmt.Printf("%-16s %6d statements: reached %6d (%4.1f %%), marked %4d (%4.1f %%), missed %5d (%4.1f %%)\n", name, all,
			s.reached, 100*float64(s.reached)/float64(all), s.marked, 100*float64(s.marked)/float64(all), s.missed, 100*float64(s.missed)/float64(all))
	}
	for _, name := range names {
		line(name, sums[name])
	}
	line("all", total)
}
