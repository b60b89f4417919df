// Package invariant holds the assertions that stay on in the product and the
// hooks by which a test build plants known bugs.
//
// An assertion states a safety property in the place that keeps it. When one
// fails the replica must not go on: it would act on a state that the protocol
// says cannot exist. So Assert panics; the process ends, the others carry on.
package invariant

import "fmt"

// Assert panics with the formatted text unless ok. The text names the
// property and the numbers needed to understand the breach.
func Assert(ok bool, format string, args ...any) {
	if !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}

// Bug names a planted bug. Each one breaks exactly one rule, and a test shows
// that the simulator finds it.
type Bug string

// The bugs that can be planted.
const (
	PromiseBeforeFlush  Bug = "promise-before-flush"    // a promise leaves before it is durable
	OldBallotIsChosen   Bug = "old-ballot-is-chosen"    // an older ballot's value is taken for chosen
	RepeatAppliedTwice  Bug = "repeat-applied-twice"    // a repeated request is executed again
	DeadSessionKeepLock Bug = "dead-session-keeps-lock" // a dead session's lock is forgotten
)
