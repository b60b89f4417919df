package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// limited demands an error that names a limit, does not end the connection,
// and is counted.
func (cl *testClient) limited(limit string, code wirepb.ErrorCode, words ...string) *wirepb.Error {
	t := cl.r.c.t
	t.Helper()
	e := cl.err(code)
	if e.GetLimit() != limit || e.GetFatal() {
		t.Fatalf("error %v, want limit %q", e, limit)
	}
	for _, w := range words {
		if !strings.Contains(e.GetText(), w) {
			t.Errorf("%q does not say %q", e.GetText(), w)
		}
	}
	if code == wirepb.ErrorCode_OVERLOADED && e.GetRetryAfterMs() == 0 {
		t.Errorf("error %v does not say when to try again", e)
	}
	if cl.r.Metrics().Limited[limit] == 0 {
		t.Errorf("limit %q is not counted: %v", limit, cl.r.Metrics().Limited)
	}
	return e
}

// alive demands that no limit refuses a KeepAlive, a release and a close.
func (cl *testClient) alive(session uint64) {
	cl.r.c.t.Helper()
	cl.send(keepAlive(99, true, session))
	cl.kept(99, session)
	cl.code(storepb.Code_OK, cl.do(session, &storepb.Command{Op: &storepb.Command_CloseSession{
		CloseSession: &storepb.CloseSession{WorkEnded: true}}}))
}

func TestEveryLimitHasAName(t *testing.T) {
	seen := map[string]bool{}
	for _, l := range (Options{}).Limits() {
		if l.Name == "" || l.Value <= 0 || seen[l.Name] {
			t.Errorf("limit %q of %d", l.Name, l.Value)
		}
		seen[l.Name] = true
	}
}

func TestLimitOfSessionsPerConnection(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxSessionsPerConn = 3 })
	r := c.reps[0]
	cl := r.dial()
	a := cl.open(1, time.Minute)
	// Those on their way count.
	for n := uint64(2); n <= 4; n++ {
		cl.post(open(n, nonce(n), time.Minute))
	}
	c.settle()
	if e := cl.limited(master.LimitConnSessions, wirepb.ErrorCode_TOO_MANY, "limit is 3", "another connection"); e.GetId() != 4 {
		t.Errorf("error %v", e)
	}
	b, d := cl.next().GetOpened().GetSession(), cl.next().GetOpened().GetSession()
	// A repeat makes none.
	if again := cl.open(2, time.Minute); again != b {
		t.Errorf("opened %d again as %d", b, again)
	}
	other := r.dial()
	s := other.open(5, time.Minute)
	cl.send(attach(s, 5, 0))
	if e := cl.limited(master.LimitConnSessions, wirepb.ErrorCode_TOO_MANY); e.GetSession() != s {
		t.Errorf("error %v", e)
	}
	cl.send(attach(a, 1, 0)) // it is attached here already
	if m := cl.next().GetAttached(); m.GetSession() != a {
		t.Errorf("attached %v", m)
	}
	cl.send(keepAlive(1, true, a, b, d))
	cl.kept(1, a, b, d)
	cl.alive(a)
	cl.send(attach(s, 5, 0))
	if m := cl.next().GetAttached(); m.GetCode() != storepb.Code_OK {
		t.Errorf("attached %v", m)
	}
	other.none()
}

// A connection has no more sessions than fit the answer to one KeepAlive, in
// the smallest frame that its client may ask for.
func TestKeepAliveOfAllSessionsFitsTheFrame(t *testing.T) {
	const frame = 64 << 10
	c := newCell(t, 1)
	cl := c.reps[0].connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, Cell: "test", MaxFrame: frame}))
	cl.next()
	var all []uint64
	for n := uint64(1); ; n++ {
		cl.send(open(n, nonce(n), 10*time.Minute))
		m := cl.next()
		if m.GetOpened() == nil {
			if m.GetError().GetLimit() != master.LimitConnSessions {
				t.Fatalf("got %v", m)
			}
			break
		}
		all = append(all, m.GetOpened().GetSession())
	}
	cl.send(keepAlive(1, true, all...))
	k := cl.kept(1, all...)
	if size := proto.Size(&wirepb.ServerMessage{Body: &wirepb.ServerMessage_Kept{Kept: k}}); size > frame || len(all) < 1000 {
		t.Errorf("%d sessions make an answer of %d bytes, the frame is %d", len(all), size, frame)
	}
}

func TestLimitOfKeepAlive(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, time.Minute)
	ids := make([]uint64, 1<<16)
	for i := range ids {
		ids[i] = s + 1 + uint64(i)
	}
	ids[0] = s
	cl.send(keepAlive(1, true, ids...))
	if k := cl.kept(1, s); len(k.GetGone()) != len(ids)-1 {
		t.Errorf("%d of %d sessions are gone", len(k.GetGone()), len(ids))
	}
	cl.send(keepAlive(2, true, append(ids, s)...))
	if e := cl.limited(master.LimitKeepAlive, wirepb.ErrorCode_TOO_MANY, "65537", "65536"); e.GetId() != 2 {
		t.Errorf("error %v", e)
	}
	cl.alive(s)
}

func TestLimitOfReadsOfAConnection(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl, other := r.dial(), r.dial()
	s := cl.open(1, 10*time.Minute)
	cl.code(storepb.Code_OK, cl.do(s, lock("/l", 0)))
	r.log.unproven = true
	const limit = 4096
	for range limit {
		cl.post(read(nodeRead("/")))
	}
	c.settle()
	cl.none()
	for _, m := range []*wirepb.ClientMessage{
		read(nodeRead("/")), watch(&wirepb.Watch{Id: 1, Path: "/"}), open(1, nonce(9), time.Minute),
	} {
		cl.send(m)
		if e := cl.limited(master.LimitConnReads, wirepb.ErrorCode_OVERLOADED, "4096"); e.GetId() != 1 {
			t.Errorf("error %v", e)
		}
	}
	// Neither KeepAlive nor Attach nor release is refused, and others are not
	// concerned.
	cl.send(keepAlive(7, true, s))
	cl.send(attach(s, 1, 0))
	cl.code(storepb.Code_OK, cl.do(s, unlock("/l", 1)))
	other.send(read(nodeRead("/")))
	r.log.unproven = false
	c.settle()
	for range limit {
		if cl.next().GetRead() == nil {
			t.Fatal("a read was not answered")
		}
	}
	cl.kept(7, s)
	if m := cl.next().GetAttached(); m.GetSession() != s {
		t.Errorf("attached %v", m)
	}
	if other.next().GetRead() == nil {
		t.Error("another's read was not answered")
	}
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/"}))
	if cl.next().GetWatch() == nil {
		t.Error("the watch that was refused does not begin")
	}
	cl.alive(s)
}

// A client that goes on whatever it is told is cut off.
func TestEndlessKeepAlivesAreCutOff(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxSessionsPerConn = 10 })
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 10*time.Minute)
	r.log.unproven = true
	for range 4096 + 10 {
		cl.post(keepAlive(1, true, s))
	}
	c.settle()
	cl.none()
	cl.send(keepAlive(1, true, s))
	if e := cl.err(wirepb.ErrorCode_TOO_MANY); !e.GetFatal() || e.GetLimit() != master.LimitConnReads || r.ended[cl.conn] == "" {
		t.Errorf("error %v", e)
	}
}

func TestLimitOfRequestsOfASession(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 10*time.Minute)
	const locks = 50
	for i := range locks {
		cl.code(storepb.Code_OK, cl.do(s, lock(fmt.Sprintf("/l/%d", i), 0)))
	}
	n := cl.number
	r.log.hold = true
	post := func(cmd *storepb.Command) {
		n++
		cl.post(request(s, n, cmd))
	}
	for range 256 {
		post(put("/a", "x"))
	}
	c.settle()
	cl.none()
	cl.send(request(s, n+1, put("/a", "x")))
	if e := cl.limited(master.LimitSessionCalls, wirepb.ErrorCode_OVERLOADED, "256"); e.GetNumber() != n+1 {
		t.Errorf("error %v", e)
	}
	// What it holds it can give back, whatever else is under way.
	for range store.WindowMax {
		post(void())
	}
	for i := range uint64(locks) {
		post(unlock("", i+1))
	}
	c.settle()
	cl.none()
	r.log.hold = false
	c.settle()
	for i := cl.number + 1; i <= n; i++ {
		cl.result(i)
	}
	if v, _ := r.store.Session(s); v.Locks != 0 {
		t.Errorf("%d locks are left", v.Locks)
	}
	cl.number = n
	cl.alive(s)
}

func TestLimitOfBytesUnderWay(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 10*time.Minute)
	cl.code(storepb.Code_OK, cl.do(s, lock("/l", 0)))
	r.log.hold = true
	big := strings.Repeat("x", 1<<20)
	n := cl.number
	for range 64 {
		n++
		cl.post(request(s, n, put("/big", big)))
	}
	c.settle()
	cl.none()
	other := r.dial()
	cl.send(request(s, n+1, put("/a", "x")))
	cl.limited(master.LimitCallBytes, wirepb.ErrorCode_OVERLOADED, "67108864")
	cl.send(request(s, n+1, unlock("/l", 1)))
	cl.send(keepAlive(1, true, s))
	cl.kept(1, s)
	if other.read(nodeRead("/")).GetCode() != storepb.Code_OK {
		t.Error("another's read is refused")
	}
	r.log.hold = false
	c.settle()
	for i := cl.number + 1; i <= n+1; i++ {
		cl.code(storepb.Code_OK, cl.result(i))
	}
	cl.number = n + 1
	cl.alive(s)
}

// What the store refuses is counted by the master that answers.
func TestLimitsOfTheStoreAreCounted(t *testing.T) {
	c := newCell(t, 3)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, time.Minute)
	big := cl.code(storepb.Code_TOO_LARGE, cl.do(s, put("/a", strings.Repeat("x", store.DataMax+1))))
	cl.code(storepb.Code_BAD_PATH, cl.do(s, put("/"+strings.Repeat("x", store.NameMax+1), "")))
	if n := r.Metrics().Limited; big.GetLimit() != store.LimitData || n[store.LimitData] != 1 || n[store.LimitName] != 1 || len(n) != 2 {
		t.Errorf("%q, counted %v", big.GetLimit(), n)
	}
	if n := c.reps[1].Metrics().Limited; len(n) != 0 {
		t.Errorf("a follower counts %v", n)
	}
	cl.send(watch(&wirepb.Watch{Id: 1, Path: strings.Repeat("/x", 1000)}))
	cl.limited(store.LimitPath, wirepb.ErrorCode_INVALID_ARGUMENT, "2000", "1024")
	cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Open{Open: &wirepb.OpenSession{Nonce: nonce(5),
		Client: &storepb.ClientInfo{Host: strings.Repeat("h", store.TextMax+1)}}}})
	cl.limited(store.LimitText, wirepb.ErrorCode_INVALID_ARGUMENT, "256", "255")
	cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Open{Open: &wirepb.OpenSession{Nonce: nonce(5),
		Client: &storepb.ClientInfo{Name: strings.Repeat("n", store.TextMax), Host: strings.Repeat("h", store.TextMax)}}}})
	if m := cl.next(); m.GetOpened() == nil {
		t.Errorf("a name at the limit: %v", m)
	}
	cl.alive(s)
}

// States that find no room are looked at a few at a time, and keep nobody else's
// waiting for long.
func TestStatesWithoutRoomCostLittle(t *testing.T) {
	const room, many = 1 << 20, 100
	asked := 0
	c := newCell(t, 1, func(o *Options) {
		o.Room = func(_ ConnID, large bool) int {
			if large {
				asked++
				return 0
			}
			return room
		}
	})
	r := c.reps[0]
	writer, cl, other := r.dial(), r.dial(), r.dial()
	s := writer.open(1, 10*time.Minute)
	for i := range 4 {
		writer.code(storepb.Code_OK, writer.do(s, put(fmt.Sprintf("/w/%d", i), strings.Repeat("x", room/2))))
	}
	for id := range uint64(many) {
		cl.post(watch(&wirepb.Watch{Id: id + 1, Path: "/w", Scope: wirepb.WatchScope_SUBTREE}))
	}
	other.send(watch(&wirepb.Watch{Id: 1, Path: "/w/0"}))
	c.advance(tick)
	// A batch looks at 8 MiB of them; the cell has taken five batches.
	if asked == 0 || asked > 5*8 {
		t.Errorf("%d of %d states were looked at in five batches", asked, many)
	}
	c.advance(20 * tick)
	if w := other.next().GetWatch(); !w.GetEnd() {
		t.Errorf("got %v", w)
	}
	asked = 0
	c.advance(tick)
	if asked != many {
		t.Errorf("%d of %d states are known to be large", asked, many)
	}
	cl.none()
}

// The first states of watches are sent no faster than there is room for them.
func TestStatesWaitForRoom(t *testing.T) {
	const usual, deepRoom = 1 << 20, 40 << 20
	usualRoom := map[ConnID]int{}
	deep := map[ConnID]bool{}
	c := newCell(t, 1, func(o *Options) {
		o.Room = func(conn ConnID, large bool) int {
			switch {
			case !large:
				return usualRoom[conn]
			case deep[conn]:
				return deepRoom
			}
			return 0
		}
	})
	r := c.reps[0]
	writer, cl, other := r.dial(), r.dial(), r.dial()
	s := writer.open(1, 10*time.Minute)
	for i := range 4 {
		writer.code(storepb.Code_OK, writer.do(s, put(fmt.Sprintf("/w/%d", i), strings.Repeat("x", usual/2))))
	}
	usualRoom[cl.conn], usualRoom[other.conn] = usual, usual
	state := func(cl *testClient, id uint64) int {
		t.Helper()
		bytes, ends := 0, 0
		for _, m := range cl.all() {
			w := m.GetWatch()
			if w.GetId() != id || !w.GetState() {
				t.Fatalf("got a %T", m.GetBody())
			}
			for _, i := range w.GetItems() {
				bytes += len(i.GetData())
			}
			if w.GetEnd() {
				ends++
			}
		}
		if ends != 1 {
			t.Fatalf("watch %d: %d ends of its state", id, ends)
		}
		return bytes
	}
	one := func(id uint64) *wirepb.ClientMessage { return watch(&wirepb.Watch{Id: id, Path: "/w/0"}) }
	// One fits, two do not: the second comes with the next tick.
	cl.post(one(1))
	cl.post(one(2))
	c.settle()
	if n := state(cl, 1); n != usual/2 {
		t.Errorf("a state of %d bytes", n)
	}
	c.advance(tick)
	state(cl, 2)
	// Large ones wait for a deep place, one a batch, and others do not wait.
	subtree := watch(&wirepb.Watch{Id: 3, Path: "/w", Scope: wirepb.WatchScope_SUBTREE})
	cl.send(subtree)
	other.send(subtree)
	gone := r.dial()
	usualRoom[gone.conn] = usual
	gone.send(subtree)
	gone.hangup()
	c.advance(10 * tick)
	cl.none()
	other.none()
	other.send(one(4))
	state(other, 4)
	if n := other.read(nodeRead("/w/0")); len(n.GetNode().GetData()) != usual/2 {
		t.Errorf("read %v", n.GetCode())
	}
	// What is changed meanwhile is in the state, once.
	writer.code(storepb.Code_OK, writer.do(s, put("/w/0", "short")))
	cl.all() // the change, for the first two watches
	other.all()
	deep[cl.conn], deep[other.conn] = true, true
	for range 4 { // the order is theirs, so either may come first
		c.advance(tick)
	}
	for _, x := range []*testClient{cl, other} {
		if n := state(x, 3); n != 3*usual/2+len("short") {
			t.Errorf("a state of %d bytes", n)
		}
	}
	// And from then on it is told as it changes.
	writer.code(storepb.Code_OK, writer.do(s, put("/w/9", "new")))
	if w := cl.next().GetWatch(); w.GetId() != 3 || w.GetState() || len(w.GetItems()) != 1 {
		t.Errorf("got %v", w)
	}
	// No room at all: not even a small one, until there is.
	usualRoom[cl.conn] = 0
	cl.all()
	cl.send(one(5))
	c.advance(5 * tick)
	cl.none()
	// Dropping those that wait leaves nothing behind.
	for id := uint64(100); id < 2000; id++ {
		cl.post(one(id))
		cl.post(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: id}}})
	}
	c.settle()
	usualRoom[cl.conn] = usual
	c.advance(tick)
	state(cl, 5)
	if n := r.Metrics().Watches; n != 6 {
		t.Errorf("%d watches", n)
	}
}

// What waits for a proof of leadership is bounded in bytes: of a connection, whose
// client is told, and of all. KeepAlives are refused by neither, but for a client
// that goes on sending what no honest one has.
func TestWhatWaitsForAProofIsBoundedInBytes(t *testing.T) {
	const large = 1 << 20
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, 10*time.Minute)
	text := strings.Repeat("x", large)
	reads := []*wirepb.Read{
		{Id: 1, Op: &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: text}}},
		{Id: 1, Op: &wirepb.Read_Children{Children: &wirepb.ReadChildren{Path: "/", After: text}}},
		{Id: 1, Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: "/", After: text}}},
		{Id: 1, Op: &wirepb.Read_Check{Check: &wirepb.CheckSequencer{Sequencer: text}}},
	}
	r.log.unproven = true
	for _, x := range reads {
		cl.send(read(x))
	}
	cl.none()
	cl.send(read(nodeRead("/")))
	cl.limited(master.LimitConnReads, wirepb.ErrorCode_OVERLOADED, "bytes")
	cl.send(keepAlive(7, true, s))
	cl.none()
	for range 15 {
		one := r.dial()
		for range 4 {
			one.post(read(reads[0]))
		}
		c.settle()
		one.none()
	}
	other := r.dial()
	other.send(read(nodeRead("/")))
	other.limited(master.LimitReads, wirepb.ErrorCode_OVERLOADED, "bytes")
	o := r.dial()
	many := make([]uint64, 1<<16)
	for i := range many {
		many[i] = uint64(i + 1)
	}
	for range 16 {
		o.post(keepAlive(1, true, many...))
	}
	c.settle()
	o.none()
	o.send(keepAlive(1, true, many...))
	if e := o.err(wirepb.ErrorCode_TOO_MANY); !e.GetFatal() || e.GetLimit() != master.LimitConnReads || r.ended[o.conn] == "" {
		t.Errorf("error %v", e)
	}
	a := r.dial()
	for range 9 {
		a.post(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Attach{Attach: &wirepb.Attach{Session: 5, Nonce: make([]byte, large)}}})
	}
	c.settle()
	if e := a.err(wirepb.ErrorCode_TOO_MANY); !e.GetFatal() {
		t.Errorf("error %v", e)
	}
	r.log.unproven = false
	c.settle()
	for range reads {
		if cl.next().GetRead() == nil {
			t.Error("a read was not answered")
		}
	}
	cl.kept(7, s)
	cl.send(read(nodeRead("/")))
	if cl.next().GetRead() == nil {
		t.Error("a read was not answered")
	}
	cl.alive(s)
}
