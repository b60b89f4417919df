package child

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What lockctl tells its watchdog, a line each:
//
//	until NS     the lock is held until this reading of CLOCK_BOOTTIME
//	guard GROUP  the command is (or will be) this process group
//	stopping NS  TERM has been sent; KILL is due then
//	done         the command is gone: there is nothing to guard any more
//
// and what it hears back: "ready", then each guard and until line once it has
// been taken; an until that comes when the watchdog stops the group itself is
// not answered. Whatever else arrives, and the end of the pipe without done,
// means that lockctl cannot be relied on any more, and the group is stopped.
const (
	lineReady    = "ready"
	lineUntil    = "until"
	lineGuard    = "guard"
	lineStopping = "stopping"
	lineDone     = "done"
	lineMax      = 64 // bytes; what is longer is no line of ours
)

// watch decides what the watchdog does. It does no I/O and reads no clock.
//
// Invariant: a group that was named gets KILL at the latest at the last
// deadline that was told, plus stop, unless done came before the group was
// being stopped. Only lockctl moves the deadline, so a lockctl that is dead or
// frozen does not.
type watch struct {
	stop  time.Duration // from TERM to KILL
	slack time.Duration // for lockctl to send TERM first, so that it comes once

	partial  []byte
	group    int
	deadline time.Duration
	told     bool          // lockctl has sent TERM
	reason   string        // why the watchdog stops the group itself; "": it does not
	killAt   time.Duration // 0: nothing is being stopped
	done     bool
	eof      bool
	broken   error // what came was no line of ours
}

// act is what the watchdog has to do now.
type act uint8

const (
	actWait act = iota
	actTerm     // send TERM to the group
	actKill     // send KILL to the group and see it gone
	actEnd      // nothing is left to guard
)

func newWatch(stop time.Duration) *watch {
	return &watch{stop: stop, slack: min(100*time.Millisecond, stop/4)}
}

// feed takes bytes of the pipe and returns the lines to answer with.
func (w *watch) feed(b []byte) (answers []string) {
	for len(b) > 0 && w.broken == nil {
		line, rest, whole := strings.Cut(string(b), "\n")
		if len(w.partial)+len(line) > lineMax {
			w.broken = errors.New("a line that is too long")
			break
		}
		if !whole {
			w.partial = append(w.partial, line...)
			break
		}
		line = string(w.partial) + line
		w.partial, b = w.partial[:0], []byte(rest)
		answer, err := w.line(line)
		if err != nil {
			w.broken = err
			break
		}
		if answer {
			answers = append(answers, line)
		}
	}
	return answers
}

// line takes one line. answer: lockctl waits for it to come back.
func (w *watch) line(line string) (answer bool, err error) {
	word, arg, _ := strings.Cut(line, " ")
	if word == lineDone && arg == "" {
		w.done = true
		return false, nil
	}
	n, err := strconv.ParseInt(arg, 10, 64)
	switch {
	case err != nil:
	case word == lineUntil && n > 0:
		w.deadline = time.Duration(n)
		return w.reason == "", nil
	case word == lineGuard && n > 1 && n <= 1<<31-1 && w.group == 0:
		// 0, 1 and -1 would mean this watchdog's own group, or everybody.
		w.group = int(n)
		return true, nil
	case word == lineStopping && n > 0:
		w.told = true
		if w.reason == "" {
			w.killAt = time.Duration(n)
		}
		return false, nil
	}
	return false, fmt.Errorf("the line %q", line)
}

// end: the pipe has ended. A torn last line was never said.
func (w *watch) end() { w.eof = true }

// decide says what to do at this instant. exists: a process of the group is
// left.
func (w *watch) decide(now time.Duration, exists bool) act {
	gone := w.eof || w.broken != nil
	switch {
	case w.done && w.reason == "":
		return actEnd
	case w.group == 0 && gone:
		return actEnd // the command has not been started, and will not be
	case w.group == 0:
		return actWait
	case !exists && (gone || w.killAt > 0):
		return actEnd
	case w.killAt > 0 && now >= w.killAt:
		return actKill
	case w.killAt > 0:
		return actWait
	case w.broken != nil:
		return w.begin(now, fmt.Sprintf("lockctl sent its watchdog %v", w.broken))
	case w.eof:
		return w.begin(now, "lockctl was killed")
	case now >= w.deadline+w.slack:
		return w.begin(now, "lockctl did not extend the lock's deadline (it is frozen, or has just been)")
	}
	return actWait
}

func (w *watch) begin(now time.Duration, reason string) act {
	w.reason = reason
	w.killAt = min(now, w.deadline) + w.stop
	if now >= w.killAt {
		return actKill
	}
	return actTerm
}

// sleep is how long nothing will fall due.
func (w *watch) sleep(now time.Duration) time.Duration {
	next := watchTick
	switch {
	case w.killAt > 0:
		next = min(stopTick, w.killAt-now)
	case w.group > 0:
		next = min(next, w.deadline+w.slack-now)
	}
	return max(next, 0)
}

// watchTick is the longest sleep: timers stand still while the machine is
// suspended, the deadline does not.
const watchTick = 250 * time.Millisecond

// stopTick is how often it is looked whether a group that was told to stop is
// gone.
const stopTick = 25 * time.Millisecond
