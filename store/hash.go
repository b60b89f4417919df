package store

import (
	"encoding/binary"
	"math/bits"

	"github.com/seed70370324/lockd/store/pb"
)

// The state hash is the hash of the header plus the sum, modulo 2^64, of the
// hashes of all records: nodes, locks, claims (holders, ghosts, waiters),
// sessions, results, session events. Each record's hash starts from its kind
// and its key, so a record counts once and in its place; the sum lets a record
// be replaced in O(1). Everything that a snapshot holds is in it; a node's
// content is in it by its checksum. It finds faults, it is no defence against
// somebody who looks for collisions. Encoded bytes are never hashed: protobuf
// has no canonical form.

type hasher uint64

// The kinds of record; part of the hash, so never given a new meaning.
const (
	hashHeader = 1 + iota
	hashNode
	hashLock
	hashClaim
	hashSession
	hashResult
	hashEvent
)

func newHash(kind uint64) hasher { return hasher(0x9e3779b97f4a7c15).u64(kind) }

// u64 mixes one number in: a 64 by 64 bit multiplication, folded.
func (h hasher) u64(v uint64) hasher {
	hi, lo := bits.Mul64(uint64(h)^v^0xa0761d6478bd642f, 0xe7037ed1a0b428db)
	return hasher(hi ^ bits.RotateLeft64(lo, 29))
}

func (h hasher) i64(v int64) hasher { return h.u64(uint64(v)) }

func (h hasher) bool(v bool) hasher {
	if v {
		return h.u64(1)
	}
	return h.u64(0)
}

// str mixes in the length and the bytes, eight at a time.
func (h hasher) str(v string) hasher {
	h = h.u64(uint64(len(v)))
	for len(v) >= 8 {
		h = h.u64(word(v))
		v = v[8:]
	}
	if len(v) > 0 {
		var last [8]byte
		copy(last[:], v)
		h = h.u64(binary.LittleEndian.Uint64(last[:]))
	}
	return h
}

func (h hasher) sum() uint64 { return uint64(h) }

// Hash of the whole state, kept as it changes: O(1).
func (s *Store) Hash() uint64 {
	return s.sum + newHash(hashHeader).u64(s.revision).u64(s.epoch).i64(s.cellTime).i64(s.wallMS).
		str(s.cell).u64(s.identity).sum()
}

func (n *node) computeHash(dir, name string) uint64 {
	return newHash(hashNode).str(dir).str(name).
		u64(n.instance).u64(n.contentGen).u64(n.lockGen).u64(n.fence).u64(n.aclGen).u64(n.checksum).
		u64(n.modifyRev).i64(n.createMS).i64(n.modifyMS).u64(uint64(n.kind)).u64(n.owner).
		u64(uint64(len(n.data))).bool(n.hasData).u64(uint64(n.children)).u64(n.childGen).u64(n.childRev).
		u64(n.nextSeq).bool(n.used).bool(n.implied).sum()
}

func (l *lock) computeHash(path string) uint64 {
	return newHash(hashLock).str(path).u64(l.generation).u64(l.fence).sum()
}

func (c *claim) computeHash() uint64 {
	h := newHash(hashClaim).u64(c.session).u64(c.ticket).str(c.path).u64(uint64(c.mode)).u64(uint64(c.state)).
		u64(c.revision).u64(c.fence).i64(c.sinceWall).i64(c.sinceCell).i64(c.until).u64(c.delayMS).u64(c.leaseMS)
	return hashClient(h, c.client).sum()
}

func (x *session) computeHash(id uint64) uint64 {
	if x.who == 0 {
		x.who = x.identityHash(id)
	}
	return newHash(hashSession).u64(x.who).u64(x.leaseMS).bool(x.caches).u64(x.last).u64(x.lowest).
		u64(x.nextEvent).u64(x.acked).u64(x.lastChange).i64(x.openedMS).i64(x.leaseEnd).sum()
}

// identityHash is of what never changes in a session's record.
func (x *session) identityHash(id uint64) uint64 {
	return hashClient(newHash(hashSession).u64(id).str(x.nonce), x.client).sum()
}

func hashOfResult(session, number uint64, r *pb.Result) uint64 {
	return mixResult(newHash(hashResult).u64(session).u64(number), r).sum()
}

func hashOfEvent(session uint64, e *pb.SessionEvent) uint64 {
	h := newHash(hashEvent).u64(session).u64(e.GetNumber()).u64(uint64(e.GetCode())).u64(e.GetTicket()).
		str(e.GetPath()).str(e.GetReason()).u64(uint64(e.GetLoss())).u64(e.GetRevision())
	return mixBlockers(mixGrant(h, e.GetGrant()), e.GetBlockers()).sum()
}

func hashClient(h hasher, c *pb.ClientInfo) hasher {
	if c == nil {
		return h.u64(0)
	}
	return h.u64(1).str(c.Name).str(c.Host).u64(c.Pid)
}

func mixResult(h hasher, r *pb.Result) hasher {
	h = h.u64(uint64(r.GetCode())).u64(r.GetRevision()).u64(r.GetNumber()).str(r.GetPath()).u64(r.GetSession()).
		u64(uint64(r.GetPosition())).u64(uint64(r.GetFailedOp())).str(r.GetDetail()).u64(r.GetLastChange()).
		u64(r.GetLeaseMs())
	h = mixBlockers(mixGrant(mixStat(h, r.GetStat()), r.GetGrant()), r.GetBlockers())
	h = h.u64(uint64(len(r.GetResults())))
	for _, one := range r.GetResults() {
		h = mixResult(h, one)
	}
	if r.GetLimit() != "" {
		h = h.str(r.GetLimit())
	}
	return h
}

func mixStat(h hasher, t *pb.Stat) hasher {
	if t == nil {
		return h.u64(0)
	}
	return h.u64(1).u64(t.Instance).u64(t.ContentGeneration).u64(t.LockGeneration).u64(t.AclGeneration).
		u64(t.Checksum).u64(t.CreateRevision).u64(t.ModifyRevision).i64(t.CreateMs).i64(t.ModifyMs).
		u64(uint64(t.Kind)).u64(t.Owner).u64(uint64(t.DataLength)).u64(uint64(t.Children)).
		u64(t.ChildGeneration).u64(t.ChildRevision)
}

func mixGrant(h hasher, g *pb.Grant) hasher {
	if g == nil {
		return h.u64(0)
	}
	return h.u64(1).str(g.Path).u64(uint64(g.Mode)).u64(g.Fence).u64(g.LockGeneration).u64(g.Instance).
		u64(g.Ticket).u64(g.LockDelayMs)
}

func mixBlockers(h hasher, list []*pb.Blocker) hasher {
	h = h.u64(uint64(len(list)))
	for _, b := range list {
		h = hashClient(h, b.GetClient()).u64(b.GetSession()).u64(uint64(b.GetMode())).u64(b.GetFence()).
			i64(b.GetSinceWallMs()).i64(b.GetSinceCell()).bool(b.GetGhost()).i64(b.GetGhostUntilCell()).
			u64(b.GetLockDelayMs()).u64(b.GetTicket()).i64(b.GetDeadlineCell()).u64(b.GetLeaseMs()).
			u64(b.GetRevision())
	}
	return h
}
