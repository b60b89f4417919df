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
	return size{n, int64(n) * int64(thingBytes+len(path))}
}

// growth is what a command adds to the state as it is now. Deletions in a Multi
// are not set against what it adds.
func (m *Master) growth(c *storepb.Command) size {
	switch op := c.GetOp().(type) {
	case *storepb.Command_Create:
		return m.createGrowth(op.Create)
	case *storepb.Command_Put:
		return m.putGrowth(op.Put)
	case *storepb.Command_Acquire:
		g := growthMax(c)
		return size{min(g.nodes, m.missing(op.Acquire.GetPath())), g.bytes}
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
	if !c.GetSequential() {
		g.nodes = min(g.nodes, m.missing(c.GetPath()))
	}
	return g
}

func (m *Master) putGrowth(p *storepb.Put) size {
	if n, ok := m.st.Node(p.GetPath()); ok {
		return size{bytes: max(0, int64(len(p.GetData())-len(n.Data)))}
	}
	g := putMax(p)
	return size{min(g.nodes, m.missing(p.GetPath())), g.bytes}
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

// full says which limit of the state a command would exceed, "" none. most is its
// growthMax.
func (m *Master) full(c *storepb.Command, most size) (limit, text string) {
	if most == (size{}) || m.stateLimit == (size{}) {
		return "", ""
	}
	var now size
	now.nodes, now.bytes = m.st.Size()
	now = now.plus(m.growing)
	if now.plus(most).within(m.stateLimit) { // nearly always; no look at the nodes
		return "", ""
	}
	g := m.growth(c)
	now = now.plus(g)
	switch l := m.stateLimit; {
	case l.nodes > 0 && g.nodes > 0 && now.nodes > l.nodes:
		return LimitStateNodes, fmt.Sprintf("the cell's state has %d nodes, the limit is %d: delete something, or raise --max-state-nodes on every replica",
			now.nodes-g.nodes, l.nodes)
	case l.bytes > 0 && g.bytes > 0 && now.bytes > l.bytes:
		return LimitStateBytes, fmt.Sprintf("the cell's state takes %d bytes, the limit is %d: delete something, or raise --max-state-bytes on every replica",
			now.bytes-g.bytes, l.bytes)
	}
	return "", ""
}

// within reports whether a size exceeds no limit.
func (g size) within(limit size) bool {
	return (limit.nodes <= 0 || g.nodes <= limit.nodes) && (limit.bytes <= 0 || g.bytes <= limit.bytes)
}

// refuseFull answers that the state is full.
func (m *Master) refuseFull(c *conn, limit, text string, e *wirepb.Error) {
	e.Code, e.Text = wirepb.ErrorCode_TOO_MANY, text
	m.limited(c, limit, e)
}
