package server

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// The names of the shell's limits; those of the master and of the store come
// beside them.
const (
	limitFrame       = "frame"
	limitConnections = master.LimitConnections
	limitHelloTime   = "hello_time"
	limitFrameTime   = "frame_time"
	limitWriteTime   = "write_time"
	limitConnOutput  = "connection_output"
	limitOutput      = "total_output"
	limitParts       = store.LimitMulti
	limitConditions  = store.LimitConditions
)

// shellLimits are the places of the shell's limits in limitCounts.
var shellLimits = [...]string{limitFrame, limitConnections, limitHelloTime, limitFrameTime, limitWriteTime,
	limitConnOutput, limitOutput, limitParts, limitConditions}

// limitCounts count what the shell's limits have refused.
type limitCounts [len(shellLimits)]atomic.Uint64

// met counts a refusal; no limit, no count.
func (m *shellMetrics) met(limit string) {
	if i := slices.Index(shellLimits[:], limit); i >= 0 {
		m.limits[i].Add(1)
	}
}

// with adds what the replica's limits have refused. Each limit is there, also
// those that have refused nothing.
func (l *limitCounts) with(refused map[string]uint64) map[string]uint64 {
	all := make(map[string]uint64)
	for _, x := range (replica.Options{}).Limits() {
		all[x.Name] = refused[x.Name]
	}
	for i, name := range shellLimits {
		all[name] += l[i].Load()
	}
	return all
}

// all lists every limit that can refuse something, with its value: bytes,
// numbers, milliseconds.
func (l Limits) all() []store.Limit {
	l = Config{Limits: l}.withDefaults().Limits
	list := (replica.Options{MaxFrame: l.MaxFrame, MaxConnections: l.MaxConnections}).Limits()
	return append(list,
		store.Limit{Name: limitFrame, Value: l.MaxFrame},
		store.Limit{Name: limitHelloTime, Value: int(l.HelloTimeout.Milliseconds())},
		store.Limit{Name: limitFrameTime, Value: int(l.FrameTimeout.Milliseconds())},
		store.Limit{Name: limitWriteTime, Value: int(l.WriteTimeout.Milliseconds())},
		store.Limit{Name: limitConnOutput, Value: fullBytes},
		store.Limit{Name: limitOutput, Value: l.MaxQueued},
	)
}

const (
	// partBytes is what an operation of a Multi costs in memory besides its
	// bytes; conditionBytes the same of a condition, sessionBytes of a session in a
	// KeepAlive, featureBytes of a feature in a Hello.
	partBytes      = 256
	conditionBytes = 192
	sessionBytes   = 8
	featureBytes   = 16
	// manyParts are more operations than the store ever takes, so many that
	// decoding them costs memory out of all proportion to the frame; manyConditions
	// the same of conditions. An honest client may send MultiMax operations with
	// ConditionsMax each.
	manyParts      = 16 * store.MultiMax
	manyConditions = 2 * store.MultiMax * store.ConditionsMax
	// fewBytes cannot hold enough of them to matter.
	fewBytes = 2 * manyParts
)

// weight is what a message costs while it waits for the loop.
func weight(m *pb.ClientMessage, payload int) int {
	size := payload + letterBytes
	switch b := m.Body.(type) {
	case *pb.ClientMessage_Request:
		ops, conditions := partsOf(b.Request.GetCommand())
		size += ops*partBytes + conditions*conditionBytes
	case *pb.ClientMessage_KeepAlive:
		size += len(b.KeepAlive.GetSessions()) * sessionBytes
	case *pb.ClientMessage_Hello:
		size += len(b.Hello.GetFeatures()) * featureBytes
	}
	return size
}

// partsOf counts the operations of a Multi, and all conditions of a command; what
// only a master lists counts as these.
func partsOf(c *storepb.Command) (ops, conditions int) {
	switch op := c.GetOp().(type) {
	case *storepb.Command_Create:
		return 0, len(op.Create.GetConditions())
	case *storepb.Command_Put:
		return 0, len(op.Put.GetConditions())
	case *storepb.Command_Delete:
		return 0, len(op.Delete.GetConditions())
	case *storepb.Command_Multi:
		for _, one := range op.Multi.GetOps() {
			conditions += len(one.GetCreate().GetConditions()) + len(one.GetPut().GetConditions()) +
				len(one.GetDelete().GetConditions()) + len(one.GetCheck().GetConditions())
		}
		return len(op.Multi.GetOps()), conditions
	case *storepb.Command_Timers:
		return 0, len(op.Timers.GetDue())
	case *storepb.Command_NoteSessions:
		return 0, len(op.NoteSessions.GetNotes())
	}
	return 0, 0
}

// partMap says where in a message the things are that decoding makes large: each
// may take two bytes on the wire.
type partMap map[protowire.Number]struct {
	kind   part
	within partMap
}

type part uint8

const (
	noPart part = iota
	partOp
	partCondition
	partForeign // of a command that no client may send
	partKinds
)

// clientParts are those of a ClientMessage.
var clientParts = partMap{5: {within: partMap{ // request
	1: {within: partMap{ // command
		14: {within: partMap{7: {kind: partCondition}}}, // create.conditions
		15: {within: partMap{8: {kind: partCondition}}}, // put.conditions
		16: {within: partMap{6: {kind: partCondition}}}, // delete.conditions
		19: {within: partMap{1: {kind: partOp, within: partMap{ // multi.ops
			1: {within: partMap{7: {kind: partCondition}}},
			2: {within: partMap{8: {kind: partCondition}}},
			3: {within: partMap{6: {kind: partCondition}}},
			4: {within: partMap{6: {kind: partCondition}}}, // check.conditions
		}}}},
		20: {within: partMap{1: {kind: partForeign}}}, // timers.due
		25: {within: partMap{1: {kind: partForeign}}}, // note_sessions.notes
	}},
}}}

// tooManyParts refuses a message, before it is decoded, that would take many
// times its size then.
func tooManyParts(payload []byte) *lastWords {
	if len(payload) <= fewBytes {
		return nil
	}
	var n [partKinds]int
	clientParts.count(payload, &n)
	switch {
	case n[partOp] > manyParts:
		return &lastWords{pb.ErrorCode_TOO_MANY, limitParts, fmt.Sprintf(
			"a transaction of %d operations, the limit is %d: divide it", n[partOp], store.MultiMax)}
	case n[partCondition] > manyConditions:
		return &lastWords{pb.ErrorCode_TOO_MANY, limitConditions, fmt.Sprintf(
			"a request with %d conditions, the limit of an operation is %d: divide it", n[partCondition], store.ConditionsMax)}
	case n[partForeign] > manyParts:
		return &lastWords{pb.ErrorCode_BAD_MESSAGE, "", "a Request must hold one of the commands that a client may send"}
	}
	return nil
}

// count adds up the parts of an encoded message, by kind.
func (p partMap) count(b []byte, n *[partKinds]int) {
	for len(b) > 0 {
		num, typ, k := protowire.ConsumeTag(b)
		if k < 0 {
			return
		}
		b = b[k:]
		size := protowire.ConsumeFieldValue(num, typ, b)
		if size < 0 {
			return
		}
		if at, ok := p[num]; ok && typ == protowire.BytesType {
			n[at.kind]++
			if inner, k := protowire.ConsumeBytes(b); k > 0 && at.within != nil {
				at.within.count(inner, n)
			}
		}
		b = b[size:]
	}
}

// roomFor is replica.Options.Room; the loop calls it.
func (d *door) roomFor(id replica.ConnID, deep bool) int {
	c := d.clients[id]
	if c == nil || c.ending {
		return 0
	}
	queued := c.wire.Queued()
	switch {
	case !deep:
		return max(fullBytes-queued, 0)
	case queued > fullBytes || !d.mayBeDeep(c):
		return 0
	}
	return queueBytes - queued
}

// relieve sees to it that what waits for all clients stays within its bound.
// d.queued has what waited for each when it was last sent something, so it is
// too high rather than too low; only when that exceeds the bound is everybody
// looked at. Then those are cut off for whom most waits, until an eighth is
// free: so there is time before the next look.
func (d *door) relieve() {
	d.flush() // who reads gets the chance to
	var all []*clientConn
	total := 0
	for _, c := range d.clients {
		if c.seen == 0 || c.ending {
			continue
		}
		if c.seen = c.wire.Queued(); c.seen > 0 {
			total += c.seen
			all = append(all, c)
		}
	}
	enough := d.limits.MaxQueued - d.limits.MaxQueued/8
	if total > enough {
		slices.SortFunc(all, func(a, b *clientConn) int { return cmp.Compare(b.seen, a.seen) })
	}
	for i := 0; total > enough && i < len(all); i++ {
		total -= all[i].seen
		d.tooSlow(all[i], limitOutput)
	}
	d.queued = total
}
