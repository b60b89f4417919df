package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

func TestChildrenPagesInNameOrder(t *testing.T) {
	c := newCell(t)
	a := c.open()
	for _, p := range []string{"/d", "/d/b", "/d/a", "/d/a/x", "/d/c", "/d-"} {
		c.want(pb.Code_OK, a, create(p))
	}
	list := func(path, after string, most int) (names []string) {
		c.s.Children(path, after, func(name string, n NodeView) bool {
			if n.Path != join(path, name) {
				t.Errorf("%q has path %q", name, n.Path)
			}
			names = append(names, name)
			return len(names) < most
		})
		return names
	}
	if got := list("/d", "", 2); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("%q", got)
	}
	if got := list("/d", "b", 9); !slices.Equal(got, []string{"c"}) {
		t.Fatalf("%q", got)
	}
	if got := list("/", "", 9); !slices.Equal(got, []string{"d", "d-"}) {
		t.Fatalf("%q", got)
	}
	if c.s.Children("/none", "", nil) || c.s.Children("bad", "", nil) {
		t.Fatal("children of nothing")
	}
	var below []string
	c.s.Subtree("/d", func(n NodeView) bool {
		below = append(below, n.Path)
		return n.Path != "/d/b"
	})
	if got := strings.Join(below, " "); got != "/d /d/a /d/a/x /d/b" {
		t.Fatal(got)
	}
}

func TestSequentialNames(t *testing.T) {
	c := newCell(t)
	a := c.open()
	seq := func(path string) string {
		return c.want(pb.Code_OK, a, &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: path, Sequential: true, Parents: true}}}).Path
	}
	c.want(pb.Code_OK, a, create("/q"))
	c.want(pb.Code_OK, a, create("/q/0000000001"))
	got := []string{seq("/q/"), seq("/q/"), seq("/q/j-"), seq("/"), seq("/x"), seq("/new/")}
	want := []string{"/q/0000000000", "/q/0000000002", "/q/j-0000000003", "/0000000000", "/x0000000001", "/new/0000000000"}
	if !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	// A number that was given is not given again, though its node is gone.
	c.want(pb.Code_OK, a, create("/p"))
	c.want(pb.Code_OK, a, create("/p/0000000000"))
	c.want(pb.Code_OK, a, del(seq("/p/")))
	if got := seq("/p/"); got != "/p/0000000002" {
		t.Fatal(got)
	}
	for _, bad := range []string{"//", "/q//", "q", ""} {
		c.want(pb.Code_BAD_PATH, a, &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: bad, Sequential: true}}})
	}
	long := "/" + strings.Repeat("n", NameMax-5)
	c.want(pb.Code_BAD_PATH, a, &pb.Command{Op: &pb.Command_Create{Create: &pb.Create{Path: long, Sequential: true}}})
}

func TestLocksPages(t *testing.T) {
	c := newCell(t)
	a := c.open()
	for i := range 5 {
		c.want(pb.Code_OK, a, acquire(fmt.Sprintf("/l/%d", i), exclusive, 0))
	}
	c.want(pb.Code_OK, a, acquire("/l", shared, 0))
	c.want(pb.Code_OK, a, acquire("/l-", shared, 0))
	var got []string
	after := ""
	for {
		n := 0
		c.s.Locks("/l", after, func(l LockView) bool {
			got, after = append(got, l.Path), l.Path
			n++
			return n < 2
		})
		if n == 0 {
			break
		}
	}
	if text := strings.Join(got, " "); text != "/l /l/0 /l/1 /l/2 /l/3 /l/4" {
		t.Fatal(text)
	}
}
