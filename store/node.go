package store

import (
	"fmt"
	"hash/crc64"
	"slices"
	"strings"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
)

// node is the value of a node. It is written by editItem alone, and its data
// never: readers may keep that.
type node struct {
	data       []byte
	made       uint64 // see Store.generation
	instance   uint64 // revision of its creation
	contentGen uint64
	lockGen    uint64 // while locked, the lock has it and this is 0
	fence      uint64 // likewise
	aclGen     uint64
	checksum   uint64
	modifyRev  uint64
	createMS   int64
	modifyMS   int64
	owner      uint64 // session, of an ephemeral node
	childGen   uint64
	childRev   uint64
	nextSeq    uint64 // number of the next sequential child
	hash       uint64
	children   uint32
	kind       pb.NodeKind
	hasData    bool
	used       bool // container: has had a child or a lock
	implied    bool // container that no client asked for
	locked     bool // the table of locks has a record at this path
}

var crcTable = crc64.MakeTable(crc64.ECMA)

// Checksum of a node's content, as Stat.checksum has it: CRC-64/XZ, that is
// polynomial 0x42F0E1EBA9EA3693 reflected, start and final XOR all ones;
// 0x995DC9BBDF1939FA for the bytes "123456789", 0 for no content.
func Checksum(data []byte) uint64 { return crc64.Checksum(data, crcTable) }

func (s *Store) stat(path string, n *node) *pb.Stat {
	t := new(pb.Stat)
	s.fillStat(t, path, n)
	return t
}

func (s *Store) fillStat(t *pb.Stat, path string, n *node) {
	t.LockGeneration = n.lockGen
	if n.locked {
		if l, ok := s.lock(path); ok {
			t.LockGeneration = l.generation
		}
	}
	t.Instance = n.instance
	t.ContentGeneration = n.contentGen
	t.AclGeneration = n.aclGen
	t.Checksum = n.checksum
	t.CreateRevision = n.instance
	t.ModifyRevision = n.modifyRev
	t.CreateMs = n.createMS
	t.ModifyMs = n.modifyMS
	t.Kind = n.kind
	t.Owner = n.owner
	t.DataLength = uint32(len(n.data))
	t.Children = n.children
	t.ChildGeneration = n.childGen
	t.ChildRevision = n.childRev
}

// withStat is the answer that describes a node; it takes one allocation.
func (s *Store) withStat(path string, n *node) *pb.Result {
	both := new(struct {
		result pb.Result
		stat   pb.Stat
	})
	s.fillStat(&both.stat, path, n)
	both.result.Path, both.result.Stat = path, &both.stat
	return &both.result
}

func (n *node) setData(data []byte, hasData bool) {
	if len(data) == 0 {
		data = nil
	}
	n.data, n.hasData = data, hasData || data != nil
	n.checksum = Checksum(data)
}

func refuse(code pb.Code, format string, args ...any) *pb.Result {
	return &pb.Result{Code: code, Detail: fmt.Sprintf(format, args...)}
}

func tooLarge(data []byte) *pb.Result {
	return met(LimitData, refuse(pb.Code_TOO_LARGE, "the content is %d bytes long, the limit of a node is %d: divide it among nodes, or keep it elsewhere and its address here", len(data), DataMax))
}

// create executes a Create for a session, which owns the node if it is
// ephemeral.
func (s *Store) create(owner uint64, c *pb.Create) *pb.Result {
	kind := c.Kind
	switch kind {
	case pb.NodeKind_NODE_KIND_UNSPECIFIED:
		kind = pb.NodeKind_PERMANENT
	case pb.NodeKind_PERMANENT, pb.NodeKind_EPHEMERAL, pb.NodeKind_CONTAINER:
	default:
		return refuse(pb.Code_BAD_COMMAND, "unknown kind of node %d", int32(kind))
	}
	if len(c.Data) > DataMax {
		return tooLarge(c.Data)
	}
	path, next := c.Path, uint64(0)
	if c.Sequential {
		var bad *pb.Result
		if path, next, bad = s.sequentialPath(c.Path); bad != nil {
			return bad
		}
	} else if reason := badPath(path); reason != "" {
		return refusePath(path, reason)
	}
	if n, ok := s.node(path); ok {
		r := refuse(pb.Code_EXISTS, "%s exists", path)
		r.Stat = s.stat(path, n)
		return r
	}
	if bad := s.unmet(c.Conditions, path, nil, pb.Code_EXISTS); bad != nil {
		return bad
	}
	if kind == pb.NodeKind_EPHEMERAL {
		if x, ok := s.session(owner); ok && x.ephemerals >= EphemeralsMax {
			return limited(LimitEphemerals, "the session has %d ephemeral nodes, the limit is %d: delete some, or use another session", x.ephemerals, EphemeralsMax)
		}
	}
	if bad := s.roomFor(path, c.Parents); bad != nil {
		return bad
	}
	s.makeParents(parent(path))
	if c.Sequential {
		s.editNode(parent(path), func(p *node) { p.nextSeq = next + 1 })
	}
	n := s.makeNode(path, kind, owner, c.Data, c.HasData)
	return s.withStat(path, n)
}

// sequentialPath is the path that a sequential create makes, and the number in
// it: the parent's next, in ten digits, behind the base name. A number whose
// name is taken by a node that was created by its full name is passed over, for
// good.
func (s *Store) sequentialPath(given string) (path string, number uint64, bad *pb.Result) {
	if reason := badSequentialPath(given); reason != "" {
		return "", 0, refusePath(given, reason)
	}
	slash := strings.LastIndexByte(given, '/')
	dir, base := given[:max(slash, 1)], given[slash+1:]
	if p, ok := s.node(dir); ok {
		number = p.nextSeq
	}
	for first := number; ; number++ {
		if number-first > SkipMax {
			return "", 0, limited(LimitSkip, "the %d names from %s%010d on are taken by nodes that were created by their full names, the limit is %d: use another base name, or delete some of them",
				number-first, base, first, SkipMax)
		}
		path = join(dir, fmt.Sprintf("%s%010d", base, number))
		if reason := badPath(path); reason != "" {
			return "", 0, refusePath(path, "with its number, "+reason)
		}
		if _, taken := s.node(path); !taken {
			return path, number, nil
		}
	}
}

// roomFor says why a node cannot be created at path, or nil. With parents,
// what is missing above it is to be created too.
func (s *Store) roomFor(path string, parents bool) *pb.Result {
	for dir := parent(path); ; dir = parent(dir) {
		p, ok := s.node(dir)
		switch {
		case ok && p.kind == pb.NodeKind_EPHEMERAL:
			return refuse(pb.Code_EPHEMERAL_PARENT, "%s is ephemeral and can have no children", dir)
		case ok && p.children >= ChildrenMax:
			return limited(LimitChildren, "%s has %d children, the limit of a node is %d: divide them among more parents", dir, p.children, ChildrenMax)
		case ok:
			return nil
		case !parents:
			return refuse(pb.Code_NOT_FOUND, "the parent %s does not exist", dir)
		}
	}
}

// makeParents creates dir and what is missing above it as containers.
func (s *Store) makeParents(dir string) {
	if _, ok := s.node(dir); ok {
		return
	}
	s.makeParents(parent(dir))
	s.makeImplied(dir)
}

// makeImplied creates a container that no client asked for: a lock or a path
// needs it. The first Put makes it permanent (keep).
func (s *Store) makeImplied(path string) *node {
	n := s.newNode(pb.NodeKind_CONTAINER)
	n.implied = true
	return s.placeNode(path, n)
}

// keep makes an implied container permanent, since a client puts content there.
//
// Invariant: no node goes by itself that a client has written, unless a client
// asked for a container there.
func (n *node) keep() {
	if n.implied && !invariant.Planted(invariant.PutOnContainerGoes) {
		n.kind, n.implied, n.used = pb.NodeKind_PERMANENT, false, false
	}
}

// makeNode creates a node whose parent exists.
func (s *Store) makeNode(path string, kind pb.NodeKind, owner uint64, data []byte, hasData bool) *node {
	n := s.newNode(kind)
	if kind == pb.NodeKind_EPHEMERAL {
		n.owner = owner
	}
	n.setData(data, hasData)
	return s.placeNode(path, n)
}

func (s *Store) newNode(kind pb.NodeKind) *node {
	return &node{
		instance: s.now, contentGen: 1, modifyRev: s.now,
		createMS: s.wallMS, modifyMS: s.wallMS, kind: kind,
	}
}

// placeNode puts a new node in the tree. It takes over the lock that a deleted
// node of that path has left.
func (s *Store) placeNode(path string, n *node) *node {
	_, n.locked = s.lock(path)
	s.addNode(path, n)
	return n
}

// put executes a Put.
func (s *Store) put(p *pb.Put) *pb.Result {
	if reason := badPath(p.Path); reason != "" {
		return refusePath(p.Path, reason)
	}
	if len(p.Data) > DataMax {
		return tooLarge(p.Data)
	}
	i, ok := s.nodeItem(p.Path)
	n := i.node
	if !ok && !p.Create {
		return refuse(pb.Code_NOT_FOUND, "%s does not exist", p.Path)
	}
	if bad := s.unmet(p.Conditions, p.Path, n, pb.Code_CONFLICT); bad != nil {
		return bad
	}
	switch {
	case ok:
		n = s.editItem(i, func(n *node) {
			n.contentGen++
			n.modifyRev = s.now
			n.modifyMS = s.wallMS
			n.setData(p.Data, p.HasData)
			n.keep()
		})
		s.note(ChangeContent, p.Path, 0)
	default:
		if bad := s.roomFor(p.Path, p.Parents); bad != nil {
			return bad
		}
		s.makeParents(parent(p.Path))
		n = s.makeNode(p.Path, pb.NodeKind_PERMANENT, 0, p.Data, p.HasData)
	}
	return s.withStat(p.Path, n)
}

// delete executes a Delete.
func (s *Store) delete(d *pb.Delete) *pb.Result {
	if reason := badPath(d.Path); reason != "" {
		return refusePath(d.Path, reason)
	}
	if d.Path == "/" {
		return refuse(pb.Code_BAD_PATH, "the root cannot be deleted")
	}
	n, ok := s.node(d.Path)
	if !ok {
		return refuse(pb.Code_NOT_FOUND, "%s does not exist", d.Path)
	}
	if bad := s.unmet(d.Conditions, d.Path, n, pb.Code_CONFLICT); bad != nil {
		return bad
	}
	if n.children > 0 && !d.Recursive {
		return refuse(pb.Code_NOT_EMPTY, "%s has %d children", d.Path, n.children)
	}
	paths, refused := s.doomed(d)
	if refused != nil {
		return refused
	}
	why := pb.DeleteReason_DELETED
	if d.Force {
		why = pb.DeleteReason_FORCED
	}
	for _, path := range slices.Backward(paths) {
		s.deleteNode(path, why)
	}
	return &pb.Result{Path: d.Path}
}

// doomed lists what a Delete takes away, parents first, unless one of them is
// locked or it is more than one command deletes: one that takes long keeps all
// others waiting, on every replica. A single node is always little enough.
func (s *Store) doomed(d *pb.Delete) (paths []string, refused *pb.Result) {
	weight := s.removed
	s.walk(d.Path, func(path string, n *node) bool {
		if n.locked && !d.Force {
			if l, ok := s.lock(path); ok && (l.live() > 0 || l.waiters > 0) {
				refused = refuse(pb.Code_LOCKED, "%s is locked or waited for", path)
				refused.Path = path
				refused.Blockers = s.blockers(path, BlockersMax)
				return false
			}
		}
		paths = append(paths, path)
		weight++
		if l, ok := s.lock(path); n.locked && ok {
			weight += l.holders + l.waiters
		}
		if weight > DeleteMax && (len(paths) > 1 || n.children > 0 || s.removed > 0) {
			refused = limited(LimitDelete, "%s and all below it are more than %d nodes, holders and waiters, the limit of a command: not deleted; delete what is below it first, in parts (lockctl rm -r does)",
				d.Path, DeleteMax)
			return false
		}
		return true
	})
	if refused == nil {
		s.removed = weight
	}
	return paths, refused
}

// deleteNode deletes a node without children, whatever holds it: holders lose
// the lock and stay as ghosts, waiters are sent away.
func (s *Store) deleteNode(path string, why pb.DeleteReason) {
	n, ok := s.node(path)
	if !ok {
		return
	}
	if n.locked {
		s.withdrawAll(path, "the node was deleted")
		s.loseAll(path, pb.LossReason_NODE_DELETED, "the node was deleted")
	}
	s.removeNode(path, why)
	s.touch(path)
	s.touch(parent(path))
}

// checkNode executes a Check: it demands that a node is in a state.
func (s *Store) checkNode(c *pb.Check) *pb.Result {
	if reason := badPath(c.Path); reason != "" {
		return refusePath(c.Path, reason)
	}
	n, ok := s.node(c.Path)
	if !ok && len(c.Conditions) == 0 {
		return refuse(pb.Code_NOT_FOUND, "%s does not exist", c.Path)
	}
	if bad := s.unmet(c.Conditions, c.Path, n, pb.Code_EXISTS); bad != nil {
		return bad
	}
	if !ok {
		return &pb.Result{Path: c.Path}
	}
	return s.withStat(c.Path, n)
}

// reap removes the container at path, and containers above it, if it has been
// used and nothing is left on it.
//
// Invariant: no container exists that has been used and has neither child nor
// holder, ghost or waiter.
func (s *Store) reap(path string) {
	for path != "/" && path != "" {
		n, ok := s.node(path)
		if !ok || n.kind != pb.NodeKind_CONTAINER || !n.used || n.children > 0 || n.locked {
			return
		}
		s.removeNode(path, pb.DeleteReason_CONTAINER_IDLE)
		path = parent(path)
	}
}
