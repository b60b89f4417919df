// Package storage is the durable part of a replica: its identity, its log (package
// wal) and its snapshots (package snapfile) as one. Open finds out whether they go
// together, before it changes anything.
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
package storage
