// Package replog is the durable replicated log: a Paxos replica (package
// paxos) with a disk, peers and a state machine around it.
//
// Node is the part that decides, a pure state machine: paxos, the bookkeeping
// of log and snapshots, and the applying of what is chosen. It stands alone in this
// package; api.go has its events and effects. Beside it are the shells, which decide
// nothing:
//
//	codec     between paxos's types and the messages (pb)
//	vfs       files and file systems: the real one, and one that forgets (faultfs)
//	ondisk    what all files have in common: names, frames, errors, fail-stop
//	wal       the log: segments, marks; torn, doubtful, damaged
//	snapfile  the snapshots
//	storage   identity, log and snapshots as one
//	peer      the links between replicas; their parts are a pure machine (peer/lane)
//
// # Between replicas
//
// A message arrives whole, once, by the connection by which it was sent, or not
// at all. Large ones go in parts (package lane), so there is no order between
// them and the small ones, which overtake them; messages that carry values
// (accepts, catch-up, pieces of snapshots) keep their order on their lane. None
// of this survives the connection: what was queued or on its way when it broke is
// lost, and the node is told so (PeerSent with nothing queued). Accepts may also
// be dropped when this replica goes on to a higher ballot. Paxos bears all of it.
package replog
