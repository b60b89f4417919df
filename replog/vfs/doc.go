// Package vfs is the seam between a replica's files and the operating system: FS
// and File are what the log, the snapshots and the identity use, and OSFS is the
// real one. Package faultfs has one in memory that forgets what was not synced.
//
// All that OSFS changes on the disk goes through variables (osfs_calls.go), so that
// a test sees each call of the operating system, with its flags, in its order.
package vfs
