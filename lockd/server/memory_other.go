//go:build !linux

package server

// memoryBytes is how much memory the machine has; 0: not known.
func memoryBytes() uint64 { return 0 }
