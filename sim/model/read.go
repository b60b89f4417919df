package model

import (
	"fmt"
	"slices"
	"strings"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store/pb"
)

// JudgeRead holds the answer to a read against the state, if that is of the answer's
// revision; else nothing can be said of it but of a malformed path. The client, or
// the replica, may take frames of no more than the given bytes.
func (m *Model) JudgeRead(r *wirepb.Read, got *wirepb.ReadReply, frame int) error {
	path, named := r.GetNode().GetPath()+r.GetChildren().GetPath()+r.GetLocks().GetPath(), true
	switch r.GetOp().(type) {
	case *wirepb.Read_Node, *wirepb.Read_Children, *wirepb.Read_Locks:
	default:
		named = false
	}
	if named && badPath(path) != (got.GetCode() == pb.Code_BAD_PATH) {
		return fmt.Errorf("the path %q is answered %v", path, got.GetCode())
	}
	if got.GetRevision() != m.revision || named && badPath(path) {
		return nil
	}
	switch op := r.GetOp().(type) {
	case *wirepb.Read_Node:
		return m.judgeNode(path, got, frame)
	case *wirepb.Read_Children:
		return m.judgeChildren(op.Children, got)
	case *wirepb.Read_Locks:
		return m.judgeLocks(op.Locks, got)
	case *wirepb.Read_Sessions:
		return m.judgeSessions(op.Sessions, got)
	}
	return nil
}

func (m *Model) judgeNode(path string, got *wirepb.ReadReply, frame int) error {
	n := m.nodes[path]
	if got.GetCode() == pb.Code_TOO_LARGE && n != nil && len(n.data) > frame-5_000 {
		return nil // with the rest of the answer for a frame
	}
	if (n == nil) != (got.GetCode() == pb.Code_NOT_FOUND) || n != nil && got.GetCode() != pb.Code_OK {
		return fmt.Errorf("%s is answered %v (there: %v)", path, got.GetCode(), n != nil)
	}
	if n == nil {
		return nil
	}
	if v := got.GetNode(); v.GetPath() != path || !sameStat(m.stat(path), v.GetStat()) || v.GetHasData() != n.hasData ||
		len(v.GetData()) > 0 && string(v.GetData()) != string(n.data) {
		return fmt.Errorf("%s is told as %v, expected %v", path, v.GetStat(), m.stat(path))
	}
	return nil
}

// page compares a page of names or numbers with all that there are behind its start,
// in order.
func page[T comparable](all, got []T, limit uint32, more bool) error {
	if len(got) > len(all) || !slices.Equal(all[:len(got)], got) || limit > 0 && len(got) > int(limit) || more != (len(got) < len(all)) {
		return fmt.Errorf("the page has %v (more: %v, limit %d) of %v", got, more, limit, all)
	}
	return nil
}

func (m *Model) judgeChildren(r *wirepb.ReadChildren, got *wirepb.ReadReply) error {
	path := r.GetPath()
	if m.nodes[path] == nil {
		if got.GetCode() != pb.Code_NOT_FOUND {
			return fmt.Errorf("the children of %s, which does not exist, are answered %v", path, got.GetCode())
		}
		return nil
	}
	var all, told []string
	for p := range m.nodes {
		if p != "/" && parentOf(p) == path && p[strings.LastIndexByte(p, '/')+1:] > r.GetAfter() {
			all = append(all, p[strings.LastIndexByte(p, '/')+1:])
		}
	}
	slices.Sort(all)
	for _, c := range got.GetChildren().GetChildren() {
		told = append(told, c.GetName())
		if s := c.GetStat(); s != nil && !sameStat(m.stat(strings.TrimSuffix(path, "/")+"/"+c.GetName()), s) {
			return fmt.Errorf("child %s of %s is told as %v", c.GetName(), path, s)
		}
	}
	return page(all, told, r.GetLimit(), got.GetChildren().GetMore())
}

func (m *Model) judgeLocks(r *wirepb.ReadLocks, got *wirepb.ReadReply) error {
	prefix := strings.TrimSuffix(r.GetPath(), "/") + "/"
	busy := 0
	for path, l := range m.locks {
		if len(l.holders)+len(l.waiters) > 0 && (path == r.GetPath() || r.GetSubtree() && strings.HasPrefix(path, prefix)) {
			busy++
		}
	}
	told := got.GetLocks().GetLocks()
	if r.GetAfter() == "" && len(told) != busy && !(got.GetLocks().GetMore() && len(told) < busy) {
		return fmt.Errorf("%d locks at %s are told, there are %d", len(told), r.GetPath(), busy)
	}
	for _, v := range told {
		l := m.locks[v.GetPath()]
		if l == nil || l.generation != v.GetGeneration() {
			return fmt.Errorf("a lock of %s of generation %d is told", v.GetPath(), v.GetGeneration())
		}
		if got.GetDetail() == "" && (tellClaims(l.holders) != tellViews(v.GetHolders()) || tellClaims(l.waiters) != tellViews(v.GetWaiters())) {
			return fmt.Errorf("the lock of %s is told with holders %s and waiters %s", v.GetPath(), tellViews(v.GetHolders()), tellViews(v.GetWaiters()))
		}
	}
	return nil
}

func (m *Model) judgeSessions(r *wirepb.ReadSessions, got *wirepb.ReadReply) error {
	var all, told []uint64
	for id := range m.sessions {
		if id > r.GetAfter() {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	for _, v := range got.GetSessions().GetSessions() {
		told = append(told, v.GetId())
		if s := m.sessions[v.GetId()]; s != nil && (s.lease != v.GetLeaseMs() || s.opened != v.GetOpenedMs() || s.client.GetName() != v.GetClient().GetName()) {
			return fmt.Errorf("session %d is told with a lease of %d ms, of %s", v.GetId(), v.GetLeaseMs(), v.GetClient().GetName())
		}
	}
	return page(all, told, r.GetLimit(), got.GetSessions().GetMore())
}
