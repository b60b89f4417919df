package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// The kinds of operation of the soak's clients. What comes before soakRead are
// writes that go through the log once each.
const (
	soakOwn    = iota // compare-and-swap of a counter of one's own
	soakShared        // compare-and-swap of a counter that all contend for
	soakCreate
	soakDelete
	soakRead
	soakCycle // acquire, read and write under the lock, release
	soakKinds
)

var soakKindNames = [soakKinds]string{"own", "shared", "create", "delete", "read", "cycle"}

const (
	soakValueBytes  = 256
	soakQueueMax    = 16 // nodes that a client keeps in its queue
	soakSharedCount = 32 // contended counters
	soakPerLock     = 4  // clients that share a lock, on average
	soakFailures    = 20 // that are told, the rest is counted

	// How long a client looks for a master: on a machine that gives the cell no
	// time it is the service that must say whether a session is lost.
	soakGrace = 5 * time.Minute
)

// soakLoad is the clients of a soak, and what they may expect of the cell.
type soakLoad struct {
	c       *cell
	clients []*soakClient
	locks   []soakLock
	shared  [soakSharedCount]soakTally
	hard    context.Context // of every call: ends long after the load should have

	stop   chan struct{}
	halt   func() // closes stop, once
	wg     sync.WaitGroup
	served [soakKinds]atomic.Int64
	slow   atomic.Int64 // longest operation of the present window, nanoseconds
	kill   atomic.Pointer[soakKill]

	conflicts, abandoned, jeopardies, expiries atomic.Int64

	mu       sync.Mutex
	failures []error
	failed   int
}

// soakKill is one kill -9 of the master, and how long it was felt.
type soakKill struct {
	victim string
	at     time.Time
	window time.Duration // since the beginning of the load
	first  atomic.Int64  // until the first answer to a write begun after it, ns
	worst  atomic.Int64  // longest operation that ended after it, ns
	ready  time.Duration // from the start of the victim until it was ready; 0: not before the next kill
}

// soakTally counts increments: a counter must stand between those that were
// acknowledged and these with those of unknown outcome.
type soakTally struct{ acked, unknown atomic.Int64 }

// soakLock is a lock that guards a plain read and write of one node.
type soakLock struct {
	path, guarded string
	holder        atomic.Int64 // client + 1 that believes it holds it
	fence         atomic.Uint64
	cycles        soakTally
}

// soakClient is one session and the goroutine that works with it, one call
// after the other.
type soakClient struct {
	l   *soakLoad
	i   int
	s   *client.Session
	rnd *rand.Rand

	// The counter of its own: everybody may read it, and then it is no less
	// than known was before, and no more than begun is after.
	counter      string
	known, begun atomic.Int64
	acked        int64 // increments acknowledged
	unknown      int64 // increments of unknown outcome ...
	landed       int64 // ... that were found to have been executed

	dir     string
	queue   []string // nodes that it has created and not deleted, oldest first
	created int      // in all

	barrier string
	lock    string // a container, that comes and goes
	fence   uint64 // last of it
}

func soakValue(n int64) []byte {
	b := bytes.Repeat([]byte{' '}, soakValueBytes)
	copy(b, strconv.FormatInt(n, 10))
	return b
}

func soakNumber(b []byte) (int64, error) {
	return strconv.ParseInt(string(bytes.TrimRight(b, " ")), 10, 64)
}

// newSoakLoad opens the sessions and makes the nodes. limit is when calls are
// given up that nobody answers.
func newSoakLoad(c *cell, clients int, lease, limit time.Duration) *soakLoad {
	c.t.Helper()
	hard, cancel := context.WithTimeout(c.t.Context(), limit)
	l := &soakLoad{c: c, hard: hard, stop: make(chan struct{}), locks: make([]soakLock, max(clients/soakPerLock, 1))}
	l.halt = sync.OnceFunc(func() { close(l.stop) })
	c.t.Cleanup(func() {
		l.halt()
		cancel()
		l.wg.Wait()
	})
	l.clients = make([]*soakClient, clients)
	for i := range l.clients {
		l.clients[i] = &soakClient{
			l: l, i: i, rnd: rand.New(rand.NewPCG(7, uint64(i))),
			counter: fmt.Sprintf("/soak/counters/%d", i), dir: fmt.Sprintf("/soak/queues/%d", i),
			barrier: fmt.Sprintf("/soak/barriers/%d", i), lock: fmt.Sprintf("/soak/own/%d", i),
		}
	}
	var wg sync.WaitGroup
	for _, cl := range l.clients {
		cl.s = c.dial(client.WithName(fmt.Sprintf("soak-%d", cl.i)), client.WithLease(lease), client.WithGrace(soakGrace), client.WithStateHandler(func(s client.State) {
			switch s {
			case client.Jeopardy:
				l.jeopardies.Add(1)
			case client.Expired:
				l.expiries.Add(1)
			}
		}))
	}
	for i := range l.locks {
		l.locks[i].path, l.locks[i].guarded = fmt.Sprintf("/soak/locks/%d", i), fmt.Sprintf("/soak/guarded/%d", i)
	}
	s := l.clients[0].s
	for _, dir := range []string{"/soak", "/soak/counters", "/soak/shared", "/soak/queues", "/soak/barriers", "/soak/locks", "/soak/guarded", "/soak/own"} {
		if _, err := s.Create(hard, dir, nil); err != nil {
			c.t.Fatal(err)
		}
	}
	for i := range soakSharedCount {
		if _, err := s.Create(hard, soakSharedPath(i), soakValue(0)); err != nil {
			c.t.Fatal(err)
		}
	}
	for i := range l.locks {
		if _, err := s.Create(hard, l.locks[i].path, nil); err != nil {
			c.t.Fatal(err)
		}
		if _, err := s.Create(hard, l.locks[i].guarded, soakValue(0)); err != nil {
			c.t.Fatal(err)
		}
	}
	for _, cl := range l.clients {
		wg.Go(func() {
			_, err := cl.s.Create(hard, cl.counter, soakValue(0))
			if err == nil {
				_, err = cl.s.Create(hard, cl.dir, nil)
			}
			if err == nil {
				_, err = cl.s.Create(hard, cl.barrier, nil)
			}
			if err != nil {
				l.fail("client %d: %v", cl.i, err)
			}
		})
	}
	wg.Wait()
	l.check()
	return l
}

func soakSharedPath(i int) string { return fmt.Sprintf("/soak/shared/%d", i) }

// fail notes what must not be, and ends the load.
func (l *soakLoad) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed++; len(l.failures) < soakFailures {
		l.failures = append(l.failures, fmt.Errorf(format, args...))
	}
	l.halt()
}

// check ends the test if something has failed.
func (l *soakLoad) check() {
	l.c.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range l.failures {
		l.c.t.Error(err)
	}
	if l.failed > 0 {
		l.c.t.Fatalf("%d failures", l.failed)
	}
}

// begin starts the clients, which work until halt.
func (l *soakLoad) begin() {
	for _, cl := range l.clients {
		l.wg.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				if err := cl.step(); err != nil {
					l.fail("client %d: %w", cl.i, err)
					return
				}
			}
		})
	}
}

// end stops the clients after the call that each is in.
func (l *soakLoad) end() {
	l.halt()
	l.wg.Wait()
}

// do runs one operation and measures it.
func (l *soakLoad) do(kind int, f func() error) error {
	began := time.Now()
	if err := f(); err != nil {
		return err
	}
	took := time.Since(began)
	l.served[kind].Add(1)
	atMost(&l.slow, took)
	if k := l.kill.Load(); k != nil {
		if began.After(k.at) && kind < soakRead && k.first.Load() == 0 {
			k.first.CompareAndSwap(0, int64(time.Since(k.at)))
		}
		if began.Add(took).After(k.at) {
			atMost(&k.worst, took)
		}
	}
	return nil
}

// atMost raises a to d.
func atMost(a *atomic.Int64, d time.Duration) {
	for old := a.Load(); old < int64(d) && !a.CompareAndSwap(old, int64(d)); old = a.Load() {
	}
}

// step does one thing out of the mix.
func (cl *soakClient) step() error {
	switch p := cl.rnd.IntN(100); {
	case p < 40:
		return cl.increment()
	case p < 45:
		return cl.incrementShared(cl.rnd.IntN(soakSharedCount))
	case p < 65:
		if len(cl.queue) < soakQueueMax && (len(cl.queue) == 0 || cl.rnd.IntN(2) == 0) {
			return cl.create()
		}
		return cl.delete()
	case p < 90:
		return cl.read()
	case p < 96:
		return cl.cycleOwn()
	default:
		return cl.cycle(&cl.l.locks[cl.rnd.IntN(len(cl.l.locks))])
	}
}

// increment adds one to the client's own counter, and gives up now and then
// before the answer is there.
func (cl *soakClient) increment() error {
	ctx := cl.l.hard
	if cl.rnd.IntN(200) == 0 {
		short, cancel := context.WithTimeout(ctx, time.Duration(cl.rnd.IntN(20_000))*time.Microsecond)
		defer cancel()
		ctx = short
	}
	n := cl.known.Load()
	cl.begun.Store(n + 1)
	err := cl.l.do(soakOwn, func() error {
		_, err := cl.s.Put(ctx, cl.counter, soakValue(n+1), client.IfGeneration(uint64(n)+1))
		return err
	})
	switch {
	case err == nil:
		cl.known.Store(n + 1)
		cl.acked++
		return nil
	case cl.l.hard.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("increment of %d: %w", n, err)
	case !errors.Is(err, client.ErrUnknownOutcome):
		// Not done, and it will not be: the next increment would see it.
		cl.l.abandoned.Add(1)
		return nil
	}
	cl.l.abandoned.Add(1)
	cl.unknown++
	// A session's requests are executed in order: once a later one is answered,
	// it is settled what has become of this one.
	if _, err := cl.s.Put(cl.l.hard, cl.barrier, nil); err != nil {
		return fmt.Errorf("write behind an abandoned one: %w", err)
	}
	found, err := cl.get(cl.s, cl.counter)
	if err != nil {
		return err
	}
	if found != n && found != n+1 {
		return fmt.Errorf("an abandoned increment of %d left the counter at %d", n, found)
	}
	cl.landed += found - n
	cl.known.Store(found)
	return nil
}

// get reads a number; its generation tells how often it was written.
func (cl *soakClient) get(s *client.Session, path string) (int64, error) {
	node, err := s.Get(cl.l.hard, path)
	if err != nil {
		return 0, err
	}
	n, err := soakNumber(node.Data)
	if err != nil {
		return 0, fmt.Errorf("content of %s: %w", path, err)
	}
	if node.Stat.ContentGeneration != uint64(n)+1 {
		return 0, fmt.Errorf("%s is %d at generation %d: a write was lost or done twice", path, n, node.Stat.ContentGeneration)
	}
	return n, nil
}

// incrementShared adds one to a counter that others increment too.
func (cl *soakClient) incrementShared(i int) error {
	t := &cl.l.shared[i]
	for {
		n, err := cl.get(cl.s, soakSharedPath(i))
		if err != nil {
			return fmt.Errorf("read of a shared counter: %w", err)
		}
		err = cl.l.do(soakShared, func() error {
			_, err := cl.s.Put(cl.l.hard, soakSharedPath(i), soakValue(n+1), client.IfGeneration(uint64(n)+1))
			return err
		})
		switch {
		case err == nil:
			t.acked.Add(1)
			return nil
		case errors.Is(err, client.ErrConflict):
			cl.l.conflicts.Add(1)
		case errors.Is(err, client.ErrUnknownOutcome):
			t.unknown.Add(1)
			return fmt.Errorf("shared counter: %w", err)
		default:
			return fmt.Errorf("shared counter: %w", err)
		}
	}
}

// create appends to the client's queue. Only this client creates there, so
// each number follows the last: one create executed twice would leave a gap.
func (cl *soakClient) create() error {
	return cl.l.do(soakCreate, func() error {
		n, err := cl.s.Create(cl.l.hard, cl.dir+"/", soakValue(int64(cl.created)), client.Sequential())
		if err != nil {
			return err
		}
		if want := fmt.Sprintf("%s/%010d", cl.dir, cl.created); n.Path != want {
			return fmt.Errorf("create %d in the queue made %s: want %s", cl.created, n.Path, want)
		}
		cl.created++
		cl.queue = append(cl.queue, n.Path)
		return nil
	})
}

func (cl *soakClient) delete() error {
	return cl.l.do(soakDelete, func() error {
		if err := cl.s.Delete(cl.l.hard, cl.queue[0]); err != nil {
			return err
		}
		cl.queue = append(cl.queue[:0], cl.queue[1:]...)
		return nil
	})
}

// read looks at somebody's counter.
func (cl *soakClient) read() error {
	other := cl.l.clients[cl.rnd.IntN(len(cl.l.clients))]
	return cl.l.do(soakRead, func() error {
		least := other.known.Load()
		n, err := cl.get(cl.s, other.counter)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if most := other.begun.Load(); n < least || n > most {
			return fmt.Errorf("read %s: %d, but %d was acknowledged before and %d begun after", other.counter, n, least, most)
		}
		return nil
	})
}

// cycleOwn acquires and releases a lock that nobody else wants. Its node comes
// and goes with it; its fence grows all the same.
func (cl *soakClient) cycleOwn() error {
	return cl.l.do(soakCycle, func() error {
		// While there is no master a try is withdrawn after a second: not done.
		lock, err := cl.s.TryLock(cl.l.hard, cl.lock)
		for errors.Is(err, client.ErrUnavailable) && cl.l.hard.Err() == nil {
			lock, err = cl.s.TryLock(cl.l.hard, cl.lock)
		}
		if err != nil {
			return err
		}
		if lock.Fence() <= cl.fence {
			return fmt.Errorf("lock %s was granted with fence %d after %d", cl.lock, lock.Fence(), cl.fence)
		}
		cl.fence = lock.Fence()
		return lock.Release(cl.l.hard)
	})
}

// cycle acquires a contended lock, and reads and writes what it guards without
// any condition but the fence. Now and then it gives up while it waits.
func (cl *soakClient) cycle(k *soakLock) error {
	ctx := cl.l.hard
	if cl.rnd.IntN(20) == 0 {
		short, cancel := context.WithTimeout(ctx, time.Duration(cl.rnd.IntN(30_000))*time.Microsecond)
		defer cancel()
		ctx = short
	}
	err := cl.l.do(soakCycle, func() error {
		lock, err := cl.s.Lock(ctx, k.path, client.MustExist())
		if err != nil {
			return err
		}
		if err := cl.guarded(k, lock); err != nil {
			return err
		}
		return lock.Release(cl.l.hard)
	})
	if cl.l.hard.Err() == nil && ctx != cl.l.hard && errors.Is(err, context.DeadlineExceeded) {
		cl.l.abandoned.Add(1)
		return nil
	}
	if err != nil {
		return fmt.Errorf("cycle of %s: %w", k.path, err)
	}
	return nil
}

// guarded is the work under the lock.
func (cl *soakClient) guarded(k *soakLock, lock *client.Lock) error {
	if !k.holder.CompareAndSwap(0, int64(cl.i)+1) {
		return fmt.Errorf("%s is held by client %d too", k.path, k.holder.Load()-1)
	}
	if last := k.fence.Swap(lock.Fence()); lock.Fence() <= last {
		return fmt.Errorf("%s was granted with fence %d after %d", k.path, lock.Fence(), last)
	}
	n, err := cl.get(cl.s, k.guarded)
	if err != nil {
		return err
	}
	_, err = lock.Txn().Put(k.guarded, soakValue(n+1)).Commit(cl.l.hard)
	switch {
	case err == nil:
		k.cycles.acked.Add(1)
	case errors.Is(err, client.ErrUnknownOutcome):
		k.cycles.unknown.Add(1)
		return err
	default:
		return err
	}
	if err := lock.Err(); err != nil {
		return err
	}
	if !k.holder.CompareAndSwap(int64(cl.i)+1, 0) {
		return fmt.Errorf("%s was given to client %d meanwhile", k.path, k.holder.Load()-1)
	}
	return nil
}

// verify compares what is there with what the clients were told. All clients
// have come to rest.
func (l *soakLoad) verify() {
	t := l.c.t
	t.Helper()
	l.check()
	reader := l.c.dial(client.WithName("verifier"))
	tally := func(path string, acked, unknown int64) {
		n, err := l.clients[0].get(reader, path)
		if err != nil {
			t.Error(err)
		} else if n < acked || n > acked+unknown {
			t.Errorf("%s is %d: %d were acknowledged, %d of unknown outcome", path, n, acked, unknown)
		}
	}
	for i := range l.shared {
		tally(soakSharedPath(i), l.shared[i].acked.Load(), l.shared[i].unknown.Load())
	}
	for i := range l.locks {
		tally(l.locks[i].guarded, l.locks[i].cycles.acked.Load(), l.locks[i].cycles.unknown.Load())
	}
	alive := map[uint64]bool{}
	for s, err := range reader.Sessions(l.hard) {
		if err != nil {
			t.Fatal(err)
		}
		alive[s.ID] = true
	}
	for _, cl := range l.clients {
		tally(cl.counter, cl.acked, cl.unknown)
		tally(cl.counter, cl.acked+cl.landed, 0)
		cl.verifyQueue(t, reader)
		if err := cl.s.Err(); err != nil || !alive[cl.s.ID()] {
			t.Errorf("session of client %d: lost: %v, known to the service: %v", cl.i, err, alive[cl.s.ID()])
		}
	}
	if n := l.expiries.Load(); n > 0 {
		t.Errorf("%d sessions have expired", n)
	}
	for k, err := range reader.Locks(l.hard, "/") {
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("lock %s is still held or waited for: %+v", k.Path, k)
	}
	if err := reader.Close(); err != nil {
		t.Errorf("close of the verifier's session: %v", err)
	}
}

func (cl *soakClient) verifyQueue(t *testing.T, reader *client.Session) {
	t.Helper()
	var found []string
	for c, err := range reader.List(cl.l.hard, cl.dir) {
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, cl.dir+"/"+c.Name)
	}
	if fmt.Sprint(found) != fmt.Sprint(cl.queue) {
		t.Errorf("queue of client %d is %v: want %v", cl.i, found, cl.queue)
	}
}

// close ends the sessions.
func (l *soakLoad) close() {
	l.c.t.Helper()
	for _, cl := range l.clients {
		if err := cl.s.Close(); err != nil {
			l.c.t.Errorf("close of session %d: %v", cl.i, err)
		}
	}
}
