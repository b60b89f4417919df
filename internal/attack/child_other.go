//go:build !linux

package main

import "syscall"

// childAttributes: other systems have no way to end a child with its parent.
func childAttributes() *syscall.SysProcAttr { return nil }
