package client

import (
	"context"
	"fmt"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// txnMax is how many operations a transaction may have.
const txnMax = 1024

// Txn collects operations that are executed all or none, in their order, each
// seeing those before it. Its methods return it, so that they can be chained;
// mistakes in arguments come out at Commit. One goroutine at a time may use it.
type Txn struct {
	s   *Session
	ops []*storepb.MultiOp
	err error
}

// Txn begins a transaction. Nothing is sent before Commit.
func (s *Session) Txn() *Txn { return &Txn{s: s} }

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
	path, err := t.s.d.path("txn put", path)
	if err != nil {
		return t.add(err, nil)
	}
	put := &storepb.Put{}
	err = putOp(put, path, data, options)
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Put{Put: put}})
}

// Create is Session.Create as a part of the transaction.
func (t *Txn) Create(path string, data []byte, options ...CreateOption) *Txn {
	create, err := t.s.d.createOp("txn create", path, data, options)
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Create{Create: create}})
}

// Delete is Session.Delete as a part of the transaction.
func (t *Txn) Delete(path string, options ...DeleteOption) *Txn {
	path, err := t.s.d.path("txn delete", path)
	del := &storepb.Delete{Path: path}
	for _, o := range options {
		o.deleteOption(del)
	}
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Delete{Delete: del}})
}

// Check makes the transaction fail unless the conditions hold: the node exists
// (always demanded, but for IfAbsent), IfGeneration, HeldFence.
func (t *Txn) Check(path string, conditions ...CheckOption) *Txn {
	path, err := t.s.d.path("txn check", path)
	check := &storepb.Check{Path: path}
	for _, o := range conditions {
		o.checkOption(check)
	}
	return t.add(err, &storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: check}})
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
	r, err := t.s.d.callResult(ctx, "txn", "", &storepb.Command{Op: &storepb.Command_Multi{
		Multi: &storepb.Multi{Ops: t.ops}}})
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
	i, code, detail := int(r.GetFailedOp()), r.GetCode(), r.GetDetail()
	if i >= len(t.ops) || len(r.GetResults()) == 0 && code == storepb.Code_BAD_COMMAND {
		return resultError("txn", "", r)
	}
	if i < len(r.GetResults()) {
		code, detail = r.Results[i].GetCode(), r.Results[i].GetDetail()
	}
	err := codeError(code)
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
	}
	return "operation", ""
}
