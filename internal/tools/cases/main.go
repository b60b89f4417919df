// Command cases runs the tests that stand for faults which were once seen, one
// test for each, as list.txt names them, and ends with a line that counts them.
//
// Usage: cases [-root DIR] [-v] [PATTERN]   (only lines that contain PATTERN)
package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

//go:embed list.txt
var list string

// line is one fault and the test that fails where it is.
type line struct {
	what    string
	pkg     string
	test    string // a test's name, perhaps with a subtest's behind a slash
	planted bool   // the test plants the fault and demands that it is noticed
}

func main() {
	root := flag.String("root", ".", "root of the repository")
	verbose := flag.Bool("v", false, "print what the tests print")
	flag.Parse()
	lines, err := parse(list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cases:", err)
		os.Exit(2)
	}
	passed, failed := 0, 0
	for _, l := range lines {
		if !strings.Contains(l.what+" "+l.pkg+" "+l.test, flag.Arg(0)) {
			continue
		}
		began := time.Now()
		out, err := run(*root, l)
		verdict := "ok  "
		if err != nil {
			verdict = "FAIL"
			failed++
		} else {
			passed++
		}
		fmt.Printf("%s %-78s %s %s (%.1fs)\n", verdict, l.what, l.pkg, l.test, time.Since(began).Seconds())
		if err != nil {
			fmt.Printf("%v\n", err)
		}
		if err != nil || *verbose {
			fmt.Print(out)
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}

// parse reads the list: what | package | test, and "planted" as a fourth part.
func parse(text string) (lines []line, err error) {
	in := bufio.NewScanner(strings.NewReader(text))
	for n := 1; in.Scan(); n++ {
		t := strings.TrimSpace(in.Text())
		if t == "" || strings.HasPrefix(t, "#") {
			continue
		}
		f := strings.Split(t, "|")
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		if len(f) < 3 || len(f) > 4 || (len(f) == 4 && f[3] != "planted") {
			return nil, fmt.Errorf("line %d of the list: want \"what | package | test\", perhaps with \"| planted\"", n)
		}
		lines = append(lines, line{what: f[0], pkg: f[1], test: f[2], planted: len(f) == 4})
	}
	return lines, in.Err()
}

// run runs the test of a line. It fails too if there is no such test: a name
// that has changed must not pass for a test that passes.
func run(root string, l line) (out string, err error) {
	args := []string{"test", "-json", "-count=1", "-timeout", "10m", "-run", pattern(l.test)}
	if l.planted {
		args = append(args, "-tags", "plantedbugs")
	}
	cmd := exec.Command("go", append(args, l.pkg)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	said, err := cmd.Output()
	printed, passed := read(said, l.test)
	switch {
	case err != nil:
		return printed + stderr.String(), fmt.Errorf("go %s: %w", strings.Join(cmd.Args[1:], " "), err)
	case !passed:
		return printed, errors.New("no such test has run")
	}
	return printed, nil
}

// pattern matches exactly this test.
func pattern(test string) string {
	var parts []string
	for p := range strings.SplitSeq(test, "/") {
		parts = append(parts, "^"+p+"$")
	}
	return strings.Join(parts, "/")
}

// read reads the events of go test -json: what was printed, and whether the test
// has passed (and was not skipped).
func read(events []byte, test string) (printed string, passed bool) {
	var b strings.Builder
	for raw := range bytes.Lines(events) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal(raw, &e) != nil {
			b.Write(raw) // a line of the compiler's, say
			continue
		}
		b.WriteString(e.Output)
		if e.Action == "pass" && e.Test == test {
			passed = true
		}
	}
	return b.String(), passed
}
