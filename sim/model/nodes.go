package model

import (
	"bytes"
	"fmt"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed70370324/lockd/store"
	"github.com/seed70370324/lockd/store/pb"
)

// badPath reports whether a path is malformed, as far as the text says.
func badPath(path string) bool {
	if path == "/" {
		return false
	}
	if len(path) > store.PathMax || !strings.HasPrefix(path, "/") || !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) {
		return true
	}
	for _, part := range strings.Split(path[1:], "/") {
		if part == "" || part == "." || part == ".." || len(part) > store.NameMax {
			return true
		}
	}
	return false
}

func parentOf(path string) string {
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		return path[:i]
	}
	return "/"
}

// edit returns a node to be changed, or nil; a Multi can put it back.
func (m *Model) edit(path string) *node {
	m.saveNode(path)
	return m.nodes[path]
}

func (m *Model) saveNode(path string) {
	if m.undo == nil {
		return
	}
	if _, ok := m.undo.nodes[path]; ok {
		return
	}
	var old *node
	if n := m.nodes[path]; n != nil {
		c := *n
		c.stat = copyStat(n.stat)
		old = &c
	}
	m.undo.nodes[path] = old
}

func copyStat(s *pb.Stat) *pb.Stat {
	return &pb.Stat{
		Instance: s.Instance, ContentGeneration: s.ContentGeneration, LockGeneration: s.LockGeneration, AclGeneration: s.AclGeneration,
		Checksum: s.Checksum, CreateRevision: s.CreateRevision, ModifyRevision: s.ModifyRevision, CreateMs: s.CreateMs, ModifyMs: s.ModifyMs,
		Kind: s.Kind, Owner: s.Owner, DataLength: s.DataLength, Children: s.Children, ChildGeneration: s.ChildGeneration, ChildRevision: s.ChildRevision,
	}
}

// stat returns the Stat of a node, nil if there is none.
func (m *Model) stat(path string) *pb.Stat {
	n := m.nodes[path]
	if n == nil {
		return nil
	}
	s := copyStat(n.stat)
	s.LockGeneration = 0
	if l := m.locks[path]; l != nil {
		s.LockGeneration = l.generation
	}
	return s
}

func (m *Model) failed(c pb.Code, path string) *pb.Result {
	return &pb.Result{Code: c, Stat: m.stat(path)}
}

// reachable says whether a node can be created at path: OK, or why not.
func (m *Model) reachable(path string, parents bool) pb.Code {
	for up := parentOf(path); ; up = parentOf(up) {
		if n := m.nodes[up]; n != nil {
			if n.stat.Kind == pb.NodeKind_EPHEMERAL {
				return pb.Code_EPHEMERAL_PARENT
			}
			return pb.Code_OK
		}
		if !parents {
			return pb.Code_NOT_FOUND
		}
	}
}

// make creates a node, and its missing parents as implied containers.
func (m *Model) make(path string, kind pb.NodeKind, owner uint64, data []byte, hasData, implied bool) {
	up := parentOf(path)
	if m.nodes[up] == nil {
		m.make(up, pb.NodeKind_CONTAINER, 0, nil, false, true)
	}
	if kind == pb.NodeKind_NODE_KIND_UNSPECIFIED {
		kind = pb.NodeKind_PERMANENT
	}
	m.saveNode(path)
	n := &node{implied: implied, stat: &pb.Stat{Instance: m.next, CreateRevision: m.next, CreateMs: m.wall, Kind: kind, Owner: owner}}
	m.nodes[path] = n
	m.write(n, data, hasData)
	p := m.edit(up)
	p.used = true
	p.stat.Children++
	p.stat.ChildGeneration++
	p.stat.ChildRevision = m.next
	m.change(store.Change{Kind: store.ChangeCreated, Path: path})
}

func (m *Model) write(n *node, data []byte, hasData bool) {
	n.data, n.hasData = data, hasData || len(data) > 0
	n.stat.ContentGeneration++
	n.stat.ModifyRevision, n.stat.ModifyMs = m.next, m.wall
	n.stat.DataLength = uint32(len(data))
	n.stat.Checksum = store.Checksum(data) // the text leaves the sum open
}

func (m *Model) change(c store.Change) {
	c.Revision = m.next
	m.changes = append(m.changes, c)
}

func (m *Model) create(s *session, op *pb.Create) *pb.Result {
	if badConditions(createOp, op.GetPath(), op.GetConditions(), op.GetSequential()) {
		return code(pb.Code_BAD_COMMAND)
	}
	switch op.GetKind() {
	case pb.NodeKind_NODE_KIND_UNSPECIFIED, pb.NodeKind_PERMANENT, pb.NodeKind_EPHEMERAL, pb.NodeKind_CONTAINER:
	default:
		return code(pb.Code_BAD_COMMAND)
	}
	path := op.GetPath()
	if op.GetSequential() {
		if given := strings.TrimSuffix(path, "/"); given != "" && badPath(given) || badPath(path+"0000000000") {
			return code(pb.Code_BAD_PATH)
		}
	} else if badPath(path) {
		return code(pb.Code_BAD_PATH)
	}
	if len(op.GetData()) > store.DataMax {
		return code(pb.Code_TOO_LARGE)
	}
	own := path
	if op.GetSequential() {
		own = "" // it has no node yet
	} else if m.nodes[path] != nil {
		return m.failed(pb.Code_EXISTS, path)
	}
	if c := m.conditions(createOp, own, op.GetConditions()); c != pb.Code_OK {
		return m.failed(c, own)
	}
	if c := m.reachable(path, op.GetParents()); c != pb.Code_OK {
		return code(c)
	}
	next := uint64(0)
	if op.GetSequential() {
		if p := m.nodes[parentOf(path)]; p != nil {
			next = p.nextSeq
		}
		for ; ; next++ {
			if full := fmt.Sprintf("%s%010d", path, next); m.nodes[full] == nil {
				path = full
				break
			}
		}
	}
	owner := uint64(0)
	if op.GetKind() == pb.NodeKind_EPHEMERAL {
		owner = s.id
	}
	m.make(path, op.GetKind(), owner, op.GetData(), op.GetHasData(), false)
	if op.GetSequential() {
		m.edit(parentOf(path)).nextSeq = next + 1
	}
	return &pb.Result{Path: path, Stat: m.stat(path)}
}

func (m *Model) put(op *pb.Put) *pb.Result {
	path := op.GetPath()
	if badConditions(putOp(op.GetCreate()), path, op.GetConditions(), false) {
		return code(pb.Code_BAD_COMMAND)
	}
	if badPath(path) {
		return code(pb.Code_BAD_PATH)
	}
	if len(op.GetData()) > store.DataMax {
		return code(pb.Code_TOO_LARGE)
	}
	if m.nodes[path] == nil && !op.GetCreate() {
		return code(pb.Code_NOT_FOUND)
	}
	if c := m.conditions(putOp(op.GetCreate()), path, op.GetConditions()); c != pb.Code_OK {
		return m.failed(c, path)
	}
	if n := m.edit(path); n != nil {
		m.write(n, op.GetData(), op.GetHasData())
		if n.implied {
			n.implied, n.stat.Kind = false, pb.NodeKind_PERMANENT
		}
		m.change(store.Change{Kind: store.ChangeContent, Path: path})
	} else {
		if c := m.reachable(path, op.GetParents()); c != pb.Code_OK {
			return code(c)
		}
		m.make(path, pb.NodeKind_PERMANENT, 0, op.GetData(), op.GetHasData(), false)
	}
	return &pb.Result{Path: path, Stat: m.stat(path)}
}

func (m *Model) delete(op *pb.Delete) *pb.Result {
	path := op.GetPath()
	if badConditions(deleteOp, path, op.GetConditions(), false) {
		return code(pb.Code_BAD_COMMAND)
	}
	if badPath(path) || path == "/" {
		return code(pb.Code_BAD_PATH)
	}
	n := m.nodes[path]
	if n == nil {
		return code(pb.Code_NOT_FOUND)
	}
	if c := m.conditions(deleteOp, path, op.GetConditions()); c != pb.Code_OK {
		return m.failed(c, path)
	}
	if n.stat.Children > 0 && !op.GetRecursive() {
		return code(pb.Code_NOT_EMPTY)
	}
	paths := []string{path}
	if n.stat.Children > 0 {
		for p := range m.nodes {
			if strings.HasPrefix(p, path+"/") {
				paths = append(paths, p)
			}
		}
	}
	sort.Slice(paths, func(i, j int) bool { return behind(paths[i], paths[j]) }) // what is below goes first
	reason := pb.DeleteReason_FORCED
	if !op.GetForce() {
		reason = pb.DeleteReason_DELETED
		for _, p := range paths {
			if l := m.locks[p]; l != nil && (len(l.waiters) > 0 || l.live() > 0) {
				return code(pb.Code_LOCKED)
			}
		}
	}
	for _, p := range paths {
		m.remove(p, reason)
	}
	return code(pb.Code_OK)
}

// behind reports whether a path comes behind another where a node is followed by all
// that is below it.
func behind(a, b string) bool {
	return strings.ReplaceAll(a, "/", "\x00") > strings.ReplaceAll(b, "/", "\x00")
}

// remove deletes a node without children. Its waiters are withdrawn, its
// holders become ghosts, which outlive it.
func (m *Model) remove(path string, reason pb.DeleteReason) {
	if l := m.editLock(path); l != nil {
		waiting := l.waiters
		l.waiters = nil
		for _, w := range waiting {
			m.lockChange(path, l, &w, store.LockEventNone, 0)
			m.event(w.session, &pb.SessionEvent{Code: pb.Code_WITHDRAWN, Ticket: w.ticket, Path: path})
		}
		for i := range l.holders {
			if h := &l.holders[i]; !h.ghost {
				m.lose(path, l, h, pb.LossReason_NODE_DELETED)
			}
		}
		if len(l.holders) == 0 {
			delete(m.locks, path)
		}
	}
	m.saveNode(path)
	delete(m.nodes, path)
	up := parentOf(path)
	p := m.edit(up)
	p.stat.Children--
	p.stat.ChildGeneration++
	p.stat.ChildRevision = m.next
	m.change(store.Change{Kind: store.ChangeDeleted, Path: path, Reason: reason})
	m.touch(up)
}

// removeIdle removes a container on which nothing is left; it reports whether
// it did, since then the one above it may be idle.
func (m *Model) removeIdle(path string) bool {
	n := m.nodes[path]
	if n == nil || n.stat.Kind != pb.NodeKind_CONTAINER || !n.used || n.stat.Children > 0 {
		return false
	}
	if l := m.locks[path]; l != nil && len(l.holders)+len(l.waiters) > 0 {
		return false
	}
	m.remove(path, pb.DeleteReason_CONTAINER_IDLE)
	return true
}

// multi does all of its operations or none.
func (m *Model) multi(s *session, op *pb.Multi) *pb.Result {
	for i, o := range op.GetOps() {
		if badOp(o) {
			return &pb.Result{Code: pb.Code_BAD_COMMAND, FailedOp: uint32(i)}
		}
	}
	m.undo = &undo{nodes: map[string]*node{}, locks: map[string]*lock{}, sessions: map[uint64]session{}}
	r := &pb.Result{}
	for i, o := range op.GetOps() {
		one := m.one(s, o)
		r.Results = append(r.Results, one)
		if one.Code != pb.Code_OK {
			m.takeBack()
			r.Code, r.FailedOp = one.Code, uint32(i)
			break
		}
	}
	m.undo = nil
	return r
}

// badOp reports whether an operation's conditions are refused whatever the state.
func badOp(o *pb.MultiOp) bool {
	switch op := o.Op.(type) {
	case *pb.MultiOp_Create:
		return badConditions(createOp, op.Create.GetPath(), op.Create.GetConditions(), op.Create.GetSequential())
	case *pb.MultiOp_Put:
		return badConditions(putOp(op.Put.GetCreate()), op.Put.GetPath(), op.Put.GetConditions(), false)
	case *pb.MultiOp_Delete:
		return badConditions(deleteOp, op.Delete.GetPath(), op.Delete.GetConditions(), false)
	case *pb.MultiOp_Check:
		return badConditions(checkOp, op.Check.GetPath(), op.Check.GetConditions(), false)
	}
	return false
}

func (m *Model) one(s *session, o *pb.MultiOp) *pb.Result {
	switch op := o.Op.(type) {
	case *pb.MultiOp_Create:
		return m.create(s, op.Create)
	case *pb.MultiOp_Put:
		return m.put(op.Put)
	case *pb.MultiOp_Delete:
		return m.delete(op.Delete)
	case *pb.MultiOp_Check:
		return m.check(op.Check)
	case *pb.MultiOp_Release:
		return m.release(s, op.Release, false)
	}
	return code(pb.Code_BAD_COMMAND)
}

func (m *Model) takeBack() {
	for path, n := range m.undo.nodes {
		if n == nil {
			delete(m.nodes, path)
		} else {
			m.nodes[path] = n
		}
	}
	for path, l := range m.undo.locks {
		if l == nil {
			delete(m.locks, path)
		} else {
			m.locks[path] = l
		}
	}
	for id, s := range m.undo.sessions {
		*m.sessions[id] = s
	}
	m.changes, m.touched = m.changes[:0], m.touched[:0]
}

func (m *Model) check(op *pb.Check) *pb.Result {
	path := op.GetPath()
	if badConditions(checkOp, path, op.GetConditions(), false) {
		return code(pb.Code_BAD_COMMAND)
	}
	if badPath(path) {
		return code(pb.Code_BAD_PATH)
	}
	if len(op.GetConditions()) == 0 && m.nodes[path] == nil {
		return code(pb.Code_NOT_FOUND)
	}
	if c := m.conditions(checkOp, path, op.GetConditions()); c != pb.Code_OK {
		return m.failed(c, path)
	}
	return &pb.Result{Path: path, Stat: m.stat(path)}
}

func sameData(n *node, v store.NodeView) bool {
	return n.hasData == v.HasData && bytes.Equal(n.data, v.Data)
}
