package machine

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of calls and of the session, for errors.Is; package client passes
// them on under the same names.
var (
	ErrExpired        = errors.New("session has expired")
	ErrClosed         = errors.New("session is closed")
	ErrUnavailable    = errors.New("service is not available")
	ErrUnknownOutcome = errors.New("outcome is not known")
	ErrLimit          = errors.New("limit reached")
	ErrNoSpace        = fmt.Errorf("%w: the cell has no room for more", ErrLimit)
	ErrWrongCell      = errors.New("wrong cell")
	ErrInvalid        = errors.New("invalid argument")
	ErrTooLarge       = errors.New("data is too large")
	ErrLost           = errors.New("lock is lost")
	// ErrCanceled: the call was cancelled and has not been, and will not be,
	// executed; a lock is not held.
	ErrCanceled = errors.New("call was cancelled before it was executed")
)

// LimitError says which limit of the service refused a call: ErrLimit for
// errors.Is, and ErrNoSpace if it is the limit of the whole state.
type LimitError struct {
	Limit string // its name, as in the metric lockd_limit_refused_total; "" if it is not known
	Text  string // what the service says, for people: what to do
}

// Error says what the service says.
func (e *LimitError) Error() string {
	s := e.Unwrap().Error()
	if e.Limit != "" {
		s += " (" + e.Limit + ")"
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// stateLimits begins the names of the limits of the whole state.
const stateLimits = "state_"

// Unwrap returns ErrNoSpace or ErrLimit.
func (e *LimitError) Unwrap() error {
	if strings.HasPrefix(e.Limit, stateLimits) {
		return ErrNoSpace
	}
	return ErrLimit
}
