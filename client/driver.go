package client

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/internal/invariant"
	storepb "github.com/seed70370324/lockd/store/pb"
)

const (
	// gatherMax is how many events of others one batch takes at most.
	gatherMax = 256
	// tickMax is the longest sleep of the ticker: timers stand still while the
	// machine is suspended, the clock of the leases does not.
	tickMax = time.Second
)

// driver puts goroutines and sockets around a machine.Machine. Whoever has an
// event (a caller, a connection's reader, the ticker) takes the mutex, steps the
// machine and does at once what it asks for, down to the write to the socket:
// handing events to a goroutine of the machine's own would cost more than all
// of that. Nothing under the mutex blocks, and no code of the user runs there.
type driver struct {
	cfg     config
	session bool
	live    chan struct{}  // closed when the machine is Live for the first time
	done    chan struct{}  // closed when the session has ended
	stopped chan struct{}  // closed when nothing is stepped any more, after done
	wg      sync.WaitGroup // ticker, connections, guard
	guard   *guard
	states  *feed         // nil without handler
	logs    *feed         // nil without logger
	rearm   chan struct{} // has room for one: next is earlier than armed

	lastID   atomic.Uint64
	state    atomic.Uint32
	id       atomic.Uint64 // of the session
	cell     atomic.Pointer[cellInfo]
	err      error // set before done is closed
	attempts string

	lent    atomic.Pointer[link] // that callers may read, nil: none
	waiting atomic.Int32         // how many are about to take mu

	mu       sync.Mutex
	m        *machine.Machine
	calls    map[machine.CallID]*call
	watches  map[machine.CallID]*watchQueue
	link     *link
	asking   context.Context // ends with the driver
	endAsks  context.CancelFunc
	fresh    []*Lock       // empty, of results
	gathered int           // events stepped since the last batch was closed
	next     time.Duration // when the machine wants to be woken
	armed    time.Duration // when the ticker will look again
	quick    int           // calls in a row, see quickCalls
	lastDone time.Duration // when a call ended
	closing  bool          // Close has been called
	wasLive  bool
	over     bool
}

type cellInfo struct {
	name     string
	identity uint64
}

// origin is where an event comes from. It goes beside the event, not around it:
// so the event need not be allocated.
type origin struct {
	call  *call       // registers the call that the event starts
	watch *watchQueue // the same for a watch
	link  *link       // events of a connection that is not the present one are dropped
}

// call is somebody who waits for a Done.
//
// It belongs to whoever made it. The driver knows it from the step that begins
// the call until it sends the Done, the last that it does with it. Every call
// that was begun gets one, at the latest from the end of the session.
type call struct {
	id      machine.CallID
	begun   time.Duration // when the machine was told
	answers chan answer   // has room for all that comes: Waiting once, Done once
	lock    lockRequest   // Acquire
	release *Lock         // Release: is told instead of answers
	// Call: if its result is OK the service has released these.
	releases []txnRelease
}

// answer is what comes for a call.
type answer struct {
	machine.Done
	waiting bool // an Acquire was queued, Result is that of Waiting; the Done comes later
}

// lockRequest is what is needed to make a Lock of a grant.
type lockRequest struct {
	ctx  context.Context // nil: no Acquire
	path string
	mode Mode
	lock *Lock
}

// callPool has calls that are over, with nothing in their channels.
var callPool = sync.Pool{New: func() any { return &call{answers: make(chan answer, 2)} }}

func newCall(id machine.CallID) *call {
	c := callPool.Get().(*call)
	c.id = id
	return c
}

// free gives a call back whose Done has been received: then its maker is the
// only one who knows it, and must forget it.
func (c *call) free() {
	invariant.Assert(len(c.answers) == 0, "a call is over and has an answer more")
	c.id, c.lock, c.releases = 0, lockRequest{}, nil
	callPool.Put(c)
}

// open makes a driver and waits until it is live.
func open(ctx context.Context, op string, addresses []string, options []Option, noSession bool) (*driver, error) {
	c, err := newConfig(addresses, options)
	if err != nil {
		return nil, &Error{Op: op, Err: ErrInvalid, Detail: err.Error()}
	}
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	o, err := machineOptions(c, addresses, noSession)
	if err != nil {
		return nil, &Error{Op: op, Err: err}
	}
	d := &driver{
		cfg:     c,
		session: !noSession,
		live:    make(chan struct{}),
		done:    make(chan struct{}),
		stopped: make(chan struct{}),
		m:       machine.New(o),
		calls:   make(map[machine.CallID]*call),
		watches: make(map[machine.CallID]*watchQueue),
		guard:   newGuard(),
		rearm:   make(chan struct{}, 1),
	}
	d.asking, d.endAsks = context.WithCancel(context.Background())
	if c.onState != nil {
		d.states = newFeed()
	}
	if c.log != nil {
		d.logs = newFeed()
	}
	d.cell.Store(&cellInfo{})
	d.wg.Go(func() { d.guard.run(d.stopped) })
	d.wg.Go(d.ticker)
	select {
	case <-d.live:
		return d, nil
	case <-d.done:
		d.wait()
		return nil, &Error{Op: op, Err: d.err}
	case <-ctx.Done():
		_ = d.close() // there is nothing to be told: no session yet, or one that nobody will use
		return nil, &Error{Op: op, Err: fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err()), Detail: d.attempts}
	}
}

func newConfig(addresses []string, options []Option) (config, error) {
	c := config{
		name:        filepath.Base(os.Args[0]),
		lease:       12 * time.Second,
		grace:       45 * time.Second,
		openTimeout: 10 * time.Second,
		driftPPM:    10_000,
		quickTime:   quickTime,
		lentTick:    lentTick,
	}
	for _, o := range options {
		o(&c)
	}
	if c.dial == nil {
		var nd net.Dialer
		c.dial = func(ctx context.Context, address string) (net.Conn, error) {
			return nd.DialContext(ctx, "tcp", address)
		}
	}
	switch {
	case c.fault != "":
		return c, errors.New(c.fault)
	case c.identity == 0 && c.seen.has(optWithCellIdentity):
		return c, errors.New("the identity of the cell is 0: it was never set")
	case c.cell == "" && c.seen.has(optWithCell):
		return c, errors.New("the name of the cell is empty: it was never set")
	case len(addresses) == 0:
		return c, errors.New("no address of a replica was given")
	case c.lease < time.Second || c.lease > 10*time.Minute:
		return c, fmt.Errorf("lease of %v: 1s to 10m is allowed", c.lease)
	case c.grace <= 0:
		return c, fmt.Errorf("grace period of %v is not positive", c.grace)
	case c.openTimeout <= 0:
		return c, fmt.Errorf("open timeout of %v is not positive", c.openTimeout)
	case c.driftPPM <= 0 || c.driftPPM > 250_000:
		return c, fmt.Errorf("clock drift of %d ppm: 1 to 250,000 is allowed", c.driftPPM)
	}
	for _, a := range addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return c, fmt.Errorf("address %q: %w", a, err)
		}
	}
	for what, text := range map[string]string{"name": c.name, "cell": c.cell} {
		if err := checkText(what, text); err != nil {
			return c, err
		}
	}
	return c, nil
}

func machineOptions(c config, addresses []string, noSession bool) (machine.Options, error) {
	var secret [24]byte
	if _, err := io.ReadFull(rand.Reader, secret[:]); err != nil {
		return machine.Options{}, fmt.Errorf("random bytes for the session's secret: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "" // only for people to read
	}
	var distinct []string // each has one vote, and answers once
	for _, a := range addresses {
		if !slices.Contains(distinct, a) {
			distinct = append(distinct, a)
		}
	}
	return machine.Options{
		Addresses:    distinct,
		Survey:       true,
		Cell:         c.cell,
		CellIdentity: c.identity,
		Name:         c.name,
		Host:         strings.ToValidUTF8(host, "?"),
		PID:          os.Getpid(),
		Lease:        c.lease,
		Grace:        c.grace,
		DriftPPM:     c.driftPPM,
		Nonce:        secret[:16],
		Seed:         binary.LittleEndian.Uint64(secret[16:]),
		Now:          clock.Now(),
		OpenTimeout:  c.openTimeout,
		NoSession:    noSession,
		Program:      program(),
	}, nil
}

func (d *driver) newID() machine.CallID { return machine.CallID(d.lastID.Add(1)) }

func (d *driver) currentState() State { return State(d.state.Load()) }

func (d *driver) sessionID() uint64 { return d.id.Load() }

func (d *driver) cellName() string { return d.cell.Load().name }

// ended is nil while the session lives.
func (d *driver) ended() error {
	select {
	case <-d.done:
		return d.err
	default:
		return nil
	}
}

// post steps the machine; false: it has stopped, and nothing was done, or the
// connection that the event comes from is given up.
//
// When others wait for the mutex the batch is left open and the next of them
// closes it: what many callers have goes out in one write.
func (d *driver) post(ev machine.Event, from origin) bool {
	d.waiting.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	others := d.waiting.Add(-1) > 0
	if d.over {
		return false
	}
	now := clock.Now()
	d.step(now, ev, from)
	d.gathered++
	if !others || d.gathered >= gatherMax {
		d.perform(now)
	}
	if from.call == nil && from.link == nil {
		d.recallLent() // a watch, an end: whoever began it does not read
	}
	return from.link == d.link || from.link == nil
}

// wait waits until nothing runs any more, but for a state handler that the
// user's code keeps busy.
func (d *driver) wait() {
	<-d.stopped
	d.wg.Wait()
}

func (d *driver) close() error {
	d.post(machine.Close{}, origin{})
	d.wait()
	if errors.Is(d.err, ErrClosed) && errors.Is(d.err, ErrUnavailable) {
		return &Error{Op: "close", Err: d.err}
	}
	return nil
}

// ticker tells the machine the time when it wants to be told, and at least
// every tickMax.
func (d *driver) ticker() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		sleep, ok := d.tick()
		if !ok {
			return
		}
		timer.Reset(sleep)
		select {
		case <-timer.C:
		case <-d.rearm:
		case <-d.stopped:
			return
		}
	}
}

// tick steps the machine if its time has come, and tells how long to sleep.
func (d *driver) tick() (sleep time.Duration, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return 0, false
	}
	now := clock.Now()
	if now >= d.next {
		d.m.Step(now, machine.Tick{})
		d.perform(now)
	}
	d.armed = d.next
	return max(d.next-clock.Now(), 0), true
}

func (d *driver) step(now time.Duration, ev machine.Event, from origin) {
	if from.link != nil && from.link != d.link {
		return // of a connection that was given up
	}
	if from.call != nil {
		d.calls[from.call.id] = from.call
		from.call.begun = now
	}
	if from.watch != nil {
		d.watches[from.watch.id] = from.watch
	}
	switch ev := ev.(type) {
	case machine.Cancel:
		delete(d.watches, ev.ID)
	case machine.Close:
		d.closing = true
	}
	d.m.Step(now, ev)
}

// perform closes the batch: it does what the machine asks for, and sees to it
// that the ticker wakes in time.
func (d *driver) perform(now time.Duration) {
	d.gathered = 0
	for again := true; again; {
		e := d.m.Take(now)
		for _, address := range e.Ask {
			d.wg.Go(func() { d.ask(address) })
		}
		for _, text := range e.Warnings {
			d.log(slog.LevelWarn, text)
		}
		failed := d.connection(&e)
		if e.State != nil {
			d.stateIs(*e.State)
		}
		late := d.results(&e, now)
		again = d.updates(&e)
		for _, id := range late {
			d.m.Step(clock.Now(), machine.Lose{Lock: id})
			again = true
		}
		if failed != nil {
			d.hangup()
			d.m.Step(now, machine.Disconnected{Err: failed})
			again = true
		}
		d.next = now + tickMax
		if e.Wake > 0 {
			d.next = min(d.next, e.Wake)
		}
		d.m.Reuse(e)
		if again {
			now = clock.Now()
		}
	}
	if d.over {
		d.endAsks()
		d.states.close()
		d.logs.close()
		close(d.stopped)
		return
	}
	if d.next < d.armed {
		select {
		case d.rearm <- struct{}{}:
		default:
		}
	}
}

// connection obeys what concerns the connection. The error says that it is
// good for nothing any more.
func (d *driver) connection(e *machine.Effects) error {
	if e.Hangup || e.Dial != "" {
		d.hangup()
	}
	if e.Dial != "" {
		d.dial(e.Dial)
	}
	return d.link.send(e.Send)
}

// results tells the callers. A lock that was granted has its deadline before
// it is handed over. It returns the locks that the machine is to lose.
func (d *driver) results(e *machine.Effects, now time.Duration) (lose []machine.CallID) {
	for _, w := range e.Waiting {
		if c := d.calls[w.ID]; c != nil {
			c.answers <- answer{Done: machine.Done{ID: w.ID, Result: w.Result}, waiting: true}
		}
	}
	fresh := d.fresh[:0]
	for _, r := range e.Done {
		if r.Result.GetGrant() == nil {
			continue
		}
		if c := d.calls[r.ID]; c != nil && c.lock.ctx != nil {
			fresh = append(fresh, d.makeLock(c, r.Result.GetGrant()))
		}
	}
	late := invariant.Planted(invariant.AnswerBeforeGuard)
	if !late {
		lose = d.guard.apply(fresh, e.Deadlines, e.Lost)
	}
	for _, r := range e.Done {
		c := d.calls[r.ID]
		delete(d.calls, r.ID)
		if c != nil {
			d.quickDone(c, now)
			if len(c.releases) > 0 && r.Result.GetCode() == storepb.Code_OK && r.Err == nil {
				for _, r := range c.releases {
					d.guard.remove(r.lock)
					r.lock.committed(r.demanded)
				}
			}
		}
		switch {
		case c == nil:
		case c.release != nil:
			c.release.releaseDone(r.Result, r.Err)
		default:
			if l := c.lock.lock; l != nil && !l.watched() {
				invariant.Assert(false, "lock %s is handed over before its deadline is watched", l.path)
			}
			c.answers <- answer{Done: r}
		}
	}
	if late {
		lose = d.guard.apply(fresh, e.Deadlines, e.Lost)
	}
	clear(fresh) // the driver keeps no lock alive
	d.fresh = fresh
	return lose
}

// updates passes on what watches have to tell. It reports whether one was
// paused.
func (d *driver) updates(e *machine.Effects) (paused bool) {
	for _, u := range e.Updates {
		q := d.watches[u.ID]
		if q == nil {
			continue
		}
		if u.Err != nil {
			delete(d.watches, u.ID)
		}
		if q.add(u) {
			d.m.Step(clock.Now(), machine.Pause{ID: u.ID})
			paused = true
		}
	}
	return paused
}

func (d *driver) makeLock(c *call, g *storepb.Grant) *Lock {
	l := &Lock{
		d:     d,
		id:    c.id,
		path:  c.lock.path,
		mode:  c.lock.mode,
		grant: g,
		cell:  d.cell.Load().identity,
		from:  c.lock.ctx,
	}
	c.lock.lock = l
	return l
}

// stateIs passes a new state on.
func (d *driver) stateIs(s State) {
	name, identity := d.m.Cell()
	d.cell.Store(&cellInfo{name, identity})
	d.id.Store(d.m.Session())
	d.state.Store(uint32(s))
	if d.cfg.onState != nil {
		d.states.add(func() { d.cfg.onState(s) })
	}
	switch {
	case s == Live:
		d.log(slog.LevelInfo, "live", "session", d.m.Session(), "cell", name, "lease", d.m.Lease())
		if !d.wasLive {
			d.wasLive = true
			close(d.live)
		}
	case s == Jeopardy:
		d.log(slog.LevelWarn, "session is in jeopardy: the service has not been heard for a whole lease",
			"session", d.m.Session(), "tried", d.m.Attempts())
	case s >= Expired && !d.over:
		d.over = true
		d.err = d.m.Err()
		d.attempts = d.m.Attempts()
		d.log(slog.LevelInfo, "ended", "session", d.m.Session(), "reason", d.err)
		close(d.done)
	}
}

// log writes a line on the logger's own goroutine; mu is held.
func (d *driver) log(level slog.Level, text string, args ...any) {
	if d.logs != nil {
		d.logs.add(func() { d.cfg.log.Log(context.Background(), level, text, args...) })
	}
}
