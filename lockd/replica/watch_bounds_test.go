package replica

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// heap returns the bytes that are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// deepWatches makes a path of many parts, and all watches of it that a change
// below it concerns, on a connection of their own. It returns the path and how
// many watches there are.
func deepWatches(r *testReplica, depth int) (path string, cl *testClient, n uint64) {
	cl = r.dial()
	for range depth {
		path += "/a"
		for kind := range 4 {
			n++
			cl.post(watch(&wirepb.Watch{Id: n, Path: path, Scope: wirepb.WatchScope_SUBTREE, NoData: kind&1 != 0, Locks: kind&2 != 0}))
		}
		if n%1024 == 0 {
			r.c.settle()
		}
	}
	r.c.settle()
	cl.all()
	return path, cl, n
}

// The bounds of the change log hold for what it takes, also where each change
// concerns many watches.
func TestWatchLogOfManyWatchesIsBounded(t *testing.T) {
	const bound = 1 << 20
	full := true
	c := newCell(t, 1, func(o *Options) {
		o.WatchLogBytes, o.WatchTopicBytes = bound, bound
		o.Room = func(ConnID, bool) int {
			if full {
				return 0
			}
			return 48 << 20
		}
	})
	r := c.reps[0]
	writer := r.dial()
	s := writer.open(1, long)
	full = false
	path, cl, watches := deepWatches(r, 320)
	full = true
	writer.code(storepb.Code_OK, writer.do(s, put(path, "")))
	before := heap()
	for i := range 500 {
		writer.code(storepb.Code_OK, writer.do(s, put(path, fmt.Sprint(i))))
	}
	if n := heap() - before; n > 4*bound {
		t.Errorf("changes for %d watches that are not told them take %d bytes, the bound is %d", watches, n, bound)
	}
	if m := r.Metrics(); m.WatchLogBytes > bound || m.WatchesBehind != int(watches) {
		t.Errorf("%d bytes are counted, %d watches behind", m.WatchLogBytes, m.WatchesBehind)
	}
	full = false
	c.advance(5 * time.Second)
	if m := r.Metrics(); m.WatchLogBytes != 0 || m.WatchesBehind != 0 {
		t.Errorf("when all is read: %d bytes, %d watches behind", m.WatchLogBytes, m.WatchesBehind)
	}
	ends := map[uint64]bool{}
	for _, m := range cl.all() {
		if u := m.GetWatch(); u.GetEnd() || !u.GetState() && len(u.GetItems()) > 0 {
			ends[u.GetId()] = true
		}
	}
	if len(ends) != int(watches) {
		t.Errorf("%d of %d watches were told", len(ends), watches)
	}
}

// A client that begins and ends watches while it has room for their states, and
// not for changes, makes nothing grow.
func TestEndedWatchesThatWereBlockedAreForgotten(t *testing.T) {
	room := 48 << 20
	c := newCell(t, 1, func(o *Options) { o.Room = func(ConnID, bool) int { return room } })
	r := c.reps[0]
	writer, cl := r.dial(), r.dial()
	s := writer.open(1, long)
	room = 100 << 10
	id, number := uint64(0), uint64(0)
	turn := func() {
		const each = 100
		for range each {
			id++
			cl.post(watch(&wirepb.Watch{Id: id, Path: "/a"}))
		}
		c.settle()
		number++
		p := request(s, number, put("/a", ""))
		p.GetRequest().GetCommand().LowestUnanswered = number
		writer.send(p)
		if n := r.Metrics().WatchesBehind; n != each {
			t.Fatalf("%d watches behind", n)
		}
		for k := range uint64(each) {
			cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: id - k}}})
		}
		cl.all()
		writer.all()
	}
	turn()
	before := heap()
	for range 200 {
		turn()
	}
	if n := heap() - before; n > 1<<20 {
		t.Errorf("20,000 watches that ended have left %d bytes", n)
	}
}

// A connection whose last watch was blocked when a mastership ended is told the
// changes of its watches in a later one of the same replica.
func TestBlockedWatchOfAnEarlierMastership(t *testing.T) {
	room := 48 << 20
	c := newCell(t, 2, func(o *Options) { o.Room = func(ConnID, bool) int { return room } })
	r := c.reps[0]
	writer, cl := r.dial(), r.dial()
	s := writer.open(1, long)
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/a"}))
	room = 0
	writer.code(storepb.Code_OK, writer.do(s, put("/a", "1")))
	if m := r.Metrics(); m.WatchesBehind != 1 {
		t.Fatalf("%d watches behind", m.WatchesBehind)
	}
	cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: 1}}})
	c.elect(2)
	c.advance(time.Second)
	c.elect(1)
	if r.ended[cl.conn] != "" {
		t.Fatal("the connection has ended")
	}
	cl.all()
	writer = r.dial()
	writer.number = 1
	writer.send(attach(s, 1, 0))
	writer.all()
	room = 48 << 20
	cl.send(watch(&wirepb.Watch{Id: 2, Path: "/a"}))
	cl.all()
	room = 0
	writer.code(storepb.Code_OK, writer.do(s, put("/a", "2")))
	room = 48 << 20
	c.advance(time.Second)
	if got := strings.Join(cl.told(), " "); got != "/a=2" {
		t.Errorf("told %q", got)
	}
}

// The lock of one node with a long queue costs a batch as much as a subtree of as
// many nodes.
func TestStatesOfALongQueueArePaced(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	writer, cl := r.dial(), r.dial()
	const waiting, watches = 4000, 100
	number := uint64(0)
	s := writer.open(1, long)
	for range waiting {
		number++
		p := request(s, number, lock("/l", time.Hour))
		p.GetRequest().GetCommand().LowestUnanswered = number
		writer.post(p)
		if number%200 == 0 {
			c.settle()
			writer.all()
		}
	}
	c.settle()
	for id := range uint64(watches) {
		cl.post(watch(&wirepb.Watch{Id: id + 1, Path: "/l", Locks: true}))
	}
	r.take()
	r.take()
	if n := len(cl.all()); n > 70 {
		t.Errorf("a batch has looked at a queue of %d for %d watches", waiting, n)
	}
	c.advance(time.Second)
	if got := len(cl.all()); got == 0 {
		t.Error("the rest of the states has not come")
	}
}
