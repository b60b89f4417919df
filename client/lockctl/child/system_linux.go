package child

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const fdDir = "/proc/self/fd"

// self is this program's executable: this one, also if another has been
// installed in its place meanwhile.
func self() string {
	const link = "/proc/self/exe"
	if _, err := os.Lstat(link); err == nil {
		return link
	}
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// nameProcess sets the name that ps and pkill see. It is for people.
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// groupLives reports whether a process of the group is more than a zombie: one
// whose parent is frozen, or does not care, stays in the group for ever.
func groupLives(group int) bool {
	dir, err := os.Open("/proc")
	if err != nil {
		return true
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return true
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if state, _, g := processStat(pid); g == group && state != 'Z' && state != 'X' {
			return true
		}
	}
	return false
}

// processStat reads a process's state, parent and process group, zero if it is
// gone.
func processStat(pid int) (state byte, parent, group int) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, 0
	}
	// pid (name) state ppid pgrp; the name may hold anything.
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 3 {
		return 0, 0, 0
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	group, err2 := strconv.Atoi(string(f[2]))
	if err1 != nil || err2 != nil {
		return 0, 0, 0
	}
	return f[0][0], parent, group
}

// parentOf is a process's parent, 0 if that is not known.
func parentOf(pid int) int {
	_, parent, _ := processStat(pid)
	return parent
}

// From siginfo's si_code of SIGCHLD, see sigaction(2).
const cldStopped = 5

// awaitChild waits until the child has ended or stopped. A child that has ended
// is left unreaped: until then nobody else can get its number, so that whoever
// signals its group hits no stranger. ended with status -1: reap it.
func awaitChild(pid int) (c change, err error) {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return change{}, err
		case info.Code != cldStopped:
			return change{}, nil
		}
		// Take the stop, so that it is told once.
		var ws syscall.WaitStatus
		n, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED|syscall.WNOHANG, nil)
		switch {
		case err != nil && !errors.Is(err, syscall.EINTR):
			return change{}, err
		case err != nil || n == 0: // it has been continued meanwhile
		case ws.Stopped():
			return change{stopped: ws.StopSignal()}, nil
		default:
			return change{status: &ws}, nil
		}
	}
}
