package store

import (
	"strings"

	"github.com/seed70370324/lockd/store/pb"
)

// The tree of nodes is one B-tree ordered by the parent's path and then the
// name, so the children of a node stand side by side in name order, whatever is
// below them, and a parent stands before its children. Siblings share the
// string of their parent's path.

type nodeItem struct {
	dir, name string
	*node
}

func lessNode(a, b nodeItem) bool {
	if c := strings.Compare(a.dir, b.dir); c != 0 {
		return c < 0
	}
	return a.name < b.name
}

type ephemeralItem struct {
	owner uint64
	path  string
}

func lessEphemeral(a, b ephemeralItem) bool {
	if a.owner != b.owner {
		return a.owner < b.owner
	}
	return a.path < b.path
}

func (s *Store) node(path string) (*node, bool) {
	i, ok := s.nodeItem(path)
	return i.node, ok
}

func (s *Store) nodeItem(path string) (nodeItem, bool) {
	dir, name := split(path)
	if i := s.cache.get(dir, name); i.node != nil {
		return i, true
	}
	i, ok := s.nodes.Get(nodeItem{dir: dir, name: name})
	if ok {
		s.cache.grow(s.nodes.Len())
		s.cache.put(i)
	}
	return i, ok
}

// putNode puts a record that the caller has made in the place of what is there.
func (s *Store) putNode(i nodeItem) {
	i.made = s.generation
	i.hash = i.computeHash(i.dir, i.name)
	old, was := s.nodes.ReplaceOrInsert(i)
	if was {
		s.sum -= old.hash
		s.bytes -= old.size()
	}
	s.cache.put(i)
	s.sum += i.hash
	s.bytes += i.size()
	s.changed = true
}

// editNode has f edit the node at path, which exists.
func (s *Store) editNode(path string, f func(*node)) {
	i, _ := s.nodeItem(path)
	s.editItem(i, f)
}

// editItem is editNode for what nodeItem has found; it returns the record in
// which the node is now.
func (s *Store) editItem(i nodeItem, f func(*node)) *node {
	if i.made != s.generation { // a clone may have it
		own := *i.node
		own.made = s.generation
		i.node = &own
		s.nodes.ReplaceOrInsert(i)
		s.cache.put(i)
	}
	before := len(i.data)
	f(i.node)
	s.bytes += int64(len(i.data) - before)
	hash := i.computeHash(i.dir, i.name)
	s.sum += hash - i.hash
	i.hash = hash
	s.changed = true
	return i.node
}

// addNode creates a node below an existing parent.
func (s *Store) addNode(path string, n *node) {
	dir, name := split(path)
	dir, name = s.share(dir, name)
	if n.kind == pb.NodeKind_EPHEMERAL {
		s.ephemerals.ReplaceOrInsert(ephemeralItem{n.owner, path})
		s.countEphemeral(n.owner, +1)
	}
	s.putNode(nodeItem{dir, name, n})
	s.editNode(dir, func(p *node) {
		p.children++
		p.childGen++
		p.childRev = s.now
		p.used = p.used || p.kind == pb.NodeKind_CONTAINER
	})
	s.note(ChangeCreated, path, 0)
}

// share returns dir as the string that the siblings use, if there are any, and
// name as one that does not keep the whole path alive.
func (s *Store) share(dir, name string) (string, string) {
	shared := dir
	s.nodes.AscendGreaterOrEqual(nodeItem{dir: dir}, func(i nodeItem) bool {
		if i.dir == dir {
			shared, name = i.dir, strings.Clone(name)
		}
		return false
	})
	return shared, name
}

// removeNode takes away a node without children.
func (s *Store) removeNode(path string, why pb.DeleteReason) {
	dir, name := split(path)
	old, was := s.nodes.Delete(nodeItem{dir: dir, name: name})
	if !was {
		return
	}
	s.cache.put(nodeItem{old.dir, old.name, nil})
	s.sum -= old.hash
	s.bytes -= old.size()
	if old.kind == pb.NodeKind_EPHEMERAL {
		s.ephemerals.Delete(ephemeralItem{old.owner, path})
		s.countEphemeral(old.owner, -1)
	}
	s.editNode(dir, func(p *node) {
		p.children--
		p.childGen++
		p.childRev = s.now
	})
	s.changes = append(s.changes, Change{Kind: ChangeDeleted, Reason: why, Path: path, Revision: s.now})
}

// Node returns one node.
func (s *Store) Node(path string) (NodeView, bool) {
	if badPath(path) != "" {
		return NodeView{}, false
	}
	n, ok := s.node(path)
	if !ok {
		return NodeView{}, false
	}
	return s.view(path, n), true
}

func (s *Store) view(path string, n *node) NodeView {
	return NodeView{Path: path, Data: n.data, HasData: n.hasData, Stat: s.stat(path, n)}
}

// Children calls f for each direct child of path in name order, behind the
// name after, until f returns false. It reports whether path exists.
func (s *Store) Children(path, after string, f func(name string, n NodeView) bool) bool {
	if badPath(path) != "" {
		return false
	}
	if _, ok := s.node(path); !ok {
		return false
	}
	s.children(path, after, func(i nodeItem) bool {
		return f(i.name, s.view(join(i.dir, i.name), i.node))
	})
	return true
}

func (s *Store) children(path, after string, f func(nodeItem) bool) {
	s.nodes.AscendGreaterOrEqual(nodeItem{dir: path, name: after}, func(i nodeItem) bool {
		if i.dir != path {
			return false
		}
		if i.name == after {
			return true
		}
		return f(i)
	})
}

// Subtree calls f for path and everything below it, each node right before
// what is below it, siblings in name order, until f returns false.
func (s *Store) Subtree(path string, f func(n NodeView) bool) {
	if badPath(path) != "" {
		return
	}
	s.walk(path, func(p string, n *node) bool { return f(s.view(p, n)) })
}

// walk is Subtree for the store itself. Its depth is bounded by PathMax.
func (s *Store) walk(path string, f func(path string, n *node) bool) bool {
	n, ok := s.node(path)
	if !ok {
		return true
	}
	return s.walkNode(path, n, f)
}

func (s *Store) walkNode(path string, n *node, f func(string, *node) bool) bool {
	if !f(path, n) {
		return false
	}
	if n.children == 0 {
		return true
	}
	goOn := true
	s.children(path, "", func(i nodeItem) bool {
		goOn = s.walkNode(join(i.dir, i.name), i.node, f)
		return goOn
	})
	return goOn
}
