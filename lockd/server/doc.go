// Package server is the shell around a replica: it owns the sockets, the data
// directory, the goroutines and the clock, and decides nothing.
//
// The loop owns the replica. Everything that happens reaches it as an event in
// one mailbox; a turn of it empties the mailbox, steps the replica through all of
// it, closes the batch and performs what the replica owes. One turn is taken at a
// time, by the goroutine that put an event into the mailbox, or, if somebody was
// at it already, or time has passed, by the loop's own. The goroutines each own
// one thing:
//
//	loop            the ticks, and the turns that nobody else takes
//	disk            appends, flushes (those that a turn has begun it finishes),
//	                and what must keep its order with them
//	reads, saves    slow work beside the log: catch-up reads, snapshots
//	accept          the client listener
//	reader, writer  one pair for each client connection
//	reactors        read clients' connections in the place of their readers,
//	                as long as nothing is out of the ordinary
//	peers           the connections to the other replicas (peer.Peers)
//	admin           the HTTP listener
//
// Every one of them ends before Run returns.
//
// # Durable before visible
//
// The replica names the messages that may leave only when a record is durable.
// They are handed to the disk goroutine together with the record, and it alone
// sends them, after the flush. When a write or a flush fails nothing more
// leaves, and Run returns the error: what is on that disk cannot be known any
// more.
package server
