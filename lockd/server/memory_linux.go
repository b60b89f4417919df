package server

import (
	"os"
	"strconv"
	"strings"
	"syscall"
)

// memoryLimits are files that bound the memory of the process's control group.
var memoryLimits = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// memoryBytes is how much memory the machine, or the container, has; 0: not known.
func memoryBytes() uint64 {
	var info syscall.Sysinfo_t
	var memory uint64
	if err := syscall.Sysinfo(&info); err == nil {
		memory = uint64(info.Totalram) * uint64(info.Unit) // uint32 on some systems
	}
	for _, name := range memoryLimits {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // another version of control groups, or none
		}
		// "max" is no number, and no limit.
		if limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil && limit > 0 && (memory == 0 || limit < memory) {
			memory = limit
		}
	}
	return memory
}
