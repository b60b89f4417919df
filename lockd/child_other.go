//go:build !linux

package main

import "syscall"

// childAttributes puts a child into a process group of its own, so that Ctrl-C
// reaches this process alone. If this process dies, the child sees its standard
// input end, and stops.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
