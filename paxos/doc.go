// Package paxos is the Multi-Paxos replica of lockd: proposer, acceptor and
// learner in one deterministic state machine. It is given events with the time
// (Step) and says what is owed (Take); it does no I/O, reads no clock and has
// no goroutine, so a simulator can drive the very code that runs in production.
//
// # Protocol
//
// A ballot is (round, replica). A candidate first asks, changing nothing,
// whether a majority would follow it (probe). Then it runs phase 1 once for
// every slot from its chosen index + 1 on (prepare, promise). Promises name what
// was accepted by slot and ballot. Of each slot the candidate fetches the value of
// the highest ballot named, unless it has accepted that very one itself (fetch,
// values); heartbeats keep the others from electing meanwhile. It proposes these
// values again, fills holes with no-ops, and puts a Lead entry of its own behind
// them, which tells the lowest wall clock of the majority that promised. When
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
//	Prepare       Ballot, Slot (first asked about), OK (hand-over: the old leader agreed), RoundTrip
//	Promise       Ballot, OK, Promised, Chosen, First, WallSeconds, Entries (named: accepted above Chosen); not OK: Promised
//	Fetch         Ballot (the candidate's), Entries (named: the values wanted), Limit (bytes)
//	Values        Ballot (the candidate's), OK, Promised, Chosen, Entries (of those wanted, some); not OK: Promised
//	Accept        Ballot, Chosen (commit index), Entries
//	Accepted      Ballot, OK, Promised, Slot (all up to it accepted at Ballot or chosen), Chosen
//	Heartbeat     Ballot, Slot (all up to it has been sent to the receiver; 0: not all), Chosen, First, Sequence, RoundTrip
//	HeartbeatAck  Ballot, OK, Promised, Slot (as in Accepted, durable), Chosen, Sequence
//	CatchUp       Slot (first wanted), Limit (bytes)
//	CatchUpReply  Slot, Chosen, First, Entries (chosen); First > Slot: trimmed there
//	Handover      Ballot, Chosen
//
// Messages may be lost, repeated, delayed and reordered at will.
//
// # Slow links, slow disks
//
// Messages with values (MessageKind.Bulk) may be large. The links cut them into
// parts and let all others pass between; a message counts only when it is whole.
// Links tell how far bulk has got, there (Sent) and here (Arriving). Nothing is
// sent again that may still arrive: the leader sends again from the first gap when
// its link carries nothing more and the vote is overdue by the time that votes
// took lately (seemsLost); a request that is repeated while its answer is on its
// way is not answered again (onItsWay); a follower fetches what heartbeats do not
// name as sent, what it had no room for when it came (catchUp.dropped), and the rest
// only when bytes have stopped (catchUpTick). Only whole messages of the leader
// end a follower's silence, and only whole answers make a leader's majority or
// confirm a read.
//
// Every wait for an answer is prolonged by the round trip that is measured
// (patience.go): silence counts from the first possible answer. An election also
// waits for flushes as long as they take. While an election is under way, probes
// of others are answered no (courted). A leader that was given up and turns out to
// be alive was late, not dead: the next is given that much more time.
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
//     the own disk (diskBehind; owedMost writes; one promise, and no vote twice),
//     what a follower was sent and has not accepted (flightBytes), what a promise
//     may name (storable).
//  12. What is read from disk to be given to others as chosen is durable there
//     (shrink, ReadLog): before that its slot may hold what was accepted at an
//     older ballot.
//  13. What a thrifty leader holds back is late and nothing else: no vote, no
//     promise and no chosen slot depends on it. It is bounded in time, slots and
//     bytes (sendTo, sendAccepts); a leader that prepares or hands over holds
//     nothing back (thrifty); and what is held back does not wait for an event
//     that may never come (Due).
//  14. A candidate proposes nothing before it has the value of each entry that is
//     the highest named for its slot (takeOver). A fetched value counts only if it
//     is of the ballot named (onValues). If no replica gives it the campaign is given
//     up: a new ballot asks anew (fetchValues).
//  15. Heartbeats of a candidate prove nothing: a leader's rounds come behind them
//     (newLeadership).
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
// V. Jacobson, Congestion Avoidance and Control (1988), and P. Karn, C. Partridge,
// Improving Round-Trip Time Estimates (1987): to send again by measured times, and
// not to measure by what was sent twice. T. Chandra, S. Toueg, Unreliable Failure
// Detectors (1996): a suspicion that was wrong makes the next come later.
//
// I. Moraru, D. Andersen, M. Kaminsky, There Is More Consensus in Egalitarian
// Parliaments (2013): the word thrifty, for a leader that asks a majority only.
//
// Deviations: votes are acknowledged as "everything up to slot s" instead of
// slot by slot, which is possible because links usually keep order and a leader
// sends again from the first gap; accepts far ahead of a gap are ignored
// instead of stored, which bounds memory and the size of promises; promises name
// values and do not carry them, so that an election takes a round trip more and
// does not grow with what is open; a probe
// comes before phase 1, and promises are refused while a live leader is heard,
// so that a replica that comes back from a partition disturbs nobody.
package paxos
