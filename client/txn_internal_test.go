package client

import (
	"errors"
	"testing"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// A limit is named, and an operation is blamed only for what it has met itself.
func TestTxnLimits(t *testing.T) {
	txn := &Txn{ops: []*storepb.MultiOp{
		{Op: &storepb.MultiOp_Put{Put: &storepb.Put{Path: "/a"}}},
		{Op: &storepb.MultiOp_Put{Put: &storepb.Put{Path: "/b"}}}}}
	err := txn.failure(&storepb.Result{Code: storepb.Code_LIMIT, FailedOp: 1, Limit: "children", Results: []*storepb.Result{
		{Code: storepb.Code_MULTI_FAILED}, {Code: storepb.Code_LIMIT, Limit: "children", Detail: "too many"}}})
	var of *TxnError
	var limit *LimitError
	if !errors.As(err, &of) || of.Op != 1 || !errors.As(err, &limit) || limit.Limit != "children" || !errors.Is(err, ErrLimit) {
		t.Errorf("of an operation: %v", err)
	}
	err = txn.failure(&storepb.Result{Code: storepb.Code_LIMIT, Limit: "session_results", Detail: "1024 are kept"})
	if errors.As(err, new(*TxnError)) || !errors.As(err, &limit) || limit.Limit != "session_results" {
		t.Errorf("of the whole: %v", err)
	}
}
