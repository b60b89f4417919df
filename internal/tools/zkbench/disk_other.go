//go:build !linux

package main

import "errors"

var errInMemory = errors.New("is kept in memory")

// checkDisk refuses: what a directory is on is asked in Linux's way.
func checkDisk(string) error {
	return errors.New("this comparison runs on Linux only, with Debian's package of ZooKeeper")
}
