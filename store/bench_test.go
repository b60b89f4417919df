package store

import (
	"fmt"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

// bench measures Apply alone: commands are encoded in batches while the clock
// stands.
type bench struct {
	*testing.B
	s       *Store
	next    map[uint64]uint64
	encoded [][]byte
}

func newBench(b *testing.B) *bench {
	s := New()
	s.ApplyFound("bench", 1, RevisionFloor(1_767_225_600_000, 0))
	s.ApplyLead(0, 0, 0)
	return &bench{B: b, s: s, next: map[uint64]uint64{}}
}

func (b *bench) open(i int) uint64 {
	r, _ := b.s.Apply(marshal(b, &pb.Command{Op: &pb.Command_OpenSession{OpenSession: &pb.OpenSession{
		Nonce: fmt.Appendf(nil, "nonce %9d", i), LeaseMs: 12_000,
		Client: &pb.ClientInfo{Name: "bench", Host: "a-host-with-a-name", Pid: uint64(i)},
	}}}))
	return r.Session
}

func (b *bench) openAll(n int) (ids []uint64) {
	for i := range n {
		ids = append(ids, b.open(i))
	}
	return ids
}

// encode makes c the session's next request.
func (b *bench) encode(session uint64, c *pb.Command) []byte {
	b.next[session]++
	c.Session, c.Number, c.LowestUnanswered, c.AckedEvent = session, b.next[session], b.next[session], 1<<62
	return marshal(b, c)
}

func (b *bench) do(session uint64, c *pb.Command) {
	b.apply(b.encode(session, c))
}

func (b *bench) apply(command []byte) {
	if r, _ := b.s.Apply(command); r.Code != pb.Code_OK && r.Code != pb.Code_WAITING {
		b.Fatal(r)
	}
}

// measure applies the commands that fill encodes, so many of them each turn.
func (b *bench) measure(each int, fill func()) {
	const batch = 2048
	b.ReportAllocs()
	for b.Loop() {
		if len(b.encoded) == 0 {
			b.StopTimer()
			for len(b.encoded) < batch {
				fill()
			}
			b.StartTimer()
		}
		for _, command := range b.encoded[:each] {
			b.apply(command)
		}
		b.encoded = b.encoded[each:]
	}
}

func (b *bench) add(session uint64, c *pb.Command) {
	b.encoded = append(b.encoded, b.encode(session, c))
}

// sizes are how many sessions take turns, over how many nodes.
var sizes = []struct{ sessions, nodes int }{{1, 1}, {1, 10_000}, {64, 5000}}

func sized(b *testing.B, f func(k *bench, ids []uint64, nodes int)) {
	for _, size := range sizes {
		b.Run(fmt.Sprintf("sessions=%d,nodes=%d", size.sessions, size.nodes), func(b *testing.B) {
			k := newBench(b)
			f(k, k.openAll(size.sessions), size.nodes)
		})
	}
}

func BenchmarkPut256(b *testing.B) {
	sized(b, func(k *bench, ids []uint64, nodes int) {
		data := string(make([]byte, 256))
		path := func(i int) string { return fmt.Sprintf("/bench/put/n%05d", i*7919%nodes) }
		k.do(ids[0], create("/bench"))
		k.do(ids[0], create("/bench/put"))
		for i := range nodes {
			k.do(ids[0], put(path(i), data))
		}
		i := 0
		k.measure(1, func() {
			k.add(ids[i%len(ids)], put(path(i), data))
			i++
		})
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	sized(b, func(k *bench, ids []uint64, nodes int) {
		path := func(i int) string { return fmt.Sprintf("/bench/lock/n%05d", i*7919%nodes) }
		k.do(ids[0], create("/bench"))
		k.do(ids[0], create("/bench/lock"))
		for i := range nodes {
			k.do(ids[0], create(path(i)))
		}
		// Each session holds a lock all the time but for a moment.
		for i, id := range ids {
			k.do(id, acquire(path(i), exclusive, 0))
		}
		i := len(ids)
		k.measure(2, func() {
			id := ids[i%len(ids)]
			k.add(id, release(k.next[id]))
			k.add(id, acquire(path(i), exclusive, 0))
			i++
		})
	})
}

// BenchmarkHandoff hands a lock on from one waiter to the next, which queues
// again at the end: with any number of waiters it is to cost the same.
func BenchmarkHandoff(b *testing.B) {
	for _, waiters := range []int{1, 64, 1000, WaitersMax - 2} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			k := newBench(b)
			queue := k.openAll(waiters + 1)
			k.do(queue[0], create("/l"))
			tickets := map[uint64]uint64{}
			for _, id := range queue {
				k.do(id, acquire("/l", exclusive, 0))
				tickets[id] = k.next[id]
			}
			k.measure(2, func() {
				head := queue[0]
				queue = append(queue[1:], head)
				k.add(head, release(tickets[head]))
				k.add(head, acquire("/l", exclusive, 0))
				tickets[head] = k.next[head]
			})
		})
	}
}

func BenchmarkClone(b *testing.B) {
	k := newBench(b)
	a := k.open(0)
	for i := range 100_000 {
		k.do(a, put(fmt.Sprintf("/n%06d", i), "x"))
	}
	for b.Loop() {
		k.s.Clone()
	}
}

// A transaction that asks again and again whether a lock is held under a fence,
// of as many ghosts as a lock can have and one holder behind them.
func BenchmarkFenceOfManyGhosts(b *testing.B) {
	x := newBench(b)
	ids := x.openAll(2)
	shared := func() *pb.Command {
		return &pb.Command{Op: &pb.Command_Acquire{Acquire: &pb.Acquire{Path: "/l", Mode: pb.LockMode_SHARED, Create: true}}}
	}
	for n := range uint64(WaitersMax - 1) {
		x.do(ids[0], shared())
		x.do(ids[0], &pb.Command{Op: &pb.Command_Forfeit{Forfeit: &pb.Forfeit{Ticket: 2*n + 1}}})
	}
	x.do(ids[1], shared())
	l, _ := x.s.Lock("/l")
	check := &pb.MultiOp{Op: &pb.MultiOp_Check{Check: &pb.Check{Path: "/l", Conditions: []*pb.Condition{
		{Demand: &pb.Condition_Fence{Fence: l.Fence}}}}}}
	m := &pb.Multi{}
	for range MultiMax {
		m.Ops = append(m.Ops, check)
	}
	for b.Loop() {
		x.do(ids[1], &pb.Command{Op: &pb.Command_Multi{Multi: m}})
	}
}
