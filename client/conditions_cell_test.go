package client_test

import (
	"errors"
	"testing"

	"github.com/seed70370324/lockd/client"
)

// All conditions are demanded: a write is done if all hold, and not if one of
// two does not, in whichever order.
func TestConditionsAreAnded(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	l := must(s.Lock(ctx, "/n"))(t)
	other := must(s.Lock(ctx, "/other"))(t)
	gone := other.Hold()
	if err := other.Release(ctx); err != nil {
		t.Fatal(err)
	}
	st := must(s.Put(ctx, "/n", nil))(t)
	rewritten := st
	rewritten.ModifyRevision--
	type pair struct {
		name      string
		yes, no   func(st client.Stat) client.ConditionOption
		sameField string
	}
	hold := func(h client.Hold) func(client.Stat) client.ConditionOption {
		return func(client.Stat) client.ConditionOption { return client.WhileHeld(h).(client.ConditionOption) }
	}
	all := []pair{
		{"IfGeneration", func(st client.Stat) client.ConditionOption { return client.IfGeneration(st.ContentGeneration) },
			func(st client.Stat) client.ConditionOption { return client.IfGeneration(st.ContentGeneration + 1) }, ""},
		{"IfRevision", func(st client.Stat) client.ConditionOption { return client.IfRevision(st.ModifyRevision) },
			func(st client.Stat) client.ConditionOption { return client.IfRevision(st.ModifyRevision + 1) }, "IfUnchanged"},
		{"IfInstance", func(st client.Stat) client.ConditionOption { return client.IfInstance(st.Instance) },
			func(st client.Stat) client.ConditionOption { return client.IfInstance(st.Instance - 1) }, "IfUnchanged"},
		{"IfUnchanged", func(st client.Stat) client.ConditionOption { return client.IfUnchanged(st) },
			func(client.Stat) client.ConditionOption { return client.IfUnchanged(rewritten) }, ""},
		{"HeldFence", func(client.Stat) client.ConditionOption { return client.HeldFence(l.Fence()) },
			func(client.Stat) client.ConditionOption { return client.HeldFence(l.Fence() - 1) }, ""},
		{"WhileHeld", hold(l.Hold()), hold(gone), ""},
	}
	for i, a := range all {
		for j, b := range all {
			if i == j || a.sameField == b.name || b.sameField == a.name {
				continue // not to be given together
			}
			var err error
			st, err = s.Put(ctx, "/n", nil, a.yes(st), b.yes(st))
			if err != nil {
				t.Fatalf("%s and %s hold: %v", a.name, b.name, err)
			}
			for _, o := range [][]client.PutOption{{a.yes(st), b.no(st)}, {b.no(st), a.yes(st)}} {
				if _, err := s.Put(ctx, "/n", []byte("x"), o...); !errors.Is(err, client.ErrConflict) {
					t.Errorf("%s holds, %s does not: %v", a.name, b.name, err)
				}
			}
			for _, o := range [][]client.CheckOption{{a.yes(st), b.no(st)}, {b.no(st), a.yes(st)}} {
				if _, err := s.Txn().Check("/n", o...).Commit(ctx); !errors.Is(err, client.ErrConflict) {
					t.Errorf("check: %s holds, %s does not: %v", a.name, b.name, err)
				}
			}
			for _, o := range [][]client.DeleteOption{{a.yes(st), b.no(st)}, {b.no(st), a.yes(st)}} {
				if err := s.Delete(ctx, "/n", append(o, client.Force())...); !errors.Is(err, client.ErrConflict) {
					t.Errorf("delete: %s holds, %s does not: %v", a.name, b.name, err)
				}
			}
		}
	}
}

// A claim that was freed and taken anew by another is not completed by the
// first: the generation is the same again, the Stat is not.
func TestIfUnchangedOverDeletion(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	mine := must(s.Put(ctx, "/claim", []byte("first")))(t)
	if err := s.Delete(ctx, "/claim"); err != nil {
		t.Fatal(err)
	}
	theirs := must(s.Put(ctx, "/claim", []byte("second")))(t)
	if mine.ContentGeneration != theirs.ContentGeneration {
		t.Fatalf("generations %d and %d", mine.ContentGeneration, theirs.ContentGeneration)
	}
	for _, o := range []client.ConditionOption{client.IfUnchanged(mine), client.IfRevision(mine.ModifyRevision), client.IfInstance(mine.Instance)} {
		_, err := s.Put(ctx, "/claim", []byte("done"), o)
		wantErr(t, err, client.ErrConflict)
		wantErr(t, s.Delete(ctx, "/claim", o), client.ErrConflict)
		_, err = s.Txn().Check("/claim", o).Commit(ctx)
		wantErr(t, err, client.ErrConflict)
	}
	must(s.Put(ctx, "/claim", []byte("done"), client.IfUnchanged(theirs)))(t)
}

// The fence of a shared lock is that of all its holders; HeldBy is the holding
// of one.
func TestHeldByIsOneHolding(t *testing.T) {
	c := newCell(t)
	s, other := c.dial(), c.dial()
	ctx := within(t)
	mine := must(s.Lock(ctx, "/l", client.Shared()))(t)
	theirs := must(other.Lock(ctx, "/l", client.Shared()))(t)
	if mine.Fence() != theirs.Fence() {
		t.Fatalf("fences %d and %d", mine.Fence(), theirs.Fence())
	}
	late := client.HeldBy(mine) // taken while it was held, sent after
	hold := must(client.ParseHold(mine.Hold().String()))(t)
	if hold != mine.Hold() {
		t.Fatalf("hold %+v was read as %+v", mine.Hold(), hold)
	}
	must(other.Put(ctx, "/data", nil, client.WhileHeld(hold)))(t)
	must(s.Create(ctx, "/made", nil, client.HeldBy(mine)))(t)
	if err := s.Delete(ctx, "/made", client.HeldBy(mine)); err != nil {
		t.Fatal(err)
	}
	if err := mine.Release(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := s.Txn().Check("/l", client.HeldFence(mine.Fence())).Commit(ctx)
	if err != nil {
		t.Fatalf("the other reader holds it: %v", err)
	}
	for name, o := range map[string]client.HoldOption{"HeldBy": late, "HeldBy after the release": client.HeldBy(mine), "WhileHeld": client.WhileHeld(hold)} {
		if _, err := s.Put(ctx, "/data", []byte(name), o); !errors.Is(err, client.ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Create(ctx, "/made", nil, o); !errors.Is(err, client.ErrConflict) {
			t.Errorf("%s: create: %v", name, err)
		}
		if err := s.Delete(ctx, "/data", o); !errors.Is(err, client.ErrConflict) {
			t.Errorf("%s: delete: %v", name, err)
		}
	}
	_, err = mine.Txn().Put("/data", []byte("x")).Commit(ctx)
	wantErr(t, err, client.ErrConflict, client.ErrReleased)
	must(theirs.Txn().Put("/data", []byte("y")).Commit(ctx))(t)
}
