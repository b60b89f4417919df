// Package sim runs whole cells of lockd with their clients on a simulated
// network, simulated disks and simulated clocks, breaks what can break, and
// checks what must hold all the same.
//
// One seed decides everything: the plan of a run (size of the cell, which
// faults and how strong), every delay, every loss, every crash and what the
// clients do. The same seed gives the same run to the byte of its trace,
// because nothing in here reads a clock, starts a goroutine, counts in floats
// or looks at the order of a map; a running hash of the trace shows it.
//
// A run has three parts: the cell is founded, then it works under faults, then
// the faults stop and it has to get well: every call answered, every replica in
// the same state. docs/simulator.md says what is simulated and what is assumed,
// and explains the lines of a story.
//
// The code that runs is the product's: replica.Replica (which is paxos, the
// log's node, the store and the master), storage.Storage over
// replog/vfs/faultfs, and the client's machine.Machine. Only the shells around them
// (sockets, goroutines, real files) have a stand-in here: process and client.
package sim

import "github.com/seed70370324/lockd/internal/invariant"

// A branch that is marked as unreachable and is reached fails the run.
func init() { invariant.PanicAtUnreachable() }
