package paxos_test

import (
	"testing"

	"github.com/seed70370324/lockd/paxos"
)

// A candidate fetches the value of slot 4, loses its ballot, and campaigns again.
// What it has kept is used for slot 4 only at the ballot at which it was accepted:
// meanwhile another leader, which it has not heard, may have had another value
// accepted there, and chosen.
func TestValueOfAnEarlierCampaign(t *testing.T) {
	old, high := paxos.Ballot{Round: 1, Replica: 1}, paxos.Ballot{Round: 4, Replica: 1}
	for _, tc := range []struct {
		name    string
		accepts paxos.Ballot // of slot 4, as the second promise names it
		fetches bool
	}{{"same ballot", old, false}, {"higher ballot", high, true}} {
		t.Run(tc.name, func(t *testing.T) {
			r := paxos.New(paxos.Options{ID: 2, Configuration: members(3)}, paxos.Restored{Promised: old, Chosen: 3, Applied: 3})
			win := func(from paxos.ReplicaID, entries ...paxos.Entry) (paxos.Ballot, []paxos.Message) {
				r.Step(0, paxos.Campaign{})
				e := r.Take(0)
				if e.Record == nil {
					t.Fatal("it does not campaign")
				}
				b := e.Record.Promised
				r.Step(0, paxos.Persisted{Sequence: e.Sequence})
				receive(r, 0, paxos.Message{Kind: paxos.MsgPromise, From: from, Ballot: b, Promised: b, OK: true, Slot: 4, Chosen: 3, Entries: entries})
				return b, r.Take(0).Now
			}
			b, _ := win(3, paxos.Entry{Slot: 4, Ballot: old, Named: true}, paxos.Entry{Slot: 5, Ballot: old, Named: true})
			receive(r, 0, paxos.Message{Kind: paxos.MsgValues, From: 3, OK: true, Ballot: b, Slot: 4, Chosen: 3, Entries: []paxos.Entry{value(4, old, "kept")}})
			receive(r, 0, paxos.Message{Kind: paxos.MsgValues, From: 3, Ballot: b, Promised: paxos.Ballot{Round: b.Round + 5, Replica: 1}, Slot: 5, Chosen: 3})
			r.Take(0)
			b, says := win(1, paxos.Entry{Slot: 4, Ballot: tc.accepts, Named: true})
			fetches := false
			for _, m := range says {
				switch m.Kind {
				case paxos.MsgFetch:
					fetches = true
				case paxos.MsgAccept:
					if got := entriesText(m.Entries[:1], b); tc.fetches || got != " 4=[kept]" {
						t.Errorf("it proposes%s", got)
					}
				}
			}
			if fetches != tc.fetches {
				t.Errorf("it fetches: %v, and says %v", fetches, says)
			}
		})
	}
}
