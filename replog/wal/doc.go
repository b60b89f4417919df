// Package wal is the log on disk: a row of segments of frames, the last of which is
// written. Read finds out what is there and what that is worth (torn, doubtful,
// damaged), and changes nothing; Found.Repair cleans up; a Log appends, flushes,
// reads and trims.
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
package wal
