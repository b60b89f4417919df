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
// # Segments
//
// A segment is written in blocks of 4096 bytes, preallocated with zeros, 64 MiB
// unless a flush needs more. The zeros are written while the segment before is
// in its third quarter, a little at a time, so that no flush waits for many, and
// what is missing then at once.
//
//	0        4096    8192                                        size-4096 size
//	+--------+-------+-----------------+-------+-------------+-------+-- --+----+
//	| header | marks | records .. zero | marks | records ..  | marks | zero|next|
//	+--------+-------+-----------------+-------+-------------+-------+-- --+----+
//
//	marks: 0      40                2048   2088             4096
//	       +------+-----------------+------+-----------------+
//	       | mark |      zero       | mark |      zero       |
//	       +------+-----------------+------+-----------------+
//
//	mark:  0          8        12     16       24       32       40
//	       +----------+--------+------+--------+--------+--------+
//	       |"lckdmark"| crc32c | zero | flush  | start  |  end   |
//	       +----------+--------+------+--------+--------+--------+
//
//	next:  0          8        12     16       24
//	       +----------+--------+------+--------+-----
//	       |"lckdnext"| crc32c | zero | number | zero    or zeros alone
//	       +----------+--------+------+--------+-----
//
// The last block is zeros until the next segment stands under its name; then,
// and before any flush in that one is reported, it gets that one's number. So a
// segment that was deleted is missed although none follows it. (A start writes
// the block again, as it does with the last flush.)
//
// The header (pb.SegmentHeader) makes a segment readable alone: format, whose it
// is, the promise, configuration and chosen index in force when it was made, the
// slot of the last snapshot that took the log's place, its own size, and where the
// records of the segment before it end. If it was made
// for a snapshot, the first record stands in the same blocks. A record
// (pb.LogRecord) holds a promise, a chosen index, and entries; the last record
// of a slot counts. A long record is divided, its chosen index stands in the
// last piece.
//
// A flush is all that was appended since the last one, in one contiguous write
// that is durable when it returns: its records and, in the block behind them,
// its mark, which says its number, where what was durable before it ended, and
// where it ends itself. If the records fit behind the last ones in their block, that block and
// the marks behind it are written again, with what they held and more; else they
// begin behind the marks, which stay. A block of marks holds the newest mark and
// the one before it, each in a sector of its own, so that no torn write takes
// both. The blocks of the header, and what stands there when a replica starts,
// are not written again. A flush lies in one segment, and is durable before the
// next segment is made, so only the last one can have an unfinished flush.
//
// Why the mark is the neighbour of its records: a mark elsewhere in the file
// is a second request to the disk, which made a flush half as long again. What
// that costs: a disk that says it has written and drops that one write whole
// leaves the log as it was before, without a trace. Two writes of which it drops
// one leave a trace; but a disk that lies of what it has written is not what the
// marks are for: they tell a torn write from bytes that went bad.
//
// # Torn, damaged, doubtful
//
// At a start the records are read to the first bytes that are none. In a
// segment that is not the last, that must be where the next one's header says
// it is. In the last one:
//
//	bad bytes before the start of the newest marked flush    damaged
//	bad bytes within it, and records of a later flush behind damaged
//	other bad bytes within the newest marked flush           doubtful
//	bad bytes behind it, then records of a later flush       damaged
//	other bad bytes behind it                                torn
//	good records of two flushes behind the newest good mark  damaged
//	the newest mark names a byte where no record ends        damaged
//	the file is shorter than its header says                 damaged
//	the header is unreadable, or no mark is readable         damaged
//	the last block says that another segment follows         damaged: it is missing
//	the last block is neither that nor zeros                 cleared, and told
//
// Torn bytes belong to a flush that was never acknowledged: without its mark
// Sync had not returned. They are copied, overwritten with zeros, and that is
// made durable before anything is written there again. Damaged means that what
// was made durable is gone, and perhaps a vote with it; such a replica must not
// go on as the one it was, and Open refuses. Doubtful is either: a power cut
// that kept the mark and not the records, or a bad sector; one replica alone
// cannot tell, and Open refuses as well (DamagedError.Doubtful). If the process
// alone dies, and the machine goes on, nothing is ever doubtful.
//
// What Open finds may have been in the page cache only; it makes it durable
// before it returns. It writes the last flush again for that: after an fsync
// that failed a kernel may show what it never wrote, and call the next fsync a
// success. It checks everything before it changes anything.
//
// What this cannot find: bits that went bad both in the last flush and in its mark,
// in another sector (it passes for torn); the loss of both blocks of a flush that
// wrote blocks again (and with them the earlier flushes in that block,
// less than 4096 bytes: a device without protection against power cuts that loses
// pages larger than a block), or of a whole old directory put in the place of the
// new one.
//
// # Snapshots
//
//	0            8
//	+------------+------+-------+-------+-- -- --+-----+
//	| "lckdsnap" | head | piece | piece |        | end |
//	+------------+------+-------+-------+-- -- --+-----+
//
// The head is pb.SnapshotMeta, the pieces of 256 KiB make one zstd stream, the
// end (pb.SnapshotTrailer) counts pieces and bytes. The file depends on nothing
// of the replica that wrote it and is handed to others as it is. The newest two
// are kept (and one more while a peer is fetching it), and the log from the
// older one on, so that if the newest does not verify, the older one and the log
// give the same state. A replica's own snapshot is begun only when a record
// that says that its slot is chosen is durable: so the log's last record of each
// slot up to there is of what was chosen. If every slot known to be chosen
// cannot be had from a good snapshot and the log, Open refuses.
//
// Installing a received snapshot: it is verified, decoded and durable under its
// name; a new segment is begun whose first record repeats promise, chosen index
// and the accepted entries above the snapshot; when that is durable under its
// name, older segments are removed, oldest first, each durably before the next.
// So at every point there is a snapshot and a row of segments without a gap
// that belong together. A snapshot found ahead of all that the log says is
// chosen is one whose installation had not begun; the next start installs it.
//
// The header of the segment that an installation begins names the snapshot's slot
// (installed), and so do the headers of all later ones. What any record of the
// log holds at or below that slot is not believed: neither in older segments that
// a crash kept from being removed, nor in records behind the installation. It may
// have been accepted from a leader of old while the snapshot was on its way, and
// another value may have been chosen there. If the snapshot, and all newer ones,
// are gone or damaged, Open refuses.
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
