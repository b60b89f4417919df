package store

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func bufioReader(b []byte) *bufio.Reader    { return bufio.NewReader(bytes.NewReader(b)) }
func bufioWriter(w io.Writer) *bufio.Writer { return bufio.NewWriter(w) }

// FuzzApply gives the store arbitrary bytes as a command, in an eventful
// state: it answers, and its invariants hold.
func FuzzApply(f *testing.F) {
	c := eventful(f)
	for i, b := range c.log {
		fuzzing.Seed(f, fmt.Sprintf("%02d", i), b)
	}
	f.Fuzz(func(t *testing.T, command []byte) {
		s := c.s.Clone()
		other := c.s.Clone()
		var r *pb.Result
		fuzzing.Bounded(t, 512*uint64(len(command))+1<<20, func() { r, _ = s.Apply(command) })
		if r == nil {
			t.Fatal("no result")
		}
		if err := s.Check(); err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		r2, _ := other.Apply(command)
		if !proto.Equal(r, r2) || s.Hash() != other.Hash() {
			t.Fatalf("two replicas: %v, %v", r, r2)
		}
		if restore(t, snapshot(t, s)).Hash() != s.Hash() {
			t.Fatal("a snapshot changes the state")
		}
	})
}

// FuzzCommands draws sequences of commands that make sense.
func FuzzCommands(f *testing.F) {
	fuzzing.Seed(f, "some", bytes.Repeat([]byte("\x07\x31\x02\xa5\x00\x11\xff\x60"), 60))
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		s := New()
		s.ApplyFound("cell", 7, 1000)
		g := &script{t: t, next: map[uint64]uint64{}}
		for range 5 + g.roll() {
			c := g.command(s)
			b, err := proto.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			r, _ := s.Apply(b)
			if err := s.Check(); err != nil {
				t.Fatalf("%v -> %v: %v", c, r, err)
			}
			g.learn(s, r)
		}
		if reread(t, s).Hash() != s.Hash() {
			t.Fatal("a snapshot changes the state")
		}
	}))
}

// FuzzReadSnapshot: damaged snapshots are refused, never taken for another
// state, never a panic.
func FuzzReadSnapshot(f *testing.F) {
	good := eventful(f).s
	image := snapshot(f, good)
	fuzzing.Seed(f, "eventful", image, uint16(0), uint8(0))
	fuzzing.Seed(f, "empty", snapshot(f, New()), uint16(9), uint8(1))
	fuzzing.Seed(f, "long", []byte("\xff\xff\xff\xff\x03and no more"), uint16(0), uint8(0))
	f.Fuzz(func(t *testing.T, given []byte, at uint16, flip uint8) {
		var s *Store
		var err error
		fuzzing.Bounded(t, 1024*uint64(len(given))+2<<20, func() { s, err = ReadSnapshot(bytes.NewReader(given)) })
		if err == nil {
			if restore(t, snapshot(t, s)).Hash() != s.Hash() {
				t.Fatal("it is another state when it is written and read again")
			}
			s.NextDue(10)
			s.Apply(marshal(t, &pb.Command{Session: 1, Number: 1, Op: &pb.Command_VoidRequest{}}))
		}
		spoiled := bytes.Clone(image)
		spoiled[int(at)%len(image)] ^= flip
		if s, err := ReadSnapshot(bytes.NewReader(spoiled)); err == nil && s.Hash() != good.Hash() {
			t.Fatalf("with byte %d changed by %#x it is another state", at, flip)
		}
	})
}

// FuzzSnapshotRecords reads a snapshot whose hash is right, whatever its
// records say: it is refused, or it is a state that keeps every invariant,
// takes commands, and is the same after it was written and read again.
func FuzzSnapshotRecords(f *testing.F) {
	c := eventful(f)
	fuzzing.Seed(f, "eventful", snapshot(f, c.s), c.log[len(c.log)-1])
	fuzzing.Seed(f, "empty", snapshot(f, New()), c.log[0])
	f.Fuzz(func(t *testing.T, image, command []byte) {
		in := &recordReader{r: bufioReader(image)}
		s := empty()
		for {
			record, err := in.read()
			if err != nil {
				break // the end, or what is no record: what came before counts
			}
			if _, trailer := record.Record.(*pb.SnapshotRecord_Trailer); trailer {
				break
			}
			if _, err := s.load(in.records, record); err != nil {
				return
			}
			in.records++
		}
		if in.records == 0 || s.Check() != nil {
			return
		}
		written := snapshot(t, s)
		again := restore(t, written)
		if again.Hash() != s.Hash() || !bytes.Equal(snapshot(t, again), written) {
			t.Fatal("it is another state when it is written and read again")
		}
		for _, due := range again.NextDue(4) {
			if due.Ref == nil {
				t.Fatal("a timer of nothing")
			}
		}
		r, _ := s.Apply(command)
		r2, _ := again.Apply(command)
		if err := s.Check(); err != nil || !proto.Equal(r, r2) || s.Hash() != again.Hash() {
			t.Fatalf("%v and %v, %v", r, r2, err)
		}
	})
}

func FuzzCheckPath(f *testing.F) {
	for i, p := range []string{"/", "/a/b", "", "a", "//", "/a/", "/./x", "/a\x00", "/\xff", "/é"} {
		fuzzing.Seed(f, fmt.Sprint(i), p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if CheckPath(path) != nil {
			return
		}
		if join(split(path)) != path {
			t.Fatalf("%q comes back as %q", path, join(split(path)))
		}
		if path != "/" && CheckPath(parent(path)) != nil {
			t.Fatalf("%q is a path and its parent %q is not", path, parent(path))
		}
	})
}
