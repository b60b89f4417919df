package store

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// line is a Store among its clones, with what it must be.
type line struct {
	s     *Store
	image []byte
	dump  string
	log   [][]byte
}

func (l *line) see(t *rapid.T) { l.image, l.dump = image(t, l.s), dump(l.s) }

func (l *line) unchanged(t *rapid.T, what string) {
	if !bytes.Equal(image(t, l.s), l.image) || dump(l.s) != l.dump {
		t.Fatalf("%s changed a store that it is none of:\n%s\nwas:\n%s", what, dump(l.s), l.dump)
	}
	if err := l.s.Check(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// written writes down what a command and the readers behind it have given out.
func written(s *Store, r *pb.Result, changes []Change) (given func() string) {
	changes = append([]Change(nil), changes...)
	var nodes []NodeView
	s.Subtree("/", func(n NodeView) bool { nodes = append(nodes, n); return true })
	var locks []LockView
	s.Locks("/", "", func(l LockView) bool { locks = append(locks, l); return true })
	var sessions []SessionView
	s.Sessions(0, func(x SessionView) bool { sessions = append(sessions, x); return true })
	return func() string {
		var b strings.Builder
		text := prototext.MarshalOptions{Multiline: true}
		fmt.Fprintln(&b, text.Format(r))
		for _, c := range changes {
			fmt.Fprintln(&b, c.Kind, c.Path, c.Session, c.Revision, text.Format(c.Event))
		}
		for _, n := range nodes {
			fmt.Fprintln(&b, n.Path, n.HasData, string(n.Data), text.Format(n.Stat))
		}
		for _, l := range locks {
			fmt.Fprintln(&b, l.Path, l.Instance, l.Generation, l.Fence)
			for _, h := range append(append([]*pb.Blocker(nil), l.Holders...), l.Waiters...) {
				fmt.Fprintln(&b, text.Format(h))
			}
		}
		for _, x := range sessions {
			fmt.Fprintln(&b, x.ID, x.LastNumber, x.LastChange, x.Locks, x.Lost, x.Waiting, x.Ephemerals)
		}
		return b.String()
	}
}

// Stores that share records do not change each other, whichever goes on, and
// nothing that was given out changes later. At the end each is what the same
// commands make of a store that was never cloned.
func TestClonesAreApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fresh := func() *Store {
			s := New()
			s.ApplyFound("cell", 7, 1000)
			return s
		}
		g := &script{t: t, next: map[uint64]uint64{}}
		lines := []*line{{s: fresh()}}
		lines[0].see(t)
		var given []func() string
		var was []string
		for range 20 + g.roll() {
			l := lines[rapid.IntRange(0, len(lines)-1).Draw(t, "line")]
			if g.chance(25) {
				c := &line{s: l.s.Clone(), image: l.image, dump: l.dump, log: append([][]byte(nil), l.log...)}
				if len(lines) < 5 {
					lines = append(lines, c)
				} else {
					*lines[g.number(0, 4)] = *c
				}
				continue
			}
			g.learn(l.s, &pb.Result{})
			c := g.command(l.s)
			encoded, err := proto.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			r, changes := l.s.Apply(encoded)
			l.log = append(l.log, encoded)
			l.see(t)
			g.learn(l.s, r)
			f := written(l.s, r, changes)
			given, was = append(given, f), append(was, f())
			for _, other := range lines {
				other.unchanged(t, c.String())
			}
		}
		for i, f := range given {
			if f() != was[i] {
				t.Fatalf("what command %d gave out has changed:\n%s\nwas:\n%s", i, f(), was[i])
			}
		}
		for _, l := range lines {
			again := fresh()
			for _, c := range l.log {
				again.Apply(c)
			}
			if !bytes.Equal(image(t, again), l.image) {
				t.Fatalf("replayed it is\n%s\nnot\n%s", dump(again), l.dump)
			}
		}
	})
}

// The results that a session keeps are the same whichever are dropped when, and
// its record does not keep room for many for ever.
func TestKeptResults(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var k keptResults
		first, next, peak := uint64(1), uint64(1), 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			for range rapid.IntRange(0, 20).Draw(t, "more") {
				if !k.follows(next) || k.follows(next-1) && next > first {
					t.Fatalf("%d follows: %t, %d: %t", next, k.follows(next), next-1, k.follows(next-1))
				}
				k.add(keptResult{Result: &pb.Result{Number: next}})
				next++
			}
			peak = max(peak, len(k.all()))
			apart := k.clone()
			for range rapid.IntRange(0, 20).Draw(t, "less") {
				if first < next {
					k.dropFirst()
					first++
				}
			}
			for i := range apart.all() {
				apart.all()[i] = keptResult{}
			}
			if uint64(len(k.all())) != next-first || cap(k.list) > 4*peak+spareMax || first == next && cap(k.list) > spareMax {
				t.Fatalf("%d results of %d to %d in %d places, they were %d at most", len(k.all()), first, next-1, cap(k.list), peak)
			}
			for n := first - 1; n <= next; n++ {
				r, found := k.find(n)
				if found != (n >= first && n < next) || found && r.Number != n {
					t.Fatalf("result %d: %v %t", n, r, found)
				}
			}
		}
	})
}
