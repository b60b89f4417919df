// Package faultfs is a file system in memory that forgets like a real one: what
// was written and not synced is lost, in whole or in part, when the power
// goes; and so are names that were made, changed or removed in a directory
// that was not synced. It also fails on demand: an operation of a kind, once
// (Fail) or from then on (FailFrom), reads of a bad spot (FailRead), a full disk
// (Limit), the power (StopAfter); bits go bad (Flip, FlipBits) and files vanish
// (Vanish).
//
// It keeps apart, for every file, what a reader sees and what is durable, with
// the list of writes between the two; for every directory likewise its names.
// Content is kept in blocks of 4 KiB that are shared until one is changed, and
// zeros take no room: a preallocated file costs nothing, and a crash costs only
// what was not synced.
//
// Everything is deterministic: the same calls with the same random source give
// the same file system, to the byte.
//
//	fsys := faultfs.New()
//	... write, sync, write ...
//	after := fsys.Crash(rng) // what a power cut may leave
//
// The assumptions: what was synced stays (until Flip or Overwrite spoils it);
// a sector of 512 bytes is written whole or not at all; a name changes at once
// or not at all, and a rename changes both its names together. Changes of names
// in one directory may be lost in any combination, as may writes to one file:
// this is harsher than most file systems are.
package faultfs
