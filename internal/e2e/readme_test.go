package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// readmePrograms builds the Go programs of README.md as they stand there, but
// for the endpoints.
func readmePrograms(t *testing.T, endpoints []string) (programs []string) {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	const defaults = `"127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103"`
	for i, m := range regexp.MustCompile("(?s)```go\n(package main\n.*?)```").FindAllStringSubmatch(string(text), -1) {
		source := strings.Replace(m[1], defaults, fmt.Sprintf("%q", strings.Join(endpoints, `", "`)), 1)
		source = strings.ReplaceAll(source, `\"`, `"`)
		if source == m[1] {
			t.Fatalf("program %d of README.md does not name the endpoints of `make run`", i+1)
		}
		dir := t.TempDir()
		file := filepath.Join(dir, "main.go")
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		// The file stands in a directory of the module that exists for the build alone.
		name := fmt.Sprintf("readme%d", i+1)
		overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, "internal", "e2e", name, "main.go"): file}})
		if err != nil {
			t.Fatal(err)
		}
		list := filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(list, overlay, 0o600); err != nil {
			t.Fatal(err)
		}
		program := filepath.Join(dir, name)
		if out, err := exec.Command("go", "build", "-overlay", list, "-o", program, "./"+name).CombinedOutput(); err != nil {
			t.Fatalf("program %d of README.md does not build: %v\n%s", i+1, err, out)
		}
		programs = append(programs, program)
	}
	return programs
}

// said is a program under way and the lines that it prints.
type said struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines chan string
}

func startProgram(t *testing.T, program string, args ...string) *said {
	t.Helper()
	p := &said{t: t, cmd: exec.Command(program, args...), lines: make(chan string, 1000)}
	out, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		in := bufio.NewScanner(out)
		for in.Scan() {
			p.lines <- in.Text()
		}
	}()
	ended := make(chan struct{})
	go func() {
		_ = p.cmd.Wait() // what it printed tells more
		_ = w.Close()
		<-read
		close(p.lines)
		close(ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // an error: it has ended
		for range p.lines {
		}
		<-ended
	})
	return p
}

// expect waits for a line that contains text, and fails on one with an error.
func (p *said) expect(text string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 60*time.Second)
	defer cancel()
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				p.t.Fatalf("%s has ended without %q", filepath.Base(p.cmd.Path), text)
			}
			p.t.Logf("%s: %s", filepath.Base(p.cmd.Path), line)
			if strings.Contains(line, text) {
				return
			}
		case <-ctx.Done():
			p.t.Fatalf("%s does not say %q", filepath.Base(p.cmd.Path), text)
		}
	}
}

func (p *said) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// TestReadmePrograms runs the Go programs of README.md as a new user would.
func TestReadmePrograms(t *testing.T) {
	c := startCell(t, 3)
	programs := readmePrograms(t, c.clients())
	if len(programs) != 3 {
		t.Fatalf("README.md has %d programs", len(programs))
	}
	for range 3 {
		job := startProgram(t, programs[0])
		job.expect("it is our turn, fence ")
		job.expect("done: <nil>")
	}
	if _, stdout, _ := c.ctl("", "get", "/job-runs"); stdout != "|||" {
		t.Errorf("three runs of the job have left %q", stdout)
	}

	follower := startProgram(t, programs[2])
	follower.expect(`primary: ""`)
	first := startProgram(t, programs[1], "10.0.0.1:80")
	first.expect("primary, fence ")
	follower.expect(`primary: "10.0.0.1:80"`)
	second := startProgram(t, programs[1], "10.0.0.2:80")
	first.signal(syscall.SIGTERM) // gives up in order
	follower.expect(`primary: ""`)
	second.expect("primary, fence ")
	follower.expect(`primary: "10.0.0.2:80"`)
	third := startProgram(t, programs[1], "10.0.0.3:80")
	second.signal(syscall.SIGKILL) // lease and lock-delay
	follower.expect(`primary: ""`)
	third.expect("primary, fence ")
	follower.expect(`primary: "10.0.0.3:80"`)
}
