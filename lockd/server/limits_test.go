package server

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// Every limit in the code is in the operators' table, with its value, and
// nothing else is.
func TestLimitsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) >= 5 && strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
			table[strings.Trim(strings.TrimSpace(cells[1]), "`")] = strings.TrimSpace(cells[2])
		}
	}
	for _, l := range (Limits{}).all() {
		value, ok := table[l.Name]
		if !ok {
			t.Errorf("limit %q is not in the table", l.Name)
			continue
		}
		known := false
		for _, v := range renderings(l.Value) {
			known = known || value == v || strings.HasPrefix(value, v+" ") || strings.HasPrefix(value, v+",")
		}
		if !known {
			t.Errorf("limit %q is %d, the table says %q", l.Name, l.Value, value)
		}
		delete(table, l.Name)
	}
	counts := new(limitCounts).with(nil)
	for name := range table {
		if _, ok := counts[name]; ok {
			t.Errorf("limit %q of the table is counted and not listed", name)
		}
	}
	for _, l := range (Limits{}).all() {
		if _, ok := counts[l.Name]; !ok {
			t.Errorf("limit %q has no metric", l.Name)
		}
	}
}

// renderings are the ways in which the table may say a number.
func renderings(n int) (out []string) {
	plain := fmt.Sprint(n)
	grouped := ""
	for i, c := range plain {
		if i > 0 && (len(plain)-i)%3 == 0 {
			grouped += ","
		}
		grouped += string(c)
	}
	out = append(out, plain, grouped)
	for _, u := range []struct {
		size int
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}, {1000, "s"}} {
		if n%u.size == 0 {
			out = append(out, fmt.Sprintf("%d %s", n/u.size, u.name))
		}
	}
	return out
}

// counted demands that a limit of the door has refused so much.
func (d *testDoor) counted(limit string, want uint64) {
	d.t.Helper()
	if n := d.metrics.limits.with(nil)[limit]; n != want {
		d.t.Errorf("limit %q has refused %d, want %d", limit, n, want)
	}
}

// helloOf is a Hello of exactly so many bytes.
func helloOf(size int) *pb.ClientMessage {
	m := hello("")
	for n := size; n >= 0; n-- {
		m.GetHello().Client = strings.Repeat("x", n)
		if proto.Size(m) == size {
			return m
		}
	}
	panic("no such size")
}

func TestFrameAtItsLimit(t *testing.T) {
	const limit = 100_000
	d := openDoor(t, Limits{MaxFrame: limit})
	w := d.shake()
	queue(t, w, helloOf(limit))
	c := d.opened()
	if r, ok := d.next().event.(replica.ConnReceived); !ok || proto.Size(r.Message) != limit {
		t.Fatal("a frame of the largest size was not taken")
	}
	d.counted(limitFrame, 0)
	queue(t, w, helloOf(limit+1))
	wantFatal(t, w, pb.ErrorCode_FRAME_TOO_LARGE, "100001 bytes is over the limit of 100000")
	d.closed(c.id)
	d.counted(limitFrame, 1)
}

func TestHalfAFrameForEver(t *testing.T) {
	d := openDoor(t, Limits{FrameTimeout: 100 * time.Millisecond})
	whole := d.shake()
	queue(t, whole, hello("whole"))
	other := d.opened()
	d.next()
	nc := d.dial()
	payload, err := proto.Marshal(hello("half"))
	if err != nil {
		t.Fatal(err)
	}
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	frame = append(append(frame, wire.KindClient, 1, 0, 0), payload...)
	if _, err := nc.Write(append([]byte(wire.Preface), frame...)); err != nil {
		t.Fatal(err)
	}
	c := d.opened()
	d.next()
	if _, err := nc.Write(frame[:len(frame)-1]); err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(nc)
	if !bytes.Contains(got, []byte("not whole 100ms after")) {
		t.Errorf("it was told %q", got)
	}
	d.closed(c.id)
	d.counted(limitFrameTime, 1)
	queue(t, whole, hello("still there"))
	if r, ok := d.next().event.(replica.ConnReceived); !ok || r.Conn != other.id {
		t.Error("another connection was concerned")
	}
}

func TestManyConnectionsWithoutHello(t *testing.T) {
	const limit = 20
	d := openDoor(t, Limits{MaxConnections: limit, HelloTimeout: 200 * time.Millisecond})
	var all []*wire.Conn
	for range limit {
		all = append(all, d.shake())
	}
	wantFatal(t, d.shake(), pb.ErrorCode_TOO_MANY, "20 connections, the limit")
	d.counted(limitConnections, 1)
	for _, w := range all {
		wantFatal(t, w, pb.ErrorCode_BAD_MESSAGE, "no Hello")
	}
	for range 2 * limit { // openings and ends
		d.next()
	}
	d.counted(limitHelloTime, limit)
	waitFor(t, "their places are free", func() bool { return d.open.Load() == 0 })
	w := d.shake()
	queue(t, w, hello("late"))
	d.opened()
	d.next()
}

// What all connections have sent and the loop has not taken is bounded, and
// goes on when it is taken.
func TestWaitingOfAllConnections(t *testing.T) {
	const limit, connections, each = 50_000, 10, 20
	d := openDoor(t, Limits{MaxWaiting: limit})
	for range connections {
		w := d.shake()
		for range each {
			queue(t, w, hello(strings.Repeat("x", 5000)))
		}
	}
	// Each connection may have put one more before it saw that it is full.
	const most = limit + connections*(5000+2*letterBytes)
	for taken := 0; taken < connections*each; {
		select {
		case <-d.box.wake:
		case <-time.After(patience):
			t.Fatalf("%d of %d messages came", taken, connections*each)
		}
		waiting := 0
		for _, l := range d.box.swap(nil, mood{}) {
			waiting += l.size
			if _, ok := l.event.(replica.ConnReceived); ok {
				taken++
				l.conn.stepped(l.size)
			}
		}
		if waiting > most {
			t.Fatalf("%d bytes waited, the limit is %d", waiting, limit)
		}
	}
}

func large(n int) *pb.ServerMessage {
	return &pb.ServerMessage{Body: &pb.ServerMessage_Watch{Watch: &pb.WatchUpdate{
		Items: []*pb.WatchItem{{Path: "/x", Data: make([]byte, n)}}}}}
}

// When too much waits for all clients together, the one for whom most waits is
// cut off, and no other.
func TestOutputOfAllConnections(t *testing.T) {
	const limit = 32 << 20
	d := openDoor(t, Limits{MaxQueued: limit})
	d.clients = map[replica.ConnID]*clientConn{}
	var conns []*clientConn
	var wires []*wire.Conn
	for range 3 {
		wires = append(wires, d.shake())
		c := d.opened()
		d.clients[c.id] = c
		conns = append(conns, c)
	}
	const few = 4
	for range few {
		d.send(conns[1], large(1<<20))
		d.send(conns[2], large(1<<20))
	}
	d.flush()
	for i := 0; !conns[0].ending; i++ {
		if i > 2*limit>>20 {
			t.Fatal("nobody is cut off")
		}
		d.send(conns[0], large(1<<20))
		d.flush()
		if total := conns[0].wire.Queued() + conns[1].wire.Queued() + conns[2].wire.Queued(); total > limit+2<<20 {
			t.Fatalf("%d bytes wait, the limit is %d", total, limit)
		}
	}
	d.closed(conns[0].id)
	d.counted(limitOutput, 1)
	d.counted(limitConnOutput, 0)
	for i := 1; i < 3; i++ {
		for range few {
			if m, err := readServer(wires[i]); err != nil || len(m.GetWatch().GetItems()) != 1 {
				t.Fatalf("connection %d: %v, %v", i, m, err)
			}
		}
	}
}

// A client that takes nothing at all is cut off after a time, however little
// waits for it.
func TestWriteTime(t *testing.T) {
	d := openDoor(t, Limits{WriteTimeout: 200 * time.Millisecond})
	w := d.shake()
	c := d.opened()
	for i := 0; c.wire.Queued() < 1<<20; i++ {
		if i > 1000 {
			t.Fatal("the network takes everything")
		}
		d.send(c, large(1<<20))
		d.flush()
	}
	d.closed(c.id)
	d.counted(limitWriteTime, 1)
	_ = w.Close()
}

// alone is a cell of one that stays master however slow the machine is.
func alone(t *testing.T, change ...func(*Config)) *testCell {
	c := newTestCell(t, 1)
	c.change = func(cfg *Config) {
		cfg.Tuning.DiskTimeout = patience
		for _, f := range change {
			f(cfg)
		}
	}
	return c
}

func multi(r *rawClient, ops int) *pb.ClientMessage {
	r.number++
	m := &storepb.Multi{}
	for range ops {
		m.Ops = append(m.Ops, &storepb.MultiOp{})
	}
	return &pb.ClientMessage{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: &storepb.Command{
		Session: r.session, Number: r.number, LowestUnanswered: r.number, Op: &storepb.Command_Multi{Multi: m}}}}}
}

// A small frame that would be a large message is not decoded.
func TestPartsOfATransaction(t *testing.T) {
	c := alone(t)
	c.startAll()
	a := c.dial(c.master())
	a.open()
	for _, ops := range []int{store.MultiMax + 1, manyParts} {
		a.send(multi(a, ops))
		if r := a.receive().GetReply().GetResult(); r.GetCode() != storepb.Code_LIMIT || r.GetLimit() != store.LimitMulti {
			t.Fatalf("%d operations: %v", ops, r)
		}
	}
	a.send(multi(a, manyParts+1))
	wantFatal(t, a.w, pb.ErrorCode_TOO_MANY, "16385 operations, the limit is 1024")
	a.number--
	b := c.dial("n1")
	b.attach(a)
	b.put("/x", "the session lives on")
	c.metric("n1", store.LimitMulti, 3)
}

// manyConditionsOf are requests with so many conditions, and with lists that only
// a master makes.
func manyConditionsOf(n int) map[string]*storepb.Command {
	list := make([]*storepb.Condition, n)
	for i := range list {
		list[i] = &storepb.Condition{}
	}
	refs, notes := make([]*storepb.TimerRef, n), make([]*storepb.SessionNote, n)
	for i := range n {
		refs[i], notes[i] = &storepb.TimerRef{}, &storepb.SessionNote{}
	}
	one := func(op *storepb.MultiOp) *storepb.Command {
		return &storepb.Command{Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: []*storepb.MultiOp{op}}}}
	}
	return map[string]*storepb.Command{
		"create":       {Op: &storepb.Command_Create{Create: &storepb.Create{Path: "/a", Conditions: list}}},
		"put":          {Op: &storepb.Command_Put{Put: &storepb.Put{Path: "/a", Conditions: list}}},
		"delete":       {Op: &storepb.Command_Delete{Delete: &storepb.Delete{Path: "/a", Conditions: list}}},
		"multi create": one(&storepb.MultiOp{Op: &storepb.MultiOp_Create{Create: &storepb.Create{Path: "/a", Conditions: list}}}),
		"multi put":    one(&storepb.MultiOp{Op: &storepb.MultiOp_Put{Put: &storepb.Put{Path: "/a", Conditions: list}}}),
		"multi delete": one(&storepb.MultiOp{Op: &storepb.MultiOp_Delete{Delete: &storepb.Delete{Path: "/a", Conditions: list}}}),
		"multi check":  one(&storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: "/a", Conditions: list}}}),
		"timers":       {Op: &storepb.Command_Timers{Timers: &storepb.Timers{Due: refs}}},
		"notes":        {Op: &storepb.Command_NoteSessions{NoteSessions: &storepb.NoteSessions{Notes: notes}}},
	}
}

// What a message takes in memory counts while it waits for the loop, and a small
// frame that would be a very large message is not decoded.
func TestConditionsOfARequestAreBounded(t *testing.T) {
	for _, n := range []int{0, 10, manyConditions, manyConditions + 1, 1 << 19} {
		for name, c := range manyConditionsOf(n) {
			m := &pb.ClientMessage{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: c}}}
			payload, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			last := tooManyParts(payload)
			if n <= manyParts && last != nil || n > manyConditions && last == nil {
				t.Errorf("%s with %d: %+v", name, n, last)
			}
			if w := weight(m, len(payload)); w < n*100 {
				t.Errorf("%s with %d weighs %d", name, n, w)
			}
		}
	}
	// What the store takes passes, in one piece.
	var all []*storepb.MultiOp
	for range store.MultiMax {
		op := &storepb.Put{Path: "/a", Conditions: make([]*storepb.Condition, store.ConditionsMax)}
		for i := range op.Conditions {
			op.Conditions[i] = &storepb.Condition{Demand: &storepb.Condition_HeldBy{HeldBy: &storepb.Holding{Path: "/a", Session: 1, Ticket: uint64(i + 1)}}}
		}
		all = append(all, &storepb.MultiOp{Op: &storepb.MultiOp_Put{Put: op}})
	}
	payload, err := proto.Marshal(&pb.ClientMessage{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: &storepb.Command{
		Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: all}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	if last := tooManyParts(payload); last != nil {
		t.Errorf("a transaction at its limits is refused: %+v", last)
	}
}

// metric waits until a replica's /metrics says that a limit has refused so
// much.
func (c *testCell) metric(name, limit string, want int) {
	c.t.Helper()
	c.t.Cleanup(http.DefaultClient.CloseIdleConnections)
	line := fmt.Sprintf("lockd_limit_refused_total{limit=%q} %d", limit, want)
	waitFor(c.t, line, func() bool {
		resp, err := http.Get("http://" + c.running[name].s.HTTPAddress() + "/metrics")
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		return err == nil && hasLine(string(b), line)
	})
}

// Several large states on one connection come one after the other, as it reads.
func TestSeveralLargeStates(t *testing.T) {
	c := alone(t)
	c.startAll()
	a := c.dial(c.master())
	a.open()
	big := strings.Repeat("x", 1<<20)
	const nodes, watches = 24, 4
	for i := range nodes {
		a.put(fmt.Sprintf("/big-%02d", i), big)
	}
	for id := uint64(1); id <= watches; id++ {
		a.send(&pb.ClientMessage{Body: &pb.ClientMessage_Watch{Watch: &pb.Watch{Id: id, Path: "/", Scope: pb.WatchScope_SUBTREE}}})
	}
	sizes := map[uint64]int{}
	for ends := 0; ends < watches; {
		w := a.receive().GetWatch()
		if w == nil {
			t.Fatal("something else than the state of a watch")
		}
		for _, item := range w.GetItems() {
			sizes[w.GetId()] += len(item.GetData())
		}
		if w.GetEnd() {
			ends++
		}
	}
	for id := uint64(1); id <= watches; id++ {
		if sizes[id] != nodes<<20 {
			t.Errorf("watch %d has %d bytes", id, sizes[id])
		}
	}
	c.metric("n1", limitConnOutput, 0)
}

// What a client watches and does not read waits up to a bound, in its queue and in
// the change log. Then it is left out, and the client is sent the state when it
// reads again. Others notice nothing.
func TestSlowWatcher(t *testing.T) {
	c := alone(t)
	c.startAll()
	a := c.dial(c.master())
	a.open()
	a.put("/w", "")
	b := c.dial("n1")
	b.send(&pb.ClientMessage{Body: &pb.ClientMessage_Watch{Watch: &pb.Watch{Id: 1, Path: "/w"}}})
	if w := b.receive().GetWatch(); !w.GetEnd() {
		t.Fatalf("got %v", w)
	}
	const writes = 2 * queueBytes >> 20
	content := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", 1<<20-16)) }
	for i := range writes {
		a.put("/w", content(i))
	}
	if got := a.get("/w"); got != content(writes-1) {
		t.Error("another client was concerned")
	}
	var m replica.Metrics
	if err := c.running["n1"].s.ask(t.Context(), func(r *replica.Replica) { m = r.Metrics() }); err != nil {
		t.Fatal(err)
	}
	if m.WatchesBehind != 1 || m.WatchLogBytes > 34<<20 {
		t.Errorf("%d watches are behind, %d bytes of changes are kept", m.WatchesBehind, m.WatchLogBytes)
	}
	changes, states, last := 0, 0, ""
	for last != content(writes-1) {
		w := b.receive().GetWatch()
		for _, it := range w.GetItems() {
			changes++
			last = string(it.GetData())
		}
		if w.GetState() {
			states++
		}
	}
	if changes >= writes || states == 0 {
		t.Errorf("a client that did not read was told %d of %d writes, %d states", changes, writes, states)
	}
	t.Logf("%d of %d writes were told", changes, writes)
}

// A client that asks and never reads the answers is put off, and cut off in
// the end; others notice nothing.
func TestClientThatNeverReads(t *testing.T) {
	c := alone(t, func(cfg *Config) { cfg.Limits.WriteTimeout = 500 * time.Millisecond })
	c.startAll()
	a := c.dial(c.master())
	a.open()
	a.put("/big", strings.Repeat("x", 1<<20))
	b := c.dial("n1")
	for id := uint64(1); id <= 200; id++ {
		b.send(&pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{
			Id: id, Op: &pb.Read_Node{Node: &pb.ReadNode{Path: "/big"}}}}})
	}
	waitFor(t, "it is cut off", func() bool { return a.status().GetConnections() == 1 })
	n := c.running["n1"].s.metrics.limits.with(nil)
	if n[limitConnOutput] == 0 || n[limitWriteTime] != 1 {
		t.Errorf("put off %d times, cut off %d times", n[limitConnOutput], n[limitWriteTime])
	}
	a.put("/x", "others go on")
}
