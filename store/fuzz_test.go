package store

import (
	"bufio"
	"bytes"
	"io"
	"testing"

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
	for _, b := range c.log {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, command []byte) {
		s := c.s.Clone()
		other := c.s.Clone()
		r, _ := s.Apply(command)
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
	f.Add(snapshot(f, eventful(f).s))
	f.Add(snapshot(f, New()))
	f.Fuzz(func(t *testing.T, image []byte) {
		s, err := ReadSnapshot(bytes.NewReader(image))
		if err != nil {
			return
		}
		s.NextDue(10)
		s.Apply(marshal(t, &pb.Command{Session: 1, Number: 1, Op: &pb.Command_VoidRequest{}}))
	})
}

func FuzzCheckPath(f *testing.F) {
	for _, p := range []string{"/", "/a/b", "", "a", "//", "/a/", "/./x", "/a\x00", "/\xff", "/é"} {
		f.Add(p)
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
