package main

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"
)

// childLog takes a replica's output: all of it into a file, and what an
// operator should see at once (warnings, errors, what is no log line) to the
// terminal with the replica's name before it.
type childLog struct {
	mu    sync.Mutex
	file  *os.File
	name  string
	term  *lines
	rest  []byte // a line that is not complete yet
	plain int    // lines in a row that are no log lines
	calm  bool   // warnings stay in the file
}

const (
	// plainMax is how many lines of a crash reach the terminal; the file has
	// the rest.
	plainMax = 8
	lineMax  = 64 << 10
)

func newChildLog(path, name string, term *lines) (*childLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log file of %s: %w", name, err)
	}
	return &childLog{file: f, name: name, term: term}, nil
}

// Write never fails: a full disk must not stop the replica through its log.
func (l *childLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.file.Write(b)
	l.rest = append(l.rest, b...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			break
		}
		l.line(l.rest[:i])
		l.rest = l.rest[i+1:]
	}
	if len(l.rest) > lineMax {
		l.line(l.rest)
		l.rest = nil
	}
	return len(b), nil
}

func (l *childLog) line(b []byte) {
	if len(b) == 0 {
		return
	}
	if bytes.HasPrefix(b, []byte("time=")) {
		l.plain = 0
		warning := bytes.Contains(b, []byte(" level=WARN ")) && !l.calm
		if !warning && !bytes.Contains(b, []byte(" level=ERROR ")) {
			return
		}
		l.term.printf("%s\n", l.short(b))
		return
	}
	if l.plain++; l.plain > plainMax {
		if l.plain == plainMax+1 {
			l.term.printf("%s: ... more in %s\n", l.name, l.file.Name())
		}
		return
	}
	l.term.printf("%s: %s\n", l.name, b)
}

// short is a log line as the terminal has it: like the lines of the cell itself,
// with the time of day, and the replica's name once.
func (l *childLog) short(b []byte) []byte {
	at, rest, ok := bytes.Cut(bytes.TrimPrefix(b, []byte("time=")), []byte(" level="))
	t, err := time.Parse(time.RFC3339Nano, string(at))
	if !ok || err != nil {
		return fmt.Appendf(nil, "%s: %s", l.name, b)
	}
	rest = bytes.Replace(rest, []byte(" replica="+l.name), nil, 1)
	return fmt.Appendf(nil, "%s  %s %s", t.Local().Format(clockLayout), l.name, bytes.Replace(rest, []byte(" msg="), []byte(": "), 1))
}

// quiet leaves warnings to the file from now on.
func (l *childLog) quiet() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calm = true
}

// close ends the log after the child's last output.
func (l *childLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line(l.rest)
	l.rest = nil
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("log file of %s: %w", l.name, err)
	}
	return nil
}
