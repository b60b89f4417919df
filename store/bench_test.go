package store

import (
	"fmt"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
)

type bench struct {
	*testing.B
	s    *Store
	next map[uint64]uint64
}

func newBench(b *testing.B) *bench {
	s := New()
	s.ApplyFound("bench", 1, RevisionFloor(1_767_225_600_000, 0))
	s.ApplyLead()
	return &bench{b, s, map[uint64]uint64{}}
}

func (b *bench) open(i int) uint64 {
	r, _ := b.s.Apply(marshal(b, &pb.Command{Op: &pb.Command_OpenSession{OpenSession: &pb.OpenSession{Nonce: fmt.Appendf(nil, "nonce %9d", i), LeaseMs: 12_000}}}))
	return r.Session
}

func (b *bench) do(session uint64, c *pb.Command) *pb.Result {
	b.next[session]++
	c.Session, c.Number, c.LowestUnanswered, c.AckedEvent = session, b.next[session], b.next[session], 1<<62
	r, _ := b.s.Apply(marshal(b, c))
	return r
}

func BenchmarkPut256(b *testing.B) {
	k := newBench(b)
	a := k.open(0)
	data := string(make([]byte, 256))
	for i := range 10_000 {
		k.do(a, put(fmt.Sprintf("/n%05d", i), data))
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		k.do(a, put(fmt.Sprintf("/n%05d", i*7919%10_000), data))
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	k := newBench(b)
	a := k.open(0)
	k.do(a, create("/l"))
	b.ReportAllocs()
	for b.Loop() {
		k.do(a, acquire("/l", exclusive, 0))
		k.do(a, release(k.next[a]))
	}
}

// BenchmarkHandoff hands a lock on from one waiter to the next, which queues
// again at the end: with any number of waiters it is to cost the same.
func BenchmarkHandoff(b *testing.B) {
	for _, waiters := range []int{1, 1000, 50_000} {
		b.Run(fmt.Sprint(waiters), func(b *testing.B) {
			k := newBench(b)
			type place struct{ session, ticket uint64 }
			queue := make([]place, 0, waiters+1)
			queueUp := func(id uint64) {
				k.do(id, acquire("/l", exclusive, 0))
				queue = append(queue, place{id, k.next[id]})
			}
			for i := range waiters + 1 {
				queueUp(k.open(i))
			}
			b.ReportAllocs()
			for b.Loop() {
				head := queue[0]
				queue = queue[1:]
				if r := k.do(head.session, release(head.ticket)); r.Code != pb.Code_OK {
					b.Fatal(r)
				}
				queueUp(head.session)
			}
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
