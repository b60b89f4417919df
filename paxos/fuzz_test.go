package paxos_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/paxos"
)

// FuzzReceive gives replicas in every role messages that no correct replica
// would send. Whatever comes, the replica goes on and keeps its invariants.
// Only one thing may stop it: proof that two values were chosen in one slot,
// which a peer that lies can forge, and after which nothing can be trusted.
func FuzzReceive(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		b := make([]byte, 600)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		b[0] = byte(i) // each role
		if i < 14 {
			fuzzing.Seed(f, fmt.Sprintf("%02d", i), b)
		} else {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer func() {
			v := recover()
			if v == nil || strings.Contains(fmt.Sprint(v), "chosen value differs") {
				return
			}
			panic(v)
		}()
		d := &fuzzInput{data: data}
		c, r := d.replica()
		now, sequence := c.now, c.node(1).sequence
		for len(d.data) > 0 {
			switch d.byte() % 16 {
			case 0:
				now += time.Duration(d.byte()) * 4 * time.Millisecond
				r.Step(now, paxos.Tick{})
			case 1, 2:
				if e := r.Take(now); e.Sequence != 0 {
					sequence = e.Sequence
				}
			case 3:
				r.Step(now, paxos.Persisted{Sequence: sequence})
			case 4:
				r.Step(now, paxos.Propose{Commands: [][]byte{[]byte("x")}})
			case 5:
				r.Step(now, paxos.ConfirmRead{ID: 1})
			case 6:
				r.Step(now, paxos.Arriving{From: paxos.ReplicaID(d.byte() % 5)})
				r.Step(now, paxos.Sent{To: paxos.ReplicaID(d.byte() % 5), Queued: int(d.number())})
			default:
				r.Step(now, paxos.Receive{Message: d.message()})
			}
			if err := r.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// fuzzInput reads events from fuzzed bytes; the end reads as zeros.
type fuzzInput struct{ data []byte }

func (d *fuzzInput) byte() byte {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return b
}

// number is mostly small, so that it means something, and sometimes anything.
func (d *fuzzInput) number() uint64 {
	b := d.byte()
	switch {
	case b < 224:
		return uint64(b % 12)
	case b < 240:
		return uint64(b) * uint64(d.byte())
	}
	var w [8]byte
	for i := range w {
		w[i] = d.byte()
	}
	return binary.LittleEndian.Uint64(w[:])
}

func (d *fuzzInput) ballot() paxos.Ballot {
	return paxos.Ballot{Round: d.number(), Replica: paxos.ReplicaID(d.byte() % 5)}
}

func (d *fuzzInput) message() paxos.Message {
	m := paxos.Message{
		Kind:     paxos.MessageKind(d.byte() % 16),
		From:     paxos.ReplicaID(2 + d.byte()%4/2), // 2 or 3
		To:       1,
		Ballot:   d.ballot(),
		Promised: d.ballot(),
		Slot:     paxos.Slot(d.number()),
		Chosen:   paxos.Slot(d.number()),
		First:    paxos.Slot(d.number()),
		Sequence: d.number(),
		OK:       d.byte()%4 != 0,
		Limit:    d.number(),

		WallSeconds: int64(d.number()),
		RoundTrip:   time.Duration(d.number()),
	}
	if d.byte()%8 == 0 {
		m.From, m.To = paxos.ReplicaID(d.byte()), paxos.ReplicaID(d.byte())
	}
	for range d.byte() % 4 {
		m.Entries = append(m.Entries, paxos.Entry{
			Slot: paxos.Slot(d.number()), Ballot: d.ballot(), Chosen: d.byte()%2 == 0,
		})
		if e := &m.Entries[len(m.Entries)-1]; d.byte()%4 == 0 {
			e.Named = true
		} else {
			e.Value = d.value()
		}
	}
	return m
}

func (d *fuzzInput) value() paxos.Value {
	v := paxos.Value{Kind: paxos.ValueKind(d.byte() % 6)}
	switch v.Kind {
	case paxos.Batch:
		for range d.byte() % 3 {
			v.Commands = append(v.Commands, []byte{d.byte()})
		}
	case paxos.Lead:
		v.Leader = d.ballot()
	case paxos.Config:
		if d.byte()%4 != 0 {
			c := members(int(d.byte() % 4))
			for i := range c.Members {
				c.Members[i].Voter = d.byte()%4 != 0
			}
			v.Config = &c
		}
	}
	return v
}

// replica returns replica 1 of a cell of three, in a role that the first byte
// chooses.
func (d *fuzzInput) replica() (*cell, *paxos.Replica) {
	role := d.byte() % 7
	c := newCell(3, role != 0, paxos.Options{WindowSlots: 4, BatchBytes: 8, MemoryBytes: 300}, nil)
	n := c.node(1)
	leads := func(n *node) {
		c.step(n, paxos.Campaign{})
		c.take(n)
		for range 4 {
			for range len(c.net) {
				c.deliver(0, false)
			}
			c.takeAll()
		}
		c.step(n, paxos.Propose{Commands: [][]byte{[]byte("one"), []byte("two"), []byte("three")}})
		c.take(n)
	}
	switch role {
	case 0: // of a cell that is not founded
	case 1: // has just started
	case 2: // follows
		leads(c.node(2))
		for range len(c.net) {
			c.deliver(0, false)
		}
		c.takeAll()
	case 3: // campaigns
		c.step(n, paxos.Campaign{})
		c.take(n)
	case 4: // leads, with slots open
		leads(n)
	case 5: // is handing over
		leads(n)
		c.step(n, paxos.Handover{})
		c.take(n)
	case 6: // restarted from a snapshot
		leads(n)
		c.snapshot(n, 1)
		c.crash(n, len(n.owed))
		c.start(n)
	}
	return c, n.r
}
