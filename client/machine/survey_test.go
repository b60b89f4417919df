package machine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
)

// from is a Hello's answer of a replica of the cell with this identity.
func from(identity uint64, master bool, masterAddress string) *pb.ServerMessage {
	return &pb.ServerMessage{Body: &pb.ServerMessage_Hello{Hello: &pb.HelloReply{
		Version: 2, Cell: "test", Replica: "n", Master: master, MasterAddress: masterAddress, CellIdentity: identity}}}
}

func refusedBy(code pb.ErrorCode) *pb.ServerMessage {
	return &pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Code: code, Text: "it says why", Fatal: true}}}
}

func (r *rig) says(address string, msg *pb.ServerMessage) {
	r.t.Helper()
	r.step(machine.Asked{Address: address, Message: msg})
}

func (r *rig) isDown(address string) {
	r.t.Helper()
	r.step(machine.Asked{Address: address, Err: errors.New("connection refused")})
}

// Which cell is meant, and whom the machine dials first.
func TestSurvey(t *testing.T) {
	const ours, theirs = 99, 66
	for _, c := range []struct {
		name    string
		options machine.Options
		play    func(r *rig)
		dials   string // "": none of them
		fails   error
		texts   []string // of the error
		warned  []string // addresses
	}{
		{name: "two of three are enough", play: func(r *rig) {
			r.says("c:1", from(theirs, true, "c:1"))
			r.says("a:1", from(ours, false, "b:1"))
			r.says("b:1", from(ours, true, "b:1"))
		}, dials: "b:1", warned: []string{"c:1"}},
		{name: "the foreign one is late", play: func(r *rig) {
			r.says("a:1", from(ours, false, "b:1"))
			r.says("b:1", from(ours, true, "b:1"))
			r.says("c:1", from(theirs, true, "c:1"))
		}, dials: "b:1", warned: []string{"c:1"}},
		{name: "one that is down has no vote", play: func(r *rig) {
			r.isDown("a:1")
			r.isDown("b:1")
			r.says("c:1", from(ours, true, "c:1"))
		}, dials: "c:1"},
		{name: "one that is silent has no vote, after a second", play: func(r *rig) {
			r.says("c:1", from(ours, true, "c:1"))
			r.isDown("b:1")
			r.pass(sec - ms)
			if r.dial != "" {
				r.t.Fatalf("dials %s before the time is over", r.dial)
			}
			r.pass(ms)
		}, dials: "c:1"},
		{name: "a tie", play: func(r *rig) {
			r.says("a:1", from(ours, true, "a:1"))
			r.says("b:1", from(theirs, true, "b:1"))
			r.isDown("c:1")
		}, fails: machine.ErrWrongCell, texts: []string{"a:1: replica n of cell test, identity 63", "b:1: replica n of cell test, identity 42", "c:1: connection refused"}},
		{name: "three cells", play: func(r *rig) {
			for i, a := range []string{"a:1", "b:1", "c:1"} {
				r.says(a, from(uint64(i+1), true, a))
			}
		}, fails: machine.ErrWrongCell, texts: []string{"a:1", "b:1", "c:1"}},
		{name: "the caller says which", options: machine.Options{CellIdentity: theirs}, play: func(r *rig) {
			r.says("a:1", from(ours, true, "a:1"))
			r.says("b:1", from(ours, false, "a:1"))
			r.says("c:1", from(theirs, true, "c:1"))
		}, dials: "c:1", warned: []string{"a:1", "b:1"}},
		{name: "the caller means none of them", options: machine.Options{CellIdentity: 5}, play: func(r *rig) {
			for _, a := range []string{"a:1", "b:1", "c:1"} {
				r.says(a, from(ours, true, "a:1"))
			}
		}, fails: machine.ErrWrongCell, texts: []string{"a:1", "b:1", "c:1", "not 5"}, warned: []string{"a:1", "b:1", "c:1"}},
		{name: "one of another version only", play: func(r *rig) {
			r.says("a:1", refusedBy(pb.ErrorCode_BAD_VERSION))
			r.says("b:1", from(ours, false, "c:1"))
			r.says("c:1", from(ours, true, "c:1"))
		}, dials: "c:1", warned: []string{"a:1"}},
		{name: "one that refuses the cell's name", play: func(r *rig) {
			r.says("a:1", refusedBy(pb.ErrorCode_WRONG_CELL))
			r.says("b:1", from(ours, true, "b:1"))
			r.isDown("c:1")
		}, dials: "b:1", warned: []string{"a:1"}},
		{name: "all refuse", play: func(r *rig) {
			for _, a := range []string{"a:1", "b:1", "c:1"} {
				r.says(a, refusedBy(pb.ErrorCode_BAD_VERSION))
			}
		}, fails: machine.ErrInvalid, texts: []string{"a:1: ", "b:1: ", "c:1: ", "it says why"}, warned: []string{"a:1", "b:1", "c:1"}},
		{name: "the master is not among the addresses", play: func(r *rig) {
			for _, a := range []string{"a:1", "b:1"} {
				r.says(a, from(ours, false, "m:1"))
			}
		}, dials: "m:1"},
		{name: "nobody is there at first", play: func(r *rig) {
			r.isDown("a:1")
			r.isDown("b:1")
			r.says("c:1", from(0, false, "")) // not founded
			if r.dial != "" || len(r.asks) != 3 {
				r.t.Fatalf("dials %q, has asked %v", r.dial, r.asks)
			}
			for _, text := range []string{"a:1: connection refused", "c:1: replica n belongs to no cell"} {
				if !strings.Contains(r.m.Attempts(), text) {
					r.t.Fatalf("attempts: %s", r.m.Attempts())
				}
			}
			r.pass(sec)
			if len(r.asks) != 6 {
				r.t.Fatalf("has asked %v", r.asks)
			}
			r.says("a:1", from(ours, true, "a:1"))
			r.says("b:1", from(ours, false, "a:1"))
		}, dials: "a:1"},
		{name: "an older service, without identity", play: func(r *rig) {
			r.says("a:1", from(0, false, "b:1"))
			r.says("b:1", from(0, true, ""))
			r.isDown("c:1")
		}, dials: "b:1"},
		{name: "no session is opened in time", play: func(r *rig) {
			r.pass(30 * sec)
		}, fails: machine.ErrUnavailable, texts: []string{"a:1: no answer in time"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.options.Survey = true
			r := newRig(t, c.options)
			if !slices.Equal(slices.Sorted(slices.Values(r.asks)), []string{"a:1", "b:1", "c:1"}) || r.dial != "" {
				t.Fatalf("asks %v, dials %q", r.asks, r.dial)
			}
			c.play(r)
			if err := r.m.Err(); !errors.Is(err, c.fails) {
				t.Fatalf("error %v, expected %v", err, c.fails)
			}
			for _, text := range c.texts {
				if !strings.Contains(r.m.Err().Error(), text) {
					t.Errorf("error %v, expected the text %q", r.m.Err(), text)
				}
			}
			if r.dial != c.dials {
				t.Errorf("dials %q, expected %q", r.dial, c.dials)
			}
			var warned []string
			for _, w := range r.warned {
				address, _, _ := strings.Cut(w, " is skipped: ")
				warned = append(warned, address)
			}
			if !slices.Equal(slices.Sorted(slices.Values(warned)), c.warned) {
				t.Errorf("warnings %q, expected of %v", r.warned, c.warned)
			}
		})
	}
}

// An address that is given twice is one address: it is asked once, has one vote,
// and nothing is waited for when it has answered.
func TestAddressGivenTwice(t *testing.T) {
	r := newRig(t, machine.Options{Survey: true, Addresses: []string{"a:1", "b:1", "a:1", "b:1", "a:1"}})
	if len(r.asks) != 2 {
		t.Fatalf("asks %v", r.asks)
	}
	r.says("a:1", from(99, true, "a:1"))
	r.isDown("b:1")
	if r.dial != "a:1" {
		t.Fatalf("dials %q when all have answered", r.dial)
	}
	r = newRig(t, machine.Options{Survey: true, Addresses: []string{"a:1", "a:1"}})
	if len(r.asks) != 0 || r.dial != "a:1" {
		t.Fatalf("asks %v, dials %q: there is one address", r.asks, r.dial)
	}
	r = newRig(t, machine.Options{Survey: true, Addresses: []string{"a:1", "b:1", "b:1"}})
	r.says("a:1", from(99, true, "a:1"))
	r.says("b:1", from(66, true, "b:1"))
	if err := r.m.Err(); !errors.Is(err, machine.ErrWrongCell) || strings.Count(err.Error(), "b:1: ") != 1 {
		t.Fatalf("error %v, expected a tie of two", err)
	}
}

// A foreign replica that answers when there is a session already is warned of,
// and is not tried when the connection breaks.
func TestForeignReplicaAnswersLate(t *testing.T) {
	r := newRig(t, machine.Options{Survey: true})
	r.says("a:1", from(99, true, "a:1"))
	r.says("b:1", from(99, false, "a:1"))
	r.open()
	r.keepAlive()
	r.says("c:1", from(66, true, "c:1"))
	if len(r.warned) != 1 || !strings.HasPrefix(r.warned[0], "c:1 is skipped") {
		t.Fatalf("warnings %q", r.warned)
	}
	r.cut()
	for range 6 {
		if a := r.dialed(); a == "c:1" {
			t.Fatal("the foreign replica is dialed")
		}
		r.cut()
	}
}

// A foreign replica that comes to one of the addresses later is skipped, warned
// of once, and named when no master is found.
func TestForeignReplicaIsSkipped(t *testing.T) {
	r := newRig(t, machine.Options{Survey: true, Grace: 60 * sec, Addresses: []string{"a:1", "b:1"}})
	r.says("a:1", from(99, true, "a:1"))
	r.says("b:1", from(99, false, "a:1"))
	r.open()
	r.keepAlive()
	r.cut()
	for range 6 {
		r.dialed()
		r.receive(from(66, true, ""))
	}
	if r.m.Err() != nil || len(r.warned) != 2 {
		t.Fatalf("error %v, warnings %q", r.m.Err(), r.warned)
	}
	if text := r.m.Attempts(); !strings.Contains(text, "identity 42, not 63") {
		t.Fatalf("attempts: %s", text)
	}
	r.attach() // it was restored
	r.receive(kept(r.keepAlive(), 0, 12*sec))
	r.lastState(machine.Live)
}
