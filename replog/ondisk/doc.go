// Package ondisk is what all files of a replica have in common: their names, the
// frames that they consist of, the errors that say why a directory is refused, and
// the rule that the first failed write is the last.
//
// # On disk
//
//	identity                      cell, replica, incarnation, cell identity; text, with a checksum
//	LOCK                          held (flock) by the process that has the directory open; its pid
//	log/0000000000000001.seg      segments of the log, numbered without a gap
//	snap/0000000000050000.snap    snapshots, named by the last slot applied in them
//	snap/incoming.part            a snapshot that is being received
//	snap/*.snap.damaged           one that did not verify and was put aside
//	torn/*.torn                   copies of torn tails that were cut, the last few
//	*.tmp                         files that are not finished; removed at the next start
//
// Every file appears under its name only when it is complete and durable:
// temporary name, content, fsync, rename, fsync of the directory. The identity
// is made last, so a first start that is interrupted simply begins again.
//
// # Frames
//
// Everything checksummed is a frame. Numbers are little-endian; a frame begins
// at a multiple of 8 and is padded with zeros to one.
//
//	0        4        8        12   13     16                24
//	+--------+--------+--------+----+------+-----------------+---------+------+
//	| "LkF1" | crc32c | length |type| zero |    sequence     | payload | zero |
//	+--------+--------+--------+----+------+-----------------+---------+------+
//
//	length    of the payload
//	type      1 log record, 2 segment header, 3 snapshot head, 4 piece of a
//	          snapshot, 5 end of a snapshot
//	sequence  log record: number of the flush it belongs to;
//	          snapshot: number of the frame in the file
//	crc32c    Castagnoli, of: what the file is (incarnation and segment number),
//	          the frame's offset in the file, and all from length to the end of
//	          the padding. So bytes that were written elsewhere, or by another
//	          life of the replica, are never valid where they are found.
package ondisk
