package store

import (
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

// A client that acknowledges nothing waits for a lock as often as it may; all are
// granted at once, and then lost at once. There is room for both events of each.
func TestBytesOfGrantsAndLosses(t *testing.T) {
	q := newQuick(t)
	holder, v := q.open(), q.openLong()
	q.passes(holder, acquire(longPath, exclusive, 0))
	waits := 0
	for {
		r := q.do(v, acquireWait(longPath, shared, 60_000))
		if r.Code != pb.Code_WAITING {
			if r.Limit != LimitEventBytes {
				t.Fatal(r)
			}
			q.next[v]-- // refused: the number is used again
			break
		}
		waits++
	}
	q.passes(holder, release(1))
	if err := q.s.Check(); err != nil {
		t.Fatalf("%d granted: %v", waits, err)
	}
	q.passes(holder, delForce(longPath))
	if err := q.s.Check(); err != nil {
		t.Fatalf("%d lost: %v", waits, err)
	}
	events := 0
	q.s.Events(v, 0, func(*pb.SessionEvent) bool { events++; return true })
	if events != 2*waits || waits < 100 {
		t.Fatalf("%d events of %d waits", events, waits)
	}
}

// Each field of a claim tells in the hash.
func TestHashFeelsEveryPartOfAClaim(t *testing.T) {
	for name, change := range map[string]func(*claim){
		"mode":        func(c *claim) { c.mode = shared + exclusive - c.mode },
		"state":       func(c *claim) { c.state++ },
		"session":     func(c *claim) { c.session++ },
		"ticket":      func(c *claim) { c.ticket++ },
		"path":        func(c *claim) { c.path += "x" },
		"client":      func(c *claim) { c.client = &pb.ClientInfo{Name: "other"} },
		"revision":    func(c *claim) { c.revision++ },
		"fence":       func(c *claim) { c.fence++ },
		"since, wall": func(c *claim) { c.sinceWall++ },
		"since, cell": func(c *claim) { c.sinceCell++ },
		"until":       func(c *claim) { c.until++ },
		"lock-delay":  func(c *claim) { c.delayMS++ },
		"lease":       func(c *claim) { c.leaseMS++ },
	} {
		c := &claim{session: 1, ticket: 2, path: "/p", mode: exclusive, state: held, revision: 3, fence: 3, delayMS: 4, leaseMS: 5}
		was := c.computeHash()
		if change(c); c.computeHash() == was {
			t.Errorf("%s: the hash is the same", name)
		}
	}
}
