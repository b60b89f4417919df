package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// txnMax is how many operations a transaction may have.
const txnMax = 1024

// Txn collects operations that are executed all or none, in their order, each
// seeing those before it. Its methods return it, so that they can be chained;
// mistakes in arguments come out at Commit. One goroutine at a time may use it.
type Txn struct {
	d        *driver
	lock     *Lock // of Lock.Txn
	ops      []*storepb.MultiOp
	releases []txnRelease
	err      error
}

// txnRelease is a lock that a transaction releases.
type txnRelease struct {
	lock *Lock
	// demanded: the transaction is done only while the lock is held, so it was held
	// if that is done. The service lets a lost lock be released too.
	demanded bool
}

// Txn begins a transaction. Nothing is sent before Commit.
func (s *Session) Txn() *Txn { return &Txn{d: s.d} }

// Txn begins a transaction that is executed only while l is held: its first
// operation, number 0, is a Check with HeldBy(l). It is the way to write what
// the lock guards if that is in the same cell.
func (l *Lock) Txn() *Txn {
	t := &Txn{d: l.d, lock: l}
	return t.Check(l.path, HeldBy(l))
}

func (t *Txn) add(err error, op *storepb.MultiOp) *Txn {
	switch {
	case t.err != nil:
	case err != nil:
		t.err = err
	case len(t.ops) == txnMax:
		t.err = &Error{Op: "txn", Err: ErrLimit, Detail: fmt.Sprintf("a transaction has at most %d operations", txnMax)}
	default:
		t.ops = append(t.ops, op)
	}
	return t
}

// Put is Session.Put as a part of the transaction.
func (t *Txn) Put(path string, data []byte, options ...PutOption) *Txn {
	path, err := t.d.path("txn put", path)
	if err != nil {
		return t.add(err, nil)
	}
	put := &putCall{}
	err = t.d.putOp("txn put", put, path, data, options)
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Put{Put: &put.op}})
}

// Create is Session.Create as a part of the transaction.
func (t *Txn) Create(path string, data []byte, options ...CreateOption) *Txn {
	create, err := t.d.createOp("txn create", path, data, options)
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Create{Create: create}})
}

// Delete is Session.Delete as a part of the transaction.
func (t *Txn) Delete(path string, options ...DeleteOption) *Txn {
	path, err := t.d.path("txn delete", path)
	if err != nil {
		return t.add(err, nil)
	}
	del, err := t.d.deleteOp("txn delete", path, options)
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Delete{Delete: del}})
}

// Check makes the transaction fail unless all conditions hold. Without IfAbsent
// the node must exist.
func (t *Txn) Check(path string, conditions ...CheckOption) *Txn {
	path, err := t.d.path("txn check", path)
	if err != nil {
		return t.add(err, nil)
	}
	var o nodeOptions
	for _, option := range conditions {
		option.nodeOption(&o)
	}
	absent := o.seen.has(optIfAbsent)
	if !absent && o.seen&aboutNode == 0 {
		o.require(exists(true))
	}
	err = o.finish(t.d, "txn check", path, absent, false)
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Check{
		Check: &storepb.Check{Path: path, Conditions: o.conditions}}})
}

// Release gives locks back in the transaction: those named, or, without any,
// the lock that the transaction began with (Lock.Txn). All that they guard must
// have ended before Commit is called, as before Lock.Release. If the
// transaction is done, they are released, and their contexts end; there is
// nothing more to release, and Session.Do returns without error. If it is
// refused, they are held as before. If its outcome is not known
// (ErrUnknownOutcome), they are released on their own.
func (t *Txn) Release(locks ...*Lock) *Txn {
	if len(locks) == 0 {
		if t.lock == nil {
			return t.add(&Error{Op: "txn release", Err: ErrInvalid,
				Detail: "which lock? Name it, or begin the transaction with Lock.Txn"}, nil)
		}
		locks = []*Lock{t.lock}
	}
	for _, l := range locks {
		t.release(l)
	}
	return t
}

func (t *Txn) release(l *Lock) {
	if l == nil {
		t.add(&Error{Op: "txn release", Err: ErrInvalid, Detail: "the lock is nil"}, nil)
		return
	}
	var err error
	switch over := l.Err(); {
	case l.d != t.d:
		err = &Error{Op: "txn release", Path: l.path, Err: ErrInvalid, Detail: "the lock is held by another session"}
	case slices.ContainsFunc(t.releases, func(r txnRelease) bool { return r.lock == l }):
		err = &Error{Op: "txn release", Path: l.path, Err: ErrInvalid, Detail: "the transaction releases the lock twice"}
	case over != nil:
		err = &Error{Op: "txn release", Path: l.path, Err: fmt.Errorf("%w: %w", ErrConflict, over)}
	}
	t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Release{
		Release: &storepb.Release{Path: l.path, Ticket: l.grant.GetTicket()}}})
	t.releases = append(t.releases, txnRelease{lock: l, demanded: t.demands(l)})
}

// demands reports whether an operation has the condition HeldBy(l).
func (t *Txn) demands(l *Lock) bool {
	return slices.ContainsFunc(t.ops, func(op *storepb.MultiOp) bool {
		return slices.ContainsFunc(conditionsOf(op), func(c *storepb.Condition) bool {
			h := c.GetHeldBy()
			return h.GetSession() == l.d.sessionID() && h.GetTicket() == l.grant.GetTicket()
		})
	})
}

func conditionsOf(op *storepb.MultiOp) []*storepb.Condition {
	switch o := op.GetOp().(type) {
	case *storepb.MultiOp_Put:
		return o.Put.GetConditions()
	case *storepb.MultiOp_Create:
		return o.Create.GetConditions()
	case *storepb.MultiOp_Delete:
		return o.Delete.GetConditions()
	case *storepb.MultiOp_Check:
		return o.Check.GetConditions()
	}
	return nil
}

// Commit executes the transaction. The result has a Node for each operation:
// the path and Stat of what was created or written, only the path for others.
// If an operation fails, nothing is done and the error is a *TxnError.
func (t *Txn) Commit(ctx context.Context) ([]Node, error) {
	if t.err != nil {
		return nil, t.err
	}
	if len(t.ops) == 0 {
		return nil, nil
	}
	r, err := t.d.callReleasing(ctx, "txn", "", &storepb.Command{Op: &storepb.Command_Multi{
		Multi: &storepb.Multi{Ops: t.ops}}}, t.releases)
	if errors.Is(err, ErrUnknownOutcome) {
		// Perhaps they are released. What the caller knows of them must not be
		// more than that.
		for _, r := range t.releases {
			r.lock.startRelease()
		}
	}
	if err != nil {
		return nil, err
	}
	if err := t.failure(r); err != nil {
		return nil, err
	}
	nodes := make([]Node, len(t.ops))
	for i, op := range t.ops {
		_, nodes[i].Path = describeOp(op)
		if i < len(r.GetResults()) {
			if p := r.Results[i].GetPath(); p != "" {
				nodes[i].Path = p
			}
			nodes[i].Stat = statOf(r.Results[i].GetStat())
		}
	}
	return nodes, nil
}

// failure is the error of a transaction that was refused.
func (t *Txn) failure(r *storepb.Result) error {
	if r.GetCode() == storepb.Code_OK {
		return nil
	}
	i, code, detail, limit := int(r.GetFailedOp()), r.GetCode(), r.GetDetail(), r.GetLimit()
	ofTheWhole := len(r.GetResults()) == 0 && (code == storepb.Code_BAD_COMMAND || code == storepb.Code_LIMIT)
	if i >= len(t.ops) || ofTheWhole {
		return resultError("txn", "", r)
	}
	if i < len(r.GetResults()) {
		code, detail, limit = r.Results[i].GetCode(), r.Results[i].GetDetail(), r.Results[i].GetLimit()
	}
	err := limitNamed(codeError(code), limit)
	if err == nil {
		err = errNotDone
	}
	if detail != "" {
		err = fmt.Errorf("%w: %s", err, detail)
	}
	kind, path := describeOp(t.ops[i])
	return &TxnError{Op: i, Kind: kind, Path: path, Err: err}
}

func describeOp(op *storepb.MultiOp) (kind, path string) {
	switch o := op.GetOp().(type) {
	case *storepb.MultiOp_Put:
		return "put", o.Put.GetPath()
	case *storepb.MultiOp_Create:
		return "create", o.Create.GetPath()
	case *storepb.MultiOp_Delete:
		return "delete", o.Delete.GetPath()
	case *storepb.MultiOp_Check:
		return "check", o.Check.GetPath()
	case *storepb.MultiOp_Release:
		return "release", o.Release.GetPath()
	}
	return "operation", ""
}
