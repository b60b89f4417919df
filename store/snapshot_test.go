package store

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// eventful is a cell in which there is something of everything.
func eventful(t testing.TB) *cell {
	c := newCell(t)
	a, b, d := c.open(), c.open(), c.open()
	c.want(pb.Code_OK, a, put("/plain", "content"))
	c.want(pb.Code_OK, a, create("/null"))
	c.want(pb.Code_OK, a, createKind("/e", pb.NodeKind_EPHEMERAL))
	c.want(pb.Code_OK, a, &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: "/q/j-", Sequential: true, Parents: true}}})
	c.want(pb.Code_OK, a, acquire("/s", shared, 5000))
	c.want(pb.Code_OK, b, acquire("/s", shared, 1000))
	c.want(pb.Code_WAITING, d, acquire("/s", exclusive, 1000))
	c.want(pb.Code_WAITING, b, acquireWait("/s", shared, 60_000))
	c.want(pb.Code_OK, d, acquire("/gone", exclusive, 2000))
	c.want(pb.Code_OK, b, delForce("/gone"))
	c.want(pb.Code_OK, b, acquire("/plain", exclusive, 0))
	c.want(pb.Code_OK, b, release(c.next[b]-1)) // an idle lock with a generation
	c.want(pb.Code_HELD, d, acquireWait("/s", shared, 0))
	c.expire(a)
	c.want(pb.Code_OK, d, &pb.Command{Op: &pb.Command_Multi{Multi: &pb.Multi{}}})
	return c
}

func TestSnapshotGivesTheSameState(t *testing.T) {
	c := eventful(t)
	image := snapshot(t, c.s)
	again := restore(t, image)
	if again.Hash() != c.s.Hash() || !bytes.Equal(image, snapshot(t, again)) || dump(again) != dump(c.s) {
		t.Fatal("the state differs")
	}
	if name, id := again.Cell(); name != "test" || id != 77 {
		t.Fatalf("cell %q %d", name, id)
	}
}

// A replica that replays the log, one that starts from a snapshot at any place
// in it, and one that never stopped are the same to the hash.
func TestReplayFromAnyPlaceGivesTheSameHash(t *testing.T) {
	c := eventful(t)
	c.pass(70_000)
	fresh := func() *Store {
		s := New()
		s.ApplyFound("test", 77, RevisionFloor(1_767_225_600_000, 0))
		s.ApplyLead(0, 0, 0)
		return s
	}
	for at := range c.log {
		s := fresh()
		for i, b := range c.log {
			if i == at {
				s = restore(t, snapshot(t, s))
			}
			s.Apply(b)
		}
		if s.Hash() != c.s.Hash() {
			t.Fatalf("with a snapshot before command %d the hash is %x, not %x", at, s.Hash(), c.s.Hash())
		}
	}
}

func TestHashFeelsEveryPartOfTheState(t *testing.T) {
	c := eventful(t)
	records := decode(t, snapshot(t, c.s))
	seen := map[uint64]string{c.s.Hash(): "as it was"}
	try := func(what string, change func(*Store)) {
		s := c.s.Clone()
		change(s)
		if was, dup := seen[s.Hash()]; dup {
			t.Errorf("%s: the hash is that of %q", what, was)
		}
		seen[s.Hash()] = what
	}
	x, _ := c.s.Session(records[1].GetSession().Id)
	try("cell time", func(s *Store) { s.cellTime++ })
	try("wall", func(s *Store) { s.wallMS++ })
	try("epoch", func(s *Store) { s.epoch++ })
	try("identity", func(s *Store) { s.identity++ })
	try("sequence", func(s *Store) { s.editNode("/q", func(n *node) { n.nextSeq++ }) })
	try("null", func(s *Store) { s.editNode("/null", func(n *node) { n.hasData = true }) })
	try("last", func(s *Store) { s.editSession(x.ID, func(x *session) { x.last++ }) })
	try("event", func(s *Store) { s.addEvent(x.ID, &pb.SessionEvent{Code: pb.Code_LOST}) })
	try("result", func(s *Store) { y, _ := s.ownSession(x.ID); s.dropResults(y, 1<<63) })
	try("noted", func(s *Store) { s.editSession(x.ID, func(x *session) { x.leaseEnd++ }) })
	try("implied", func(s *Store) { s.editNode("/q", func(n *node) { n.implied = !n.implied }) })
	try("loss", func(s *Store) {
		s.addEvent(x.ID, &pb.SessionEvent{Code: pb.Code_LOST, Loss: pb.LossReason_BROKEN})
	})
	try("waiter", func(s *Store) {
		for _, w := range s.claimsOf(x.ID) {
			s.removeClaim(w)
		}
	})
}

func decode(t testing.TB, image []byte) (list []*pb.SnapshotRecord) {
	in := &recordReader{r: bufioReader(image)}
	for {
		r, err := in.read()
		if err != nil {
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			return list
		}
		list = append(list, r)
	}
}

func encode(t testing.TB, list []*pb.SnapshotRecord) []byte {
	var b bytes.Buffer
	out := &recordWriter{w: bufioWriter(&b)}
	for _, r := range list {
		out.write(r)
	}
	if err := errors.Join(out.err, out.w.Flush()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestDamagedSnapshotIsRefused(t *testing.T) {
	c := eventful(t)
	image := snapshot(t, c.s)
	for n := range image {
		if _, err := ReadSnapshot(bytes.NewReader(image[:n])); err == nil {
			t.Fatalf("cut to %d of %d bytes it was taken", n, len(image))
		}
	}
	if _, err := ReadSnapshot(bytes.NewReader(append(bytes.Clone(image), 0))); err == nil {
		t.Fatal("something behind its end was overlooked")
	}
	records := decode(t, image)
	refused := func(what, word string, list []*pb.SnapshotRecord) {
		t.Helper()
		_, err := ReadSnapshot(bytes.NewReader(encode(t, list)))
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := 1; i < len(records)-1; i++ {
		less := append(append([]*pb.SnapshotRecord(nil), records[:i]...), records[i+1:]...)
		refused("a record is missing", "reading snapshot", less)
		edited := append([]*pb.SnapshotRecord(nil), records...)
		edited[i] = proto.Clone(records[i]).(*pb.SnapshotRecord)
		switch r := edited[i].Record.(type) {
		case *pb.SnapshotRecord_Session:
			r.Session.OpenedMs++
			refused("session", "hash", edited)
		case *pb.SnapshotRecord_Node:
			r.Node.Stat.ModifyMs++
			refused("node", "hash", edited)
			r.Node.Stat.Checksum++
			refused("content", "checksum", edited)
			r.Node.Path += "/"
			refused("path", "bad path", edited)
		case *pb.SnapshotRecord_Tombstone:
			r.Tombstone.Holders[0].Ghost = false
			refused("tombstone", "invariants", edited)
		}
	}
	format := proto.Clone(records[0]).(*pb.SnapshotRecord)
	format.GetHeader().Format++
	refused("format", "format", append([]*pb.SnapshotRecord{format}, records[1:]...))
	refused("two headers", "header", append([]*pb.SnapshotRecord{records[0]}, records...))
	refused("no header", "header", records[1:])
}

func TestCloneStaysAsItWas(t *testing.T) {
	c := eventful(t)
	clone, was := c.s.Clone(), snapshot(t, c.s)
	done := make(chan []byte)
	go func() { // a snapshot is written while commands go on
		var b bytes.Buffer
		if clone.WriteSnapshot(&b) != nil {
			b.Reset()
		}
		done <- b.Bytes()
	}()
	a := c.open()
	for range 300 {
		c.want(pb.Code_OK, a, put("/plain", "changed"))
	}
	c.pass(100_000)
	if !bytes.Equal(<-done, was) {
		t.Fatal("the clone has changed")
	}
}
