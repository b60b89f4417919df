package main

import "context"

// system is what is measured.
type system interface {
	name() string
	// connect opens n clients, each with a session and a connection of its own.
	// where is for ZooKeeper: atLeader or spread.
	connect(ctx context.Context, n int, where string) (fleet, error)
}

// fleet is some clients. Each of them is used by one goroutine at a time.
type fleet interface {
	// write replaces the content of client i's own node, whatever its version.
	write(i int, value []byte) error
	// lock acquires and releases client i's own lock, which exists and is free.
	lock(i int) error
	// acquire waits for the lock that all clients share; release gives it back.
	acquire(i int) (release func() error, err error)
	// close ends all sessions; calls under way fail.
	close()
}

// Where ZooKeeper's clients connect to. lockd's always talk to the master.
const (
	atLeader = "leader"
	spread   = "spread"
)

// clientsMax is the most clients of a test; each has a node and a lock.
const clientsMax = 256

// valueBytes is the size of what is written.
const valueBytes = 256
