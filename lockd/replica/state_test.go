package replica

import (
	"fmt"
	"strings"
	"testing"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/replog"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// The state has a limit, the smallest that a member tells: the master takes
// nothing that makes it grow beyond, and everything that does not.

func create(path, data string) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Create{Create: &storepb.Create{Path: path, Data: []byte(data), HasData: true, Parents: true}}}
}

func txn(ops ...*storepb.MultiOp) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: ops}}}
}

// limit sets what the members can hold, beyond what there is.
func (r *testReplica) limit(nodes int, bytes int64) {
	n, b := r.store.Size()
	r.log.state = replog.StateLimits{Nodes: uint64(n + nodes), Bytes: uint64(b + bytes)}
	r.c.advance(tick)
}

func TestFullState(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, long)
	cl.code(storepb.Code_OK, cl.do(s, put("/a", "12345")))
	cl.code(storepb.Code_OK, cl.do(s, lock("/l", 0)))
	cl.code(storepb.Code_OK, cl.do(s, put("/gone", "x")))
	other := r.dial()
	refused := func(limit string, cmd *storepb.Command) {
		t.Helper()
		cl.send(request(s, cl.number+1, cmd))
		e := cl.err(wirepb.ErrorCode_TOO_MANY)
		if e.GetLimit() != limit || !strings.Contains(e.GetText(), "delete something") || e.GetNumber() != cl.number+1 {
			t.Errorf("%v: error %v, want the limit %s", cmd, e, limit)
		}
	}
	growing := []*storepb.Command{
		create("/new", ""), put("/new", ""), put("/x/y/z", "1"), lock("/other", 0),
		txn(&storepb.MultiOp{Op: &storepb.MultiOp_Delete{Delete: &storepb.Delete{Path: "/gone"}}},
			&storepb.MultiOp{Op: &storepb.MultiOp_Create{Create: &storepb.Create{Path: "/new"}}}),
	}
	r.limit(0, 1<<20)
	for _, cmd := range growing {
		refused(master.LimitStateNodes, cmd)
	}
	cl.code(storepb.Code_OK, cl.do(s, put("/a", "larger than it was"))) // no node
	r.limit(100, 0)
	for _, cmd := range append(growing, put("/a", strings.Repeat("x", 100)), lock("/a", 0)) {
		refused(master.LimitStateBytes, cmd)
	}
	other.send(open(2, nonce(2), long))
	if e := other.err(wirepb.ErrorCode_TOO_MANY); e.GetLimit() != master.LimitStateBytes || e.GetId() != 2 {
		t.Errorf("another session: %v", e)
	}
	// What does not make it grow, and what ends something.
	cl.send(keepAlive(1, true, s))
	cl.kept(1, s)
	for _, cmd := range []*storepb.Command{put("/a", "small"), remove("/gone"), unlock("/l", 2), void()} {
		cl.do(s, cmd)
	}
	cl.send(open(1, nonce(1), long)) // a repeat makes no session
	if cl.next().GetOpened().GetSession() != s {
		t.Error("the repeat of an opening is refused")
	}
	m := r.Metrics()
	if m.Limited[master.LimitStateBytes] == 0 || m.StateBytesMax == 0 || m.StateBytes == 0 || m.StateNodesMax == 0 {
		t.Errorf("metrics %+v", m)
	}
	// Raised, it takes everything again.
	r.log.state = replog.StateLimits{}
	c.advance(tick)
	cl.code(storepb.Code_OK, cl.do(s, create("/new", "")))
	cl.code(storepb.Code_OK, cl.do(s, &storepb.Command{Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{WorkEnded: true}}}))
}

// What is under way counts: a burst does not exceed the limit.
func TestFullStateCountsWhatIsUnderWay(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, long)
	r.limit(10, 1<<30)
	r.log.hold = true
	for n := range uint64(40) {
		cl.post(request(s, n+1, create(fmt.Sprintf("/n%d", n), "")))
	}
	c.settle()
	r.log.hold = false
	c.settle()
	nodes, _ := r.store.Size()
	if most := int(r.log.state.Nodes); nodes != most {
		t.Errorf("%d nodes, the limit is %d", nodes, most)
	}
	r.limit(0, 0)
	limit := r.log.state.Bytes + 100<<10
	r.log.state = replog.StateLimits{Bytes: limit}
	c.advance(tick)
	cl.all()
	r.log.hold = true
	v, _ := r.store.Session(s)
	for n := range uint64(40) {
		cl.post(request(s, v.LastNumber+n+1, put("/n1", strings.Repeat("x", int(n+1)*4<<10))))
	}
	c.settle()
	r.log.hold = false
	c.settle()
	if _, bytes := r.store.Size(); bytes > int64(limit) {
		t.Errorf("%d bytes, the limit is %d", bytes, limit)
	}
}

// Where only what is under way may fill the state, and seldom does, a client is to
// try again: the state is not full. What is there already takes no room again.
func TestStateThatIsFullWithWhatIsUnderWay(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl, other := r.dial(), r.dial()
	s, o := cl.open(1, long), other.open(2, long)
	deep := strings.Repeat("/a", 500)
	cl.code(storepb.Code_OK, cl.do(s, lock(deep, 0)))
	r.limit(10, 300<<10)
	cl.code(storepb.Code_OK, cl.do(s, put(deep, "")))
	cl.code(storepb.Code_HELD, cl.do(s, lock(deep, 0)))
	r.log.hold = true
	for n := range uint64(50) {
		cl.post(request(s, cl.number+n+1, lock(deep, 0))) // each may make 500 nodes, and makes none
	}
	c.settle()
	other.send(request(o, 1, put("/small", "")))
	if e := other.err(wirepb.ErrorCode_OVERLOADED); e.GetLimit() != master.LimitStateNodes || e.GetRetryAfterMs() == 0 || e.GetNumber() != 1 {
		t.Errorf("error %v", e)
	}
	other.send(open(3, nonce(3), long))
	if e := other.err(wirepb.ErrorCode_OVERLOADED); e.GetLimit() != master.LimitStateBytes || e.GetRetryAfterMs() == 0 || e.GetId() != 3 {
		t.Errorf("error %v", e)
	}
	r.log.hold = false
	c.settle()
	other.code(storepb.Code_OK, other.do(o, put("/small", "")))
}
