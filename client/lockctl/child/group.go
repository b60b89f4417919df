package child

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
)

// passedOn are the signals that go on to the command. CHLD, PIPE and the like
// are left alone.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP,
}

// ignored are the signals that whoever started this program wants ignored, as
// nohup does with HUP. Listening for them would bring them to life again.
var ignored = func() map[os.Signal]bool {
	m := make(map[os.Signal]bool)
	for _, s := range passedOn {
		m[s] = signal.Ignored(s)
	}
	return m
}()

// NotIgnored leaves out of sigs what this program was started to ignore; the
// command ignores it, too.
func NotIgnored(sigs ...os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(sigs), func(s os.Signal) bool { return ignored[s] })
}

// signalGroup sends sig to every process of the group. A group that is gone is
// no error: that is what the signal is for.
func signalGroup(group int, sig syscall.Signal) {
	invariant.Assert(group > 1, "signal %v to the group %d, which is no command's", sig, group)
	if err := syscall.Kill(-group, sig); err != nil && !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EPERM) {
		fmt.Fprintf(os.Stderr, "lockctl: send %v to process group %d: %v\n", sig, group, err)
	}
}

// groupExists reports whether there is a process of the group, be it one that
// has ended and was not waited for.
func groupExists(group int) bool {
	return !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH)
}

// killPatience is how long killGroup waits for processes to be gone. KILL takes
// effect at once, unless a process hangs in the kernel (on a dead disk or
// network file system, say).
const killPatience = 10 * time.Second

// killGroup sends KILL and waits until nothing of the group lives. false: some
// process still does.
func killGroup(group int, patience time.Duration) bool {
	end := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if !groupExists(group) {
			return true
		}
		signalGroup(group, syscall.SIGKILL)
		reapOrphans(group)
		if !groupExists(group) || !groupLives(group) {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		time.Sleep(pause)
	}
}

// reapOrphans waits for processes of the group that are this one's children,
// which happens to what the command leaves behind if this is a container's
// first process.
func reapOrphans(group int) {
	for {
		if pid, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
			return
		}
	}
}
