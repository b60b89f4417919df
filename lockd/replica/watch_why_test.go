package replica

import (
	"fmt"
	"strings"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

func ephemeral(path string) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Create{Create: &storepb.Create{Path: path, Kind: storepb.NodeKind_EPHEMERAL}}}
}

func closeSession() *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{}}}
}

// words are what a client was told of deletions and locks, with who is who.
func (cl *testClient) words(who map[uint64]string) string {
	var words []string
	for _, m := range cl.all() {
		for _, it := range m.GetWatch().GetItems() {
			word := ""
			switch l := it.GetLock(); {
			case l != nil:
				word = fmt.Sprintf("%s %s %s", it.GetPath(), strings.ToLower(strings.TrimPrefix(l.GetEvent().String(), "LOCK_")), who[l.GetHolder().GetSession()])
				if l.GetLoss() != 0 {
					word += " " + l.GetLoss().String()
				}
				if l.GetFence() == 0 || l.GetFence() != l.GetHolder().GetFence() || l.GetLockGeneration() == 0 {
					word += fmt.Sprintf(" without its fence: %v", l)
				}
			case it.GetDeleted():
				word = it.GetPath() + " " + it.GetReason().String()
			default:
				continue
			}
			if m.GetWatch().GetState() {
				word = "state: " + word
			}
			words = append(words, word)
		}
	}
	return strings.Join(words, ", ")
}

func TestWatchTellsWhy(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	writer, cl := r.dial(), r.dial()
	s := writer.open(1, long)
	cl.send(watch(&wirepb.Watch{Id: 1, Path: "/", Scope: wirepb.WatchScope_SUBTREE}))
	expect := func(want string) {
		t.Helper()
		if got := cl.words(nil); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	writer.do(s, put("/a", ""))
	writer.do(s, put("/a/b", ""))
	writer.do(s, remove("/a"))
	expect("/a/b DELETED, /a DELETED")
	for n, how := range []string{"SESSION_CLOSED", "SESSION_EXPIRED"} {
		other := r.dial()
		o := other.open(uint64(2+n), time.Second)
		other.code(storepb.Code_OK, other.do(o, ephemeral("/e")))
		if how == "SESSION_CLOSED" {
			other.send(request(o, 2, closeSession()))
		} else {
			other.hangup()
			c.advance(3 * time.Second)
		}
		expect("/e " + how)
	}
	l := lock("/c/l", 0)
	l.GetAcquire().Create = true
	writer.code(storepb.Code_OK, writer.do(s, l))
	x := remove("/c/l")
	x.GetDelete().Force = true
	writer.code(storepb.Code_OK, writer.do(s, x))
	expect("/c/l FORCED, /c CONTAINER_IDLE")
}

// Who watches locks is told each hand that one passes through, and why it left it.
func TestWatchTellsLocks(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	a, b, cl, without := r.dial(), r.dial(), r.dial(), r.dial()
	sa, sb := a.open(1, 10*time.Second), b.open(2, long)
	who := map[uint64]string{sa: "a", sb: "b"}
	a.code(storepb.Code_OK, a.do(sa, put("/l", "")))
	a.code(storepb.Code_OK, a.do(sa, put("/l/below", "")))
	w := func(id uint64, scope wirepb.WatchScope) *wirepb.ClientMessage {
		return watch(&wirepb.Watch{Id: id, Path: "/l", Scope: scope, Locks: true})
	}
	cl.send(w(1, wirepb.WatchScope_CHILDREN))
	without.send(watch(&wirepb.Watch{Id: 1, Path: "/l"}))
	expect := func(want string) {
		t.Helper()
		if got := cl.words(who); got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	expect("")
	without.all()
	delay := func(x *storepb.Command) *storepb.Command {
		x.GetAcquire().LockDelayMs = 5000
		return x
	}
	a.code(storepb.Code_OK, a.do(sa, delay(lock("/l", 0))))
	expect("/l acquired a")
	b.code(storepb.Code_WAITING, b.do(sb, lock("/l", time.Hour)))
	expect("")
	a.code(storepb.Code_OK, a.do(sa, unlock("/l", 3)))
	expect("/l released a, /l acquired b")
	cl.send(w(2, wirepb.WatchScope_NODE))
	expect("state: /l acquired b")
	cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: 2}}})
	b.event(1, storepb.Code_GRANTED)
	b.code(storepb.Code_OK, b.do(sb, unlock("/l", 1)))
	expect("/l released b")
	a.code(storepb.Code_OK, a.do(sa, delay(lock("/l", 0))))
	expect("/l acquired a")
	a.hangup()
	for c.session(sa) {
		c.advance(time.Second)
	}
	expect("/l lost a HOLDER_EXPIRED")
	cl.send(w(3, wirepb.WatchScope_SUBTREE))
	expect("state: /l lost a")
	cl.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: 3}}})
	c.advance(6 * time.Second)
	expect("/l ghost_ended a")
	b.code(storepb.Code_OK, b.do(sb, lock("/l/below", 0)))
	expect("/l/below acquired b")
	without.none()
}
