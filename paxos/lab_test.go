package paxos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// lab runs a cell against a clock: messages and flushes take time, and each
// replica is woken when something comes, at each tick, and when it is due.
// Replica 1 leads. It is the watcher of its cell, and measures.
type lab struct {
	t *testing.T
	*cell
	delay    func(from, to paxos.ReplicaID) time.Duration // of a message
	flush    map[paxos.ReplicaID]time.Duration            // of a disk; 0: none
	flushing map[paxos.ReplicaID]bool
	late     []late
	tock     time.Duration // last tick
	wires    *wires        // nil: messages take their delay, whatever their size
	tries    map[string]int
	// campaigns counts the ballots that were prepared.
	campaigns int
	prepared  paxos.Ballot
	wrote     int

	asked map[paxos.Slot]time.Duration // when a slot was proposed
	sentn map[paxos.ReplicaID]paxos.Slot
	measured
}

// measured since the last forget.
type measured struct {
	count   int           // slots chosen
	slowest time.Duration // of them, from proposing to choosing
	slow1   int           // of them, those that took more than 1 ms
	lag     time.Duration // most from proposing a slot to sending it to a follower
	accepts map[paxos.ReplicaID]int
	again   int // slots that were sent to somebody once more
	fetched int // catch-up messages
	values  int // fetches of values that were named
	woken   map[paxos.ReplicaID]int
}

// late is something that happens later.
type late struct {
	at time.Duration
	do func()
}

func newLab(t *testing.T, conf paxos.Configuration, o paxos.Options) *lab {
	l := &lab{t: t, flush: map[paxos.ReplicaID]time.Duration{}, flushing: map[paxos.ReplicaID]bool{},
		asked: map[paxos.Slot]time.Duration{}, sentn: map[paxos.ReplicaID]paxos.Slot{}, tries: map[string]int{}}
	l.forget()
	l.delay = func(paxos.ReplicaID, paxos.ReplicaID) time.Duration { return 200 * time.Microsecond }
	o.MemoryBytes = 4 << 10 // each Step is followed by a look at all of it
	l.cell = newCellOf(conf, true, o, nil)
	l.show = l
	for _, n := range l.nodes {
		n.slow = true
	}
	l.tock = l.now
	l.step(l.nodes[0], paxos.Campaign{})
	l.take(l.nodes[0])
	l.run(100*time.Millisecond, 0)
	if l.nodes[0].role.Role != paxos.Leader {
		t.Fatal("replica 1 does not lead")
	}
	return l
}

func (l *lab) forget() {
	l.measured = measured{accepts: map[paxos.ReplicaID]int{}, woken: map[paxos.ReplicaID]int{}}
}

func (l *lab) thrift() paxos.ThriftCounts { return l.nodes[0].r.Status().Thrift }

func (l *lab) lost(*paxos.Message, string) {}

func (l *lab) sent(m *paxos.Message) {
	switch {
	case m.Kind == paxos.MsgPrepare && l.prepared.Less(m.Ballot):
		l.prepared = m.Ballot
		l.campaigns++
	case m.Kind == paxos.MsgFetch:
		l.values++
	case m.Kind == paxos.MsgCatchUp:
		l.fetched++
	case m.Kind == paxos.MsgAccept && m.From == 1:
		l.accepts[m.To]++
		for _, e := range m.Entries {
			if e.Slot <= l.sentn[m.To] {
				l.again++
				continue
			}
			l.sentn[m.To] = e.Slot
			l.lag = max(l.lag, l.now-l.asked[e.Slot])
		}
	}
}

func (l *lab) took(n *node, e *paxos.Effects) {
	if n.id != 1 {
		return
	}
	if e.Record != nil {
		for _, x := range e.Record.Entries {
			l.asked[x.Slot] = l.now
		}
	}
	for _, x := range e.Chosen {
		if at, ok := l.asked[x.Slot]; ok {
			l.count++
			l.slowest = max(l.slowest, l.now-at)
			if l.now-at > time.Millisecond {
				l.slow1++
			}
		}
	}
}

func (l *lab) later(d time.Duration, do func()) { l.late = append(l.late, late{l.now + d, do}) }

// launch begins what takes time: the ways of messages, and flushes.
func (l *lab) launch() {
	for _, k := range l.net {
		if l.wires != nil {
			l.wires.put(k)
			continue
		}
		l.later(l.delay(k.m.From, k.m.To), func() {
			if n := l.node(k.m.To); n.r != nil && k.m.Kind == paxos.MsgAccepted {
				if _, above := n.r.Awaits(); k.m.Slot > above {
					l.woken[k.m.From]++
				}
			}
			l.net = append(l.net, k)
			l.deliver(len(l.net)-1, false)
		})
	}
	l.net = nil
	for _, n := range l.nodes {
		if n.r == nil || len(n.owed) == 0 || l.flushing[n.id] {
			continue
		}
		l.flushing[n.id] = true
		count := len(n.owed)
		l.later(l.flush[n.id], func() {
			l.flushing[n.id] = false
			if n.r != nil {
				l.persist(n, count)
			}
		})
	}
}

// run lets time pass; the leader gets a command every so often, if not 0.
func (l *lab) run(d, every time.Duration) {
	end, write := l.now+d, l.now
	for {
		l.launch()
		next := min(end, l.tock+20*time.Millisecond)
		if every > 0 {
			next = min(next, write)
		}
		for _, n := range l.nodes {
			if n.r != nil {
				next = min(next, n.r.Due(l.now))
			}
		}
		for _, x := range l.late {
			next = min(next, x.at)
		}
		l.now = max(l.now, next)
		if l.now >= end {
			return
		}
		l.happen(&write, every)
		for _, n := range l.nodes {
			if n.r != nil && (n.dirty || n.r.Due(l.now) <= l.now) {
				l.take(n)
			}
		}
	}
}

// happen does what its time has come for.
func (l *lab) happen(write *time.Duration, every time.Duration) {
	if l.now >= l.tock+20*time.Millisecond {
		l.tock = l.now
		l.tick(0)
	}
	if every > 0 && l.now >= *write {
		*write += every
		l.wrote++
		commands := [][]byte{fmt.Appendf(nil, "w%d", l.wrote)}
		l.hist.given(l.nodes[0], commands)
		l.step(l.nodes[0], paxos.Propose{Commands: commands})
	}
	waiting := l.late
	l.late = nil
	for _, x := range waiting {
		if x.at > l.now {
			l.late = append(l.late, x)
			continue
		}
		x.do()
	}
}
