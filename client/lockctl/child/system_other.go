//go:build !linux

package child

import (
	"errors"
	"os"
	"syscall"
)

const fdDir = "/dev/fd"

// self is this program's executable.
func self() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

func nameProcess(string) {}

// groupLives: only Linux tells a zombie from a process in a portable way.
func groupLives(group int) bool { return groupExists(group) }

// parentOf is a process's parent, 0 if that is not known.
func parentOf(int) int { return 0 }

// awaitChild waits until the child has ended, and reaps it, or has stopped.
func awaitChild(pid int) (c change, err error) {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return change{}, err
		case ws.Stopped():
			return change{stopped: ws.StopSignal()}, nil
		default:
			return change{status: &ws}, nil
		}
	}
}
