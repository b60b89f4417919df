package wal

import (
	"slices"

	"github.com/seed70370324/lockd/paxos"
)

// slotIndex says where the last record of each slot stands. It keeps blocks of
// neighbouring slots, since slots come almost without gaps, and costs little
// for one that stands alone.
type slotIndex struct {
	blocks map[uint64]*indexBlock
}

const indexBlockSlots = 512

type indexBlock [indexBlockSlots]location

func newSlotIndex() *slotIndex { return &slotIndex{blocks: map[uint64]*indexBlock{}} }

func (x *slotIndex) set(slot paxos.Slot, at location) {
	key := uint64(slot) / indexBlockSlots
	b := x.blocks[key]
	if b == nil {
		b = &indexBlock{}
		x.blocks[key] = b
	}
	b[uint64(slot)%indexBlockSlots] = at
}

// get finds the last record of slot; ok is false if there is none.
func (x *slotIndex) get(slot paxos.Slot) (at location, ok bool) {
	b := x.blocks[uint64(slot)/indexBlockSlots]
	if b == nil {
		return location{}, false
	}
	at = b[uint64(slot)%indexBlockSlots]
	return at, at.segment != 0
}

// dropBelow forgets the slots below first.
func (x *slotIndex) dropBelow(first paxos.Slot) {
	for key, b := range x.blocks {
		begin := paxos.Slot(key * indexBlockSlots)
		switch {
		case begin+indexBlockSlots <= first:
			delete(x.blocks, key)
		case begin < first:
			clear(b[:first-begin])
		}
	}
}

// lowest walks down from the slot behind chosen as long as there is a record:
// from the slot it gives on, everything chosen can be read.
func (x *slotIndex) lowest(chosen paxos.Slot) paxos.Slot {
	first := chosen + 1
	for first > 1 {
		if _, ok := x.get(first - 1); !ok {
			break
		}
		first--
	}
	return first
}

// above lists the slots above slot that have a record, ascending.
func (x *slotIndex) above(slot paxos.Slot) []paxos.Slot {
	var keys []uint64
	for key := range x.blocks {
		if (key+1)*indexBlockSlots > uint64(slot) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	var out []paxos.Slot
	for _, key := range keys {
		for i, at := range x.blocks[key] {
			s := paxos.Slot(key*indexBlockSlots + uint64(i))
			if at.segment != 0 && s > slot {
				out = append(out, s)
			}
		}
	}
	return out
}
