package child

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the one that the command shares with lockctl. The command has a
// process group of its own, so lockctl does for it what a shell does for a job:
// it gives it the terminal's foreground, takes that back, and stops and goes on
// with it.
type terminal struct {
	fd  int // -1: none
	own int // lockctl's process group
}

func openTerminal() *terminal {
	t := &terminal{fd: -1, own: unix.Getpgrp()}
	fd := int(os.Stdin.Fd())
	// With the output in a pipe, as in `lockctl lock /l -- CMD | less`, others of
	// our group need the foreground more.
	if term.IsTerminal(fd) && term.IsTerminal(int(os.Stdout.Fd())) {
		t.fd = fd
	}
	return t
}

// foreground is the process group that has it, 0 if there is no terminal.
func (t *terminal) foreground() int {
	if t.fd < 0 {
		return 0
	}
	group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// attr starts the command in a group of its own, in the foreground if that is
// ours.
func (t *terminal) attr() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if t.foreground() == t.own {
		a.Foreground = true
		a.Ctty = t.fd
	}
	return a
}

// give hands the foreground to the group if it is ours to give.
func (t *terminal) give(group int) {
	if t.foreground() == t.own {
		t.set(group)
	}
}

// takeBack takes the foreground from the group, if that has it. It may be
// another job's by now.
func (t *terminal) takeBack(group int) {
	if t.foreground() != group || t.fd < 0 {
		return
	}
	// Setting the foreground from the background raises TTOU, which would
	// stop us.
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	t.set(t.own)
}

func (t *terminal) set(group int) {
	if err := unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group); err != nil {
		fmt.Fprintf(os.Stderr, "lockctl: hand over the terminal: %v\n", err)
	}
}

// jobStop reports whether sig is how a terminal stops a job. STOP is somebody's
// own doing: who sends it to the command alone means it alone.
func jobStop(sig syscall.Signal) bool {
	return sig == syscall.SIGTSTP || sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
}

// underJobControl reports whether a shell watches over our process group: one of
// its processes has a parent in the same session and another group. If not, the
// group is orphaned (POSIX), nobody would continue it, and it must not stop.
func underJobControl() bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return false
	}
	own := unix.Getpgrp()
	for pid := unix.Getppid(); pid > 0; pid = parentOf(pid) {
		if sid, err := unix.Getsid(pid); err != nil || sid != session {
			return false
		}
		if group, err := unix.Getpgid(pid); err != nil || group != own {
			return err == nil
		}
	}
	return false
}

// suspend stops our own process group, the rest of the job, and returns when it
// goes on: the shell's fg and bg send CONT. It is STOP and not TSTP, since
// os/signal does not give TSTP its meaning back once it has been asked for.
func suspend() {
	cont := make(chan os.Signal, 1)
	signal.Notify(cont, syscall.SIGCONT)
	defer signal.Stop(cont)
	_ = syscall.Kill(0, syscall.SIGSTOP)
	select {
	case <-cont:
	case <-time.After(suspendTime):
	}
}

// suspendTime is far more than the kernel needs to stop all our threads.
const suspendTime = time.Second
