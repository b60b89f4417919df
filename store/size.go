package store

import (
	"github.com/seed70370324/lockd/store/pb"
)

// The size of the state is counted as it changes, by what every replica agrees
// on: lengths, and a fixed overhead for each thing. The overheads are those of
// the Go structures with their places in the tables, rounded up, so that the
// count is about what a replica's memory holds, rather too high than too low.
// Paths, contents and texts count with their length, as if nothing were shared.
// Encoded lengths are not used: protobuf has no canonical form.
//
// Invariant: bytes is the sum of the sizes of all records. (Check recounts it.)
const (
	nodeBytes    = 384 // and path, content
	lockBytes    = 192 // and path: of a lock in use
	claimBytes   = 512 // and path, client's texts: a holder, ghost or waiter
	sessionBytes = 640 // and nonce, client's texts
	resultBytes  = 448 // and path, detail, limit; of each operation in a Multi too
	eventBytes   = 320 // and path, reason
	statBytes    = 256 // of a result
	grantBytes   = 160 // and path: of a result or event
	blockerBytes = 256 // and client's texts: of a result or event
)

// Size returns how many nodes the state has and how many bytes it counts: O(1),
// the same on all replicas.
func (s *Store) Size() (nodes int, bytes int64) { return s.nodes.Len(), s.bytes }

func (i *nodeItem) size() int64 {
	return int64(nodeBytes + len(i.dir) + len(i.name) + len(i.data))
}

func (i *lockItem) size() int64 { return int64(lockBytes + len(i.path)) }

func (c *claim) size() int64 { return int64(claimBytes + len(c.path) + textSize(c.client)) }

func (x *session) size() int64 { return int64(sessionBytes + len(x.nonce) + textSize(x.client)) }

func textSize(c *pb.ClientInfo) int { return len(c.GetName()) + len(c.GetHost()) }

func resultSize(r *pb.Result) int {
	size := resultBytes + len(r.GetPath()) + len(r.GetDetail()) + len(r.GetLimit()) + grantSize(r.GetGrant())
	if r.GetStat() != nil {
		size += statBytes
	}
	for _, b := range r.GetBlockers() {
		size += blockerSize(b)
	}
	for _, one := range r.GetResults() {
		size += resultSize(one)
	}
	return size
}

func eventSize(e *pb.SessionEvent) int {
	size := eventBytes + len(e.GetPath()) + len(e.GetReason()) + grantSize(e.GetGrant())
	for _, b := range e.GetBlockers() {
		size += blockerSize(b)
	}
	return size
}

func grantSize(g *pb.Grant) int {
	if g == nil {
		return 0
	}
	return grantBytes + len(g.Path)
}

func blockerSize(b *pb.Blocker) int { return blockerBytes + textSize(b.GetClient()) }

// What a session makes the state hold by what its client does not acknowledge is
// bounded in bytes. No event and no result that may still be asked for is ever
// dropped, so there is room for each before what causes it is executed: an
// Acquire is taken only if the events that it may cause fit, and a request only
// if its answer does, however long that becomes.
//
// Invariants: a session's events, and those that its holdings and waiters may
// yet cause, are EventBytesMax at most. Its results are ResultBytesMax at most, but
// for those that no limit refuses: of what gives something up.

const (
	reasonMax  = 64                                                                // bytes of an event's reason
	detailMax  = 512 + 2*PathMax                                                   // of a result's detail
	blockerMax = blockerBytes + 2*TextMax                                          // of a Blocker
	smallMax   = resultBytes + detailMax + 2*PathMax + statBytes + grantBytes + 64 // of a result without blockers
	singleMax  = smallMax + BlockersMax*blockerMax                                 // of a result but a Multi's
	partMax    = resultBytes + statBytes + 128                                     // of one operation in a Multi, and its path
	largestMax = 2*singleMax + MultiMax*(partMax+PathMax)                          // of any result
)

// The largest result fits a session that keeps nothing.
var _ [ResultBytesMax - largestMax]struct{}

// answerMax bounds the size of the result of a command.
func answerMax(c *pb.Command) int {
	m := c.GetMulti()
	if m == nil || len(m.Ops) > MultiMax {
		return singleMax
	}
	size := 2 * singleMax // the whole, and the operation that failed
	for _, one := range m.Ops {
		length := PathMax
		switch op := one.GetOp().(type) {
		case *pb.MultiOp_Create:
			length = len(op.Create.GetPath()) + 10
		case *pb.MultiOp_Put:
			length = len(op.Put.GetPath())
		case *pb.MultiOp_Delete:
			length = len(op.Delete.GetPath())
		case *pb.MultiOp_Check:
			length = len(op.Check.GetPath())
		}
		size += partMax + min(length, PathMax)
	}
	return size
}

// reserve is what the events that a claim may yet cause take at most: of a
// waiter, that it was granted, and then that it has lost the lock; or one event in
// place of both.
func (c *claim) reserve() int {
	switch c.state {
	case waiting:
		return 2 * eventReserve(c.path)
	case held:
		return eventReserve(c.path)
	}
	return 0
}

func eventReserve(path string) int {
	return eventBytes + len(path) + reasonMax + grantBytes + len(path)
}

// fitting cuts the blockers that an event of a waiter names to those for which
// there is room, that of its own reserve included.
func (s *Store) fitting(c *claim, list []*pb.Blocker) []*pb.Blocker {
	x, ok := s.session(c.session)
	if !ok {
		return nil
	}
	room := EventBytesMax - x.eventBytes - x.reserved + c.reserve() - eventBytes - len(c.path)
	for i, b := range list {
		if room -= blockerSize(b); room < 0 {
			return list[:i]
		}
	}
	return list
}
