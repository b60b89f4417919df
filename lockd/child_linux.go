package main

import "syscall"

// childAttributes puts a child into a process group of its own, so that Ctrl-C
// reaches this process alone, and has the system kill it if this process dies.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
