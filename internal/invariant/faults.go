package invariant

import (
	"errors"
	"fmt"
)

// Faults collects what a check of a whole machine finds wrong. The zero value is
// ready; it is for one goroutine.
type Faults struct {
	first []error
}

// mostFaults bounds what is kept: the first few tell enough.
const mostFaults = 20

// That notes a fault if ok is false. Its arguments are evaluated in any case.
func (f *Faults) That(ok bool, format string, args ...any) {
	if !ok && len(f.first) < mostFaults {
		f.first = append(f.first, fmt.Errorf(format, args...))
	}
}

// Count notes a fault if a count is not what it counts.
func (f *Faults) Count(what string, counted, found int) {
	f.That(counted == found, "%s: %d counted, %d found", what, counted, found)
}

// Err returns all that was noted, in order, or nil.
func (f *Faults) Err() error { return errors.Join(f.first...) }
