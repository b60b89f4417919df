package store

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/store/pb"
)

func year(y int) int64 { return time.Date(y, 12, 1, 0, 0, 0, 0, time.UTC).Unix() }

func TestLeadsRaiseRevisions(t *testing.T) {
	fresh := func() *cell {
		s := New()
		s.ApplyFound("test", 7, RevisionFloor(0, 0))
		return &cell{t: t, s: s, next: map[uint64]uint64{}}
	}
	for _, x := range []struct {
		what    string
		seconds int64
		raises  bool
		capped  bool
	}{
		{"unknown", 0, false, false}, {"before all", -1 << 63, false, false}, {"before the cell", year(2024), false, false},
		{"2026", year(2026), true, false}, {"2060", year(2060), true, false},
		{"2160", year(2160), true, true}, {"beyond all", 1<<63 - 1, true, true},
	} {
		c := fresh()
		before := c.s.Revision()
		_, changes := c.s.ApplyLead(x.seconds, 5, c.s.Epoch())
		after := c.s.Revision()
		if (after > before) != x.raises || after < before || len(changes) != 1 || changes[0].Capped != x.capped || changes[0].Revision != after {
			t.Errorf("%s: from %x to %x, %+v", x.what, before, after, changes)
		}
		if left := uint64(1<<63-1) - after; left < 1<<60 {
			t.Errorf("%s: %x leaves only %x numbers", x.what, after, left)
		}
		// Never lower, and the cell goes on.
		c.s.ApplyLead(0, 0, 0)
		a := c.open()
		if r := c.want(pb.Code_OK, a, put("/x", "")); r.Revision != after+2 || c.s.CellTime() != 5 {
			t.Errorf("%s: the next writes are of %x, behind %x; cell time %d", x.what, r.Revision, after, c.s.CellTime())
		}
		if restore(t, snapshot(t, c.s)).Hash() != c.s.Hash() {
			t.Errorf("%s: the state is another one after a snapshot", x.what)
		}
	}
	// A floor that no clock could ask for is lowered, not believed.
	s := New()
	s.ApplyFound("test", 7, 1<<64-1)
	if s.Revision() != highMax<<revisionCountBits {
		t.Errorf("founded at %x", s.Revision())
	}
}

// What a cell that goes on from a cold copy gives exceeds all that was given
// after the copy was taken, though it knows nothing of it, as soon as a second
// has passed.
func TestFencesExceedThoseOfBeforeTheRestore(t *testing.T) {
	c := newCell(t)
	start := year(2026)
	c.s.ApplyLead(start, 0, 0)
	a := c.open()
	copied := snapshot(t, c.s)
	var last uint64
	for i := range int64(50) {
		last = c.want(pb.Code_OK, a, acquire("/x", exclusive, 0)).Grant.Fence
		c.want(pb.Code_OK, a, release(c.next[a]-1))
		if i%10 == 0 {
			c.s.ApplyLead(start+i/10, 0, 0)
		}
	}
	r := newCell(t)
	r.s = restore(t, copied)
	r.s.ApplyLead(start+4+1, 0, 0)
	b := r.open()
	if fence := r.want(pb.Code_OK, b, acquire("/x", exclusive, 0)).Grant.Fence; fence <= last {
		t.Fatalf("fence %x after %x", fence, last)
	}
}

// A leader's cell time counts if it was read under the present epoch, and not if
// another master has led since: that one may have gone on from less.
func TestCellTimeOfALead(t *testing.T) {
	c := newCell(t)
	read := c.s.Epoch()
	c.s.ApplyLead(0, 100, read)
	if c.s.CellTime() != 100 {
		t.Errorf("the cell time is %d, the leader has said 100", c.s.CellTime())
	}
	c.s.ApplyLead(0, 200, read)
	c.s.ApplyLead(0, 300, read+9)
	if c.s.CellTime() != 100 {
		t.Errorf("the cell time is %d, from a leader that had not applied the entry before its own", c.s.CellTime())
	}
	c.s.ApplyLead(0, 50, c.s.Epoch())
	if c.s.CellTime() != 100 {
		t.Errorf("the cell time has gone back to %d", c.s.CellTime())
	}
}
