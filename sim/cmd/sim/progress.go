package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/seed70370324/lockd/sim"
)

// progress is the file of a long row of seeds: its first line names the row, each
// other line a seed that has been run and how it ended. A row that was
// interrupted goes on where the file ends.
type progress struct {
	file   *os.File
	done   map[uint64]bool
	passed int
	failed []uint64
	err    error // of the first line that could not be written
}

// openProgress reads the file, or begins it. The row that it names is the row
// that is run: a build of another commit would count what another one ran.
func openProgress(name string, from uint64, n int, commit string) (*progress, error) {
	p := &progress{done: map[uint64]bool{}}
	head := fmt.Sprintf("seeds from %d, %d of them, of %s", from, n, commit)
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("reading the progress: %w", err)
	case len(text) > 0:
		if err := p.read(name, string(text), head); err != nil {
			return nil, err
		}
	}
	p.file, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the progress: %w", err)
	}
	switch {
	case len(text) == 0:
		p.write("%s\n", head)
	case text[len(text)-1] != '\n':
		p.write("\n") // the last line was cut off: that seed runs again
	}
	return p, p.err
}

func (p *progress) read(name, text, head string) error {
	whole := text[:strings.LastIndexByte(text, '\n')+1]
	lines := bufio.NewScanner(strings.NewReader(whole))
	for first := true; lines.Scan(); first = false {
		if first {
			if lines.Text() != head {
				return fmt.Errorf("%s is the progress of other seeds (%q, not %q): give another file, or remove it", name, lines.Text(), head)
			}
			continue
		}
		var seed uint64
		var how string
		if n, _ := fmt.Sscan(lines.Text(), &seed, &how); n < 2 {
			continue // cut off
		}
		switch {
		case p.done[seed]:
		case how == "passed":
			p.done[seed] = true
			p.passed++
		case how == "FAILED":
			p.done[seed] = true
			p.failed = append(p.failed, seed)
		}
	}
	return lines.Err()
}

func (p *progress) write(format string, args ...any) {
	if _, err := fmt.Fprintf(p.file, format, args...); err != nil && p.err == nil {
		p.err = fmt.Errorf("writing the progress: %w", err)
	}
}

// ran notes a seed.
func (p *progress) ran(r sim.Report) {
	if r.Failure != nil {
		p.write("%d FAILED %s\n", r.Seed, r.Failure.Check)
		return
	}
	p.write("%d passed\n", r.Seed)
}

// next leaves out what has been run.
func (p *progress) next(source func() (uint64, bool)) func() (uint64, bool) {
	return func() (uint64, bool) {
		for {
			seed, ok := source()
			if !ok || !p.done[seed] {
				return seed, ok
			}
		}
	}
}
