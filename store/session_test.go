package store

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

func marshal(t testing.TB, c *pb.Command) []byte {
	t.Helper()
	b, err := proto.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRequestsAreExecutedOnceAndInOrder(t *testing.T) {
	c := newCell(t)
	a := c.open()
	send := func(number, lowest uint64, cmd *pb.Command) *pb.Result {
		cmd.Session, cmd.Number, cmd.LowestUnanswered = a, number, lowest
		return c.apply(cmd)
	}
	r := send(1, 1, put("/x", "one"))
	if r := send(3, 1, put("/x", "three")); r.Code != pb.Code_RETRY || r.Number != 3 {
		t.Fatalf("a gap got %v", r)
	}
	again := send(1, 1, put("/x", "one"))
	if !proto.Equal(r, again) || len(c.last) != 0 {
		t.Fatalf("a repeat got %v, first %v", again, r)
	}
	if void := send(1, 1, &pb.Command{Op: &pb.Command_VoidRequest{VoidRequest: &pb.VoidRequest{}}}); !proto.Equal(r, void) {
		t.Fatalf("void of an executed request got %v", void)
	}
	if n, _ := c.s.Node("/x"); string(n.Data) != "one" || n.Stat.ContentGeneration != 1 {
		t.Fatalf("%v", n)
	}
	if r := send(2, 1, &pb.Command{Op: &pb.Command_VoidRequest{VoidRequest: &pb.VoidRequest{}}}); r.Code != pb.Code_VOIDED {
		t.Fatalf("%v", r)
	}
	if r := send(2, 1, put("/x", "late")); r.Code != pb.Code_VOIDED {
		t.Fatalf("a voided request got %v", r)
	}
	send(3, 3, put("/x", "three"))
	if r := send(1, 3, put("/x", "one")); r.Code != pb.Code_FORGOTTEN {
		t.Fatalf("%v", r)
	}
	if n, _ := c.s.Node("/x"); string(n.Data) != "three" {
		t.Fatalf("%v", n)
	}
	if r := send(0, 0, put("/x", "zero")); r.Code != pb.Code_BAD_COMMAND {
		t.Fatalf("%v", r)
	}
}

func TestFailedConditionsTakeNoRevision(t *testing.T) {
	c := newCell(t)
	a := c.open()
	c.want(pb.Code_OK, a, putIf("/x", "1", exists(false)))
	before := c.s.Revision()
	r := c.want(pb.Code_CONFLICT, a, putIf("/x", "2", exists(false)))
	if r.Stat.GetContentGeneration() != 1 || c.s.Revision() != before {
		t.Fatalf("%v, revision %d -> %d", r, before, c.s.Revision())
	}
	c.want(pb.Code_NOT_FOUND, a, putIf("/y", "2", generation(1)))
	r = c.want(pb.Code_OK, a, putIf("/x", "2", generation(1)))
	if r.Stat.ContentGeneration != 2 || r.Revision != before+1 {
		t.Fatalf("%v", r)
	}
}

func TestWindowIsBounded(t *testing.T) {
	c := newCell(t)
	a := c.open()
	n := uint64(1)
	send := func(lowest uint64) *pb.Result {
		r, _ := c.s.Apply(marshal(t, &pb.Command{Epoch: c.s.Epoch(), Session: a, Number: n, LowestUnanswered: lowest, Op: &pb.Command_Put{Put: &pb.Put{Path: "/x", Create: true}}}))
		return r
	}
	for ; n <= WindowMax; n++ {
		if r := send(1); r.Code != pb.Code_OK {
			t.Fatalf("%d: %v", n, r)
		}
	}
	if r := send(1); r.Code != pb.Code_LIMIT {
		t.Fatalf("%v", r)
	}
	if x, _ := c.s.Session(a); x.LastNumber != WindowMax {
		t.Fatal("the refused request has taken its number")
	}
	if r := send(2); r.Code != pb.Code_OK {
		t.Fatalf("with an answer taken: %v", r)
	}
	if err := c.s.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestOpenSession(t *testing.T) {
	c := newCell(t)
	open := func(o *pb.OpenSession) *pb.Result {
		return c.apply(&pb.Command{Op: &pb.Command_OpenSession{OpenSession: o}})
	}
	nonce := []byte("12345678")
	for _, x := range []struct{ asked, got uint64 }{{0, LeaseMinMillis}, {5000, 5000}, {math.MaxUint64, LeaseMaxMillis}} {
		r := open(&pb.OpenSession{Nonce: fmt.Appendf(nil, "lease %20d", x.asked), LeaseMs: x.asked})
		if r.LeaseMs != x.got {
			t.Errorf("asked for %d ms: %v", x.asked, r)
		}
	}
	one, again := open(&pb.OpenSession{Nonce: nonce}), open(&pb.OpenSession{Nonce: nonce, LeaseMs: 9000})
	if one.Session == 0 || again.Session != one.Session || again.LeaseMs != LeaseMinMillis {
		t.Fatalf("%v, %v", one, again)
	}
	for _, bad := range []*pb.OpenSession{
		{Nonce: nonce[:7]}, {Nonce: make([]byte, NonceMax+1)},
		{Nonce: []byte("another-one"), Client: &pb.ClientInfo{Name: strings.Repeat("n", NameMax+1)}},
	} {
		if r := open(bad); r.Code != pb.Code_BAD_COMMAND {
			t.Errorf("%v", r)
		}
	}
}

func TestEventsStayUntilAcknowledged(t *testing.T) {
	c := newCell(t)
	a, b := c.open(), c.open()
	for range 3 {
		n := c.next[a]
		c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
		m := c.next[b]
		c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
		c.want(pb.Code_OK, a, release(n))
		c.want(pb.Code_OK, b, release(m))
	}
	if got := c.eventsOf(b); got != "GRANTED 1, GRANTED 3, GRANTED 5" {
		t.Fatalf("events %q", got)
	}
	with := create("/y")
	with.AckedEvent = 2
	c.want(pb.Code_OK, b, with)
	if got := c.eventsOf(b); got != "GRANTED 5" {
		t.Fatalf("events %q", got)
	}
	// More than there is acknowledges what there is, and no event to come.
	with = create("/z")
	with.AckedEvent = 1 << 60
	c.want(pb.Code_OK, b, with)
	c.want(pb.Code_OK, a, acquire("/x", exclusive, 0))
	c.want(pb.Code_WAITING, b, acquire("/x", exclusive, 0))
	c.want(pb.Code_OK, a, release(c.next[a]-1))
	if got := c.eventsOf(b); got != fmt.Sprintf("GRANTED %d", c.next[b]-1) {
		t.Fatalf("events %q", got)
	}
}

func TestEveryCommandIsAnswered(t *testing.T) {
	c := newCell(t)
	a := c.open()
	if r := c.applyBytes([]byte("garbage")); r.Code != pb.Code_BAD_COMMAND {
		t.Errorf("garbage: %v", r)
	}
	if r := c.applyBytes(nil); r.Code != pb.Code_STALE_EPOCH {
		t.Errorf("nothing: %v", r)
	}
	if r := c.apply(&pb.Command{}); r.Code != pb.Code_BAD_COMMAND {
		t.Errorf("no operation: %v", r)
	}
	if r := c.apply(create("/x")); r.Code != pb.Code_UNKNOWN_SESSION {
		t.Errorf("no session: %v", r)
	}
	if r := c.apply(&pb.Command{Session: 4711, Number: 1, Op: create("/x").Op}); r.Code != pb.Code_UNKNOWN_SESSION {
		t.Errorf("unknown session: %v", r)
	}
	// A number that is used is used up, whatever for.
	c.want(pb.Code_BAD_COMMAND, a, &pb.Command{})
	c.want(pb.Code_BAD_COMMAND, a, &pb.Command{Op: &pb.Command_Clock{Clock: &pb.Clock{}}})
	c.want(pb.Code_BAD_COMMAND, a, &pb.Command{Op: &pb.Command_Acquire{Acquire: &pb.Acquire{Path: "/x"}}})
	c.want(pb.Code_BAD_COMMAND, a, acquire("/x", exclusive, LockDelayMaxMillis+1))
	c.want(pb.Code_BAD_COMMAND, a, createKind("/x", 77))
	c.want(pb.Code_BAD_PATH, a, acquire("x", exclusive, 0))
	c.want(pb.Code_BAD_PATH, a, del("/"))
	c.want(pb.Code_TOO_LARGE, a, put("/x", strings.Repeat("x", DataMax+1)))
	c.want(pb.Code_OK, a, put("/x", strings.Repeat("x", DataMax)))
	c.want(pb.Code_NOT_FOUND, a, create("/no/parent"))
	c.want(pb.Code_EXISTS, a, create("/x"))
	c.want(pb.Code_OK, a, create("/x/y"))
	c.want(pb.Code_NOT_EMPTY, a, del("/x"))
}
