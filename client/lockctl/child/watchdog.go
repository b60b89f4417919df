package child

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed70370324/lockd/internal/clock"
)

// The watchdog is a process of its own, since nothing else can kill the
// command when lockctl itself is dead or frozen. lockctl starts it first,
// starts the command only when the watchdog has said that it knows the group,
// and from then on tells it each new deadline of the lock. The watchdog stands
// in a session of its own: neither the terminal's signals nor those to
// lockctl's or the command's group reach it.

const watchdogCommand = "lock-watchdog"

// Main runs the helper processes of Run: the watchdog and the gate. Programs
// that call Run must call it first of all in main, with their arguments. It
// returns only if args are for the program itself.
func Main(args []string) {
	if len(args) == 0 {
		return
	}
	switch args[0] {
	case watchdogCommand:
		os.Exit(watchdog(args[1:]))
	case gateCommand:
		os.Exit(gate(args[1:]))
	}
}

// watchdog guards one group. args: the time between TERM and KILL in
// nanoseconds, the lock's path for messages. The pipe from lockctl is stdin,
// the one to lockctl stdout.
func watchdog(args []string) int {
	// Whoever wants to stop the job stops lockctl; this has to outlive it.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE,
		syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "lockctl: the watchdog is started by 'lockctl lock'")
		return 2
	}
	stop, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil || stop < 0 {
		fmt.Fprintf(os.Stderr, "lockctl: watchdog: %q is no stopping time\n", args[0])
		return 2
	}
	runtime.LockOSThread()
	// Best effort: it is to run if anything does.
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -20)
	nameProcess("lock-watchdog")
	closeInherited()
	d := &dog{w: newWatch(time.Duration(stop)), lock: args[1]}
	d.answer(lineReady)
	return d.run()
}

// dog carries out what watch decides.
type dog struct {
	w    *watch
	lock string
	said chan struct{} // closed when the message is out; nil: none
}

func (d *dog) run() int {
	for {
		now := clock.Now()
		if err := d.listen(d.w.sleep(now)); err != nil {
			d.w.broken = err
		}
		// Only after all that lockctl has said was heard: a watchdog that was
		// frozen itself must not act on a deadline that has long been moved.
		exists := d.w.group > 1 && groupExists(d.w.group)
		switch d.w.decide(clock.Now(), exists) {
		case actTerm:
			signalGroup(d.w.group, syscall.SIGTERM)
			signalGroup(d.w.group, syscall.SIGCONT) // a stopped command must wake to see it
			d.say(fmt.Sprintf("stopping the command (TERM, KILL after %v)", d.w.stop))
		case actKill:
			d.say("killing the command")
			if !killGroup(d.w.group, killPatience) {
				d.say("a process of the command cannot be killed")
			}
			d.wait()
			return 0
		case actEnd:
			d.wait()
			return 0
		}
	}
}

// listen waits for lines, at most for the given time, and takes all there are.
func (d *dog) listen(patience time.Duration) error {
	var buf [4096]byte
	for !d.w.eof {
		fds := []unix.PollFd{{Fd: 0, Events: unix.POLLIN}}
		// Rounded up: an early wake-up would only turn the loop once more.
		n, err := unix.Poll(fds, int((patience+time.Millisecond-1)/time.Millisecond))
		switch {
		case errors.Is(err, unix.EINTR):
			return nil
		case err != nil:
			return fmt.Errorf("poll: %w", err)
		case n == 0:
			return nil
		}
		n, err = unix.Read(0, buf[:])
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case n == 0:
			d.w.end()
		}
		if n > 0 {
			for _, line := range d.w.feed(buf[:n]) {
				d.answer(line)
			}
		}
		patience = 0
	}
	if patience > 0 {
		time.Sleep(patience) // the pipe is at its end: only time can bring news
	}
	return nil
}

// answer tells lockctl, unless it does not read: then it does not matter.
func (d *dog) answer(line string) {
	fds := []unix.PollFd{{Fd: 1, Events: unix.POLLOUT}}
	if n, err := unix.Poll(fds, 0); err == nil && n == 1 && fds[0].Revents&unix.POLLOUT != 0 {
		_, _ = unix.Write(1, []byte(line+"\n"))
	}
}

// say tells people once why the command is stopped. It may block, on a
// terminal that is held up: so it is not waited for.
func (d *dog) say(text string) {
	reason := d.w.reason
	if reason == "" {
		return // lockctl says it
	}
	text = fmt.Sprintf("lockctl: lock %s: %s: %s\n", d.lock, reason, text)
	before, said := d.said, make(chan struct{})
	d.said = said
	go func() {
		defer close(said)
		if before != nil {
			<-before
		}
		_, _ = os.Stderr.WriteString(text)
	}()
}

// wait gives the last message a moment.
func (d *dog) wait() {
	if d.said == nil {
		return
	}
	select {
	case <-d.said:
	case <-time.After(toldTime):
	}
}

// closeInherited closes the descriptors that lockctl was started with, but for
// the standard ones: a pipe's reader must not wait for the watchdog. Those that
// this process made itself are close-on-exec.
func closeInherited() {
	dir, err := os.Open(fdDir)
	if err != nil {
		return // then they stay open as long as the command runs
	}
	names, _ := dir.Readdirnames(-1)
	_ = dir.Close()
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd < 3 {
			continue
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
}
