// Package peer is the shell around the connections between replicas.
//
// A pair of replicas keeps two connections: the main lane, and the bulk lane for
// pieces of snapshots and of the log. On both large messages go in parts, within
// one window that the peer's end acknowledges, so that none holds up a
// heartbeat, whatever queues behind the socket: package lane. The one with the
// lower ID dials both, and again when they break; names are resolved at each
// dial. On each the first frame in both directions is a PeerHello; who the other
// side may be is the node's decision, which sees every hello of a main lane as
// PeerConnected. But a stranger must not push a member's connection out: what
// comes in a member's name is taken only from one that is to dial, that the
// configuration knows by its incarnation, and while no other process speaks in
// that name.
//
// A message to a peer that is not connected, or that reads too slowly for what
// is queued, is dropped and counted: Paxos repeats what matters. A connection
// on which nothing arrives for ReadTimeout, not even the other side's pings, is
// given up.
package peer
