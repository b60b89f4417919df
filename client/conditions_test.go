package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// named is an option with its name.
type named[T any] struct {
	name   string
	option T
}

// refusedPairs are the pairs, in both orders, that a call must refuse; beside
// them each option with itself.
type refusedPairs map[string][]string

func (r refusedPairs) has(a, b string) bool {
	for _, x := range [][2]string{{a, b}, {b, a}} {
		for _, with := range r[x[0]] {
			if with == x[1] {
				return true
			}
		}
	}
	return a == b
}

// tryPairs calls do with each option alone and with every ordered pair: those
// that are refused are ErrInvalid, and no others are.
func tryPairs[T any](t *testing.T, call string, all []named[T], refused refusedPairs, do func(options ...T) error) {
	t.Helper()
	for _, a := range all {
		if err := do(a.option); errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s(%s): %v", call, a.name, err)
		}
		for _, b := range all {
			err := do(a.option, b.option)
			if errors.Is(err, client.ErrInvalid) != refused.has(a.name, b.name) {
				t.Errorf("%s(%s, %s): %v", call, a.name, b.name, err)
			}
		}
	}
}

// Every call with every pair of its options: what contradicts or repeats is
// refused, all else is not.
func TestPairsOfOptions(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	l := must(s.Lock(ctx, "/guard"))(t)
	two := must(s.Lock(ctx, "/second"))(t)
	node := must(s.Put(ctx, "/node", nil))(t)

	conditions := func() []named[client.ConditionOption] {
		return []named[client.ConditionOption]{
			{"IfGeneration", client.IfGeneration(1)}, {"IfRevision", client.IfRevision(node.ModifyRevision)},
			{"IfInstance", client.IfInstance(node.Instance)}, {"IfUnchanged", client.IfUnchanged(node)},
			{"HeldFence", client.HeldFence(l.Fence())}}
	}
	holds := []named[client.HoldOption]{{"HeldBy", client.HeldBy(l)}, {"WhileHeld", client.WhileHeld(l.Hold())},
		{"HeldBy another", client.HeldBy(two)}}
	refused := refusedPairs{
		"IfAbsent":    {"MustExist", "IfGeneration", "IfRevision", "IfInstance", "IfUnchanged", "HeldFence", "Sequential"},
		"WithParents": {"MustExist", "IfGeneration", "IfRevision", "IfInstance", "IfUnchanged", "HeldFence"},
		"IfUnchanged": {"IfRevision", "IfInstance"},
		"HeldBy":      {"WhileHeld"},
		"Ephemeral":   {"Container"},
	}

	put := []named[client.PutOption]{{"IfAbsent", client.IfAbsent()}, {"MustExist", client.MustExist()}, {"WithParents", client.WithParents()}}
	del := []named[client.DeleteOption]{{"MustExist", client.MustExist()}, {"Recursive", client.Recursive()}, {"Force", client.Force()}}
	check := []named[client.CheckOption]{{"IfAbsent", client.IfAbsent()}, {"MustExist", client.MustExist()}}
	create := []named[client.CreateOption]{{"IfAbsent", client.IfAbsent()}, {"WithParents", client.WithParents()},
		{"Ephemeral", client.Ephemeral()}, {"Container", client.Container()}, {"Sequential", client.Sequential()}}
	for _, o := range conditions() {
		put = append(put, named[client.PutOption]{o.name, o.option})
		del = append(del, named[client.DeleteOption]{o.name, o.option})
		check = append(check, named[client.CheckOption]{o.name, o.option})
	}
	for _, o := range holds {
		put = append(put, named[client.PutOption]{o.name, o.option})
		del = append(del, named[client.DeleteOption]{o.name, o.option})
		check = append(check, named[client.CheckOption]{o.name, o.option})
		create = append(create, named[client.CreateOption]{o.name, o.option})
	}
	tryPairs(t, "Put", put, refused, func(o ...client.PutOption) error {
		_, err := s.Put(ctx, "/node", nil, o...)
		return err
	})
	tryPairs(t, "Txn.Put", put, refused, func(o ...client.PutOption) error {
		_, err := s.Txn().Put("/node", nil, o...).Commit(ctx)
		return err
	})
	tryPairs(t, "Create", create, refused, func(o ...client.CreateOption) error {
		_, err := s.Create(ctx, "/made", nil, o...)
		return err
	})
	tryPairs(t, "Txn.Create", create, refused, func(o ...client.CreateOption) error {
		_, err := s.Txn().Create("/made", nil, o...).Commit(ctx)
		return err
	})
	tryPairs(t, "Delete", del, refused, func(o ...client.DeleteOption) error {
		return s.Delete(ctx, "/node", o...)
	})
	tryPairs(t, "Txn.Delete", del, refused, func(o ...client.DeleteOption) error {
		_, err := s.Txn().Delete("/node", o...).Commit(ctx)
		return err
	})
	tryPairs(t, "Txn.Check", check, refused, func(o ...client.CheckOption) error {
		_, err := s.Txn().Check("/node", o...).Commit(ctx)
		return err
	})
	lock := []named[client.LockOption]{{"Shared", client.Shared()}, {"Wait", client.Wait(time.Minute)}, {"LockDelay", client.LockDelay(0)},
		{"StopGrace", client.StopGrace(time.Second)}, {"OnWait", client.OnWait(func(*client.HeldError) {})}, {"MustExist", client.MustExist()}}
	locked := func(l *client.Lock, err error) error {
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
	tryPairs(t, "Lock", lock, nil, func(o ...client.LockOption) error { return locked(s.Lock(ctx, "/l", o...)) })
	tryPairs(t, "Do", lock, nil, func(o ...client.LockOption) error {
		return s.Do(ctx, "/l", func(context.Context, *client.Lock) error { return nil }, o...)
	})
	try := append(lock[:1:1], lock[2:]...)
	tryPairs(t, "TryLock", try, nil, func(o ...client.LockOption) error { return locked(s.TryLock(ctx, "/l", o...)) })
	wantErr(t, locked(s.TryLock(ctx, "/l", client.Wait(time.Minute))), client.ErrInvalid)

	scopes := refusedPairs{"Children": {"Subtree"}}
	tryPairs(t, "Watch", []named[client.WatchOption]{{"Children", client.Children()}, {"Subtree", client.Subtree()},
		{"WithoutData", client.WithoutData()}, {"WatchLocks", client.WatchLocks()}}, scopes, func(o ...client.WatchOption) error {
		for _, err := range s.Watch(ctx, "/node", o...) {
			return err
		}
		return nil
	})
}

// An option of Dial that is given twice is refused, and named.
func TestOptionsOfDial(t *testing.T) {
	c := newCell(t)
	ctx := within(t)
	all := []named[client.Option]{
		{"WithCellIdentity", client.WithCellIdentity(c.dial().CellIdentity())},
		{"WithName", client.WithName("x")}, {"WithCell", client.WithCell("test")}, {"WithLease", client.WithLease(time.Minute)},
		{"WithGrace", client.WithGrace(time.Minute)}, {"WithOpenTimeout", client.WithOpenTimeout(patience)},
		{"WithMaxClockDrift", client.WithMaxClockDrift(10_000)}, {"WithLogger", client.WithLogger(slog.New(slog.DiscardHandler))},
		{"WithStateHandler", client.WithStateHandler(func(client.State) {})},
		{"WithDialer", client.WithDialer(func(ctx context.Context, a string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", a)
		})}}
	var once []client.Option
	for _, o := range all {
		once = append(once, o.option)
		_, err := client.Dial(ctx, []string{c.address}, o.option, o.option)
		if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), o.name+" is given twice") {
			t.Errorf("%s twice: %v", o.name, err)
		}
	}
	s := must(client.Dial(ctx, []string{c.address}, once...))(t)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A name or an identity of a cell that was never set is no condition.
func TestVoidCell(t *testing.T) {
	c := newCell(t)
	for _, o := range []client.Option{client.WithCell(""), client.WithCellIdentity(0)} {
		s, err := client.Dial(within(t), []string{c.address}, o)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "never set") {
			t.Errorf("error %v", err)
		}
	}
}

// A condition that means nothing is refused, and the write is not done.
func TestVoidConditions(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	before := must(s.Put(ctx, "/n", nil))(t)
	l := must(s.Lock(ctx, "/l"))(t)
	foreign := l.Hold()
	foreign.Cell++
	for _, x := range []struct {
		name   string
		option interface {
			client.PutOption
			client.DeleteOption
			client.CheckOption
		}
		text string
	}{
		{"generation", client.IfGeneration(0), "IfGeneration(0)"},
		{"revision", client.IfRevision(0), "IfRevision(0)"},
		{"instance", client.IfInstance(0), "IfInstance(0)"},
		{"fence", client.HeldFence(0), "HeldFence(0)"},
		{"stat", client.IfUnchanged(client.Stat{}), "never filled in"},
		{"stat of a listing without revision", client.IfUnchanged(client.Stat{Instance: before.Instance}), "never filled in"},
		{"lock", client.HeldBy(nil), "nil"},
		{"hold", client.WhileHeld(client.Hold{}), "no session"},
		{"hold without ticket", client.WhileHeld(client.Hold{Path: "/l", Session: s.ID()}), "no ticket"},
		{"hold without path", client.WhileHeld(client.Hold{Session: s.ID(), Ticket: 1}), "path"},
		{"hold of another cell", client.WhileHeld(foreign), "another cell"},
	} {
		_, err := s.Put(ctx, "/n", []byte("x"), x.option)
		_, cerr := s.Txn().Check("/n", x.option).Put("/n", []byte("x")).Commit(ctx)
		for _, err := range []error{err, cerr, s.Delete(ctx, "/n", x.option)} {
			if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), x.text) {
				t.Errorf("%s: %v, expected the text %q", x.name, err, x.text)
			}
		}
	}
	// A ticket is for one path.
	twice := l.Hold()
	twice.Path = "/n"
	_, err := s.Put(ctx, "/n", []byte("x"), client.HeldBy(l), client.WhileHeld(twice))
	if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "one lock") {
		t.Errorf("one ticket, two locks: %v", err)
	}
	// The lock's node is there while the lock is held.
	_, err = s.Put(ctx, "/l", nil, client.IfAbsent(), client.HeldBy(l))
	wantErr(t, err, client.ErrInvalid)
	_, err = s.Create(ctx, "/l", nil, client.HeldBy(l))
	wantErr(t, err, client.ErrInvalid)
	_, err = s.Txn().Release().Commit(ctx)
	wantErr(t, err, client.ErrInvalid)
	_, err = s.Txn().Release(nil).Commit(ctx)
	wantErr(t, err, client.ErrInvalid)
	_, err = s.Txn().Release(l, l).Commit(ctx)
	wantErr(t, err, client.ErrInvalid)
	_, err = c.dial().Txn().Release(l).Commit(ctx)
	wantErr(t, err, client.ErrInvalid)
	if n := must(s.Get(ctx, "/n"))(t); n.Stat != before {
		t.Errorf("the node has changed: %+v, was %+v", n, before)
	}
}

func TestParseHold(t *testing.T) {
	for _, text := range []string{"", "/l", "lockd1:X:1:2:3:ff:/a", "lockd-hold1:1:2:3", "lockd-hold1:0:2:3:/a", "lockd-hold1:1:0:3:/a",
		"lockd-hold1:1:2:x:/a", "lockd-hold1:-1:2:3:/a", "lockd-hold1:1:2:3:a", "lockd-hold2:1:2:3:/a", strings.Repeat("x", 5000)} {
		if h, err := client.ParseHold(text); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%q is read as %+v, %v", text, h, err)
		}
	}
	if h, err := client.ParseHold("lockd-hold1:7:8:ff:/a:b"); err != nil || h != (client.Hold{Path: "/a:b", Session: 7, Ticket: 8, Cell: 255}) {
		t.Errorf("%+v, %v", h, err)
	}
}
