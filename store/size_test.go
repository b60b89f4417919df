package store

import (
	"bytes"
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"unsafe"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// longPath is a path of almost PathMax bytes, and longText a client's name.
var (
	longPath = strings.Repeat("/"+strings.Repeat("p", NameMax-1), PathMax/NameMax)
	longText = strings.Repeat("n", TextMax)
)

// The overheads cover the structures that they stand for, with their places in
// the tables: B-trees of this degree are at least half full.
func TestOverheadsCoverTheStructures(t *testing.T) {
	place := func(size uintptr) int { return int(2 * size) }
	state := int(unsafe.Sizeof(node{}))
	for _, x := range []struct {
		what        string
		have, least int
	}{
		{"node", nodeBytes, state + place(unsafe.Sizeof(nodeItem{})) + place(unsafe.Sizeof(ephemeralItem{}))},
		{"lock", lockBytes, int(unsafe.Sizeof(lock{})) + place(unsafe.Sizeof(lockItem{}))},
		{"claim", claimBytes, int(unsafe.Sizeof(claim{})) + place(unsafe.Sizeof(claimItem{})) + place(unsafe.Sizeof(queueItem{})) + place(unsafe.Sizeof(timerItem{}))},
		{"session", sessionBytes, int(unsafe.Sizeof(session{})+unsafe.Sizeof(pb.ClientInfo{})) + place(unsafe.Sizeof(sessionItem{})) + place(unsafe.Sizeof(nonceItem{}))},
		{"result", resultBytes, int(unsafe.Sizeof(pb.Result{})) + place(unsafe.Sizeof(keptResult{}))},
		{"event", eventBytes, int(unsafe.Sizeof(pb.SessionEvent{})) + place(unsafe.Sizeof(eventItem{}))},
		{"stat", statBytes, int(unsafe.Sizeof(pb.Stat{}))},
		{"grant", grantBytes, int(unsafe.Sizeof(pb.Grant{}))},
		{"blocker", blockerBytes, int(unsafe.Sizeof(pb.Blocker{}) + unsafe.Sizeof(pb.ClientInfo{}))},
	} {
		if bits.UintSize == 64 && x.have < x.least {
			t.Errorf("a %s is counted with %d bytes and takes %d", x.what, x.have, x.least)
		}
	}
}

func TestSizeFollowsTheState(t *testing.T) {
	c := newCell(t)
	a := c.open()
	size := func() int64 { _, n := c.s.Size(); return n }
	empty := size()
	grows := func(by int64, session uint64, cmd *pb.Command) {
		t.Helper()
		c.want(pb.Code_OK, a, multi())
		before := size()
		c.want(pb.Code_OK, session, cmd)
		if got := size() - before; got != by {
			t.Errorf("%v: the state grew by %d bytes, not %d", cmd, got, by)
		}
	}
	// The result of the request before it goes with each: an empty Multi's.
	grows(nodeBytes+2+1000+2+statBytes, a, put("/x", strings.Repeat("c", 1000)))
	grows(-999+2+statBytes, a, put("/x", "c"))
	grows(claimBytes+2+7+1+lockBytes+2+2+grantBytes+2, a, acquire("/x", exclusive, 0))
	if nodes, _ := c.s.Size(); nodes != 2 {
		t.Errorf("%d nodes", nodes)
	}
	c.want(pb.Code_OK, a, delForce("/x"))
	c.want(pb.Code_OK, a, closeSession(true))
	if size() != empty-sessionBytes-12-7-1 {
		t.Errorf("%d bytes are left of %d", size(), empty)
	}
}

// records reads a snapshot, and returns how long its longest record is and how
// many are of a session.
func records(t *testing.T, s *Store, session uint64) (longest, of int) {
	t.Helper()
	in := &recordReader{r: bufioReader(snapshot(t, s))}
	for {
		r, err := in.read()
		if err != nil {
			break
		}
		longest = max(longest, proto.Size(r))
		if r.GetSession().GetId() == session {
			of++
		}
	}
	if restore(t, snapshot(t, s)).Hash() != s.Hash() {
		t.Fatal("the state is another one after a snapshot")
	}
	return longest, of
}

// openLong opens a session of a client with the longest texts.
func (q *quick) openLong() uint64 {
	q.nonces++
	r := q.send(&pb.Command{Op: &pb.Command_OpenSession{OpenSession: &pb.OpenSession{
		Nonce: fmt.Appendf(nil, "long-%06d", q.nonces), LeaseMs: 12_000,
		Client: &pb.ClientInfo{Name: longText, Host: longText, Pid: 1 << 62}}}})
	q.next[r.Session] = 1
	return r.Session
}

// A client that takes no events and whose requests time out, 65,000 times, behind
// sixteen others with long names: at the bound new locks are refused, nothing that
// gives up is, no event is lost, and a snapshot can be written and read.
func TestClientThatAcknowledgesNothing(t *testing.T) {
	q := newQuick(t)
	for range BlockersMax {
		s := q.openLong()
		q.do(s, acquire(longPath, exclusive, 0))
	}
	v := q.openLong()
	q.passes(v, acquire("/held", exclusive, 1000))
	q.passes(v, acquire("/held2", exclusive, 1000))
	waits, refused := 0, 0
	for range 65_000 {
		switch r := q.do(v, acquireWait(longPath, exclusive, 1)); {
		case r.Code == pb.Code_WAITING:
			waits++
			q.now += 2_000_000
			due := q.s.NextDue(1)
			q.send(&pb.Command{CellTime: q.now, Op: &pb.Command_Timers{Timers: &pb.Timers{Due: []*pb.TimerRef{due[0].Ref}}}})
		case r.Code == pb.Code_LIMIT && r.Limit == LimitEventBytes:
			refused++
			q.next[v] = r.Number + 1
		default:
			t.Fatal(r)
		}
	}
	if waits < 1000 || refused < 1000 {
		t.Fatalf("%d waited, %d were refused", waits, refused)
	}
	events, first, last := 0, 0, 0
	q.s.Events(v, 0, func(e *pb.SessionEvent) bool {
		events++
		if e.Code != pb.Code_TIMED_OUT || int(e.Number) != events {
			t.Fatalf("%v", e)
		}
		if events == 1 {
			first = len(e.Blockers)
		}
		last = len(e.Blockers)
		return true
	})
	if events != waits || first != BlockersMax || last >= first {
		t.Fatalf("%d events of %d waits, the first with %d blockers, the last with %d", events, waits, first, last)
	}
	if err := q.s.Check(); err != nil {
		t.Fatal(err)
	}
	longest, of := records(t, q.s, v)
	if longest > partBytes+largestMax || of < 3 {
		t.Fatalf("%d records, the longest of %d bytes", of, longest)
	}
	q.passes(v, forfeit(1))
	q.passes(v, release(1))
	q.passes(v, put("/x", "")) // it causes no event
	if r := q.do(v, void()); r.Code != pb.Code_VOIDED {
		t.Fatal(r)
	}
	// The lock that it holds is taken away, and there is room for the news.
	held, _ := q.s.Lock("/held2")
	q.passes(v, breakLock("/held2", held.Fence))
	ack := put("/x", "")
	ack.AckedEvent = uint64(waits) / 2
	q.passes(v, ack)
	q.passes(v, acquireWait(longPath, exclusive, 1))
	q.ends()
}

func TestBytesOfResults(t *testing.T) {
	q := newQuick(t)
	a := q.openLong()
	checks := func(n int) *pb.Command {
		return multiOf(n, func(int) *pb.MultiOp { return check(longPath) })
	}
	q.passes(a, acquire(longPath, exclusive, 0))
	q.passes(a, put(longPath, "x"))
	// The largest result of all passes, for a client that takes its answers.
	r := q.passes(a, checks(MultiMax))
	if size := resultSize(r); size > largestMax || size < largestMax/2 {
		t.Fatalf("a result of %d bytes, the largest is said to be %d", size, largestMax)
	}
	first, n := q.next[a], q.next[a]
	send := func(c *pb.Command) *pb.Result {
		c.Session, c.Number, c.LowestUnanswered = a, n, first
		r := q.send(c)
		if r.Code != pb.Code_LIMIT {
			n++
		}
		return r
	}
	for {
		if r := send(checks(100)); r.Code == pb.Code_LIMIT {
			if r.Limit != LimitResultBytes || !strings.Contains(r.Detail, "not executed") {
				t.Fatal(r)
			}
			break
		}
	}
	kept := n - first
	for send(put(longPath, "y")).Code == pb.Code_OK {
	}
	x, _ := q.s.session(a)
	if kept < 10 || n-first >= WindowMax || x.resultBytes > ResultBytesMax || x.resultBytes < ResultBytesMax-2*singleMax {
		t.Fatalf("%d results of %d bytes", n-first, x.resultBytes)
	}
	if r := q.send(&pb.Command{Session: a, Number: first, LowestUnanswered: first, Op: checks(100).Op}); len(r.Results) != 100 {
		t.Fatalf("the first result is gone: %v", r)
	}
	for _, c := range []*pb.Command{forfeit(1), release(1)} {
		if r := send(c); r.Code != pb.Code_OK {
			t.Fatal(r)
		}
	}
	if r := send(void()); r.Code != pb.Code_VOIDED {
		t.Fatal(r)
	}
	if err := q.s.Check(); err != nil {
		t.Fatal(err)
	}
	if longest, of := records(t, q.s, a); of < 3 || longest > partBytes+largestMax {
		t.Fatalf("%d records, the longest of %d bytes", of, longest)
	}
	if r := send(closeSession(true)); r.Code != pb.Code_OK {
		t.Fatal(r)
	}
	if err := q.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// The longest answers, of a refusal that names who is in the way too, are within
// what was allowed for before they were executed.
func TestAnswersAreWithinTheirBound(t *testing.T) {
	q := newQuick(t)
	a := q.openLong()
	q.passes(a, acquire(longPath, shared, 0))
	for range BlockersMax {
		q.passes(q.openLong(), acquire(longPath, shared, 0))
	}
	ghost := q.next[a]
	q.passes(a, acquire(longPath[:len(longPath)-1], exclusive, 0))
	q.passes(a, forfeit(ghost))
	dead := &pb.Holding{Path: longPath, Session: a, Ticket: 99}
	for _, c := range []*pb.Command{
		del(longPath), acquireWait(longPath, exclusive, 0), acquire(longPath, exclusive, 0), breakLock(longPath, 1), create(longPath),
		putIf(longPath, "", heldBy(dead)), putIf(longPath, "", generation(9)), release(7),
		{Op: &pb.Command_Release{Release: &pb.Release{Path: longPath, Ticket: ghost}}},
		multi(check(longPath), &pb.MultiOp{Op: &pb.MultiOp_Delete{Delete: &pb.Delete{Path: longPath}}}),
		multi(multiRelease(1), multiRelease(ghost), &pb.MultiOp{Op: &pb.MultiOp_Create{Create: sequential(longPath[:len(longPath)-20]).GetCreate()}}, check(longPath)),
		{Op: &pb.Command_Put{Put: &pb.Put{Path: strings.Repeat("/x", 1<<20)}}},
		{Op: &pb.Command_Create{Create: &pb.Create{Path: longPath + "/", Sequential: true}}},
	} {
		r := q.do(a, c)
		if size := resultSize(r); size > answerMax(c) {
			t.Errorf("%v: %d bytes, %d were allowed for", r, size, answerMax(c))
		}
	}
	q.ends()
}

// The largest record that a state can have is one that the reader takes.
func TestLargestRecord(t *testing.T) {
	q := newQuick(t)
	whole := put(longPath, strings.Repeat("c", DataMax))
	whole.GetPut().Parents = true
	q.passes(q.open(), whole)
	for left := WaitersMax; left > 0; left -= LocksMax / 2 {
		s := q.openLong()
		for range LocksMax / 2 {
			q.s.begin()
			x, _ := q.s.session(s)
			n, _ := q.s.node(longPath)
			if !n.locked {
				q.s.openLock(longPath)
			}
			q.next[s]++
			c := &claim{session: s, ticket: q.next[s], path: longPath, client: x.client, revision: q.s.now,
				sinceWall: 1 << 60, sinceCell: 1 << 60, delayMS: LockDelayMaxMillis, leaseMS: LeaseMaxMillis, mode: shared}
			q.s.admit(c)
			q.s.addClaim(c)
			q.s.noteLock(c, LockAcquired, 0)
			q.s.commit()
		}
	}
	var image bytes.Buffer
	if err := q.s.WriteSnapshot(&image); err != nil {
		t.Fatal(err)
	}
	longest := 0
	for in := (&recordReader{r: bufioReader(image.Bytes())}); ; {
		r, err := in.read()
		if err != nil {
			break
		}
		longest = max(longest, proto.Size(r))
	}
	if longest < DataMax+WaitersMax*2*TextMax || longest > recordMax/2 {
		t.Fatalf("the longest record is of %d bytes", longest)
	}
}
