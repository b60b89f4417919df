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
)

// shellLimits are the places of the shell's limits in limitCounts.
var shellLimits = [...]string{limitFrame, limitConnections, limitHelloTime, limitFrameTime, limitWriteTime,
	limitConnOutput, limitOutput, limitParts}

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
	// bytes; sessionBytes the same of a session in a KeepAlive.
	partBytes    = 256
	sessionBytes = 8
	// manyParts are more operations than the store ever takes, so many that
	// decoding them costs memory out of all proportion to the frame.
	manyParts = 16 * store.MultiMax
	// fewBytes cannot hold enough of them to matter.
	fewBytes = 2 * manyParts
)

// weight is what a message costs while it waits for the loop.
func weight(m *pb.ClientMessage, payload int) int {
	size := payload + letterBytes
	switch b := m.Body.(type) {
	case *pb.ClientMessage_Request:
		size += len(b.Request.GetCommand().GetMulti().GetOps()) * partBytes
	case *pb.ClientMessage_KeepAlive:
		size += len(b.KeepAlive.GetSessions()) * sessionBytes
	}
	return size
}

// tooManyParts refuses a message, before it is decoded, that would take many
// times its size then: an operation of a Multi may take two bytes on the wire.
func tooManyParts(payload []byte) *lastWords {
	if len(payload) <= fewBytes {
		return nil
	}
	n := countParts(payload, 5, 1, 19, 1) // ClientMessage.request, Request.command, Command.multi, Multi.ops
	if n <= manyParts {
		return nil
	}
	return &lastWords{pb.ErrorCode_TOO_MANY, limitParts, fmt.Sprintf(
		"a transaction of %d operations, the limit is %d: divide it", n, store.MultiMax)}
}

// countParts counts the fields at the end of a path of field numbers.
func countParts(b []byte, path ...protowire.Number) (n int) {
	for len(b) > 0 {
		num, typ, k := protowire.ConsumeTag(b)
		if k < 0 {
			return n
		}
		b = b[k:]
		size := protowire.ConsumeFieldValue(num, typ, b)
		if size < 0 {
			return n
		}
		if num == path[0] && typ == protowire.BytesType {
			if len(path) == 1 {
				n++
			} else if inner, k := protowire.ConsumeBytes(b); k > 0 {
				n += countParts(inner, path[1:]...)
			}
		}
		b = b[size:]
	}
	return n
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
