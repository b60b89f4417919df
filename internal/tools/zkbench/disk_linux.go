package main

import (
	"errors"
	"fmt"
	"syscall"
)

// What is kept in memory: to flush it costs nothing, so that the measurement
// would be of something else.
var inMemory = map[uint32]string{0x01021994: "tmpfs", 0x858458f6: "ramfs"}

const freeNeeded = 4 << 30

var errInMemory = errors.New("is kept in memory")

// checkDisk refuses a directory that is not on a disk, or on a full one.
func checkDisk(dir string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if name := inMemory[uint32(st.Type)]; name != "" {
		return fmt.Errorf("%s %w (%s): choose a directory on a disk with -dir", dir, errInMemory, name)
	}
	if free := st.Bavail * uint64(st.Bsize); free < freeNeeded {
		return fmt.Errorf("%s has %d MiB free, %d are needed: choose another directory with -dir", dir, free>>20, freeNeeded>>20)
	}
	return nil
}
