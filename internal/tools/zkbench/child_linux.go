package main

import "syscall"

// childAttributes keep a terminal's Ctrl-C from the servers, which are stopped
// in order, and end them with this program, however it ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
