package replog

import (
	"slices"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
)

// acceptedLog holds the newest recorded entry of every slot above the applied
// one. When a snapshot replaces the log these are what must not be forgotten:
// votes already given above the snapshot. It is as long as what is in flight.
type acceptedLog struct {
	entries []paxos.Entry // by ascending slot, no slot twice
	head    int           // entries before it are applied
}

// put records an entry; it takes the place of an older one of its slot.
func (l *acceptedLog) put(e paxos.Entry) {
	n := len(l.entries)
	if n == l.head || l.entries[n-1].Slot < e.Slot {
		l.entries = append(l.entries, e)
		return
	}
	i, found := l.find(e.Slot)
	if found {
		l.entries[i] = e
		return
	}
	l.entries = slices.Insert(l.entries, i, e)
}

// find returns where the slot stands, or where it would.
func (l *acceptedLog) find(slot paxos.Slot) (index int, found bool) {
	i, found := slices.BinarySearchFunc(l.entries[l.head:], slot, func(e paxos.Entry, s paxos.Slot) int {
		switch {
		case e.Slot < s:
			return -1
		case e.Slot > s:
			return 1
		}
		return 0
	})
	return l.head + i, found
}

// get returns the entry of a slot.
func (l *acceptedLog) get(slot paxos.Slot) (paxos.Entry, bool) {
	if i, found := l.find(slot); found {
		return l.entries[i], true
	}
	return paxos.Entry{}, false
}

// dropTo forgets all slots up to and including slot.
func (l *acceptedLog) dropTo(slot paxos.Slot) {
	for l.head < len(l.entries) && l.entries[l.head].Slot <= slot {
		l.entries[l.head] = paxos.Entry{}
		l.head++
	}
	switch {
	case l.head == len(l.entries):
		l.head = 0
		l.entries = l.entries[:0]
		if cap(l.entries) > 4096 {
			l.entries = nil
		}
	case l.head > 1024 && l.head > len(l.entries)/2:
		n := copy(l.entries, l.entries[l.head:])
		clear(l.entries[n:])
		l.entries, l.head = l.entries[:n], 0
	}
}

// above returns a copy of all entries above slot.
func (l *acceptedLog) above(slot paxos.Slot) []paxos.Entry {
	i, found := l.find(slot)
	if found {
		i++
	}
	return slices.Clone(l.entries[i:])
}

// check asserts the order of slots.
func (l *acceptedLog) check(applied paxos.Slot) {
	last := applied
	for _, e := range l.entries[l.head:] {
		if e.Slot <= last {
			invariant.Assert(false, "entry of slot %d stands behind slot %d (applied %d)", e.Slot, last, applied)
		}
		last = e.Slot
	}
}
