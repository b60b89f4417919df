// Package replog is the durable replicated log: a Paxos replica (package
// paxos) with a disk, peers and a state machine around it.
//
// Node is the part that decides, a pure state machine: paxos, the bookkeeping
// of log and snapshots, and the applying of what is chosen. Storage is the
// disk, Peers the network; both are shells that decide nothing. api.go has the
// types between them.
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
//
// # What memory knows, and which fact on disk carries it over a restart
//
//	promise                    the highest of all records and headers
//	chosen index               the highest of all records and headers, and the
//	                           snapshot's slot; each piece of a record counts on
//	                           the entries before it
//	value of a chosen slot     the last record of the slot: paxos writes no entry at
//	                           or below its own chosen index, and while a snapshot
//	                           is on its way, when it does not know what is chosen,
//	                           the header's installed slot says what is void
//	first slot kept            the lowest from which every slot up to the chosen
//	                           index has a record, above the installed slot. What
//	                           was trimmed has no record; a segment goes only as a
//	                           whole, after all older ones
//	log may go up to           the older of the two snapshots in the directory: with
//	                           fewer, nothing goes
//	snapshots of no use        those below the installed slot; a start removes those
//	                           that a crash has left
//	newest configuration       the newest header's, or the last chosen entry that has
//	                           one above its slot, or the snapshot's
//	cell is founded            slot 1 in log or snapshot; the identity file names the
//	                           cell only after slot 1 is durable
//	number of the last flush   the newest mark
//	number of the last segment the names of the files, and the last block of the
//	                           last but one
//	what is durable            what is read at a start is made durable before it is
//	                           given out; nothing else is taken for it
//	votes above a snapshot     the first record of the segment that its installation
//	                           begins
//
// # Failures of the disk
//
// The first write or fsync of the log that fails is the last: every later call
// gives the same error, and the replica stops. An fsync is never repeated, for
// the kernel may have dropped the pages and call the next one a success. A
// snapshot that cannot be written is no such failure; the one before it and the
// log are still there.
package replog
