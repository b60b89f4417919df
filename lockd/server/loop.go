package server

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/replog"
)

// tickEvery is how often the replica is told the time when nothing else
// happens, and at least when much does.
const tickEvery = 20 * time.Millisecond

// inlineTurns is how many turns of the loop the goroutine that put a letter
// takes itself: one for the letter, and one to find that nothing is left.
const inlineTurns = 2

// loop owns the replica: whoever holds mu. A turn takes what is in the mailbox,
// steps the replica through it and does what it owes. The goroutine that puts a
// letter takes the turn itself if nobody is at it, since to wake another one
// costs more than most turns do, of which there are several for each write; what
// it does not finish, and what time alone brings about, is run's. A panic in it
// is a broken invariant: it is not recovered, the process ends, the others carry
// on.
type loop struct {
	mu      sync.Mutex
	timer   *time.Timer   // wakes run
	wakeAt  time.Duration // for when it is set
	empty   []letter      // for the mailbox
	stopped bool          // no turn is taken any more

	rep     *replica.Replica
	box     *mailbox
	disk    *disk
	slow    *slow
	peers   *peers
	door    *door
	metrics *shellMetrics
	log     *slog.Logger
	fail    func(error)

	conns map[replica.ConnID]*clientConn
	role  atomic.Pointer[replica.Role] // as of the last batch
	// roleChanged has one slot: role was replaced.
	roleChanged chan struct{}
	lastTick    time.Duration
	done        chan struct{}
}

func newLoop() *loop {
	l := &loop{
		timer:       time.NewTimer(tickEvery),
		conns:       map[replica.ConnID]*clientConn{},
		roleChanged: make(chan struct{}, 1),
		done:        make(chan struct{}),
	}
	l.role.Store(&replica.Role{})
	return l
}

// run takes the turns that nobody else does, until ctx ends.
func (l *loop) run(ctx context.Context) {
	defer close(l.done)
	defer l.stop()
	for ctx.Err() == nil {
		l.mu.Lock()
		l.turns(math.MaxInt, ctx.Done())
		stopped := l.stopped
		l.release()
		if stopped {
			return
		}
		select {
		case <-l.box.wake:
		case <-l.timer.C:
		case <-ctx.Done():
		}
	}
}

// stop waits for a turn that is under way and lets nobody take another.
func (l *loop) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.timer.Stop()
}

// kick is called by the mailbox, from the goroutine that put a letter that is
// not to wait. If somebody else is at it, he looks again in release.
func (l *loop) kick() {
	if !l.mu.TryLock() {
		return
	}
	done := l.turns(inlineTurns, nil)
	l.release()
	if !done {
		l.box.signal()
	}
}

// release lets mu go. A letter that was put while it was held, and after the last
// look into the mailbox, wakes run: who put it found mu held and went away.
func (l *loop) release() {
	l.mu.Unlock()
	if l.box.waits() {
		l.box.signal()
	}
}

// turns takes turns until there is nothing to do, n at most; true: there is
// nothing to do until something comes, or until wakeAt. mu is held.
func (l *loop) turns(n int, end <-chan struct{}) bool {
	for range n {
		select {
		case <-end:
			return true
		default:
		}
		if l.stopped {
			return true
		}
		// Requests gather while a flush or a round is under way, until they are
		// enough or its end wakes the loop, or Due says that it lasts too long. With
		// each tick everything is taken.
		before := clock.Now()
		var left mood
		left.flush, left.votes = l.rep.Awaits()
		if before-l.lastTick < tickEvery {
			left.gather = l.rep.Gathering(before)
		}
		letters := l.box.swap(l.empty, left)
		// The clock is read after the letters were taken: an arrival is stamped
		// late rather than early, which can only shorten a client's lease, and a
		// leadership round begun for it is stamped early rather than late.
		now := clock.Now()
		if now < l.lastTick {
			invariant.Assert(false, "the clock went back from %v to %v", l.lastTick, now)
		}
		if len(letters) == 0 {
			// As of the instant at which it was decided what is left in the mailbox.
			if due := min(l.rep.Due(before), l.lastTick+tickEvery); due > now {
				l.empty = letters
				l.sleepUntil(due, now)
				return true
			}
		}
		l.turn(now, letters)
	}
	return false
}

// sleepUntil sees to it that run wakes at due, if not before.
func (l *loop) sleepUntil(due, now time.Duration) {
	if due < l.wakeAt || l.wakeAt <= now {
		l.wakeAt = due
		l.timer.Reset(due - now)
	}
}

// turn steps the replica through what was taken from the mailbox.
func (l *loop) turn(now time.Duration, letters []letter) {
	for i := range letters {
		l.step(now, &letters[i])
	}
	// What has arrived before a tick is seen before it: no session ends whose
	// KeepAlive was there.
	if now-l.lastTick >= tickEvery {
		l.lastTick = now
		l.rep.Step(now, replog.Tick{WallSeconds: time.Now().Unix()})
	}
	if len(letters) > 0 {
		l.metrics.batch.Observe(float64(len(letters)))
	}
	l.empty = recycle(letters)
	// Disk and followers first: they work while what was chosen is applied.
	first := l.rep.Begin(now)
	l.performLog(&first)
	if !l.perform(l.rep.Take(now)) {
		l.stopped = true
		l.box.signal() // run is to end
	}
}

// step gives one letter to the replica and its room back to the sender.
func (l *loop) step(now time.Duration, t *letter) {
	switch ev := t.event.(type) {
	case nil:
		t.ask(l.rep)
		return
	case replica.ConnOpened:
		l.conns[ev.Conn] = t.conn
	case replica.ConnClosed:
		delete(l.conns, ev.Conn)
	}
	l.rep.Step(now, t.event)
	if t.conn != nil && t.size > 0 {
		t.conn.stepped(t.size)
	}
	if t.peerBytes > 0 {
		l.metrics.peerPending.Add(-int64(t.peerBytes))
	}
}

// perform does what the replica owes after a batch; false: the replica must
// stop. Nothing here waits for a peer or a client, nor for a disk, but for the
// moment that the kernel may take to begin a flush (disk.put); while the file
// system is frozen (fsfreeze) that lasts, and the loop with it, and from the next
// collection of garbage on the process: the others elect.
func (l *loop) perform(e replica.Effects) bool {
	for _, n := range e.Log.Notes {
		l.log.Info(n)
	}
	for _, n := range e.Log.Warnings {
		l.log.Warn(n)
	}
	for _, n := range e.Notes {
		l.log.Log(context.Background(), level(n.Level), n.Text, n.Args...)
	}
	if e.Log.Fatal != nil {
		// Nothing of this batch may leave.
		l.fail(e.Log.Fatal)
		return false
	}
	l.performLog(&e.Log)
	for i := range e.Conns {
		l.queue(&e.Conns[i])
	}
	l.door.flush()
	for _, c := range e.Close {
		if conn := l.conns[c.Conn]; conn != nil {
			l.door.end(conn, c.Reason)
		}
	}
	if old := l.role.Load(); *old != e.Role {
		l.peers.founded(l.rep.Configuration())
		l.setRole(old, e.Role)
	}
	return true
}

// performLog hands disk and peers their part. The messages that depend on
// nothing go first: the followers work while the own disk does.
func (l *loop) performLog(e *replog.Effects) {
	l.peers.SendAll(e.Send)
	w := diskWork{install: e.InstallSnapshot, founded: e.SetFounded, appends: e.Append, after: e.After, trim: e.Trim}
	if !w.empty() {
		l.disk.put(w)
	}
	for _, r := range e.DiskRead {
		l.slow.readLog(r)
	}
	for _, r := range e.SnapshotRead {
		l.slow.readSnapshot(r)
	}
	for _, c := range e.ReceiveSnapshot {
		l.slow.receive(c)
	}
	if e.SaveSnapshot != nil {
		l.slow.save(e.SaveSnapshot)
	}
}

// queue gives a message to its connection's writer. A connection that does
// not read is cut off before it costs memory.
func (l *loop) queue(s *replica.ConnSend) {
	conn := l.conns[s.Conn]
	if conn == nil {
		return // gone meanwhile; the replica hears of it
	}
	l.door.send(conn, s.Message)
}

// setRole publishes a change of role. The replica itself notes when it begins
// and ceases to be master; here it is said whom it follows.
func (l *loop) setRole(old *replica.Role, role replica.Role) {
	l.role.Store(&role)
	select {
	case l.roleChanged <- struct{}{}:
	default:
	}
	switch {
	case role.Master || role.MasterName == old.MasterName:
	case role.MasterName != "":
		l.log.Info("another replica is master", "master", role.MasterName, "address", role.MasterAddress)
	default:
		l.log.Info("no master is known", "before", old.MasterName)
	}
}

// ask runs f with the replica on the loop and waits for it; an error: the
// loop has ended, or ctx has.
func (l *loop) ask(ctx context.Context, f func(*replica.Replica)) error {
	done := make(chan struct{})
	if !l.box.put(letter{aside: true, ask: func(r *replica.Replica) { f(r); close(done) }}) {
		return errStopping
	}
	select {
	case <-done:
		return nil
	case <-l.done:
		return errStopping
	case <-ctx.Done():
		return ctx.Err()
	}
}

func level(name string) slog.Level {
	switch name {
	case "error":
		return slog.LevelError
	case "warn":
		return slog.LevelWarn
	case "debug":
		return slog.LevelDebug
	}
	return slog.LevelInfo
}
