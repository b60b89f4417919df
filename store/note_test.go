package store

import (
	"slices"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

func note(end int64, ids ...uint64) *pb.Command {
	n := &pb.NoteSessions{}
	for _, id := range ids {
		n.Notes = append(n.Notes, &pb.SessionNote{Session: id, LeaseEndCell: end})
	}
	return &pb.Command{Op: &pb.Command_NoteSessions{NoteSessions: n}}
}

func noted(s *Store, after uint64) (list []uint64) {
	s.Noted(after, func(v SessionView) bool {
		if v.LeaseEndCell != 0 {
			list = append(list, v.ID)
		}
		return true
	})
	return list
}

func TestNotesOfSilentSessions(t *testing.T) {
	c := newCell(t)
	a, b, d := c.open(), c.open(), c.open()
	revision := c.s.Revision()
	c.apply(note(77, a, d, 4711, 0))
	c.apply(note(78, d))
	c.apply(note(-1, b))
	if c.s.Revision() != revision || len(c.last) != 0 {
		t.Fatal("a note is no change of a node, a lock or a session")
	}
	c.s = restore(t, snapshot(t, c.s))
	if got := noted(c.s, 0); !slices.Equal(got, []uint64{a, d}) {
		t.Fatalf("noted are %v", got)
	}
	if got := noted(c.s, a); !slices.Equal(got, []uint64{d}) {
		t.Fatalf("noted behind %d are %v", a, got)
	}
	if x, _ := c.s.Session(d); x.LeaseEndCell != 78 {
		t.Fatalf("%+v", x)
	}
	c.apply(note(0, a, b))
	if got := noted(c.s, 0); !slices.Equal(got, []uint64{d}) {
		t.Fatalf("noted are %v", got)
	}
	c.expire(d)
	if got := noted(c.s, 0); len(got) != 0 {
		t.Fatalf("noted are %v", got)
	}
	// Another epoch's note is void, and it is no request of a session.
	old := note(5, a)
	old.Epoch = c.s.Epoch()
	c.s.ApplyLead(0, 0, 0)
	if r := c.applyBytes(marshal(t, old)); r.Code != pb.Code_STALE_EPOCH || len(noted(c.s, 0)) != 0 {
		t.Fatalf("%v", r)
	}
	c.want(pb.Code_BAD_COMMAND, a, note(5, a))
}

// An expiry that was decided before a clear is void; the one of the master that
// noted the session is not.
func TestAClearedNoteVoidsTheExpiryBeforeIt(t *testing.T) {
	c := newCell(t)
	a := c.open()
	decide := func() *pb.Command {
		x, _ := c.s.Session(a)
		return &pb.Command{Op: &pb.Command_ExpireSession{ExpireSession: &pb.ExpireSession{Session: a, LastChange: x.LastChange}}}
	}
	for range 2 { // no revision between them: the second clear voids as well
		before := decide()
		c.apply(note(9, a))
		later := decide()
		c.apply(note(0, a))
		for _, e := range []*pb.Command{before, later} {
			if r := c.apply(e); r.Code != pb.Code_STALE_EPOCH {
				t.Fatalf("%v", r)
			}
		}
	}
	before := decide()
	c.apply(note(9, a))
	c.apply(note(10, a))
	if r := c.apply(before); r.Code != pb.Code_OK {
		t.Fatalf("its own note voided a master's expiry: %v", r)
	}
}
