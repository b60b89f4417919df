package paxos_test

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// Replicas with a disk that is late, or that forgot what it had not flushed.

func value(slot paxos.Slot, b paxos.Ballot, command string) paxos.Entry {
	return paxos.Entry{Slot: slot, Ballot: b, Value: paxos.Value{Kind: paxos.Batch, Commands: [][]byte{[]byte(command)}}}
}

func receive(r *paxos.Replica, now time.Duration, m paxos.Message) {
	m.To = 2
	r.Step(now, paxos.Receive{Message: m})
}

func TestReadOfTheLogEndsBeforeWhatIsQueued(t *testing.T) {
	old, b := paxos.Ballot{Round: 1, Replica: 1}, paxos.Ballot{Round: 2, Replica: 3}
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3), MemoryBytes: 1}, paxos.Restored{
		Promised: old, Chosen: 3, Applied: 3, First: 1, Entries: []paxos.Entry{value(4, old, "never chosen")},
	})
	wants := func(upTo paxos.Slot) {
		t.Helper()
		receive(r, 0, paxos.Message{Kind: paxos.MsgCatchUp, From: 1, Slot: 2, Limit: 1 << 20})
		e := r.Take(0)
		if len(e.ReadLog) != 1 || e.ReadLog[0].UpTo != upTo {
			t.Fatalf("asks to read %+v: of the slots behind %d another value may be on disk", e.ReadLog, upTo)
		}
	}
	accept := paxos.Message{Kind: paxos.MsgAccept, From: 3, Ballot: b, Chosen: 6}
	for slot := paxos.Slot(4); slot <= 7; slot++ {
		accept.Entries = append(accept.Entries, value(slot, b, "chosen"))
	}
	receive(r, 0, accept)
	e := r.Take(0)
	if len(e.Chosen) != 3 || e.Record == nil {
		t.Fatalf("chosen %v, record %v", e.Chosen, e.Record)
	}
	wants(3)
	r.Step(0, paxos.Persisted{Sequence: e.Sequence})
	wants(5)
}

func TestSlowDiskOfAFollowerBoundsWhatItTakesOn(t *testing.T) {
	const window = 10_000
	b := paxos.Ballot{Round: 2, Replica: 3}
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3), WindowBytes: window}, paxos.Restored{Promised: b, Chosen: 3, Applied: 3})
	var next paxos.Slot = 4
	var last uint64
	take := func() (recorded int) {
		e := r.Take(0)
		if e.Sequence != 0 {
			last = e.Sequence
		}
		if e.Record != nil {
			for _, x := range e.Record.Entries {
				recorded += len(x.Value.Commands[0])
				next = x.Slot + 1
			}
		}
		return recorded
	}
	command := string(make([]byte, 1000))
	accepts := func() (recorded int) {
		for range 200 {
			receive(r, 0, paxos.Message{Kind: paxos.MsgAccept, From: 3, Ballot: b, Chosen: next - 1, Entries: []paxos.Entry{value(next, b, command)}})
			recorded += take()
		}
		return recorded
	}
	if n := accepts(); n == 0 || n > 10*window {
		t.Errorf("%d bytes accepted wait for the disk", n)
	}
	for range 200 {
		receive(r, 0, paxos.Message{Kind: paxos.MsgCatchUpReply, From: 3, Chosen: 1000, Entries: []paxos.Entry{value(next, b, command)}})
		if n := take(); n > 0 {
			t.Fatalf("%d bytes more are learnt while so much waits for the disk", n)
		}
	}
	r.Step(0, paxos.Persisted{Sequence: last})
	if n := accepts(); n == 0 {
		t.Error("nothing is accepted although the disk has caught up")
	}
}

func TestSlotsThatAFollowerForgotAreSentAgain(t *testing.T) {
	old := paxos.Ballot{Round: 1, Replica: 1}
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3)}, paxos.Restored{Promised: old, Chosen: 3, Applied: 3})
	r.Step(0, paxos.Campaign{})
	e := r.Take(0)
	b := e.Record.Promised
	r.Step(0, paxos.Persisted{Sequence: e.Sequence})
	receive(r, 0, paxos.Message{Kind: paxos.MsgPromise, From: 3, Ballot: b, Promised: b, OK: true, Slot: 4, Chosen: 3,
		Entries: []paxos.Entry{value(4, old, "a"), value(5, old, "b")}})
	r.Take(0)
	// Replica 1 knows slots 4 and 5 chosen, but has not flushed that. It loses it
	// in a power cut, and replica 3 goes away.
	ack := paxos.Message{Kind: paxos.MsgHeartbeatAck, From: 1, Ballot: b, Promised: b, OK: true, Chosen: 5}
	receive(r, 0, ack)
	ack.Chosen = 3
	for now := 20 * time.Millisecond; now < time.Second; now += 20 * time.Millisecond {
		receive(r, now, ack)
		r.Step(now, paxos.Tick{})
		for _, m := range r.Take(now).Now {
			if m.Kind == paxos.MsgAccept && m.To == 1 && m.Entries[0].Slot == 4 {
				return
			}
		}
	}
	t.Error("slot 4 is not sent again: the cell hangs, with a majority there")
}
