package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// updates takes the messages received, which must all be of watch id, and
// applies them to view: path to data, or to "deleted".
func (cl *testClient) updates(id uint64, view map[string]string) (paths []string, last *wirepb.WatchUpdate) {
	cl.r.c.t.Helper()
	for _, m := range cl.all() {
		u := m.GetWatch()
		if u == nil || u.GetId() != id {
			cl.r.c.t.Fatalf("got %v, want updates of watch %d", m, id)
		}
		for _, it := range u.GetItems() {
			paths = append(paths, it.GetPath())
			switch {
			case it.GetDeleted():
				delete(view, it.GetPath())
			case it.GetDataLeftOut():
				view[it.GetPath()] = "left out"
			default:
				view[it.GetPath()] = string(it.GetData())
			}
		}
		last = u
	}
	return paths, last
}

func TestWatchScopes(t *testing.T) {
	for scope, want := range map[wirepb.WatchScope][2][]string{
		wirepb.WatchScope_NODE:     {{"/a"}, {"/a"}},
		wirepb.WatchScope_CHILDREN: {{"/a", "/a/b"}, {"/a", "/a/b", "/a/c"}},
		wirepb.WatchScope_SUBTREE:  {{"/a", "/a/b", "/a/b/x"}, {"/a", "/a/b", "/a/b/x", "/a/c", "/a/c/y"}},
	} {
		c := newCell(t, 1)
		writer, cl := c.reps[0].dial(), c.reps[0].dial()
		s := writer.open(1, long)
		for _, p := range []string{"/a", "/a/b", "/a/b/x", "/other", "/ab"} {
			writer.code(storepb.Code_OK, writer.do(s, put(p, "1")))
		}
		cl.send(watch(&wirepb.Watch{Id: 7, Path: "/a", Scope: scope}))
		view := map[string]string{}
		paths, last := cl.updates(7, view)
		if !slices.Equal(paths, want[0]) || !last.GetState() || !last.GetEnd() || last.GetRevision() != c.reps[0].store.Revision() {
			t.Errorf("%v: first state %v (%v), want %v", scope, paths, last, want[0])
		}
		// One batch, one update, in order.
		for i, p := range []string{"/a", "/a/b", "/a/b/x", "/a/c", "/a/c/y", "/ab", "/other/z"} {
			writer.post(request(s, uint64(6+i), put(p, "2")))
		}
		c.settle()
		if n := len(c.reps[0].inbox[cl.conn]); n != 1 {
			t.Errorf("%v: %d updates for one batch", scope, n)
		}
		if paths, last = cl.updates(7, view); !slices.Equal(paths, want[1]) || last.GetState() {
			t.Errorf("%v: changes %v (%v), want %v", scope, paths, last, want[1])
		}
		writer.send(request(s, 13, remove("/a")))
		cl.updates(7, view)
		if len(view) != 0 {
			t.Errorf("%v: left after the deletion: %v", scope, view)
		}
	}
}

func TestWatchOfWhatIsNot(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, long)
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/no/where"}))
	if u := cl.next().GetWatch(); !u.GetEnd() || !u.GetState() || len(u.GetItems()) != 0 {
		t.Errorf("state of what is not: %v", u)
	}
	cl.post(request(s, 1, put("/no/where", "x")))
	c.settle()
	cl.result(1)
	if u := cl.next().GetWatch(); len(u.GetItems()) != 1 || string(u.GetItems()[0].GetData()) != "x" {
		t.Errorf("update %v", u)
	}
	// What happens to one path in one batch is told in its order.
	cl.post(request(s, 2, remove("/no/where")))
	cl.post(request(s, 3, put("/no/where", "y")))
	cl.post(request(s, 4, remove("/no/where")))
	c.settle()
	var u *wirepb.WatchUpdate
	for _, m := range cl.all() {
		if m.GetWatch() != nil {
			u = m.GetWatch()
		}
	}
	if it := u.GetItems(); len(it) != 3 || !it[0].GetDeleted() || string(it[1].GetData()) != "y" || !it[2].GetDeleted() {
		t.Errorf("update %v", u)
	}
	cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: 1}}})
	cl.send(request(s, 5, put("/no/where", "z")))
	cl.result(5)
	cl.none()
	if n := c.reps[0].Metrics().Watches; n != 0 {
		t.Errorf("%d watches left", n)
	}
}

// Registering and reading the first state is one step: whatever is written
// around it is seen exactly once.
func TestWatchMissesNothing(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	writer, cl := r.dial(), r.dial()
	s := writer.open(1, long)
	number := uint64(0)
	write := func() {
		number++
		writer.post(request(s, number, put(fmt.Sprintf("/w/%04d", number), "x")))
	}
	seen := map[string]int{}
	count := func() {
		for _, m := range cl.all() {
			for _, it := range m.GetWatch().GetItems() {
				seen[it.GetPath()]++
			}
		}
	}
	// Another watch is there already, so changes are gathered when this one begins.
	r.dial().send(watch(&wirepb.Watch{Id: 1, Path: "/", Scope: wirepb.WatchScope_SUBTREE}))
	write()
	write()
	cl.post(watch(&wirepb.Watch{Id: 1, Path: "/w", Scope: wirepb.WatchScope_CHILDREN}))
	write()
	r.log.unproven = true
	c.settle()
	write()
	c.settle()
	write()
	r.log.unproven = false
	c.settle()
	write()
	c.settle()
	count()
	for n := uint64(1); n <= number; n++ {
		if got := seen[fmt.Sprintf("/w/%04d", n)]; got != 1 {
			t.Errorf("write %d of %d was seen %d times", n, number, got)
		}
	}
}

func TestWatchResumes(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, long)
	cl.do(s, put("/w/a", "1"))
	cl.do(s, put("/w/b", "1"))
	since := c.reps[0].store.Revision()
	cl.do(s, put("/w/b", "2"))
	cl.do(s, put("/w/c", "2"))
	view := map[string]string{}
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/w", Scope: wirepb.WatchScope_SUBTREE, Since: since}))
	cl.updates(1, view)
	if want := "map[/w:left out /w/a:left out /w/b:2 /w/c:2]"; fmt.Sprint(view) != want {
		t.Errorf("resumed with %v, want %s", view, want)
	}
	// A revision that is to come is not this cell's: everything is given.
	cl.send(watch(&wirepb.Watch{Id: 2, Path: "/w/a", Since: 1 << 62}))
	cl.updates(2, view)
	if view["/w/a"] != "1" {
		t.Errorf("content left out for a revision that is to come")
	}
	cl.send(watch(&wirepb.Watch{Id: 3, Path: "/w/a", NoData: true}))
	cl.updates(3, view)
	if view["/w/a"] != "left out" {
		t.Error("content although none was wanted")
	}
}

// States and updates that are too large for a frame come in pages. Of a state only
// the last carries the revision from which a client may resume; an update carries
// that of the last change that it completes.
func TestWatchPages(t *testing.T) {
	const frame = 64 << 10
	c := newCell(t, 1)
	r := c.reps[0]
	writer := r.dial()
	cl := r.connect()
	cl.send(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, MaxFrame: frame}))
	cl.next()
	s := writer.open(1, long)
	for i := range 12 {
		writer.do(s, put(fmt.Sprintf("/w/%02d", i), strings.Repeat("x", 20_000)))
	}
	writer.do(s, put("/w/big", strings.Repeat("x", 100_000)))
	check := func(state bool, before uint64) {
		t.Helper()
		msgs := cl.all()
		if len(msgs) < 4 {
			t.Fatalf("%d pages", len(msgs))
		}
		n := 0
		for i, m := range msgs {
			if size := proto.Size(m); size > frame {
				t.Errorf("a page of %d bytes", size)
			}
			u, last := m.GetWatch(), i == len(msgs)-1
			n += len(u.GetItems())
			want := before
			switch {
			case last:
				want = r.store.Revision()
			case !state:
				want = u.GetItems()[len(u.GetItems())-1].GetRevision()
			}
			if u.GetState() != state || u.GetEnd() != (state && last) || u.GetRevision() != want {
				t.Errorf("page %d of %d: state %v, end %v, revision %d, want %d", i, len(msgs), u.GetState(), u.GetEnd(), u.GetRevision(), want)
			}
			for _, it := range u.GetItems() {
				if left := it.GetDataLeftOut(); left != (it.GetPath() == "/w/big") {
					t.Errorf("%s: left out %v", it.GetPath(), left)
				}
			}
		}
		if n < 12 {
			t.Errorf("%d items", n)
		}
	}
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/w", Scope: wirepb.WatchScope_SUBTREE}))
	check(true, 0)
	before := r.store.Revision()
	for i := range 12 {
		writer.post(request(s, uint64(14+i), put(fmt.Sprintf("/w/%02d", i), strings.Repeat("y", 20_000))))
	}
	c.settle()
	check(false, before)
}

func TestWatchStateTooLarge(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, long)
	for i := range 33 {
		cl.do(s, put(fmt.Sprintf("/w/%02d", i), strings.Repeat("x", 1<<20)))
	}
	cl.send(watch(&wirepb.Watch{Id: 5, Path: "/", Scope: wirepb.WatchScope_SUBTREE}))
	if e := cl.err(wirepb.ErrorCode_TOO_MANY); e.GetId() != 5 || e.GetFatal() {
		t.Errorf("error %v", e)
	}
	cl.none()
	if n := c.reps[0].Metrics().Watches; n != 0 {
		t.Errorf("%d watches left", n)
	}
	cl.send(watch(&wirepb.Watch{Id: 5, Path: "/", Scope: wirepb.WatchScope_SUBTREE, NoData: true}))
	if u := cl.next().GetWatch(); len(u.GetItems()) != 35 || !u.GetEnd() {
		t.Errorf("%d items without data", len(u.GetItems()))
	}
}

func TestRefusedWatches(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.MaxWatchesPerConn = 2 })
	cl := c.reps[0].dial()
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/a/../b"}))
	if e := cl.err(wirepb.ErrorCode_INVALID_ARGUMENT); e.GetId() != 1 {
		t.Errorf("error %v", e)
	}
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/a", Scope: 9}))
	cl.err(wirepb.ErrorCode_INVALID_ARGUMENT)
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/a"}))
	cl.send(watch(&wirepb.Watch{Id: 2, Path: "/a"}))
	cl.all()
	cl.send(watch(&wirepb.Watch{Id: 2, Path: "/b"}))
	cl.err(wirepb.ErrorCode_INVALID_ARGUMENT)
	cl.send(watch(&wirepb.Watch{Id: 3, Path: "/a"}))
	if e := cl.err(wirepb.ErrorCode_TOO_MANY); e.GetId() != 3 || !strings.Contains(e.GetText(), "2") {
		t.Errorf("error %v", e)
	}
	cl.hangup()
	if n := c.reps[0].Metrics().Watches; n != 0 {
		t.Errorf("%d watches left", n)
	}
}

// Watches that are dropped while others of their path stay are swept, and the
// rest go on in order of registration.
func TestManyWatchesOfOnePath(t *testing.T) {
	c := newCell(t, 1)
	cl := c.reps[0].dial()
	s := cl.open(1, long)
	for id := uint64(1); id <= 100; id++ {
		cl.send(watch(&wirepb.Watch{Id: id, Path: "/a"}))
	}
	for id := uint64(1); id <= 100; id++ {
		if id%10 != 0 {
			cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: id}}})
		}
	}
	cl.all()
	cl.send(request(s, 1, put("/a", "x")))
	cl.result(1)
	for id := uint64(10); id <= 100; id += 10 {
		if u := cl.next().GetWatch(); u.GetId() != id {
			t.Errorf("update of watch %d, want %d", u.GetId(), id)
		}
	}
	cl.none()
}
