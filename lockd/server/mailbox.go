package server

import (
	"sync"
	"sync/atomic"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
)

// letter is one event on its way to the loop.
type letter struct {
	event replica.Event
	// conn is set for the events of a client's connection, and size is what the
	// message weighs there until it has been stepped, in bytes.
	conn *clientConn
	size int
	// peerBytes is what a peer's message weighs in the peers' allowance.
	peerBytes int
	wakes     wakes
	// aside: who puts it has other things to do than to take the loop's turn, or
	// is not to wait for longer than it says.
	aside bool
	vote  paxos.Slot // of a letter that wakes ifVotes: it votes for slots up to it
	// ask, instead of an event, is a question that the loop answers (HTTP).
	ask func(*replica.Replica)
}

// wakes tells when a letter wakes the loop. One that does not is taken along
// with the next that does, or with the next tick.
type wakes uint8

const (
	always wakes = iota
	// gathered: it may wait for others, and for what is under way, since nothing
	// could come of it before.
	gathered
	// ifFlush and ifVotes: only if something depends on the end of a flush, or on
	// votes for so high a slot.
	ifFlush
	ifVotes
)

// mood is what a batch has left open.
type mood struct {
	gather int // so many requests wait for each other
	flush  bool
	votes  paxos.Slot // above it votes count
}

// mailbox gathers what happens for the loop. It takes everything: each sender
// has a bound of its own (a connection's pending bytes, the peers' allowance,
// one completion for each effect that the replica asked for), and clients wait
// while it is full of all their messages together.
type mailbox struct {
	mu     sync.Mutex
	items  []letter
	wake   chan struct{} // one slot: something is there
	kick   func()        // takes the loop's turn, in place of wake; nil: nobody does
	woken  bool          // wake has been filled since the last swap
	mood   mood          // as of the last swap
	closed bool
	bytes  int           // of clients' messages among items
	most   int           // of these: from then on it is full; 0: never
	full   atomic.Bool   // clients are to wait
	room   chan struct{} // while it is full: closed with the next swap
}

// keepLetters is how much room an emptied slice keeps.
const keepLetters = 4096

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

// put adds a letter; false: the loop has ended and will not read it.
func (m *mailbox) put(l letter) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	wake := m.add(&l)
	m.mu.Unlock()
	if wake {
		m.rouse(l.aside)
	}
	return true
}

// putAll is put for several letters, none of them aside. They are not kept.
func (m *mailbox) putAll(letters []letter) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	wake := false
	for i := range letters {
		wake = m.add(&letters[i]) || wake
	}
	m.mu.Unlock()
	if wake {
		m.rouse(false)
	}
	return true
}

// add adds a letter and reports whether the loop is to be woken; mu is held.
func (m *mailbox) add(l *letter) bool {
	m.items = append(m.items, *l)
	if m.bytes += l.size; m.bytes > m.most && m.most > 0 && m.room == nil {
		m.room = make(chan struct{})
		m.full.Store(true)
	}
	wake := !m.woken && m.matters(l)
	m.woken = m.woken || wake
	return wake
}

// rouse has the loop's turn taken, from here unless the caller stands aside.
func (m *mailbox) rouse(aside bool) {
	if m.kick != nil && !aside {
		m.kick()
		return
	}
	m.signal()
}

// signal wakes the loop's goroutine.
func (m *mailbox) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// waits reports whether a letter came since the last swap that is not to wait.
func (m *mailbox) waits() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.woken
}

// matters reports whether the loop is to be woken for a letter that was put.
func (m *mailbox) matters(l *letter) bool {
	switch l.wakes {
	case gathered:
		return len(m.items) >= m.mood.gather
	case ifFlush:
		return m.mood.flush
	case ifVotes:
		return l.vote > m.mood.votes
	}
	return true
}

// anyMatters reports whether a letter that did not wake the loop when it came
// would now: the batch since then may have left open what it is about.
func (m *mailbox) anyMatters() bool {
	for i := range m.items {
		if m.items[i].wakes != gathered && m.matters(&m.items[i]) {
			return true
		}
	}
	return false
}

// swap takes all letters and leaves the given slice, which must be empty, for
// the next ones. The mood tells what wakes the loop until then. As long as fewer
// requests than are to gather are there, and nothing else, they are left where
// they are (the given slice comes back), so that they cost one wake-up together.
// What they wait for will put a letter when it ends.
func (m *mailbox) swap(empty []letter, now mood) []letter {
	m.mu.Lock()
	items := m.items
	m.mood = now
	if len(m.items) < now.gather && !m.woken && !m.anyMatters() {
		m.mu.Unlock()
		return empty
	}
	m.items, m.woken = empty, false
	m.empty()
	m.mu.Unlock()
	return items
}

// empty notes that all messages have been taken; mu is held.
func (m *mailbox) empty() {
	m.bytes = 0
	if m.room != nil {
		m.full.Store(false)
		close(m.room)
		m.room = nil
	}
}

// wait waits until the mailbox is not full any more; false: one of the given
// channels was closed before.
func (m *mailbox) wait(gone, stop <-chan struct{}) bool {
	m.mu.Lock()
	room := m.room
	m.mu.Unlock()
	if room == nil {
		return true
	}
	select {
	case <-room:
		return true
	case <-gone:
		return false
	case <-stop:
		return false
	}
}

// close makes put refuse and returns what nobody will read any more.
func (m *mailbox) close() []letter {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.empty()
	items := m.items
	m.items = nil
	return items
}

// recycle empties a slice of letters for the next swap.
func recycle(items []letter) []letter {
	if cap(items) > keepLetters {
		return nil
	}
	clear(items)
	return items[:0]
}
