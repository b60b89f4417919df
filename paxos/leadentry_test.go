package paxos_test

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// A Lead entry tells the lowest wall clock of the majority that promised, the
// leader's own included, and its cell time. One that does not know makes it 0.
func TestLeadEntryTellsTheLowestClock(t *testing.T) {
	for _, tc := range []struct {
		name     string
		own      int64
		promises []int64 // of replicas 3, 4, in this order; a cell of five
		want     int64
	}{
		{"own is the lowest", 100, []int64{300, 200}, 100},
		{"the first promise is", 300, []int64{100, 200}, 100},
		{"the last promise is", 300, []int64{200, 100}, 100},
		{"own unknown", 0, []int64{200, 100}, 0},
		{"the first unknown", 300, []int64{0, 100}, 0},
		{"the last unknown", 300, []int64{100, 0}, 0},
		{"before 1970", 300, []int64{-5, 100}, 0},
		{"in 2160", 6_000_000_000, []int64{6_000_000_001, 6_000_000_002}, 6_000_000_000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			old := paxos.Ballot{Round: 1, Replica: 1}
			r := paxos.New(paxos.Options{ID: 2, Configuration: members(5)}, paxos.Restored{Promised: old, Chosen: 3, Applied: 3})
			now := 10 * ms
			r.Step(now, paxos.Tick{WallSeconds: tc.own + 50, CellTime: 7})
			r.Step(now, paxos.Campaign{})
			e := r.Take(now)
			b := e.Record.Promised
			r.Step(now, paxos.Persisted{Sequence: e.Sequence})
			r.Step(now, paxos.Tick{WallSeconds: tc.own, CellTime: 77})
			for i, wall := range tc.promises {
				receive(r, now, paxos.Message{Kind: paxos.MsgPromise, From: paxos.ReplicaID(3 + i), Ballot: b, Promised: b, OK: true,
					Slot: 4, Chosen: 3, WallSeconds: wall})
			}
			e = r.Take(now)
			if e.Record == nil || len(e.Record.Entries) != 1 {
				t.Fatalf("it records %+v", e.Record)
			}
			v := e.Record.Entries[0].Value
			if v.Kind != paxos.Lead || v.WallSeconds != tc.want || v.CellTime != 77 {
				t.Errorf("the entry is %+v, want the clock %d", v, tc.want)
			}
		})
	}
}

// A promise tells the clock as of the last tick, and a single replica its own.
func TestPromiseTellsTheClock(t *testing.T) {
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3)}, paxos.Restored{Chosen: 3, Applied: 3})
	now := time.Second
	r.Step(now, paxos.Tick{WallSeconds: 123})
	receive(r, now, paxos.Message{Kind: paxos.MsgPrepare, From: 3, Ballot: paxos.Ballot{Round: 4, Replica: 3}, Slot: 4})
	e := r.Take(now)
	if len(e.After) != 1 || e.After[0].WallSeconds != 123 {
		t.Errorf("it promises %+v", e.After)
	}
	r = paxos.New(paxos.Options{ID: 1, Configuration: members(1)}, paxos.Restored{Chosen: 3, Applied: 3})
	now = 20 * ms
	var lead []paxos.Entry
	for range 5 {
		r.Step(now, paxos.Tick{WallSeconds: 5, CellTime: 6})
		e := r.Take(now)
		r.Step(now, paxos.Persisted{Sequence: e.Sequence})
		lead = append(lead, e.Chosen...)
		now += 20 * ms
	}
	if len(lead) != 1 || lead[0].Value.WallSeconds != 5 || lead[0].Value.CellTime != 6 {
		t.Errorf("it leads with %+v", lead)
	}
}
