package machine

import "errors"

// Errors of calls and of the session, for errors.Is; package client passes
// them on under the same names.
var (
	ErrExpired        = errors.New("session has expired")
	ErrClosed         = errors.New("session is closed")
	ErrUnavailable    = errors.New("service is not available")
	ErrUnknownOutcome = errors.New("outcome is not known")
	ErrLimit          = errors.New("limit reached")
	ErrWrongCell      = errors.New("wrong cell")
	ErrInvalid        = errors.New("invalid argument")
	ErrTooLarge       = errors.New("data is too large")
	ErrLost           = errors.New("lock is lost")
	// ErrCanceled: the call was cancelled and has not been, and will not be,
	// executed; a lock is not held.
	ErrCanceled = errors.New("call was cancelled before it was executed")
)
