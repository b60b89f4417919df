package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// build is one build of lockd, with a cell of three replicas while it runs.
type build struct {
	name string
	bin  string
	port int

	cell *exec.Cmd
	log  *os.File
}

const (
	replicas  = 3
	startTime = 30 * time.Second
	stopTime  = 20 * time.Second
)

// checkout lays out and builds a revision below .cache, once a commit.
func checkout(ctx context.Context, root, rev string) (string, error) {
	id, err := output(ctx, root, "git", "rev-parse", "--verify", rev+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("find the revision %q: %w", rev, err)
	}
	tree := filepath.Join(root, ".cache", "pairs", strings.TrimSpace(id))
	if _, err := os.Stat(filepath.Join(tree, "bin", "lockctl")); err == nil {
		return tree, nil
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		return "", err
	}
	archive := filepath.Join(tree, "source.tar")
	if _, err := output(ctx, root, "git", "archive", "--output", archive, strings.TrimSpace(id)); err != nil {
		return "", fmt.Errorf("take the revision %q out of git: %w", rev, err)
	}
	if _, err := output(ctx, tree, "tar", "xf", archive); err != nil {
		return "", fmt.Errorf("unpack the revision %q: %w", rev, err)
	}
	if err := os.Remove(archive); err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "building %s\n", rev)
	if _, err := output(ctx, tree, "make", "build", "VERSION="+rev); err != nil {
		return "", fmt.Errorf("build the revision %q: %w", rev, err)
	}
	return tree, nil
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, tail(string(exit.Stderr)))
	}
	return string(out), err
}

// tail returns the end of a program's complaint.
func tail(s string) string {
	s = strings.TrimSpace(s)
	return s[max(0, len(s)-1000):]
}

// start starts the build's cell and waits until it serves.
func (b *build) start(ctx context.Context, dir string) error {
	out, err := os.Create(filepath.Join(dir, fmt.Sprintf("cell-%d.log", b.port)))
	if err != nil {
		return err
	}
	b.log = out
	// Not bound to ctx: stop ends it in order.
	b.cell = exec.Command(filepath.Join(b.bin, "lockd"), "local", "--replicas", strconv.Itoa(replicas),
		"--base-port", strconv.Itoa(b.port), "--data-dir", filepath.Join(dir, fmt.Sprintf("data-%d", b.port)))
	pipe, err := b.cell.StdoutPipe()
	if err != nil {
		return err
	}
	b.cell.Stderr = out
	if err := b.cell.Start(); err != nil {
		b.cell = nil
		return fmt.Errorf("start the cell of %s: %w", b.name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	serves := make(chan error, 1)
	go func() { // ends with the cell's standard output, that is with the cell
		lines := bufio.NewScanner(io.TeeReader(pipe, out))
		for lines.Scan() {
			if strings.Contains(lines.Text(), " serves.") {
				serves <- nil
			}
		}
		select {
		case serves <- errors.New("it has ended"):
		default:
		}
	}()
	select {
	case err = <-serves:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		b.stop()
		said, _ := os.ReadFile(out.Name()) // what cannot be read is not shown
		return fmt.Errorf("the cell of %s does not serve: %w\n%s", b.name, err, tail(string(said)))
	}
	return nil
}

// stop ends the cell, if it runs.
func (b *build) stop() {
	if b.cell == nil {
		return
	}
	_ = b.cell.Process.Signal(syscall.SIGINT) // an error: it has ended
	late := time.AfterFunc(stopTime, func() { _ = b.cell.Process.Kill() })
	_ = b.cell.Wait() // how it ended does not matter
	late.Stop()
	b.cell = nil
	_ = b.log.Close()
}

func (b *build) endpoints() string {
	var all []string
	for i := range replicas {
		all = append(all, fmt.Sprintf("127.0.0.1:%d", b.port+i))
	}
	return strings.Join(all, ",")
}
