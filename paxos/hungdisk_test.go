package paxos_test

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// owing counts what a replica hands out to a disk that hangs.
type owing struct {
	writes, after, entries, bytes, reads int
	last                                 uint64 // sequence
	says                                 []paxos.Message
}

func (o *owing) take(r *paxos.Replica, now time.Duration) {
	e := r.Take(now)
	if e.Sequence != 0 {
		o.writes++
		o.last = e.Sequence
	}
	o.after += len(e.After)
	o.says = append(o.says, e.After...)
	o.reads += len(e.ReadLog)
	for _, m := range e.After {
		o.entries += len(m.Entries)
	}
	if e.Record != nil {
		for _, x := range e.Record.Entries {
			o.bytes += 64
			for _, c := range x.Value.Commands {
				o.bytes += len(c)
			}
		}
	}
}

// For an hour the disk of replica 2 hangs, and the others go on: whatever they
// send again and again, what waits for the disk stays small. When it goes on, the
// last that was asked is answered.
func TestHungDiskIsOwedLittle(t *testing.T) {
	const window = 100_000
	old := paxos.Ballot{Round: 1, Replica: 1}
	from3 := func(round uint64) paxos.Ballot { return paxos.Ballot{Round: round, Replica: 3} }
	for _, tc := range []struct {
		name string
		say  func(i int, last paxos.Slot) []paxos.Message
		// wanted is what it says once the disk goes on.
		wanted paxos.MessageKind
	}{
		{"one candidate", func(int, paxos.Slot) []paxos.Message {
			return []paxos.Message{{Kind: paxos.MsgPrepare, From: 3, Ballot: from3(2), Slot: 4}}
		}, paxos.MsgPromise},
		{"two candidates in turn", func(i int, _ paxos.Slot) []paxos.Message {
			b := paxos.Ballot{Round: uint64(i + 2), Replica: paxos.ReplicaID(1 + 2*(i%2))}
			return []paxos.Message{{Kind: paxos.MsgPrepare, From: b.Replica, Ballot: b, Slot: 4, OK: true}}
		}, paxos.MsgPromise},
		{"a leader that sends again", func(int, paxos.Slot) []paxos.Message {
			return []paxos.Message{{Kind: paxos.MsgAccept, From: 3, Ballot: from3(2), Chosen: 3, Entries: []paxos.Entry{value(4, from3(2), "x")}}}
		}, paxos.MsgAccepted},
		{"leaders in turn", func(i int, _ paxos.Slot) []paxos.Message {
			b := paxos.Ballot{Round: uint64(i + 2), Replica: paxos.ReplicaID(1 + 2*(i%2))}
			return []paxos.Message{{Kind: paxos.MsgAccept, From: b.Replica, Ballot: b, Chosen: 3, Entries: []paxos.Entry{value(4, b, "x")}}}
		}, paxos.MsgAccepted},
		{"a leader that goes on without it", func(_ int, last paxos.Slot) []paxos.Message {
			return []paxos.Message{{Kind: paxos.MsgAccept, From: 3, Ballot: from3(2), Chosen: last, Entries: []paxos.Entry{value(last+1, from3(2), string(make([]byte, 1000)))}}}
		}, paxos.MsgAccepted},
		{"heartbeats of leaders in turn", func(i int, _ paxos.Slot) []paxos.Message {
			b := paxos.Ballot{Round: uint64(i + 2), Replica: paxos.ReplicaID(1 + 2*(i%2))}
			return []paxos.Message{{Kind: paxos.MsgHeartbeat, From: b.Replica, Ballot: b, Chosen: 3, Sequence: uint64(i)}}
		}, 0},
		{"a follower that catches up", func(i int, _ paxos.Slot) []paxos.Message {
			return []paxos.Message{{Kind: paxos.MsgCatchUp, From: 3, Slot: 1, Limit: 100}}
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := paxos.Restored{Promised: old, Chosen: 3, Applied: 3, First: 1}
			for slot := paxos.Slot(4); slot < 104; slot++ {
				found.Entries = append(found.Entries, value(slot, old, "x"))
			}
			r := paxos.New(paxos.Options{ID: 2, Configuration: members(3), WindowBytes: window}, found)
			var o owing
			now := time.Second
			for i := range 36_000 {
				now += 100 * ms
				r.Step(now, paxos.Tick{})
				for _, m := range tc.say(i, r.Status().Last) {
					receive(r, now, m)
				}
				o.take(r, now)
				if err := r.Check(); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%+v", owing{writes: o.writes, after: o.after, entries: o.entries, bytes: o.bytes, reads: o.reads})
			if o.writes > 300 || o.after > 300 || o.entries > 100 || o.bytes > 6*window || o.reads > 4 {
				t.Errorf("after an hour %d writes, %d messages with %d entries, %d bytes and %d reads wait", o.writes, o.after, o.entries, o.bytes, o.reads)
			}
			if tc.wanted == 0 {
				return
			}
			o.says = nil
			promised := r.Status().Promised
			for range 2 {
				r.Step(now, paxos.Persisted{Sequence: o.last})
				o.take(r, now)
			}
			for _, m := range tc.say(36_000, r.Status().Last) {
				if m.Ballot == promised {
					receive(r, now, m)
				}
			}
			o.take(r, now)
			for _, m := range o.says {
				if m.Kind == tc.wanted && m.OK && m.Ballot == promised {
					return
				}
			}
			t.Errorf("the disk goes on, and it says %v", o.says)
		})
	}
}

// A candidate whose disk hangs behind its promise repeats its prepares without
// owing anything for it.
func TestPreparesOfAHungDisk(t *testing.T) {
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3)}, paxos.Restored{Chosen: 3, Applied: 3})
	var o owing
	r.Step(0, paxos.Campaign{})
	o.take(r, 0)
	r.Step(0, paxos.Persisted{Sequence: o.last})
	o.take(r, 0)
	r.Step(0, paxos.NoteChosen{})
	o.take(r, 0)
	before := o
	now := time.Duration(0)
	for range 36_000 {
		now += 100 * ms
		r.Step(now, paxos.Tick{})
		o.take(r, now)
	}
	if o.writes > before.writes+10 || o.after > before.after+20 {
		t.Errorf("after an hour %d writes and %d messages wait", o.writes-before.writes, o.after-before.after)
	}
}

// A promise that names a slot that no acceptor stores is not counted, and one that
// names the last that it may store is.
func TestPromiseOfImpossibleSlots(t *testing.T) {
	old := paxos.Ballot{Round: 1, Replica: 1}
	for above, counts := range map[paxos.Slot]bool{1: true, 64: true, 65: false, 1 << 40: false, 1<<64 - 10: false} {
		r := paxos.New(paxos.Options{ID: 2, Configuration: members(3), WindowSlots: 16}, paxos.Restored{Promised: old, Chosen: 3, Applied: 3})
		r.Step(0, paxos.Campaign{})
		e := r.Take(0)
		b := e.Record.Promised
		r.Step(0, paxos.Persisted{Sequence: e.Sequence})
		receive(r, 0, paxos.Message{Kind: paxos.MsgPromise, From: 3, Ballot: b, Promised: b, OK: true, Slot: 4, Chosen: 3,
			Entries: []paxos.Entry{{Slot: 3 + above, Ballot: old, Named: true}}})
		fetches := false
		for _, m := range r.Take(0).Now {
			fetches = fetches || m.Kind == paxos.MsgFetch
			if m.Kind == paxos.MsgAccept {
				t.Errorf("slot %d above its chosen index: it proposes without the value", above)
			}
		}
		if fetches != counts {
			t.Errorf("slot %d above its chosen index: it goes on: %v", above, fetches)
		}
	}
}
