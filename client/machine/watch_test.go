package machine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// item is a node whose instance is i, written g times, with content.
func item(path string, i, g uint64) *pb.WatchItem {
	return &pb.WatchItem{Path: path, HasData: true, Data: []byte(fmt.Sprint(i, ".", g)),
		Stat: &storepb.Stat{Instance: i, ContentGeneration: g, ModifyRevision: i + g - 1}}
}

// listing is old for a node whose last child came or went at a revision.
func listing(path string, i, g, children uint64) *pb.WatchItem {
	it := old(path, i, g)
	it.Stat.ChildRevision = children
	return it
}

// old is item without content, because it is not newer than since.
func old(path string, i, g uint64) *pb.WatchItem {
	it := item(path, i, g)
	it.Data, it.DataLeftOut = nil, true
	return it
}

func gone(path string) *pb.WatchItem { return &pb.WatchItem{Path: path, Deleted: true} }

type watchRig struct {
	*rig
	wire uint64
}

// register takes the next message, a Watch.
func (w *watchRig) register(since uint64) {
	w.t.Helper()
	m := expect[*pb.ClientMessage_Watch](w.rig).Watch
	if m.Since != since || m.Path != "/a" || m.Scope != pb.WatchScope_SUBTREE {
		w.t.Fatalf("registers %v, expected since %d", m, since)
	}
	w.wire = m.Id
}

func (w *watchRig) state(revision uint64, end bool, items ...*pb.WatchItem) {
	w.t.Helper()
	w.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Watch{Watch: &pb.WatchUpdate{
		Id: w.wire, Revision: revision, State: true, End: end, Items: items}}})
}

func (w *watchRig) change(revision uint64, items ...*pb.WatchItem) {
	w.t.Helper()
	w.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Watch{Watch: &pb.WatchUpdate{
		Id: w.wire, Revision: revision, Items: items}}})
}

// told demands what was told since the last time, in words.
func (w *watchRig) told(want string) {
	w.t.Helper()
	var b []string
	for _, u := range w.news[1] {
		if u.Err != nil {
			b = append(b, u.Err.Error())
			continue
		}
		sign := "="
		if u.Update.State {
			sign = "+"
		}
		for _, it := range u.Update.Items {
			if it.Missed {
				b = append(b, "missed")
			}
			if l := it.Lock; l != nil {
				b = append(b, fmt.Sprintf("%s:%s:%d", strings.TrimPrefix(l.Event.String(), "LOCK_"), it.Path, l.Holder.GetSession()))
			} else if it.Deleted {
				b = append(b, "-"+it.Path)
			} else {
				b = append(b, fmt.Sprintf("%s%s:%s", sign, it.Path, it.Data))
			}
		}
		if u.Update.End {
			b = append(b, "end")
		}
	}
	w.news[1] = nil
	if got := strings.Join(b, " "); got != want {
		w.t.Fatalf("told %q, expected %q", got, want)
	}
}

func newWatch(t *testing.T) *watchRig {
	t.Helper()
	w := &watchRig{rig: live(t)}
	w.step(machine.Watch{ID: 1, Watch: &pb.Watch{Path: "/a", Scope: pb.WatchScope_SUBTREE}})
	w.register(0)
	return w
}

func (w *watchRig) again(since uint64) {
	w.t.Helper()
	w.reconnect()
	w.keepAlive()
	w.register(since)
}

func TestWatchStateThenChanges(t *testing.T) {
	w := newWatch(t)
	w.state(0, false, item("/a", 1, 1), item("/a/b", 2, 1))
	w.state(5, true, item("/a/c", 3, 1))
	w.told("+/a:1.1 +/a/b:2.1 +/a/c:3.1 end")
	w.change(6, item("/a/b", 2, 2))
	w.change(7, gone("/a/c"), item("/a/d", 7, 1))
	w.told("=/a/b:2.2 -/a/c =/a/d:7.1")
	// What is told already, or never was there, is not told.
	w.change(8, item("/a/b", 2, 2), gone("/a/c"), item("/a/d", 7, 1))
	w.told("")
	// Made anew under the same name.
	w.change(9, item("/a/d", 9, 1))
	w.told("=/a/d:9.1")
}

func TestWatchOfNothing(t *testing.T) {
	w := newWatch(t)
	w.state(5, true)
	w.told("end")
	w.change(6, item("/a", 6, 1))
	w.told("=/a:6.1")
}

func TestWatchTellsTheDifference(t *testing.T) {
	w := newWatch(t)
	w.state(5, true, item("/a", 1, 1), item("/a/b", 2, 1), item("/a/c", 3, 1), item("/a/c/x", 4, 1), item("/a/d", 4, 1), item("/a/z", 5, 1))
	w.change(8, item("/a/b", 2, 2))
	w.told("+/a:1.1 +/a/b:2.1 +/a/c:3.1 +/a/c/x:4.1 +/a/d:4.1 +/a/z:5.1 end =/a/b:2.2")
	w.again(8)
	w.state(8, false, listing("/a", 1, 1, 12), old("/a/b", 2, 2), item("/a/d", 15, 1))
	w.state(20, true, item("/a/e", 10, 3))
	// c and z were deleted, d made anew, e is new: the deletions first, then each
	// at its last change.
	w.told("missed -/a/z missed -/a/c/x missed -/a/c missed =/a/e:10.3 missed =/a/d:15.1")
	// Only what has changed is in a state: nothing has.
	w.again(20)
	w.state(22, true, old("/a", 1, 1))
	w.told("")
	w.change(23, gone("/a/e"))
	w.told("-/a/e")
	// Something came and went meanwhile.
	w.again(23)
	w.state(27, true, listing("/a", 1, 1, 25), old("/a/b", 2, 2), old("/a/d", 15, 1))
	w.told("")
	w.change(28, item("/a/b", 2, 3), item("/a/d", 15, 2))
	w.told("missed =/a/b:2.3 =/a/d:15.2")
	// The whole scope goes.
	w.again(28)
	w.state(30, true)
	w.told("missed -/a/d missed -/a/b missed -/a")
	w.again(30)
	w.state(30, true)
	w.change(31, item("/a", 31, 1))
	w.told("=/a:31.1")
	w.change(32, gone("/a"))
	w.again(32)
	w.state(34, true) // it may have come and gone
	w.change(35, item("/a", 35, 1))
	w.told("-/a missed =/a:35.1")
}

// The service begins a state on its own when it has let changes go.
func TestWatchFallsOut(t *testing.T) {
	w := newWatch(t)
	w.state(5, true, item("/a", 1, 1), item("/a/b", 2, 1))
	w.change(6, item("/a/c", 6, 1))
	w.told("+/a:1.1 +/a/b:2.1 end =/a/c:6.1")
	w.state(6, false, listing("/a", 1, 1, 9), old("/a/b", 2, 1))
	w.state(12, true, item("/a/d", 8, 4))
	w.change(13, item("/a/b", 2, 12))
	w.told("missed -/a/c missed =/a/d:8.4 =/a/b:2.12")
	w.again(13)
}

// Locks: present holders come behind the state, then each that comes and goes.
func TestWatchLocks(t *testing.T) {
	hold := func(event pb.LockEvent, session uint64) *pb.WatchItem {
		return &pb.WatchItem{Path: "/a", Lock: &pb.WatchLock{Event: event, Holder: &storepb.Blocker{Session: session, Ticket: 1}}}
	}
	const acquired, released, lost, ended = pb.LockEvent_LOCK_ACQUIRED, pb.LockEvent_LOCK_RELEASED, pb.LockEvent_LOCK_LOST, pb.LockEvent_LOCK_GHOST_ENDED
	w := &watchRig{rig: live(t)}
	w.step(machine.Watch{ID: 1, Watch: &pb.Watch{Path: "/a", Scope: pb.WatchScope_SUBTREE, Locks: true}})
	w.register(0)
	w.state(5, true, item("/a", 1, 1), hold(acquired, 7))
	w.told("+/a:1.1 ACQUIRED:/a:7 end")
	w.change(6, hold(lost, 7))
	w.change(7, hold(ended, 7), hold(acquired, 8))
	w.told("LOST:/a:7 GHOST_ENDED:/a:7 ACQUIRED:/a:8")
	w.again(7)
	w.state(9, true, old("/a", 1, 1), hold(acquired, 8))
	w.told("")
	w.again(9)
	w.state(12, true, item("/a", 1, 2), hold(acquired, 9))
	w.told("missed RELEASED:/a:8 missed =/a:1.2 missed ACQUIRED:/a:9")
	w.again(12)
	w.state(13, true, old("/a", 1, 2), hold(lost, 9))
	w.told("missed LOST:/a:9")
	w.again(13)
	w.state(14, true, old("/a", 1, 2))
	w.told("missed GHOST_ENDED:/a:9")
	w.change(15, hold(released, 9))
	w.told("")
}

func TestWatchResumesWithinTheFirstState(t *testing.T) {
	w := newWatch(t)
	w.state(5, false, item("/a", 1, 1), item("/a/b", 2, 1), item("/a/c", 3, 1))
	w.told("+/a:1.1 +/a/b:2.1 +/a/c:3.1")
	w.again(0) // not all of revision 5 was told
	w.state(6, false, item("/a", 1, 1), item("/a/b", 2, 2))
	w.state(6, true, item("/a/d", 6, 1))
	w.told("+/a/b:2.2 missed -/a/c +/a/d:6.1 end")
}

// A later state that breaks off tells nothing; the next one tells all of it.
func TestWatchResumesWithinALaterState(t *testing.T) {
	w := newWatch(t)
	w.state(5, true, item("/a", 1, 1), item("/a/b", 2, 1))
	w.told("+/a:1.1 +/a/b:2.1 end")
	w.again(5)
	w.state(5, false, item("/a", 1, 6))
	w.told("")
	w.again(5)
	w.state(9, true, item("/a", 1, 6), old("/a/b", 2, 1))
	w.told("missed =/a:1.6")
}

// A service that leaves out what the client does not have is asked for all.
func TestWatchAsksForContentLeftOut(t *testing.T) {
	w := newWatch(t)
	w.state(5, true, item("/a", 1, 1))
	w.told("+/a:1.1 end")
	w.again(5)
	w.state(9, true, old("/a", 1, 1), old("/a/b", 2, 1))
	w.told("")
	expect[*pb.ClientMessage_Unwatch](w.rig)
	w.register(0)
	w.state(9, true, item("/a", 1, 1), item("/a/b", 2, 1))
	w.told("missed =/a/b:2.1")
}

func TestWatchPause(t *testing.T) {
	w := newWatch(t)
	w.state(5, true, item("/a", 1, 1))
	w.step(machine.Pause{ID: 1})
	if u := expect[*pb.ClientMessage_Unwatch](w.rig).Unwatch; u.Id != w.wire {
		t.Fatalf("unwatches %v", u)
	}
	w.change(6, item("/a", 1, 2)) // was on its way
	w.told("+/a:1.1 end")
	w.reconnect()
	w.keepAlive()
	w.silent()
	w.step(machine.Resume{ID: 1})
	w.register(5)
	w.state(9, true, item("/a", 1, 4))
	w.told("missed =/a:1.4")
}

func TestWatchEnds(t *testing.T) {
	w := newWatch(t)
	w.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
		Code: pb.ErrorCode_OVERLOADED, Id: w.wire, RetryAfterMs: 100}}})
	w.pass(99 * ms)
	w.silent()
	w.pass(ms)
	w.register(0)
	w.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
		Code: pb.ErrorCode_TOO_MANY, Id: w.wire, Text: "enough"}}})
	if u := w.news[1]; len(u) != 1 || !errors.Is(u[0].Err, machine.ErrLimit) {
		t.Fatalf("told %v", u)
	}
	w = newWatch(t)
	w.step(machine.Cancel{ID: 1})
	expect[*pb.ClientMessage_Unwatch](w.rig)
	w.state(5, true, item("/a", 1, 1))
	w.told("")
	w.reconnect()
	w.keepAlive()
	w.silent()
}

func TestManyWatchesSyncInTurn(t *testing.T) {
	r := live(t)
	const n = 200
	for id := machine.CallID(1); id <= n; id++ {
		r.step(machine.Watch{ID: id, Watch: &pb.Watch{Path: "/a"}})
	}
	r.reconnect()
	r.keepAlive()
	if len(r.sent) != 64 {
		t.Fatalf("%d watches are registered at once", len(r.sent))
	}
	for range n {
		w := expect[*pb.ClientMessage_Watch](r).Watch
		r.receive(&pb.ServerMessage{Body: &pb.ServerMessage_Watch{Watch: &pb.WatchUpdate{Id: w.Id, State: true, End: true, Revision: 1}}})
	}
	r.silent()
	for id := machine.CallID(1); id <= n; id++ {
		if len(r.news[id]) != 1 {
			t.Fatalf("watch %d was told %v", id, r.news[id])
		}
	}
}
