// Package paxos is the Multi-Paxos replica of lockd: proposer, acceptor and
// learner in one deterministic state machine. It is given events with the time
// (Step) and says what is owed (Take); it does no I/O, reads no clock and has
// no goroutine, so a simulator can drive the very code that runs in production.
//
// # Protocol
//
// A ballot is (round, replica). A candidate first asks, changing nothing,
// whether a majority would follow it (probe). Then it runs phase 1 once for
// every slot from its chosen index + 1 on (prepare, promise). Of the values
// reported for a slot it proposes again the one with the highest ballot, it
// fills holes with no-ops, and puts a Lead entry of its own behind them. When
// all of these are chosen it leads: from then on a value costs one phase 2
// (accept, accepted), pipelined within a window, many commands in a slot.
// Accepts and heartbeats carry the commit index. A leader that knows whom to ask
// sends accepts to a majority at once and to the others later (thrift).
//
// # Messages
//
//	kind          fields that count
//	Probe         Chosen, Sequence (round of the probe)
//	ProbeReply    OK, Promised, Chosen, First, Sequence
//	Prepare       Ballot, Slot (first asked about), OK (hand-over: the old leader agreed)
//	Promise       Ballot, OK, Promised, Chosen, First, Entries (accepted above Chosen); not OK: Promised
//	Accept        Ballot, Chosen (commit index), Entries
//	Accepted      Ballot, OK, Promised, Slot (all up to it accepted at Ballot or chosen), Chosen
//	Heartbeat     Ballot, Chosen, First, Sequence
//	HeartbeatAck  Ballot, OK, Promised, Slot (as in Accepted, durable), Chosen, Sequence
//	CatchUp       Slot (first wanted), Limit (bytes)
//	CatchUpReply  Slot, Chosen, First, Entries (chosen); First > Slot: trimmed there
//	Handover      Ballot, Chosen
//
// Messages may be lost, repeated, delayed and reordered at will.
//
// # Invariants
//
// Each is asserted where it is kept; those in brackets are checked by Check or
// by tests.
//
//  1. A promise never goes back (raisePromise), and it and every accepted
//     value are durable before anybody is told (sendAfter; the two outboxes of
//     Effects).
//  2. Nothing is accepted below the promise (store).
//  3. A ballot is used by its owner once: its round is above the own promise,
//     which is durable before the prepare leaves (prepare).
//  4. A leader proposes one value in a slot at its ballot (proposeIn), and of
//     those that its quorum reported the one of the highest ballot (report).
//  5. A slot is chosen when a majority has accepted it at one ballot; votes of
//     other ballots do not count (answer), nor does one's own before its flush
//     (countVotes).
//  6. A follower takes an entry at or below the commit index for chosen only if
//     it was accepted at that leader's ballot; anything older it fetches
//     (commit).
//  7. Chosen slots are handed out in order, without a gap, once (choose), and a
//     chosen value never changes (learn) [agreement: simulator].
//  8. What a candidate does not know but others know to be chosen it fetches
//     before it proposes anything (phaseOneStep): trimmed is not empty.
//  9. A read is confirmed only by a round begun after it arrived, answered by a
//     majority, by a leader whose open slots are all chosen (readStep).
//  10. A leader that hands over proposes and confirms nothing more in its
//     ballot (handOver).
//  11. Memory is bounded: window of open slots and bytes, pending commands,
//     chosen entries in memory, entries stored ahead of a gap, what waits for
//     the own disk (diskBehind).
//  12. What is read from disk to be given to others as chosen is durable there
//     (shrink, ReadLog): before that its slot may hold what was accepted at an
//     older ballot.
//  13. What a thrifty leader holds back is late and nothing else: no vote, no
//     promise and no chosen slot depends on it. It is bounded in time, slots and
//     bytes (sendTo, sendAccepts); a leader that prepares or hands over holds
//     nothing back (thrifty); and what is held back does not wait for an event
//     that may never come (Due).
//
// # Founding
//
// While nothing is chosen a replica does not campaign on its own, unless it has
// accepted a value in slot 1. The driver of the founder gives ProposeConfig and
// then Campaign; phase 1 either finds an earlier attempt's slot 1, which is
// proposed again, or leaves it free for the configuration given. The members
// named in Options.Configuration vote on slot 1.
//
// # Sources
//
// L. Lamport, Paxos Made Simple (2001): section 2.2 (the two phases, P2c),
// section 3 (one phase 1 for all slots, holes). T. Chandra, R. Griesemer,
// J. Redstone, Paxos Made Live (2007): sections 4 and 5 (Multi-Paxos, catch-up,
// epochs, disk). R. van Renesse, D. Altinbuken, Paxos Made Moderately Complex
// (2015): sections 2 to 4 (window, preemption, back-off). D. Ongaro, Raft
// dissertation (2014): sections 4.2.3, 6.4 and 9.6 (stickiness, read index,
// pre-vote), which carry over.
//
// I. Moraru, D. Andersen, M. Kaminsky, There Is More Consensus in Egalitarian
// Parliaments (2013): the word thrifty, for a leader that asks a majority only.
//
// Deviations: votes are acknowledged as "everything up to slot s" instead of
// slot by slot, which is possible because links usually keep order and a leader
// sends again from the first gap; accepts far ahead of a gap are ignored
// instead of stored, which bounds memory and the size of promises; a probe
// comes before phase 1, and promises are refused while a live leader is heard,
// so that a replica that comes back from a partition disturbs nobody.
package paxos
