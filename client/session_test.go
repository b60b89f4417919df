package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

func TestPathCalls(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)

	st := must(s.Put(ctx, "/a", []byte("one")))(t)
	if st.ContentGeneration != 1 || st.Size != 3 || st.Kind != client.KindPermanent || st.Created.IsZero() {
		t.Fatalf("stat %+v", st)
	}
	n := must(s.Get(ctx, "/a"))(t)
	if string(n.Data) != "one" || n.Stat != st || n.Path != "/a" {
		t.Fatalf("node %+v, stat of Put %+v", n, st)
	}
	st = must(s.Put(ctx, "/a", []byte{}, client.IfGeneration(1)))(t)
	if st.ContentGeneration != 2 {
		t.Fatalf("stat %+v", st)
	}
	if n = must(s.Get(ctx, "/a"))(t); n.Data == nil || len(n.Data) != 0 {
		t.Fatalf("empty content is %v", n.Data)
	}
	must(s.Put(ctx, "/a", nil))(t)
	if n = must(s.Get(ctx, "/a"))(t); n.Data != nil {
		t.Fatalf("null content is %v", n.Data)
	}

	seq := must(s.Create(ctx, "/a/q-", []byte("x"), client.Sequential(), client.Ephemeral()))(t)
	if seq.Path != "/a/q-0000000000" || seq.Stat.Owner != s.ID() || seq.Stat.Kind != client.KindEphemeral {
		t.Fatalf("node %+v", seq)
	}
	must(s.Create(ctx, "/deep/er/still", nil, client.WithParents()))(t)
	if st := must(s.Stat(ctx, "/deep/er"))(t); st.Kind != client.KindContainer || st.Children != 1 {
		t.Fatalf("stat %+v", st)
	}
	for i := range 5 {
		must(s.Create(ctx, fmt.Sprintf("/a/%d", i), nil))(t)
	}
	var names []string
	for child, err := range s.List(ctx, "/a") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, child.Name)
	}
	if want := []string{"0", "1", "2", "3", "4", "q-0000000000"}; !slices.Equal(names, want) {
		t.Fatalf("children %v", names)
	}
	if err := s.Delete(ctx, "/a", client.Recursive()); err != nil {
		t.Fatal(err)
	}
	status := must(s.Status(ctx))(t)
	if status.Role != "master" || status.Cell != "test" || status.Sessions != 1 || s.Cell() != "test" {
		t.Fatalf("status %+v", status)
	}
	status = must(client.Status(ctx, c.address))(t)
	if status.Replica != "n1" {
		t.Fatalf("status %+v", status)
	}
}

func TestErrors(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	must(s.Put(ctx, "/dir", nil))(t)
	must(s.Put(ctx, "/dir/f", nil))(t)
	must(s.Create(ctx, "/eph", nil, client.Ephemeral()))(t)
	l := must(s.Lock(ctx, "/dir/f"))(t)
	get := func(path string) error { _, err := s.Get(ctx, path); return err }
	put := func(path string, data []byte, o ...client.PutOption) error {
		_, err := s.Put(ctx, path, data, o...)
		return err
	}
	create := func(path string, o ...client.CreateOption) error {
		_, err := s.Create(ctx, path, nil, o...)
		return err
	}
	list := func(path string) (err error) {
		for _, err = range s.List(ctx, path) {
		}
		return err
	}
	lock := func(path string, o ...client.LockOption) error {
		_, err := s.TryLock(ctx, path, o...)
		return err
	}
	for _, x := range []struct {
		name string
		err  error
		want error
		text string
	}{
		{"get nothing", get("/none"), client.ErrNotFound, "get /none: no such node"},
		{"list nothing", list("/none"), client.ErrNotFound, "list /none"},
		{"put below nothing", put("/none/x", nil), client.ErrNotFound, "put /none/x"},
		{"put what must exist", put("/none", nil, client.MustExist()), client.ErrNotFound, ""},
		{"put what must not", put("/dir", nil, client.IfAbsent()), client.ErrConflict, ""},
		{"put another generation", put("/dir", nil, client.IfGeneration(9)), client.ErrConflict, ""},
		{"create what is there", create("/dir"), client.ErrExists, ""},
		{"create below ephemeral", create("/eph/x"), client.ErrEphemeralParent, ""},
		{"delete with children", s.Delete(ctx, "/dir"), client.ErrNotEmpty, ""},
		{"delete what is locked", s.Delete(ctx, "/dir/f"), client.ErrLocked, ""},
		{"delete another generation", s.Delete(ctx, "/eph", client.IfGeneration(2)), client.ErrConflict, ""},
		{"relative path", get("x"), client.ErrBadPath, `get "x"`},
		{"dots", get("/a/../b"), client.ErrBadPath, `".."`},
		{"NUL", get("/a\x00b"), client.ErrBadPath, "U+0000"},
		{"no UTF-8", put("/\xff", nil), client.ErrBadPath, "UTF-8"},
		{"trailing slash", get("/a/"), client.ErrBadPath, "ends in a slash"},
		{"long path", get("/" + strings.Repeat("x/", 600)), client.ErrBadPath, "1024"},
		{"long name", get("/" + strings.Repeat("x", 256)), client.ErrBadPath, "255"},
		{"long sequential name", create("/"+strings.Repeat("x", 250), client.Sequential()), client.ErrBadPath, "255"},
		{"much data", put("/big", make([]byte, 2<<20)), client.ErrTooLarge, "put /big: data is too large: 2097152 bytes, the limit is 1048576"},
		{"lock what must exist", lock("/none", client.MustExist()), client.ErrNotFound, ""},
		{"long lock-delay", lock("/l", client.LockDelay(61*time.Second)), client.ErrInvalid, "1m1s"},
		{"long stop", lock("/l", client.StopGrace(23*time.Second)), client.ErrInvalid, "23s"},
		{"held", lock("/dir/f"), client.ErrHeld, "lock /dir/f: held by "},
		{"no sequencer", s.Check(ctx, "nonsense"), client.ErrLost, ""},
		{"break nothing", s.Break(ctx, "/dir/f", 1), client.ErrLost, ""},
	} {
		if !errors.Is(x.err, x.want) || !strings.Contains(x.err.Error(), x.text) {
			t.Errorf("%s: error %q, expected %q and the text %q", x.name, x.err, x.want, x.text)
		}
	}
	if err := put("/full", bytes.Repeat([]byte("x"), 1<<20)); err != nil {
		t.Errorf("1 MiB of data: %v", err)
	}
	if n, err := s.Get(ctx, "/full"); err != nil || len(n.Data) != 1<<20 {
		t.Errorf("1 MiB of data: %d bytes, %v", len(n.Data), err)
	}
	if err := l.Release(ctx); err != nil {
		t.Error(err)
	}
}

func TestDialErrors(t *testing.T) {
	c := newCell(t)
	ctx := within(t)
	for _, x := range []struct {
		name      string
		addresses []string
		options   []client.Option
		want      error
	}{
		{"no address", nil, nil, client.ErrInvalid},
		{"bad address", []string{"nonsense"}, nil, client.ErrInvalid},
		{"short lease", []string{c.address}, []client.Option{client.WithLease(time.Millisecond)}, client.ErrInvalid},
		{"wrong cell", []string{c.address}, []client.Option{client.WithCell("other"), client.WithOpenTimeout(patience)}, client.ErrWrongCell},
		{"nobody there", []string{"127.0.0.1:1"}, []client.Option{client.WithOpenTimeout(100 * time.Millisecond)}, client.ErrUnavailable},
	} {
		for kind, dial := range map[string]func() error{
			"dial":    func() error { _, err := client.Dial(ctx, x.addresses, x.options...); return err },
			"connect": func() error { _, err := client.Connect(ctx, x.addresses, x.options...); return err },
		} {
			err := dial()
			if !errors.Is(err, x.want) || !strings.HasPrefix(err.Error(), kind+": ") {
				t.Errorf("%s: error %v", x.name, err)
			}
			if x.name == "nobody there" && !strings.Contains(err.Error(), "127.0.0.1:1: dial tcp") {
				t.Errorf("%s: error %v does not say why", x.name, err)
			}
		}
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err := client.Dial(cancelled, []string{c.address})
	wantErr(t, err, context.Canceled)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = client.Dial(short, []string{"127.0.0.1:1"})
	wantErr(t, err, context.DeadlineExceeded, client.ErrUnavailable)
	if _, err := client.Status(short, "127.0.0.1:1"); !errors.Is(err, client.ErrUnavailable) {
		t.Errorf("status: %v", err)
	}
}

func TestTxn(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	nodes := must(s.Txn().Create("/t", []byte("1")).Put("/t", []byte("2"), client.IfGeneration(1)).
		Create("/t/s-", nil, client.Sequential()).Check("/none", client.IfAbsent()).Commit(ctx))(t)
	if len(nodes) != 4 || nodes[1].Stat.ContentGeneration != 2 || nodes[2].Path != "/t/s-0000000000" {
		t.Fatalf("nodes %+v", nodes)
	}
	_, err := s.Txn().Put("/t", []byte("3")).Delete("/none").Commit(ctx)
	var txn *client.TxnError
	if !errors.As(err, &txn) || txn.Op != 1 || txn.Kind != "delete" || txn.Path != "/none" || !errors.Is(err, client.ErrNotFound) {
		t.Fatalf("error %v", err)
	}
	if n := must(s.Get(ctx, "/t"))(t); string(n.Data) != "2" {
		t.Fatalf("a part was done: %q", n.Data)
	}
	_, err = s.Txn().Put("/t", nil).Create("nonsense", nil).Commit(ctx)
	wantErr(t, err, client.ErrBadPath)
	if nodes, err := s.Txn().Commit(ctx); nodes != nil || err != nil {
		t.Fatalf("nothing to do: %v, %v", nodes, err)
	}
	big := s.Txn()
	for i := range 4 {
		big.Put(fmt.Sprintf("/b%d", i), make([]byte, 1<<20))
	}
	_, err = big.Commit(ctx)
	wantErr(t, err, client.ErrTooLarge)

	// A write under a lock, refused once the lock is not held.
	l := must(s.Lock(ctx, "/guard"))(t)
	guarded := func() error {
		_, err := s.Txn().Check("/guard", client.HeldFence(l.Fence())).Put("/t", []byte("guarded")).Commit(ctx)
		return err
	}
	if err := guarded(); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := guarded(); err == nil {
		t.Fatal("a write under a fence that is not held was done")
	}
}

// The largest request that the client lets out is one that the service takes: a
// frame over its limit would come again with each reconnect.
func TestLargestRequestIsTaken(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	for size := 1 << 20; ; size -= 16 {
		_, err := s.Txn().Put("/a", make([]byte, 1<<20)).Put("/b", make([]byte, size)).Commit(ctx)
		if err == nil {
			break
		}
		wantErr(t, err, client.ErrTooLarge)
		if size < 1<<20-1<<14 {
			t.Fatalf("%d bytes: %v", 1<<20+size, err)
		}
	}
	must(s.Put(ctx, "/c", nil))(t)
}

func TestReaderLeavesNoTrace(t *testing.T) {
	c := newCell(t)
	ctx := within(t)
	r, err := client.Connect(ctx, []string{c.address}, client.WithOpenTimeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for s, err := range r.Sessions(ctx) {
		t.Fatalf("session %+v, %v", s, err)
	}
	s := c.dial(client.WithName("somebody"))
	var seen []client.SessionInfo
	for info, err := range r.Sessions(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, info)
	}
	if len(seen) != 1 || seen[0].ID != s.ID() || seen[0].Client.Name != "somebody" || seen[0].LeaseLeft <= 0 {
		t.Fatalf("sessions %+v", seen)
	}
	l := must(s.Lock(ctx, "/x/y"))(t)
	var locks []client.LockInfo
	for info, err := range r.Locks(ctx, "/") {
		if err != nil {
			t.Fatal(err)
		}
		locks = append(locks, info)
	}
	if len(locks) != 1 || locks[0].Path != "/x/y" || len(locks[0].Holders) != 1 || locks[0].Holders[0].Fence != l.Fence() ||
		locks[0].Holders[0].LeaseLeft <= 0 {
		t.Fatalf("locks %+v", locks)
	}
	if err := r.Check(ctx, l.Sequencer()); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	wantErr(t, r.Check(ctx, l.Sequencer()), client.ErrLost)
	if info := must(r.Why(ctx, "/x/y"))(t); len(info.Holders) != 0 || info.Path != "/x/y" {
		t.Fatalf("why %+v", info)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = r.Get(ctx, "/")
	wantErr(t, err, client.ErrClosed)
}

// Writers go on over connections that break all the time; each write is
// executed exactly once.
func TestExactlyOnceOverReconnects(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option())
	ctx := within(t)
	const writers, writes = 8, 40
	var count atomic.Int64
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			path := fmt.Sprintf("/w%d", w)
			for i := range writes {
				if count.Add(1)%32 == 0 {
					n.cut()
				}
				st, err := s.Put(ctx, path, fmt.Append(nil, i))
				if err != nil || st.ContentGeneration != uint64(i+1) {
					t.Errorf("write %d of %s: generation %d, %v", i+1, path, st.ContentGeneration, err)
					return
				}
			}
		})
	}
	work.Wait()
	if s.State() != client.Live || s.Err() != nil {
		t.Fatalf("session is %v: %v", s.State(), s.Err())
	}
	if d := n.dials.Load(); d < 2 {
		t.Fatalf("%d dials: nothing was cut", d)
	}
}

func TestServiceRestarts(t *testing.T) {
	c := newCell(t)
	states := make(chan client.State, 100)
	s := c.dial(client.WithStateHandler(func(st client.State) { states <- st }))
	ctx := within(t)
	must(s.Put(ctx, "/a", nil))(t)
	l := must(s.Lock(ctx, "/l"))(t)
	c.stop()
	done := make(chan error, 1)
	go func() {
		_, err := s.Put(ctx, "/a", []byte("held back"))
		done <- err
	}()
	c.start()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := l.Err(); err != nil {
		t.Fatalf("the lock did not outlive the restart: %v", err)
	}
	if n := must(s.Get(ctx, "/a"))(t); string(n.Data) != "held back" || n.Stat.ContentGeneration != 2 {
		t.Fatalf("node %+v", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var last client.State
	for last != client.Closed {
		last = <-states
	}
	wantErr(t, s.Err(), client.ErrClosed)
	<-s.Done()
	wantErr(t, context.Cause(l.Context()), client.ErrLost)
}

func TestExpires(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	var mu sync.Mutex
	var states []client.State
	s := c.dial(n.option(), client.WithLease(time.Second), client.WithGrace(300*time.Millisecond),
		client.WithStateHandler(func(st client.State) {
			mu.Lock()
			states = append(states, st)
			mu.Unlock()
		}))
	ctx := within(t)
	l := must(s.Lock(ctx, "/l", client.LockDelay(0)))(t)
	n.set(false)
	_, err := s.Put(ctx, "/a", nil) // held back until the session ends
	wantErr(t, err, client.ErrExpired)
	<-s.Done()
	wantErr(t, s.Err(), client.ErrExpired)
	<-l.Context().Done()
	wantErr(t, context.Cause(l.Context()), client.ErrLost)
	wantErr(t, l.Err(), client.ErrLost)
	wantErr(t, l.Release(ctx), client.ErrLost)
	_, err = s.Lock(ctx, "/l")
	wantErr(t, err, client.ErrExpired)
	for _, err := range s.Watch(ctx, "/") {
		wantErr(t, err, client.ErrExpired)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("closing an expired session: %v", err)
	}
	eventually(t, "states", func() error {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Equal(states, []client.State{client.Live, client.Jeopardy, client.Expired}) {
			return fmt.Errorf("%v", states)
		}
		return nil
	})
}

// A connection on which nothing arrives any more is replaced.
func TestSilentConnection(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option(), client.WithLease(2*time.Second))
	ctx := within(t)
	must(s.Put(ctx, "/a", nil))(t)
	n.silent.Store(true)
	done := make(chan error, 1)
	go func() {
		_, err := s.Put(ctx, "/a", nil)
		done <- err
	}()
	eventually(t, "redial", func() error {
		if n.dials.Load() < 2 {
			return errors.New("keeps the dead connection")
		}
		return nil
	})
	n.silent.Store(false)
	n.cut()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestCancelReturnsAtOnce(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option())
	holder := c.dial(client.WithName("holder"))
	l := must(holder.Lock(within(t), "/l"))(t)
	waiting := make(chan struct{})
	ctx, cancel := context.WithCancel(within(t))
	result := make(chan error, 4)
	go func() {
		_, err := s.Lock(ctx, "/l", client.OnWait(func(*client.HeldError) { close(waiting) }))
		result <- err
	}()
	<-waiting
	n.set(false)
	go func() { _, err := s.Put(ctx, "/p", nil); result <- err }()
	go func() { _, err := s.Get(ctx, "/p"); result <- err }()
	go func() {
		for _, err := range s.Watch(ctx, "/p") {
			if err != nil {
				result <- err
			}
		}
	}()
	cancel()
	start := time.Now()
	var held *client.HeldError
	for range 4 {
		err := <-result
		wantErr(t, err, context.Canceled)
		if errors.As(err, &held) && (len(held.Holders) != 1 || held.Holders[0].Client.Name != "holder" || held.Holders[0].Fence != l.Fence()) {
			t.Fatalf("error %+v", held)
		}
	}
	// The bound is 100 ms; the test allows for a machine that is busy.
	if d := time.Since(start); d > 5*time.Second {
		t.Fatalf("returned after %v", d)
	}
	if held == nil {
		t.Fatal("the lock's error does not name the holder")
	}
	// The wait is withdrawn once the service can be told, though nobody waits.
	waiters(t, holder, "/l", 1)
	n.set(true)
	waiters(t, holder, "/l", 0)
}

func TestCloseEndsCalls(t *testing.T) {
	c := newCell(t)
	n := newNetwork()
	s := c.dial(n.option())
	other := c.dial()
	ctx := within(t)
	must(other.Lock(ctx, "/l"))(t)
	must(s.Create(ctx, "/eph", nil, client.Ephemeral()))(t)
	waiting := make(chan struct{})
	result := make(chan error, 2)
	go func() {
		_, err := s.Lock(ctx, "/l", client.OnWait(func(*client.HeldError) { close(waiting) }))
		result <- err
	}()
	ready := make(chan struct{})
	go func() {
		for e, err := range s.Watch(ctx, "/p") {
			if e.Kind == client.EventReady {
				close(ready)
			}
			if err != nil {
				result <- err
			}
		}
	}()
	<-waiting
	<-ready
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		wantErr(t, <-result, client.ErrClosed)
	}
	if err := s.Close(); err != nil {
		t.Fatalf("the second time: %v", err)
	}
	_, err := other.Get(ctx, "/eph")
	wantErr(t, err, client.ErrNotFound)
	waiters(t, other, "/l", 0)
	n.set(false)
}

// The user's handler may use the session, and may be slow, without holding up
// anything.
func TestHandlerRunsApart(t *testing.T) {
	c := newCell(t)
	entered := make(chan struct{})
	leave := make(chan struct{})
	var s *client.Session
	var once sync.Once
	ready := make(chan struct{})
	n := newNetwork()
	s = c.dial(n.option(), client.WithStateHandler(func(client.State) {
		once.Do(func() {
			<-ready
			if _, err := s.Put(context.Background(), "/from-handler", nil); err != nil {
				t.Error(err)
			}
			close(entered)
			<-leave
		})
	}))
	close(ready)
	<-entered
	n.cut()
	must(s.Put(within(t), "/a", nil))(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	close(leave)
}
