package child

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// passedOn are the signals that go on to the command. CHLD, PIPE, TSTP and the
// like are left alone.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
}

// inOwnGroup arranges that cmd gets a process group of its own and, if stdin
// is a terminal whose foreground we are, the foreground. The function it
// returns takes the foreground back.
func inOwnGroup(cmd *exec.Cmd) (restore func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tty := int(os.Stdin.Fd())
	if !term.IsTerminal(tty) {
		return func() {}
	}
	front, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	if err != nil || front != unix.Getpgrp() {
		return func() {} // we are in the background: so stays the command
	}
	cmd.SysProcAttr.Foreground = true
	cmd.SysProcAttr.Ctty = tty
	return func() {
		// Setting the foreground from the background raises TTOU, which would
		// stop us.
		signal.Ignore(syscall.SIGTTOU)
		defer signal.Reset(syscall.SIGTTOU)
		if err := unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, unix.Getpgrp()); err != nil {
			fmt.Fprintf(os.Stderr, "lockctl: take the terminal back: %v\n", err)
		}
	}
}
