package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// What can go wrong, for errors.Is. The errors returned wrap one of these
// together with the operation and the path.
var (
	// ErrNotFound: there is no such node, or no such parent.
	ErrNotFound = errors.New("no such node")
	// ErrExists: the node to be created is there already.
	ErrExists = errors.New("node exists already")
	// ErrConflict: a condition (IfUnchanged, IfAbsent, HeldBy, ...) does not hold.
	ErrConflict = errors.New("condition does not hold")
	// ErrNotEmpty: a node that has children is deleted only with Recursive.
	ErrNotEmpty = errors.New("node has children (delete them, or recursively)")
	// ErrEphemeralParent: ephemeral nodes cannot have children.
	ErrEphemeralParent = errors.New("parent is ephemeral and cannot have children")
	// ErrLocked: a node whose lock is held or waited for is deleted only with Force.
	ErrLocked = errors.New("node's lock is held or waited for (release it, or force)")
	// ErrBadPath: the path is malformed; the text says how.
	ErrBadPath = errors.New("malformed path")
	// ErrTooLarge: the data is over the limit.
	ErrTooLarge = machine.ErrTooLarge
	// ErrInvalid: an argument or option makes no sense; the text says which.
	ErrInvalid = machine.ErrInvalid
	// ErrHeld: the lock was not granted because others hold it or are first in
	// the queue; errors.As with *HeldError tells who.
	ErrHeld = errors.New("lock is held")
	// ErrLost: the lock has been lost; whatever it guarded must have stopped.
	ErrLost = machine.ErrLost
	// ErrReentrant: the lock was asked for with the context of the same lock,
	// held by the same session: it would wait for itself.
	ErrReentrant = errors.New("lock is held by this very call chain")
	// ErrReleased is the cause with which a lock's context ends on Release.
	ErrReleased = errors.New("lock was released")

	// ErrExpired: the session has ended without being closed: the service did
	// not hear of it, or it not of the service, for too long. Dial a new one.
	ErrExpired = machine.ErrExpired
	// ErrClosed: the session was closed by Close.
	ErrClosed = machine.ErrClosed
	// ErrUnavailable: no master could be reached in time. Unless the error is
	// ErrUnknownOutcome too, the call was not executed: try again.
	ErrUnavailable = machine.ErrUnavailable
	// ErrUnknownOutcome: the call may have been executed, or may not. Read what
	// it was to change to find out. A write is never executed more than once.
	ErrUnknownOutcome = machine.ErrUnknownOutcome
	// ErrLimit: a limit of the service or of this client is reached; the text
	// says which.
	ErrLimit = machine.ErrLimit
	// ErrNoSpace: the state of the whole cell has reached its limit. It is an
	// ErrLimit too. Deletions and releases still go on: delete something, or have
	// the limit raised. errors.As with *LimitError tells the limit's name.
	ErrNoSpace = machine.ErrNoSpace
	// ErrWrongCell: the service at that address belongs to another cell.
	ErrWrongCell = machine.ErrWrongCell
)

// Error is the error of an operation. Err is, or wraps, one of the variables
// of this package or the error of a context.
type Error struct {
	Op     string // "get", "lock", ...
	Path   string // "" if the operation has none
	Detail string // what the service said beyond Err, or ""
	Err    error
}

// Error names the operation, the path and what went wrong.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Path != "" {
		b.WriteByte(' ')
		b.WriteString(e.Path)
	}
	b.WriteString(": ")
	b.WriteString(e.Err.Error())
	if e.Detail != "" {
		b.WriteString(": ")
		b.WriteString(e.Detail)
	}
	return b.String()
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// LimitError says which limit of the service refused a call. It is ErrLimit for
// errors.Is, and ErrNoSpace if it is a limit of the cell's whole state.
type LimitError = machine.LimitError

// HeldError says that a lock was not granted, and who is in the way. It is
// ErrHeld for errors.Is; if the wait ended with a context, it is that
// context's error too.
type HeldError struct {
	Path string
	Mode Mode // that was asked for
	// Holders hold the lock, or held it and their lock-delay runs (Ghost).
	Holders []Holder
	// Waiters are those in the queue before this request, in order.
	Waiters []Waiter
	// Position is the place that the request had in the queue, from 1; 0 if it
	// did not wait.
	Position int
	// Waited is how long the request waited.
	Waited time.Duration
	// Cause is why the wait ended: nil if the service refused (TryLock, or the
	// time given by Wait was over), else the context's error.
	Cause error
}

// Error names the holders.
func (e *HeldError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lock %s: ", e.Path)
	switch {
	case errors.Is(e.Cause, context.Canceled):
		b.WriteString("given up while waiting: ")
	case e.Cause != nil:
		fmt.Fprintf(&b, "%v while waiting: ", e.Cause)
	case e.Waited > 0:
		fmt.Fprintf(&b, "not granted within %v: ", e.Waited.Round(time.Millisecond))
	}
	switch {
	case len(e.Holders) > 0:
		b.WriteString("held by ")
		for i, h := range e.Holders {
			if i == 3 {
				fmt.Fprintf(&b, " and %d more", len(e.Holders)-i)
				break
			}
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(h.String())
		}
	case len(e.Waiters) > 0:
		fmt.Fprintf(&b, "%s is before it in the queue", e.Waiters[0].Client)
	default:
		b.WriteString("it is held by others")
	}
	if n := len(e.Waiters); n > 0 && len(e.Holders) > 0 {
		fmt.Fprintf(&b, "; %d before it in the queue", n)
	}
	return b.String()
}

// Unwrap returns ErrHeld and the cause.
func (e *HeldError) Unwrap() []error {
	if e.Cause != nil {
		return []error{ErrHeld, e.Cause}
	}
	return []error{ErrHeld}
}

// TxnError says which operation of a transaction failed; nothing of the
// transaction was done.
type TxnError struct {
	Op   int    // index of the operation, from 0
	Kind string // "create", "put", "delete", "check", "release"
	Path string
	Err  error // ErrExists, ErrConflict, ...
}

// Error names the operation.
func (e *TxnError) Error() string {
	return fmt.Sprintf("transaction not done: operation %d (%s %s): %v", e.Op, e.Kind, e.Path, e.Err)
}

// Unwrap returns Err.
func (e *TxnError) Unwrap() error { return e.Err }

// codeError is the error that a result's code stands for, nil for OK.
func codeError(c storepb.Code) error {
	switch c {
	case storepb.Code_OK, storepb.Code_GRANTED:
		return nil
	case storepb.Code_NOT_FOUND:
		return ErrNotFound
	case storepb.Code_EXISTS:
		return ErrExists
	case storepb.Code_CONFLICT:
		return ErrConflict
	case storepb.Code_NOT_EMPTY:
		return ErrNotEmpty
	case storepb.Code_BAD_PATH:
		return ErrBadPath
	case storepb.Code_TOO_LARGE:
		return ErrTooLarge
	case storepb.Code_EPHEMERAL_PARENT:
		return ErrEphemeralParent
	case storepb.Code_HELD, storepb.Code_WAITING, storepb.Code_TIMED_OUT:
		return ErrHeld
	case storepb.Code_NOT_HELD, storepb.Code_LOST:
		return ErrLost
	case storepb.Code_UNKNOWN_SESSION:
		return ErrExpired
	case storepb.Code_FORGOTTEN:
		return ErrUnknownOutcome
	case storepb.Code_BAD_COMMAND:
		return ErrInvalid
	case storepb.Code_LOCKED:
		return ErrLocked
	case storepb.Code_LIMIT:
		return ErrLimit
	case storepb.Code_RETRY, storepb.Code_VOIDED, storepb.Code_STALE_EPOCH, storepb.Code_MULTI_FAILED,
		storepb.Code_WITHDRAWN:
		return errNotDone
	default:
		return fmt.Errorf("%w: the service answered with code %d, which this client does not know", ErrUnknownOutcome, c)
	}
}

// errNotDone: the service did not do it and gave no reason that has a name.
var errNotDone = fmt.Errorf("%w: the service did not execute it", ErrUnavailable)

// opError wraps err with the operation, unless it tells all that itself.
func opError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Path: path, Err: err}
}

// resultError turns a refusal into an error; nil if the result is a success.
func resultError(op, path string, r *storepb.Result) error {
	err := codeError(r.GetCode())
	if err == nil {
		return nil
	}
	return &Error{Op: op, Path: path, Err: limitNamed(err, r.GetLimit()), Detail: r.GetDetail()}
}

// limitNamed returns a *LimitError for ErrLimit if the limit is known.
func limitNamed(err error, limit string) error {
	if errors.Is(err, ErrLimit) && limit != "" {
		return &LimitError{Limit: limit}
	}
	return err
}
