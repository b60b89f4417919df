// Package lane decides how messages between two replicas share a link, so that
// a large one never stands before the small ones: no heartbeat or vote waits for
// a megabyte.
//
// Two replicas have a connection for each lane (Main, Bulk). What goes by them
// is a stream of frames, of three kinds:
//
//	whole   a message as it is
//	part    a piece of a large one: its number, its offset, the size of the
//	        message, bytes, CRC-32C of all that
//	ack     how many bytes of frames have arrived on this connection, CRC-32C
//
// Sender is the sending half of both lanes to a peer, Receiver the receiving
// half of one connection. Both are deterministic state machines: they are given
// the time and do no I/O. The daemon's links and the simulator's network run the
// same.
//
// # What is guaranteed
//
//   - A message arrives whole, once, or not at all. Its parts come by one
//     connection, in order; if that ends, or a later message takes its place,
//     what has arrived of it is dropped.
//   - The bytes of parts that the peer's end has not acknowledged never exceed
//     the window when a part leaves, both lanes counted together, except that one
//     part may always be under way. So what kernels and routers can queue behind
//     each other's backs is bounded, and with it the time that a small message
//     waits there.
//   - A message that is not bulk and no larger than a part waits for nothing
//     here. Bulk messages of a lane keep their order among themselves; small
//     messages overtake them, and so do large ones that are not bulk.
//   - Memory: each lane queues a bounded number of bytes. A receiver has one
//     message in reassembly, and takes memory as bytes arrive, whatever size they
//     claim to be of.
//
// # The window
//
// It is set by round trips alone: a round trip is the time from sending a part to
// its acknowledgement, the base is the shortest of these. The window grows by half
// a round trip while these show no queue, and is set to what leaves a queue of a
// tenth of a second (queueTarget) when they show a longer one. It begins small.
// On a local network it soon is so large that hardly anything is cut or waits.
// Since a link that is always busy never shows its base, the sender lets it fall
// idle for one round trip when the base is half a minute old.
package lane
