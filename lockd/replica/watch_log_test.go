package replica

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"pgregory.net/rapid"
)

func multi(commands ...*storepb.Command) *storepb.Command {
	var ops []*storepb.MultiOp
	for _, c := range commands {
		switch op := c.GetOp().(type) {
		case *storepb.Command_Put:
			ops = append(ops, &storepb.MultiOp{Op: &storepb.MultiOp_Put{Put: op.Put}})
		case *storepb.Command_Delete:
			ops = append(ops, &storepb.MultiOp{Op: &storepb.MultiOp_Delete{Delete: op.Delete}})
		}
	}
	return &storepb.Command{Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: ops}}}
}

// told returns the changes that were received, in words.
func (cl *testClient) told() (told []string) {
	for _, m := range cl.all() {
		u := m.GetWatch()
		for _, it := range u.GetItems() {
			word := it.GetPath() + "=" + string(it.GetData())
			if it.GetDeleted() {
				word = "-" + it.GetPath()
			}
			if u.GetState() {
				word = "+" + word
			}
			told = append(told, word)
		}
	}
	return told
}

// All that a batch changes is told in the order in which it was executed, also
// several changes of one path. What a transaction does to a path is one change: its
// states between were never there for anybody.
func TestWatchOrder(t *testing.T) {
	c := newCell(t, 1)
	writer, cl := c.reps[0].dial(), c.reps[0].dial()
	s := writer.open(1, long)
	writer.code(storepb.Code_OK, writer.do(s, put("/d", "")))
	writer.code(storepb.Code_OK, writer.do(s, put("/d/ready", "no")))
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/d", Scope: wirepb.WatchScope_SUBTREE}))
	cl.all()
	n := uint64(2)
	batch := func(want string, commands ...*storepb.Command) {
		t.Helper()
		c.reps[0].log.hold = true
		for _, x := range commands {
			n++
			writer.post(request(s, n, x))
		}
		c.settle()
		c.reps[0].log.hold = false
		c.settle()
		if got := strings.Join(cl.told(), " "); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
		writer.all()
	}
	batch("/d/ready=wait /d/data=1 /d/ready=yes /d/x=1 -/d/x /d/ready=no",
		put("/d/ready", "wait"), put("/d/data", "1"), put("/d/ready", "yes"), put("/d/x", "1"), remove("/d/x"), put("/d/ready", "no"))
	batch("/d/data=3 /d/ready=yes", multi(put("/d/data", "2"), put("/d/data", "3"), put("/d/ready", "yes")))
	batch("-/d/data", multi(put("/d/passing", "1"), remove("/d/passing"), remove("/d/data")))
	batch("/d/ready=new", multi(remove("/d/ready"), put("/d/ready", "new")))
	batch("/d/a=1 /d/a/b=1", multi(put("/d/a", ""), put("/d/a/b", "1"), put("/d/a", "1")))
	batch("-/d/ready -/d/a/b -/d/a -/d", remove("/d"))
	if m := c.reps[0].Metrics(); m.WatchLogBytes != 0 || m.WatchesBehind != 0 || m.WatchesMissed != 0 {
		t.Errorf("all is told, and there are left: %+v", m)
	}
}

// A client that does not read is left behind while the log holds what it was not
// told, and told all of it. Beyond that it gets the difference in state. Others
// are told everything as it comes.
func TestWatchFallsOutOfTheLog(t *testing.T) {
	noRoom := map[ConnID]bool{}
	const bound = 64 << 10
	c := newCell(t, 1, func(o *Options) {
		o.WatchTopicBytes = bound
		o.Room = func(id ConnID, _ bool) int {
			if noRoom[id] {
				return 0
			}
			return 48 << 20
		}
	})
	r := c.reps[0]
	writer, slow, fast := r.dial(), r.dial(), r.dial()
	s := writer.open(1, long)
	for _, cl := range []*testClient{slow, fast} {
		cl.send(watch(&wirepb.Watch{Id: 1, Path: "/d", Scope: wirepb.WatchScope_CHILDREN}))
		cl.all()
	}
	writes := 0
	write := func(n int) {
		for range n {
			writer.code(storepb.Code_OK, writer.do(s, put("/d/"+fmt.Sprint(writes%3), fmt.Sprint(writes))))
			writes++
		}
	}
	all := func(from int) (want []string) {
		for ; from < writes; from++ {
			want = append(want, fmt.Sprintf("/d/%d=%d", from%3, from))
		}
		return want
	}
	write(1)
	slow.all()
	fast.all()
	noRoom[slow.conn] = true
	write(50)
	if got := fast.told(); !slices.Equal(got, all(1)) {
		t.Errorf("a client that reads was told %q", got)
	}
	if m := r.Metrics(); m.WatchesBehind != 1 || m.WatchLogBytes < 50*512 {
		t.Errorf("with a client that does not read: %+v", m)
	}
	slow.none()
	noRoom[slow.conn] = false
	c.advance(tick)
	if got := slow.told(); !slices.Equal(got, all(1)) {
		t.Errorf("a client that reads again was told %q", got)
	}
	noRoom[slow.conn] = true
	from := writes
	write(500)
	if m := r.Metrics(); m.WatchLogBytes > bound {
		t.Errorf("%d bytes are kept, the bound is %d", m.WatchLogBytes, bound)
	}
	if got := fast.told(); !slices.Equal(got, all(from)) {
		t.Errorf("a client that reads was told %d of %d changes", len(got), writes-from)
	}
	noRoom[slow.conn] = false
	c.advance(2 * tick)
	if got, want := strings.Join(slow.told(), " "), "+/d= +/d/0=549 +/d/1=550 +/d/2=548"; got != want {
		t.Errorf("a client that fell out of the log was told %q, want %q", got, want)
	}
	from = writes
	write(1)
	if got := slow.told(); !slices.Equal(got, all(from)) {
		t.Errorf("after the state %q", got)
	}
	if m := r.Metrics(); m.WatchLogBytes != 0 || m.WatchesBehind != 0 || m.WatchesMissed != 1 {
		t.Errorf("all is told, and there are left: %+v", m)
	}
}

// Many watches of one path are told in slices: others have their turn between them.
func TestWatchSlices(t *testing.T) {
	const conns, each = 3, 2000
	c := newCell(t, 1)
	r := c.reps[0]
	writer, other := r.dial(), r.dial()
	s := writer.open(1, long)
	writer.code(storepb.Code_OK, writer.do(s, put("/a", "1")))
	var cls []*testClient
	for range conns {
		cl := r.dial()
		for id := range uint64(each) {
			cl.post(watch(&wirepb.Watch{Id: id + 1, Path: "/a"}))
		}
		c.settle()
		if n := len(cl.all()); n != each {
			t.Fatalf("%d first states", n)
		}
		cls = append(cls, cl)
	}
	other.send(watch(&wirepb.Watch{Id: 1, Path: "/b"}))
	other.all()
	writer.post(request(s, 2, put("/a", "2")))
	writer.post(request(s, 3, put("/b", "2")))
	writer.post(request(s, 4, put("/a", "3")))
	r.take()
	count := func() (n int) {
		for _, cl := range cls {
			n += len(r.inbox[cl.conn])
		}
		return n
	}
	if n := count(); n > 2048 {
		t.Errorf("one batch has sent %d updates", n)
	}
	if got := other.told(); !slices.Equal(got, []string{"/b=2"}) {
		t.Errorf("behind many watches of another path: %q", got)
	}
	if r.Due(c.now) > c.now {
		t.Error("what is left is not due at once")
	}
	c.settle()
	for _, cl := range cls {
		for _, m := range cl.all() {
			if it := m.GetWatch().GetItems(); len(it) != 2 || string(it[1].GetData()) != "3" {
				t.Fatalf("told %v", m)
			}
		}
	}
	if m := r.Metrics(); m.WatchLogBytes != 0 {
		t.Errorf("all is told, and there are left: %+v", m)
	}
}

// Watches cost nothing for what they do not cover.
func TestWatchKeepsOnlyWhatIsWatched(t *testing.T) {
	c := newCell(t, 1, func(o *Options) { o.Room = func(ConnID, bool) int { return 0 } })
	cl := c.reps[0].dial()
	s := cl.open(1, long)
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/a", Scope: wirepb.WatchScope_SUBTREE}))
	for range 10 {
		cl.code(storepb.Code_OK, cl.do(s, put("/ab", strings.Repeat("x", 1000))))
	}
	if n := c.reps[0].Metrics().WatchLogBytes; n != 0 {
		t.Errorf("%d bytes are kept", n)
	}
}

// modelWatch is a client's watch and what a client must be able to conclude from it.
type modelWatch struct {
	w     *wirepb.Watch
	cl    *testClient
	view  map[string]string
	at    int    // how many of all changes it knows
	since uint64 // of the last update that it has completely
	whole bool   // has its first state
	seen  map[string]bool
	fell  int
}

type modelChange struct {
	revision   uint64
	path, data string
	deleted    bool
}

func (w *modelWatch) covers(path string) bool {
	below, ok := strings.CutPrefix(path, strings.TrimSuffix(w.w.GetPath(), "/")+"/")
	switch {
	case path == w.w.GetPath():
		return true
	case !ok || w.w.GetScope() == wirepb.WatchScope_NODE:
		return false
	}
	return w.w.GetScope() == wirepb.WatchScope_SUBTREE || !strings.Contains(below, "/")
}

// take holds an update against all changes there were.
func (w *modelWatch) take(u *wirepb.WatchUpdate, all []modelChange) error {
	if u.GetRevision() < w.since {
		return fmt.Errorf("goes back from revision %d to %d", w.since, u.GetRevision())
	}
	if u.GetState() {
		return w.state(u, all)
	}
	if w.seen != nil {
		return fmt.Errorf("changes within a state")
	}
	for _, it := range u.GetItems() {
		for w.at < len(all) && !w.covers(all[w.at].path) {
			w.at++
		}
		if w.at == len(all) {
			return fmt.Errorf("told %v, which did not happen", it)
		}
		x := all[w.at]
		if it.GetPath() != x.path || it.GetRevision() != x.revision || it.GetDeleted() != x.deleted || string(it.GetData()) != x.data {
			return fmt.Errorf("told %v where %v is next", it, x)
		}
		w.at++
		if delete(w.view, x.path); !x.deleted {
			w.view[x.path] = x.data
		}
	}
	for _, x := range all[w.at:] {
		if w.covers(x.path) && x.revision <= u.GetRevision() {
			return fmt.Errorf("has everything up to revision %d, it says, but was not told %v", u.GetRevision(), x)
		}
	}
	w.since = u.GetRevision()
	return nil
}

func (w *modelWatch) state(u *wirepb.WatchUpdate, all []modelChange) error {
	if w.seen == nil {
		w.seen = map[string]bool{}
		if w.whole {
			w.fell++
		}
	}
	for _, it := range u.GetItems() {
		s := it.GetStat()
		w.seen[it.GetPath()] = w.since == 0 || s.GetInstance() > w.since || s.GetChildRevision() > w.since
		if !it.GetDataLeftOut() {
			w.view[it.GetPath()] = string(it.GetData())
		} else if _, ok := w.view[it.GetPath()]; !ok {
			return fmt.Errorf("content of %s left out", it.GetPath())
		}
	}
	if !u.GetEnd() {
		return nil
	}
	gone := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(w.view)) {
		above := path[:strings.LastIndexByte(path, '/')]
		if _, there := w.seen[path]; !there && (path == w.w.GetPath() || gone[above] || w.seen[above]) {
			gone[path] = true
			delete(w.view, path)
		}
	}
	w.seen, w.whole, w.since = nil, true, u.GetRevision()
	want := map[string]string{}
	for w.at = 0; w.at < len(all) && all[w.at].revision <= u.GetRevision(); w.at++ {
		if x := all[w.at]; w.covers(x.path) {
			if delete(want, x.path); !x.deleted {
				want[x.path] = x.data
			}
		}
	}
	if !maps.Equal(want, w.view) {
		return fmt.Errorf("the state of revision %d shows %v, there is %v", u.GetRevision(), w.view, want)
	}
	return nil
}

// Whatever is written, however slowly clients read and however often they come
// back: each is told every change in order, or the whole difference; those that
// read are told every change; and the log stays within its bounds.
func TestWatchAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		noRoom := map[ConnID]bool{}
		topicBytes := rapid.SampledFrom([]int{2 << 10, 20 << 10, 1 << 20}).Draw(rt, "topic bytes")
		logBytes := rapid.SampledFrom([]int{3 << 10, 30 << 10, 1 << 20}).Draw(rt, "log bytes")
		c := newCell(t, 1, func(o *Options) {
			o.WatchTopicBytes, o.WatchLogBytes = topicBytes, logBytes
			o.Room = func(id ConnID, _ bool) int {
				if noRoom[id] {
					return 0
				}
				return 48 << 20
			}
		})
		r := c.reps[0]
		writer := r.dial()
		s := writer.open(1, long)
		var all []modelChange
		number := uint64(0)
		var posted []*storepb.Command
		post := func(x *storepb.Command) {
			number++
			posted = append(posted, x)
			writer.post(request(s, number, x))
		}
		there := map[string]bool{}
		note := func(x *storepb.Command, revision uint64) {
			if p := x.GetPut(); p != nil {
				all = append(all, modelChange{revision: revision, path: p.GetPath(), data: string(p.GetData())})
				there[p.GetPath()] = true
				return
			}
			path := x.GetDelete().GetPath()
			all = append(all, modelChange{revision: revision, path: path, deleted: true})
			delete(there, path)
		}
		settle := func() {
			first := number - uint64(len(posted)) + 1
			for i, x := range posted {
				res := writer.result(first + uint64(i))
				if res.GetCode() != storepb.Code_OK {
					continue
				}
				if x.GetMulti() == nil {
					note(x, res.GetRevision())
					continue
				}
				for _, op := range x.GetMulti().GetOps() {
					if op.GetPut() != nil {
						note(&storepb.Command{Op: &storepb.Command_Put{Put: op.GetPut()}}, res.GetRevision())
					} else {
						note(&storepb.Command{Op: &storepb.Command_Delete{Delete: op.GetDelete()}}, res.GetRevision())
					}
				}
			}
			posted = nil
		}
		dirs := []string{"/w", "/w/a", "/w/b", "/w/b/c"}
		for _, d := range dirs {
			post(put(d, ""))
		}
		c.settle()
		settle()
		leaf := func() string {
			return fmt.Sprintf("%s/%d", rapid.SampledFrom(dirs).Draw(rt, "dir"), rapid.IntRange(0, 3).Draw(rt, "leaf"))
		}
		values := 0
		op := func() *storepb.Command {
			path := leaf()
			if rapid.IntRange(0, 2).Draw(rt, "what") == 0 {
				return remove(path)
			}
			values++
			return put(path, fmt.Sprint(values))
		}
		var watches []*modelWatch
		paths := []string{"/", "/w", "/w/a", "/w/b", "/w/b/c", "/w/a/1", "/w/b/2"}
		begin := func(w *modelWatch) {
			w.cl = r.dial()
			w.seen, w.whole = nil, false
			w.w.Since = w.since
			w.cl.post(watch(w.w))
		}
		for range rapid.IntRange(1, 6).Draw(rt, "watches") {
			w := &modelWatch{w: &wirepb.Watch{Id: 1, Path: rapid.SampledFrom(paths[1:]).Draw(rt, "path"),
				Scope: wirepb.WatchScope(rapid.IntRange(0, 2).Draw(rt, "scope"))}, view: map[string]string{}}
			watches = append(watches, w)
			begin(w)
		}
		hear := func() {
			for i, w := range watches {
				for _, m := range w.cl.all() {
					if m.GetWatch() == nil {
						rt.Fatalf("got %v", m)
					}
					if err := w.take(m.GetWatch(), all); err != nil {
						rt.Fatalf("watch %d of %v: %v", i, w.w, err)
					}
				}
				if !noRoom[w.cl.conn] && w.whole && w.fell > 0 && logBytes > 100<<10 && topicBytes > 100<<10 {
					rt.Fatalf("watch %d fell out of a log that was never full", i)
				}
			}
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				w := rapid.SampledFrom(watches).Draw(rt, "slow")
				noRoom[w.cl.conn] = !noRoom[w.cl.conn]
			case 1:
				w := rapid.SampledFrom(watches).Draw(rt, "again")
				w.cl.hangup()
				begin(w)
			case 2:
				var x []*storepb.Command
				used := map[string]bool{}
				for range rapid.IntRange(1, 4).Draw(rt, "ops") {
					o := op()
					if path := o.GetPut().GetPath() + o.GetDelete().GetPath(); !used[path] {
						used[path] = true
						x = append(x, o)
					}
				}
				post(multi(x...))
			default:
				for range rapid.IntRange(1, 6).Draw(rt, "batch") {
					post(op())
				}
			}
			c.advance(tick)
			c.settle()
			settle()
			hear()
			if n := r.Metrics().WatchLogBytes; n > max(logBytes, 1<<10) {
				rt.Fatalf("the log has %d bytes, its bound is %d", n, logBytes)
			}
		}
		clear(noRoom)
		c.advance(3 * tick)
		hear()
		for i, w := range watches {
			for _, x := range all[w.at:] {
				if w.covers(x.path) {
					rt.Fatalf("watch %d of %v was not told %v", i, w.w, x)
				}
			}
		}
		if m := r.Metrics(); m.WatchLogBytes != 0 || m.WatchesBehind != 0 {
			rt.Fatalf("all is told, and there are left: %+v", m)
		}
	})
}
