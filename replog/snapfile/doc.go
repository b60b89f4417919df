// Package snapfile is the snapshots on disk: one file each, compressed and
// checksummed. Read finds out which there are and which are good; a Store writes,
// reads pieces for others, and receives.
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
package snapfile
