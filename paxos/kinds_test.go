package paxos_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/paxos"
)

// Rules that a run of chance does not reach in good time, each as a small story
// that says what is wrong; nil: nothing is. TestPlanted plants the bugs that
// break them.
var kinds = []struct {
	name string
	bug  invariant.Bug
	tell func(t *testing.T) error
}{
	{"a leader that hears a minority steps down", invariant.MinorityKeepsLead, minorityKeepsNobody},
	{"a leader with a disk that hangs steps down", invariant.HungDiskKeepsLead, hungDiskKeepsNobody},
	{"members without a vote have none", invariant.LearnersPromise, learnersHaveNoVote},
	{"a leader learns nothing from others", invariant.LeaderLearns, leaderLearnsNothing},
	{"only what is chosen is given for chosen", invariant.CatchUpGivesAccepted, catchUpGivesChosen},
	{"only the value named is taken", invariant.ValueOfAnyBallot, valueIsOfItsBallot},
}

func TestKinds(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if err := told(t, k.tell); err != nil {
				t.Error(err)
			}
		})
	}
}

// told makes an error of what a story panics with.
func told(t *testing.T, tell func(t *testing.T) error) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation, string:
			err = fmt.Errorf("%v", v)
		default:
			panic(v)
		}
	}()
	return tell(t)
}

// Whatever else works: replica 1 leads on only if it hears a majority of the
// voters. Its own messages may all arrive, and learners may all answer.
func minorityKeepsNobody(t *testing.T) error {
	for _, tc := range []struct{ voters, learners, heard int }{{3, 0, 0}, {3, 2, 0}, {5, 0, 1}, {5, 2, 1}, {4, 0, 1}, {3, 1, 1}, {5, 0, 2}} {
		for _, writes := range []time.Duration{0, 5 * ms} {
			conf := members(tc.voters + tc.learners)
			for i := range tc.learners {
				conf.Members[tc.voters+i].Voter = false
			}
			l := newLab(t, conf, paxos.Options{})
			l.run(2*time.Second, 5*ms)
			ballot := l.nodes[0].role.Ballot
			for id := tc.heard + 2; id <= tc.voters; id++ {
				l.cut[[2]paxos.ReplicaID{paxos.ReplicaID(id), 1}] = true
			}
			l.run(2*time.Second, writes)
			leads := l.nodes[0].role.Role == paxos.Leader && l.nodes[0].role.Ballot == ballot
			if majority := 2*(tc.heard+1) > tc.voters; leads != majority {
				return fmt.Errorf("of %d voters and %d learners it hears %d voters and leads: %v", tc.voters, tc.learners, tc.heard, leads)
			}
		}
	}
	return nil
}

// While writes come, while none comes, and while only reads come.
func hungDiskKeepsNobody(t *testing.T) error {
	for _, what := range []string{"writes", "one write", "reads"} {
		l := newLab(t, members(3), paxos.Options{})
		l.run(2*time.Second, 5*ms)
		ballot := l.nodes[0].role.Ballot
		l.flush[1] = time.Hour
		l.run(20*ms, 5*ms)
		for i := range 300 {
			switch every := 10 * ms; what {
			case "writes":
				l.run(every, 5*ms)
			case "reads":
				l.hist.asked(l.cell, l.nodes[0], uint64(i))
				l.step(l.nodes[0], paxos.ConfirmRead{ID: uint64(i)})
				l.run(every, 0)
			default:
				l.run(every, 0)
			}
		}
		if n := l.nodes[0]; n.role.Role == paxos.Leader && n.role.Ballot == ballot {
			return fmt.Errorf("%s: after 3 s it leads with a disk that hangs", what)
		}
		if l.whoLeads() == nil {
			return fmt.Errorf("%s: after 3 s nobody leads", what)
		}
	}
	return nil
}

// Replica 2 of three voters and two learners hears the learners alone. They say
// yes to all it asks, and more than it asks.
func learnersHaveNoVote(*testing.T) error {
	conf := members(5)
	conf.Members[3].Voter, conf.Members[4].Voter = false, false
	old := paxos.Ballot{Round: 1, Replica: 1}
	start := func() *paxos.Replica {
		return paxos.New(paxos.Options{ID: 2, Configuration: conf}, paxos.Restored{Promised: old, Chosen: 3, Applied: 3})
	}
	// 1. probes
	r := start()
	for now := time.Duration(0); now < 3*time.Second; now += 20 * ms {
		r.Step(now, paxos.Tick{})
		for _, m := range r.Take(now).Now {
			if m.Kind == paxos.MsgProbe {
				for from := paxos.ReplicaID(4); from <= 5; from++ {
					receive(r, now, paxos.Message{Kind: paxos.MsgProbeReply, From: from, OK: true, Promised: old, Chosen: 3, Sequence: m.Sequence})
				}
			}
		}
		if r.Status().Role != paxos.Follower {
			return fmt.Errorf("it is %v by the word of learners", r.Status().Role)
		}
	}
	// 2. promises
	r = start()
	r.Step(0, paxos.Campaign{})
	e := r.Take(0)
	b := e.Record.Promised
	r.Step(0, paxos.Persisted{Sequence: e.Sequence})
	for from := paxos.ReplicaID(4); from <= 5; from++ {
		receive(r, 0, paxos.Message{Kind: paxos.MsgPromise, From: from, Ballot: b, Promised: b, OK: true, Slot: 4, Chosen: 3})
	}
	for _, m := range r.Take(0).Now {
		if m.Kind == paxos.MsgAccept || m.Kind == paxos.MsgHeartbeat {
			return fmt.Errorf("it leads by the promises of learners")
		}
	}
	// 3. votes, and answers to heartbeats
	receive(r, 0, paxos.Message{Kind: paxos.MsgPromise, From: 3, Ballot: b, Promised: b, OK: true, Slot: 4, Chosen: 3})
	e = r.Take(0)
	r.Step(0, paxos.Persisted{Sequence: e.Sequence})
	vote := func(from paxos.ReplicaID) {
		receive(r, 0, paxos.Message{Kind: paxos.MsgAccepted, From: from, Ballot: b, Promised: b, OK: true, Slot: 4, Chosen: 3})
		receive(r, 0, paxos.Message{Kind: paxos.MsgHeartbeatAck, From: from, Ballot: b, Promised: b, OK: true, Slot: 4, Chosen: 3})
	}
	vote(4)
	vote(5)
	if e = r.Take(0); len(e.Chosen) > 0 || r.Status().Role == paxos.Leader {
		return fmt.Errorf("%d slots are chosen by the votes of learners", len(e.Chosen))
	}
	vote(3)
	if e = r.Take(0); len(e.Chosen) != 1 || r.Status().Role != paxos.Leader {
		return fmt.Errorf("%d slots are chosen by two voters of three", len(e.Chosen))
	}
	// 4. reads
	r.Step(0, paxos.ConfirmRead{ID: 1})
	beat := uint64(0)
	for _, m := range r.Take(0).Now {
		if m.Kind == paxos.MsgHeartbeat {
			beat = m.Sequence
		}
	}
	for from := paxos.ReplicaID(4); from <= 5; from++ {
		receive(r, 0, paxos.Message{Kind: paxos.MsgHeartbeatAck, From: from, Ballot: b, Promised: b, OK: true, Chosen: 3, Sequence: beat})
	}
	if e = r.Take(0); len(e.Confirmed) > 0 {
		return fmt.Errorf("learners confirm a read")
	}
	return nil
}

// wonBy2 returns replica 2 of three as it has won a ballot by the promise of 3,
// which named entries; what it sends at that is returned, too.
func wonBy2(found paxos.Restored, promise paxos.Message) (*paxos.Replica, paxos.Ballot, paxos.Effects) {
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3)}, found)
	r.Step(0, paxos.Campaign{})
	e := r.Take(0)
	b := e.Record.Promised
	r.Step(0, paxos.Persisted{Sequence: e.Sequence})
	promise.Kind, promise.From, promise.Ballot, promise.Promised, promise.OK = paxos.MsgPromise, 3, b, b, true
	receive(r, 0, promise)
	return r, b, r.Take(0)
}

// A leader that was superseded, and does not know it, is told of slots that
// others have chosen since: in answer to what it asked before its election, or
// without having asked.
func leaderLearnsNothing(*testing.T) error {
	for _, asked := range []bool{false, true} {
		old := paxos.Ballot{Round: 1, Replica: 1}
		r, b, _ := wonBy2(paxos.Restored{Promised: old, Chosen: 3, Applied: 3}, paxos.Message{Slot: 4, Chosen: 3})
		if asked {
			receive(r, 0, paxos.Message{Kind: paxos.MsgProbeReply, From: 1, Chosen: 6})
		}
		later := paxos.Ballot{Round: b.Round + 5, Replica: 1}
		var chosen []paxos.Entry
		for s := paxos.Slot(4); s <= 6; s++ {
			x := value(s, later, fmt.Sprint(s))
			x.Chosen = true
			chosen = append(chosen, x)
		}
		for _, kind := range []paxos.MessageKind{paxos.MsgCatchUpReply, paxos.MsgValues} {
			receive(r, 0, paxos.Message{Kind: kind, From: 1, Slot: 4, Chosen: 6, OK: true, Ballot: b, Entries: chosen})
			if e := r.Take(0); len(e.Chosen) > 0 || r.Status().Chosen > 3 {
				return fmt.Errorf("a leader learns slots by message %d", kind)
			}
		}
	}
	return nil
}

// A leader with open slots, and a follower that has accepted some, are asked for
// what they know: they give what is chosen, and no more.
func catchUpGivesChosen(*testing.T) error {
	b := paxos.Ballot{Round: 2, Replica: 3}
	r := paxos.New(paxos.Options{ID: 2, Configuration: members(3)}, paxos.Restored{Promised: b, Chosen: 3, Applied: 1,
		Entries: []paxos.Entry{value(2, b, "a"), value(3, b, "b"), value(4, b, "open"), value(5, b, "open too")}})
	for from := paxos.Slot(1); from <= 6; from++ {
		receive(r, 0, paxos.Message{Kind: paxos.MsgCatchUp, From: 1, Slot: from, Limit: 1 << 20})
		e := r.Take(0)
		for _, m := range e.Now {
			for _, x := range m.Entries {
				if x.Slot > 3 {
					return fmt.Errorf("slot %d is given, which is not chosen", x.Slot)
				}
			}
		}
		for _, q := range e.ReadLog {
			if q.UpTo > 3 {
				return fmt.Errorf("the log is read up to slot %d, which is not chosen", q.UpTo)
			}
		}
	}
	return nil
}

// A candidate lacks the value that was named. It gets one of a lower ballot,
// one of a higher ballot, one of another slot, and one that is only named. It takes
// none, and then the right one, which another replica gives.
func valueIsOfItsBallot(*testing.T) error {
	old, mid, high := paxos.Ballot{Round: 1, Replica: 1}, paxos.Ballot{Round: 2, Replica: 3}, paxos.Ballot{Round: 3, Replica: 1}
	r, b, e := wonBy2(paxos.Restored{Promised: old, Chosen: 3, Applied: 3, Entries: []paxos.Entry{value(4, old, "own"), value(5, mid, "same")}},
		paxos.Message{Slot: 4, Chosen: 3, Entries: []paxos.Entry{{Slot: 4, Ballot: mid, Named: true}, {Slot: 5, Ballot: mid, Named: true}}})
	asked := false
	for _, m := range e.Now {
		if m.Kind == paxos.MsgFetch && m.To == 3 && len(m.Entries) == 1 && m.Entries[0].Slot == 4 && m.Entries[0].Ballot == mid {
			asked = true // and not for slot 5, whose value it has at that ballot
		}
	}
	if !asked {
		return fmt.Errorf("it asks for %v", e.Now)
	}
	for _, wrong := range []paxos.Entry{value(4, old, "lower"), value(4, high, "higher"), value(6, mid, "not asked for"), {Slot: 4, Ballot: mid, Named: true}} {
		receive(r, 0, paxos.Message{Kind: paxos.MsgValues, From: 3, OK: true, Ballot: paxos.Ballot{Round: 9, Replica: 2}, Chosen: 3, Entries: []paxos.Entry{wrong}})
		for _, m := range r.Take(0).Now {
			if m.Kind == paxos.MsgAccept {
				return fmt.Errorf("it proposes %s, given %s", entriesText(m.Entries, b), entriesText([]paxos.Entry{wrong}, b))
			}
		}
	}
	receive(r, 0, paxos.Message{Kind: paxos.MsgValues, From: 1, OK: true, Ballot: b, Chosen: 3, Entries: []paxos.Entry{value(4, mid, "right")}})
	for _, m := range r.Take(0).Now {
		if m.Kind == paxos.MsgAccept {
			if got := entriesText(m.Entries[:2], b); got != " 4=[right] 5=[same]" {
				return fmt.Errorf("it proposes%s", got)
			}
			return nil
		}
	}
	return fmt.Errorf("it does not propose the value that was named")
}
