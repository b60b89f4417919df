package paxos

import "time"

// entryOverhead is what an entry costs in memory beyond its commands, for the
// bounds on bytes.
const entryOverhead = 64

// logEntry is a slot of the log in memory.
type logEntry struct {
	Entry
	size    int
	present bool
	at      time.Duration // when it was proposed, by this replica

}

// entryLog is the part of the log that is in memory: every slot from base on.
// Slots below base are on disk only, or in a snapshot. A slot may be a hole.
type entryLog struct {
	base  Slot // slot of e[0]; at least 1
	e     []logEntry
	bytes int // of all entries present
}

func (v *Value) size() int {
	n := entryOverhead
	for _, c := range v.Commands {
		n += len(c)
	}
	if v.Config != nil {
		n += 64 * len(v.Config.Members)
	}
	return n
}

// get returns the entry of a slot, nil if it is a hole or not in memory.
func (l *entryLog) get(s Slot) *logEntry {
	if s < l.base || s-l.base >= Slot(len(l.e)) {
		return nil
	}
	if x := &l.e[s-l.base]; x.present {
		return x
	}
	return nil
}

// put sets the entry of its slot, which must not lie below base.
func (l *entryLog) put(e Entry) {
	i := int(e.Slot - l.base)
	for len(l.e) <= i {
		l.e = append(l.e, logEntry{})
	}
	x := &l.e[i]
	l.bytes -= x.size
	*x = logEntry{Entry: e, size: e.Value.size(), present: true}
	l.bytes += x.size
}

// last is the highest slot present, base-1 if there is none.
func (l *entryLog) last() Slot {
	for i := len(l.e) - 1; i >= 0; i-- {
		if l.e[i].present {
			return l.base + Slot(i)
		}
	}
	return l.base - 1
}

// dropTo forgets every slot up to and including s.
func (l *entryLog) dropTo(s Slot) {
	if s < l.base {
		return
	}
	n := int(min(s-l.base+1, Slot(len(l.e))))
	for i := range l.e[:n] {
		l.bytes -= l.e[i].size
	}
	clear(l.e[:n]) // the array outlives the slice: let go of the values
	l.e = l.e[n:]
	l.base = s + 1
}

// collect returns entries from slot s on, up to and including to, until limit
// bytes are reached; at least one. It stops at a hole.
func (l *entryLog) collect(s, to Slot, limit int) []Entry {
	var out []Entry
	for n := 0; s <= to; s++ {
		x := l.get(s)
		if x == nil || (n > 0 && n+x.size > limit) {
			break
		}
		n += x.size
		out = append(out, x.Entry)
	}
	return out
}
