// Package invariant holds the assertions that stay on in the product and the
// hooks by which a test build plants known bugs.
//
// An assertion states a safety property in the place that keeps it. When one
// fails the replica must not go on: it would act on a state that the protocol
// says cannot exist. So Assert panics; the process ends, the others carry on.
package invariant

import "fmt"

// Assert panics with the formatted text unless ok. The text names the
// property and the numbers needed to understand the breach. To pass these costs
// an allocation each, whether ok or not: on the path of every request the
// condition is asked first, and Assert called with false.
func Assert(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}

// unreachablePanics is set once, by PanicAtUnreachable, before anything runs.
var unreachablePanics bool

// PanicAtUnreachable makes Unreachable panic from now on. The simulator and
// tests call it while their package is initialized.
func PanicAtUnreachable() { unreachablePanics = true }

// Unreachable marks a branch that defends against what cannot happen, with the
// reason why it cannot. In the simulator it panics, so that a wrong reason is
// found; in the product it does nothing, and the branch that it marks keeps the
// replica or client safe. The report of make sim-coverage counts marked branches.
func Unreachable(reason string) {
	if unreachablePanics {
		panic("reached what cannot be reached: " + reason)
	}
}

// Bug names a planted bug. Each one breaks exactly one rule, and a test shows
// that the simulator finds it.
type Bug string

// The bugs that can be planted.
const (
	PromiseBeforeFlush  Bug = "promise-before-flush"    // a promise leaves before it is durable
	OldBallotIsChosen   Bug = "old-ballot-is-chosen"    // an older ballot's value is taken for chosen
	VotesOfAnyBallot    Bug = "votes-of-any-ballot"     // a vote covers slots that were accepted at other ballots
	ServesBeforeClosed  Bug = "serves-before-closed"    // a new leader serves before the open slots are chosen and applied
	DoubtfulIsTorn      Bug = "doubtful-is-torn"        // a bad tail that the mark names is cut as torn
	RepeatAppliedTwice  Bug = "repeat-applied-twice"    // a repeated request is executed again
	GapIgnored          Bug = "gap-ignored"             // a request is executed although the one before it was not
	ResultsNotSaved     Bug = "results-not-saved"       // the results kept for repeats are missing in the snapshot
	OldExpiryTaken      Bug = "old-expiry-taken"        // a deposed master's expiry is executed
	DeadSessionKeepLock Bug = "dead-session-keeps-lock" // a dead session's lock is forgotten
	GrantsInLockDelay   Bug = "grants-in-lock-delay"    // a lost lock is granted at once
	WaiterOvertakes     Bug = "waiter-overtakes"        // a waiter is granted that came behind another
	LowestBallotWins    Bug = "lowest-ballot-wins"      // a new leader proposes the value of the lowest ballot again

	// Of the master. lockd/replica's tests find them.
	GhostsSequencer      Bug = "ghosts-sequencer"        // the sequencer of a lock that its holder has lost is valid
	DroppedKeepsItsBytes Bug = "dropped-keeps-its-bytes" // what is no longer under way still counts
	LeaseAheadOfNews     Bug = "lease-ahead-of-news"     // a lease is given ahead of the news of a lost lock
	NotedGetsLease       Bug = "noted-gets-lease"        // a session gets a lease that its note in the state does not know of
	ExpiresInHand        Bug = "expires-in-hand"         // a session is expired whose KeepAlive waits for its proof
	AnsweredIsSilent     Bug = "answered-is-silent"      // a session is expired whose client was answered just now, without a lease
	FrozenTimeCounts     Bug = "frozen-time-counts"      // time in which the master did not run counts against sessions

	// Of watches. lockd/replica's tests find them; the simulator the first two, too.
	WatchLastOfBatch    Bug = "watch-last-of-batch"   // of several changes of a path in a batch the last is told
	WatchExchangesOrder Bug = "watch-exchanges-order" // changes are told in another order
	WatchSkips          Bug = "watch-skips"           // a watch that fell out of the log goes on behind the gap
	WatchLosesReason    Bug = "watch-loses-reason"    // a deletion does not say why
	WatchKeepsDeleted   Bug = "watch-keeps-deleted"   // a client does not find what was deleted while it was away
	WatchMarksNothing   Bug = "watch-marks-nothing"   // a client does not mark what it missed
	OldRequestTaken     Bug = "old-request-taken"     // a request that an earlier master proposed is executed under the next one; the store's tests find it
	OldCellTimeTaken    Bug = "old-cell-time-taken"   // a Lead entry's cell time counts although its leader read it under an earlier master; the store's tests find it

	// Of paxos. Its own tests find them.
	ValueOfAnyBallot     Bug = "value-of-any-ballot"     // a value fetched for a named one is taken whatever its ballot
	CatchUpGivesAccepted Bug = "catch-up-gives-accepted" // what is only accepted is given to others as chosen
	MinorityKeepsLead    Bug = "minority-keeps-lead"     // a leader that hears no majority stays
	HungDiskKeepsLead    Bug = "hung-disk-keeps-lead"    // a leader whose disk hangs while writes come stays
	LearnersPromise      Bug = "learners-promise-counts" // promises of members without a vote count
	LeaderLearns         Bug = "leader-learns"           // a leader learns slots by catch-up
	// Of the links between replicas. replog/peer/lane's tests find them.
	PartsWithoutWindow Bug = "parts-without-window" // a link sends parts although the window is full
	PartsOutOfPlace    Bug = "parts-out-of-place"   // a part is taken that does not belong where it stands

	// Of the store. Its own tests find them.
	EphemeralOfNext    Bug = "ephemeral-of-the-next-session" // the end of a session deletes an ephemeral node of the next one
	WaitInWrongUnit    Bug = "wait-in-the-wrong-unit"        // a waiter's milliseconds are taken for microseconds
	GhostStartsItself  Bug = "ghost-starts-itself"           // a ghost's time runs before a master has said that it knows of it
	HeldByAnybody      Bug = "held-by-anybody"               // another holder of the same period passes for the one that is named
	ClearVoidsNothing  Bug = "clear-voids-nothing"           // an expiry from before a note was cleared is executed
	PutOnContainerGoes Bug = "put-on-container-goes"         // what a client puts on a lock's own node goes with the lock

	// Of the client; its own tests plant them.
	OverloadedNotRepeated Bug = "overloaded-not-repeated" // a request that the service asks to send again is not
	CloseSaysWorkEnded    Bug = "close-says-work-ended"   // Close says so of locks that were never released
	UnwatchNotSaid        Bug = "unwatch-not-said"        // the service is not told that a watch has ended; the simulator finds it
	AnswerBeforeGuard     Bug = "answer-before-guard"     // a lock is handed over before its deadline is watched
)

// Those of the disk, which the tests below replog/ find.
const (
	LostMarkTolerated        Bug = "lost-mark-tolerated"          // one flush more than the marks know is believed
	LastFlushNotWrittenAgain Bug = "last-flush-not-written-again" // a start trusts that what it reads of the last flush is on disk
	DirectWritesNotDurable   Bug = "direct-writes-not-durable"    // a direct write is reported before it is durable
	DirectoriesNotSynced     Bug = "directories-not-synced"       // a directory is not synced
	NoFdatasync              Bug = "no-fdatasync"                 // a file is not synced
	IdentityBeforeSlotOne    Bug = "identity-before-slot-one"     // the identity file names a cell before the log does
	BelievesBelowInstalled   Bug = "believes-below-installed"     // entries below an installed snapshot pass for chosen after a restart
	SuccessorNotNoted        Bug = "successor-not-noted"          // a segment does not say that another one follows
)

// Bugs are all that can be planted.
var Bugs = []Bug{
	PromiseBeforeFlush, OldBallotIsChosen, VotesOfAnyBallot, ServesBeforeClosed, DoubtfulIsTorn, RepeatAppliedTwice,
	GapIgnored, ResultsNotSaved, OldExpiryTaken, DeadSessionKeepLock, GrantsInLockDelay, WaiterOvertakes,
	LowestBallotWins,
	GhostsSequencer, DroppedKeepsItsBytes, LeaseAheadOfNews, NotedGetsLease, ExpiresInHand, AnsweredIsSilent, FrozenTimeCounts,
	WatchLastOfBatch, WatchExchangesOrder, WatchSkips, WatchLosesReason, WatchKeepsDeleted, WatchMarksNothing,
	ValueOfAnyBallot, CatchUpGivesAccepted, MinorityKeepsLead, HungDiskKeepsLead, LearnersPromise,
	LeaderLearns,
	PartsWithoutWindow, PartsOutOfPlace,
	OldCellTimeTaken, OldRequestTaken,
	EphemeralOfNext, WaitInWrongUnit, GhostStartsItself, HeldByAnybody, ClearVoidsNothing, PutOnContainerGoes,
	LostMarkTolerated, LastFlushNotWrittenAgain, DirectWritesNotDurable, DirectoriesNotSynced, NoFdatasync,
	IdentityBeforeSlotOne, BelievesBelowInstalled, SuccessorNotNoted,
	OverloadedNotRepeated, CloseSaysWorkEnded, UnwatchNotSaid, AnswerBeforeGuard,
}
