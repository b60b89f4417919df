package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// statusLines writes one line an event to the descriptor that --status-fd names,
// for programs that start lockctl. docs/lockctl.md has the lines. Nothing waits
// for the reader: one that has gone, or that does not read, loses lines. A nil
// *statusLines writes nothing.
type statusLines struct {
	fd      int
	queue   chan string
	stop    chan struct{}
	done    chan struct{}
	stopped sync.Once
}

const (
	// statusQueue is how many lines wait for a reader, beside what its pipe holds.
	statusQueue = 64
	// statusPatience is how long the end of lockctl waits for the last lines.
	statusPatience = 200 * time.Millisecond
	// statusLook is how often a writer that waits for its reader looks for the
	// end.
	statusLook = 50 * time.Millisecond
)

// openStatus checks that fd was given by whoever started us, and can be written.
func openStatus(fd int) (*statusLines, error) {
	if fd < 1 {
		return nil, usagef("--status-fd %d: give the number of a descriptor that is open for writing, such as 3 with 3>FILE", fd)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	// What this process has opened itself is closed on exec, what it was given is not.
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		return nil, usagef("--status-fd %d: no such descriptor is open; open it in the shell, as in %d>FILE", fd, fd)
	}
	mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || mode&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, usagef("--status-fd %d: it is not open for writing", fd)
	}
	if fd > 2 {
		unix.CloseOnExec(fd) // it ends with lockctl, not with the command
	}
	s := &statusLines{fd: fd, queue: make(chan string, statusQueue), stop: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s, nil
}

// event queues a line: the event's name and pairs of key and value.
func (s *statusLines) event(name string, pairs ...string) {
	if s == nil {
		return
	}
	var b strings.Builder
	b.WriteString(name)
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&b, " %s=%s", pairs[i], statusValue(pairs[i+1]))
	}
	b.WriteByte('\n')
	select {
	case s.queue <- b.String():
	default: // nobody reads
	}
}

// statusValue quotes what has anything in it but letters, digits and the like,
// so that a line splits at blanks.
func statusValue(v string) string {
	for _, r := range v {
		if r <= ' ' || r == '"' || r == '\\' || r == 0x7f || r == '\u0085' || r == '\u2028' || r == '\u2029' {
			return strconv.QuoteToASCII(v)
		}
	}
	if v == "" {
		return `""`
	}
	return v
}

func (s *statusLines) run() {
	defer close(s.done)
	for {
		select {
		case line := <-s.queue:
			if !s.write(line) {
				return
			}
		case <-s.stop:
			for {
				select {
				case line := <-s.queue:
					if !s.write(line) {
						return
					}
				default:
					return
				}
			}
		}
	}
}

// write writes a line as soon as there is room for it. false: there is no reader.
func (s *statusLines) write(line string) bool {
	var end <-chan time.Time
	stop := s.stop
	for {
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(fds, int(statusLook/time.Millisecond))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return false
		case n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0:
			return false
		case n > 0:
			// A pipe that is ready takes as much as a line without blocking.
			_, err := unix.Write(s.fd, []byte(line))
			if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
				return err == nil
			}
		}
		select {
		case <-stop:
			stop = nil
			end = time.After(statusPatience)
		case <-end:
			return false
		default:
		}
	}
}

// close writes what is left, if there is a reader that takes it soon.
func (s *statusLines) close() {
	if s == nil {
		return
	}
	s.stopped.Do(func() { close(s.stop) })
	select {
	case <-s.done:
	case <-time.After(2 * statusPatience):
		// It hangs in a write: others have filled what had room a moment ago.
	}
}
