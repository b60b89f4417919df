package master

import (
	"fmt"
	"strings"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// The whole state has a limit, since all replicas hold all of it and would run
// out of memory at the same command, again at each start. Apply never looks at it:
// members may have limits of their own, and what is chosen must be applied. The
// master refuses before the log what makes the state grow beyond the smallest
// limit that a member has told; what makes it smaller, and what only ends
// something, always goes through.
//
// Invariant: the size of the state, and what the commands under way may add to
// it, stay within the limit, but for answers and events that no limit refuses
// (the store bounds these for each session).

// size is a size of the state, or a growth of it.
type size struct {
	nodes int
	bytes int64
}

// thingBytes is more than a node, a lock request or a session counts in the
// store's account besides its texts, with the answer that is kept.
const thingBytes = 1 << 10

// SetStateLimit tells the smallest limits that the members have: nodes, bytes; 0:
// none.
func (m *Master) SetStateLimit(nodes int, bytes int64) { m.stateLimit = size{nodes, bytes} }

// StateLimit returns what SetStateLimit was told.
func (m *Master) StateLimit() (nodes int, bytes int64) {
	return m.stateLimit.nodes, m.stateLimit.bytes
}

// growthMax is the most that a command can add to the state, without a look at
// it.
func growthMax(c *storepb.Command) size {
	switch op := c.GetOp().(type) {
	case *storepb.Command_Create:
		return createMax(op.Create)
	case *storepb.Command_Put:
		return putMax(op.Put)
	case *storepb.Command_Acquire:
		g := pathMax(op.Acquire.GetPath(), op.Acquire.GetCreate())
		g.bytes += thingBytes + int64(len(op.Acquire.GetPath()))
		return g
	case *storepb.Command_OpenSession:
		o := op.OpenSession
		return size{bytes: thingBytes + int64(len(o.GetNonce())+len(o.GetClient().GetName())+len(o.GetClient().GetHost()))}
	case *storepb.Command_Multi:
		var g size
		for _, one := range op.Multi.GetOps() {
			switch x := one.GetOp().(type) {
			case *storepb.MultiOp_Create:
				g = g.plus(createMax(x.Create))
			case *storepb.MultiOp_Put:
				g = g.plus(putMax(x.Put))
			}
		}
		return g
	}
	return size{}
}

func (g size) plus(o size) size { return size{g.nodes + o.nodes, g.bytes + o.bytes} }

func (g size) minus(o size) size { return size{g.nodes - o.nodes, g.bytes - o.bytes} }

func createMax(c *storepb.Create) size {
	g := pathMax(c.GetPath(), c.GetParents())
	g.nodes = max(g.nodes, 1)
	g.bytes += thingBytes + int64(len(c.GetPath())+len(c.GetData()))
	return g
}

func putMax(p *storepb.Put) size {
	g := pathMax(p.GetPath(), p.GetCreate() || p.GetParents())
	g.bytes += int64(len(p.GetData()))
	return g
}

// pathMax is what the nodes of a path take if none is there.
func pathMax(path string, create bool) size {
	if !create {
		return size{}
	}
	n := strings.Count(path, "/")
	return size{n, int64(n) * nodeMax(path)}
}

// nodeMax is the most that one node of a path takes.
func nodeMax(path string) int64 { return int64(thingBytes + len(path)) }

// growth is what a command adds to the state as it is now. Deletions in a Multi
// are not set against what it adds.
func (m *Master) growth(c *storepb.Command) size {
	switch op := c.GetOp().(type) {
	case *storepb.Command_Create:
		return m.createGrowth(op.Create)
	case *storepb.Command_Put:
		return m.putGrowth(op.Put)
	case *storepb.Command_Acquire:
		return m.withMissing(growthMax(c), op.Acquire.GetPath())
	case *storepb.Command_Multi:
		var g size
		for _, one := range op.Multi.GetOps() {
			switch x := one.GetOp().(type) {
			case *storepb.MultiOp_Create:
				g = g.plus(m.createGrowth(x.Create))
			case *storepb.MultiOp_Put:
				g = g.plus(m.putGrowth(x.Put))
			}
		}
		return g
	}
	return growthMax(c)
}

func (m *Master) createGrowth(c *storepb.Create) size {
	g := createMax(c)
	if c.GetSequential() {
		return g
	}
	return m.withMissing(g, c.GetPath())
}

func (m *Master) putGrowth(p *storepb.Put) size {
	if n, ok := m.st.Node(p.GetPath()); ok {
		return size{bytes: max(0, int64(len(p.GetData())-len(n.Data)))}
	}
	return m.withMissing(putMax(p), p.GetPath())
}

// withMissing lowers the most that the nodes of a path take to what those take that
// are not there.
func (m *Master) withMissing(g size, path string) size {
	if g.nodes == 0 {
		return g
	}
	n := min(g.nodes, m.missing(path))
	return size{n, g.bytes - int64(g.nodes-n)*nodeMax(path)}
}

// missing counts the nodes of a path that are not there.
func (m *Master) missing(path string) (n int) {
	for len(path) > 1 {
		if _, ok := m.st.Node(path); ok {
			return n
		}
		n++
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return n
		}
		path = path[:i]
	}
	return n
}

// full refuses what would exceed a limit of the state; nil: nothing does. most is the
// command's growthMax. Where only what is under way may take the room, and most of that
// seldom does, it is to be tried again.
func (m *Master) full(c *storepb.Command, most size) *wirepb.Error {
	if most == (size{}) || m.stateLimit == (size{}) {
		return nil
	}
	var now size
	now.nodes, now.bytes = m.st.Size()
	if now.plus(m.growing).plus(most).within(m.stateLimit) { // nearly always; no look at the nodes
		return nil
	}
	g, l := m.growth(c), m.stateLimit
	then := now.plus(g)
	later := then.plus(m.growing)
	switch {
	case l.nodes > 0 && g.nodes > 0 && then.nodes > l.nodes:
		return &wirepb.Error{Code: wirepb.ErrorCode_TOO_MANY, Limit: LimitStateNodes, Text: fmt.Sprintf(
			"the cell's state has %d nodes, the limit is %d: delete something, or raise --max-state-nodes on every replica", now.nodes, l.nodes)}
	case l.bytes > 0 && g.bytes > 0 && then.bytes > l.bytes:
		return &wirepb.Error{Code: wirepb.ErrorCode_TOO_MANY, Limit: LimitStateBytes, Text: fmt.Sprintf(
			"the cell's state takes %d bytes, the limit is %d: delete something, or raise --max-state-bytes on every replica", now.bytes, l.bytes)}
	case l.nodes > 0 && g.nodes > 0 && later.nodes > l.nodes:
		return &wirepb.Error{Code: wirepb.ErrorCode_OVERLOADED, Limit: LimitStateNodes, Text: fmt.Sprintf(
			"the cell's state has %d nodes, requests under way may add %d, the limit is %d: try again soon", now.nodes, m.growing.nodes, l.nodes)}
	case l.bytes > 0 && g.bytes > 0 && later.bytes > l.bytes:
		return &wirepb.Error{Code: wirepb.ErrorCode_OVERLOADED, Limit: LimitStateBytes, Text: fmt.Sprintf(
			"the cell's state takes %d bytes, requests under way may add %d, the limit is %d: try again soon", now.bytes, m.growing.bytes, l.bytes)}
	}
	return nil
}

// within reports whether a size exceeds no limit.
func (g size) within(limit size) bool {
	return (limit.nodes <= 0 || g.nodes <= limit.nodes) && (limit.bytes <= 0 || g.bytes <= limit.bytes)
}
