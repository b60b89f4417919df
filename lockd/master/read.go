package master

import (
	"errors"
	"fmt"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// What an answer's parts weigh beside their text and data, at most.
const (
	statBytes    = 192
	sessionBytes = 96
	pageItems    = 100_000 // entries in a page, however small
)

// read takes a read: stale ones are answered at once by any replica,
// linearizable ones by the master under a proof of leadership.
func (m *Master) read(c *conn, r *wirepb.Read) {
	m.count.Reads++
	id := r.GetId()
	_, status := r.GetOp().(*wirepb.Read_Status)
	if r.GetOp() == nil {
		m.sendError(c, &wirepb.Error{Code: wirepb.ErrorCode_BAD_MESSAGE, Id: id, Text: "a Read must say what to read"})
		return
	}
	if r.GetLevel() == wirepb.ReadLevel_STALE || status {
		if _, identity := m.st.Cell(); identity == 0 && !status {
			m.notMasterYet(c, id)
			return
		}
		m.answerRead(c, r, m.o.AgeMS(m.now))
		return
	}
	if r.GetLevel() != wirepb.ReadLevel_LINEARIZABLE {
		m.sendError(c, &wirepb.Error{Code: wirepb.ErrorCode_INVALID_ARGUMENT, Id: id,
			Text: fmt.Sprintf("read level %d is not known to this replica", r.GetLevel())})
		return
	}
	if m.notMaster(c, &wirepb.Error{Id: id}) {
		return
	}
	if m.rounds.reads >= m.o.MaxPending {
		m.limited(c, LimitReads, &wirepb.Error{Code: wirepb.ErrorCode_OVERLOADED, Id: id,
			Text: fmt.Sprintf("%d reads wait, the limit is %d: try again soon", m.rounds.reads, m.o.MaxPending)})
		return
	}
	if m.rounds.bytes >= maxPendingBytes {
		m.limited(c, LimitReads, &wirepb.Error{Code: wirepb.ErrorCode_OVERLOADED, Id: id,
			Text: fmt.Sprintf("reads of %d bytes wait, the limit is %d: try again soon", m.rounds.bytes, maxPendingBytes)})
		return
	}
	if !m.mayWait(c, &wirepb.Error{Id: id}) {
		return
	}
	m.wait(waiter{conn: c, arrival: m.now, read: r})
}

// notMasterYet answers a stale read of a cell that has no state.
func (m *Master) notMasterYet(c *conn, id uint64) {
	m.sendError(c, &wirepb.Error{Code: wirepb.ErrorCode_NO_MASTER, Id: id, RetryAfterMs: retryNoMaster,
		Text: "the cell is not founded yet: its members are not all there; try again soon"})
}

// answerRead reads the state as it is and answers.
func (m *Master) answerRead(c *conn, r *wirepb.Read, age int64) {
	a := &wirepb.ReadReply{Id: r.GetId(), Revision: m.st.Revision(), AgeMs: age}
	switch op := r.GetOp().(type) {
	case *wirepb.Read_Node:
		m.readNode(c, a, op.Node)
	case *wirepb.Read_Children:
		m.readChildren(c, a, op.Children)
	case *wirepb.Read_Locks:
		m.readLocks(c, a, op.Locks)
	case *wirepb.Read_Sessions:
		m.readSessions(c, a, op.Sessions)
	case *wirepb.Read_Status:
		a.Result = &wirepb.ReadReply_Status{Status: m.o.Status(m.now)}
	case *wirepb.Read_Check:
		valid, reason := m.checkSequencer(op.Check.GetSequencer())
		a.Result = &wirepb.ReadReply_Check{Check: &wirepb.CheckResult{Valid: valid, Reason: reason}}
	}
	m.send(c, &wirepb.ServerMessage{Body: &wirepb.ServerMessage_Read{Read: a}})
}

// badPath fills in the answer for a path that is none, and reports whether it
// is so.
func badPath(a *wirepb.ReadReply, path string) bool {
	err := store.CheckPath(path)
	if err == nil {
		return false
	}
	a.Code, a.Detail = storepb.Code_BAD_PATH, pathError(err)
	return true
}

// pathError says what is wrong with a path, without all of a very long one.
func pathError(err error) string {
	var p *store.PathError
	if errors.As(err, &p) {
		return fmt.Sprintf("bad path %q: %s", clip(p.Path), p.Reason)
	}
	return err.Error()
}

func (m *Master) readNode(c *conn, a *wirepb.ReadReply, r *wirepb.ReadNode) {
	if badPath(a, r.GetPath()) {
		return
	}
	n, ok := m.st.Node(r.GetPath())
	if !ok {
		a.Code, a.Detail = storepb.Code_NOT_FOUND, "there is no node "+r.GetPath()
		return
	}
	out := &wirepb.NodeResult{Path: n.Path, Stat: n.Stat, HasData: n.HasData}
	if !r.GetNoData() {
		if len(n.Data)+len(n.Path)+statBytes > m.budget(c) {
			a.Code, a.Detail = storepb.Code_TOO_LARGE, fmt.Sprintf(
				"the content has %d bytes, more than the client takes in a frame (%d)", len(n.Data), c.maxFrame)
			return
		}
		out.Data = n.Data
	}
	a.Result = &wirepb.ReadReply_Node{Node: out}
}

func (m *Master) readChildren(c *conn, a *wirepb.ReadReply, r *wirepb.ReadChildren) {
	if badPath(a, r.GetPath()) {
		return
	}
	out := &wirepb.ChildrenResult{}
	left, limit := m.budget(c), pageLimit(r.GetLimit())
	ok := m.st.Children(r.GetPath(), r.GetAfter(), func(name string, n store.NodeView) bool {
		size := len(name) + 16
		if r.GetStats() {
			size += statBytes
		}
		if len(out.Children) >= limit || size > left {
			out.More = true
			return false
		}
		left -= size
		child := &wirepb.Child{Name: name}
		if r.GetStats() {
			child.Stat = n.Stat
		}
		out.Children = append(out.Children, child)
		return true
	})
	if !ok {
		a.Code, a.Detail = storepb.Code_NOT_FOUND, "there is no node "+r.GetPath()
		return
	}
	a.Result = &wirepb.ReadReply_Children{Children: out}
}

func pageLimit(limit uint32) int {
	if limit == 0 {
		return pageItems
	}
	return int(min(limit, pageItems))
}

func (m *Master) readLocks(c *conn, a *wirepb.ReadReply, r *wirepb.ReadLocks) {
	if badPath(a, r.GetPath()) {
		return
	}
	out := &wirepb.LocksResult{CellTime: m.st.CellTime(), WallMs: m.o.WallMS()}
	if m.role.active {
		out.CellTime = max(out.CellTime, m.cellTime())
	}
	left, limit := m.budget(c), pageLimit(r.GetLimit())
	add := func(v store.LockView) bool {
		info := m.lockInfo(v)
		size := info.SizeVT() + 8
		if len(out.Locks) > 0 && (len(out.Locks) >= limit || size > left) {
			out.More = true
			return false
		}
		if size > left {
			a.Detail = shorten(info, left)
			size = info.SizeVT() + 8
		}
		left -= size
		out.Locks = append(out.Locks, info)
		return true
	}
	if r.GetSubtree() {
		m.st.Locks(r.GetPath(), r.GetAfter(), add)
	} else if v, ok := m.st.Lock(r.GetPath()); ok && len(v.Holders)+len(v.Waiters) > 0 {
		add(v)
	}
	a.Result = &wirepb.ReadReply_Locks{Locks: out}
}

// lockInfo describes a lock, with what is left of its holders' leases.
func (m *Master) lockInfo(v store.LockView) *wirepb.LockInfo {
	info := &wirepb.LockInfo{Path: v.Path, Generation: v.Generation, Fence: v.Fence, Holders: v.Holders, Waiters: v.Waiters}
	info.HolderLeaseLeftMs = make([]int64, len(v.Holders))
	for i, h := range v.Holders {
		info.HolderLeaseLeftMs[i] = m.left(h.GetSession())
	}
	return info
}

// shorten cuts a lock's lists so that it fits into left bytes, and says so.
func shorten(info *wirepb.LockInfo, left int) string {
	keep, size := 0, len(info.GetPath())+64
	all := append(append([]*storepb.Blocker(nil), info.Holders...), info.Waiters...)
	for keep < len(all) {
		// 16: its frame in the message, and its holder's lease.
		size += all[keep].SizeVT() + 16
		if size > left {
			break
		}
		keep++
	}
	holders := min(keep, len(info.Holders))
	text := fmt.Sprintf("%s: %d of %d holders and %d of %d waiters are shown", info.GetPath(),
		holders, len(info.Holders), keep-holders, len(info.Waiters))
	info.Holders, info.HolderLeaseLeftMs = info.Holders[:holders], info.HolderLeaseLeftMs[:holders]
	info.Waiters = info.Waiters[:keep-holders]
	return text
}

func (m *Master) readSessions(c *conn, a *wirepb.ReadReply, r *wirepb.ReadSessions) {
	out := &wirepb.SessionsResult{}
	left, limit := m.budget(c), pageLimit(r.GetLimit())
	m.st.Sessions(r.GetAfter(), func(v store.SessionView) bool {
		info := &wirepb.SessionInfo{
			Id: v.ID, Client: v.Client, LeaseMs: v.LeaseMS, LeaseLeftMs: m.left(v.ID), OpenedMs: v.OpenedMS,
			Locks: uint32(v.Locks), Ephemerals: uint32(v.Ephemerals), Waiting: uint32(v.Waiting),
		}
		if s := m.sessions[v.ID]; s != nil && s.conn != nil {
			info.Address = s.conn.remote
		}
		size := sessionBytes + len(v.Client.GetName()) + len(v.Client.GetHost()) + len(info.Address)
		if len(out.Sessions) >= limit || size > left {
			out.More = true
			return false
		}
		left -= size
		out.Sessions = append(out.Sessions, info)
		return true
	})
	a.Result = &wirepb.ReadReply_Sessions{Sessions: out}
}
