package faultfs

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
)

const (
	blockBytes  = 4096
	sectorBytes = 512
)

// block is a piece of a file. A frozen one is shared and never changed again.
type block struct {
	data   [blockBytes]byte
	frozen bool
}

// content is what a file holds, as far as it is not zeros.
type content struct {
	size   int64
	blocks map[int64]*block
}

func newContent() content { return content{blocks: map[int64]*block{}} }

func (c *content) readAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d: %w", off, fs.ErrInvalid)
	}
	if off >= c.size {
		return 0, io.EOF
	}
	var err error
	if int64(len(p)) > c.size-off {
		p, err = p[:c.size-off], io.EOF
	}
	for done := 0; done < len(p); {
		at := off + int64(done)
		within := at % blockBytes
		n := min(len(p)-done, int(blockBytes-within))
		if b := c.blocks[at/blockBytes]; b != nil {
			copy(p[done:done+n], b.data[within:])
		} else {
			clear(p[done : done+n])
		}
		done += n
	}
	return len(p), err
}

// writeAt changes bytes; the file grows if need be.
func (c *content) writeAt(p []byte, off int64) {
	c.size = max(c.size, off+int64(len(p)))
	for done := 0; done < len(p); {
		at := off + int64(done)
		within := at % blockBytes
		n := min(len(p)-done, int(blockBytes-within))
		copy(c.own(at / blockBytes).data[within:], p[done:done+n])
		done += n
	}
}

// own gives a block that may be changed.
func (c *content) own(index int64) *block {
	b := c.blocks[index]
	switch {
	case b == nil:
		b = &block{}
	case b.frozen:
		b = &block{data: b.data}
	default:
		return b
	}
	c.blocks[index] = b
	return b
}

// resize cuts the file or makes it longer by zeros.
func (c *content) resize(size int64) {
	if size < c.size {
		for index := range c.blocks {
			if index*blockBytes >= size {
				delete(c.blocks, index)
			}
		}
		if within := size % blockBytes; within != 0 && c.blocks[size/blockBytes] != nil {
			clear(c.own(size / blockBytes).data[within:])
		}
	}
	c.size = size
}

// share gives a copy that shares all blocks.
func (c *content) share() content {
	for _, b := range c.blocks {
		b.frozen = true
	}
	return content{size: c.size, blocks: maps.Clone(c.blocks)}
}

// take makes a block durable: from now on both share it.
func (c *content) take(from *content, index int64) {
	b := from.blocks[index]
	if b == nil {
		delete(c.blocks, index)
		return
	}
	b.frozen = true
	c.blocks[index] = b
}

// change is something done to a file and not synced.
type change struct {
	off  int64
	data []byte // nil: a change of size only
	size int64  // of the file after it
}

// inode is a file, whatever its names are.
type inode struct {
	seen    content // what a reader sees
	durable content
	pending []change
}

func newInode() *inode { return &inode{seen: newContent(), durable: newContent()} }

func (n *inode) write(p []byte, off int64) {
	n.seen.writeAt(p, off)
	n.pending = append(n.pending, change{off: off, data: slices.Clone(p), size: n.seen.size})
}

func (n *inode) resize(size int64) {
	n.seen.resize(size)
	n.pending = append(n.pending, change{size: size})
}

// sync makes everything pending durable.
func (n *inode) sync() {
	shrunk := false
	for _, c := range n.pending {
		if c.data == nil {
			shrunk = shrunk || c.size < n.durable.size
			continue
		}
		for index := c.off / blockBytes; index*blockBytes < c.off+int64(len(c.data)); index++ {
			n.durable.take(&n.seen, index)
		}
	}
	if shrunk {
		n.durable.resize(min(n.durable.size, n.seen.size))
		for index := range n.durable.blocks {
			n.durable.take(&n.seen, index)
		}
	}
	n.durable.size = n.seen.size
	n.pending = nil
}

// drop forgets what is pending, as a kernel does after a failed write-back:
// readers still see it, and no later sync makes it durable.
func (n *inode) drop() { n.pending = nil }

// same gives a copy of the file for a process that died while the power stayed.
func (n *inode) same() *inode {
	return &inode{seen: n.seen.share(), durable: n.durable.share(), pending: slices.Clip(n.pending)}
}

// crash gives what is left of the file. Each sector, and the size, is as it was
// after some number of the pending changes; with ordered it is the same number
// for all, and of one change more there may be a first part.
func (n *inode) crash(l loss, name string) *inode {
	out := newInode()
	out.durable = n.durable.share()
	count := len(n.pending)
	switch {
	case count == 0 || l.mode == lost:
	case l.mode == chosen:
		out.replay(n.pending, func(sector int64) int {
			if sector < 0 || l.keep(name, sector*sectorBytes) {
				return count
			}
			return 0
		})
	default:
		out.replay(n.pending, n.cuts(l.rng, l.mode, count))
	}
	out.seen = out.durable.share()
	return out
}

// cuts says how many of the pending changes a sector (or, for -1, the size)
// has seen.
func (n *inode) cuts(rng *rand.Rand, mode mode, count int) func(sector int64) int {
	drawn := map[int64]int{}
	if mode == ordered {
		whole := rng.IntN(count + 1)
		torn := int64(-1) // up to here, in sectors, the next change made it
		if whole < count {
			next := n.pending[whole]
			torn = (next.off + int64(rng.IntN(len(next.data)+1))) / sectorBytes
		}
		return func(sector int64) int {
			if sector < torn {
				return whole + 1
			}
			return whole
		}
	}
	per := int64(1)
	if rng.IntN(2) == 0 {
		per = blockBytes / sectorBytes // whole pages are kept or lost
	}
	keepAll, loseAll := rng.IntN(8) == 0, rng.IntN(8) == 0
	return func(sector int64) int {
		if sector >= 0 {
			sector /= per
		}
		cut, ok := drawn[sector]
		if !ok {
			switch {
			case keepAll:
				cut = count
			case loseAll:
				cut = 0
			default:
				cut = rng.IntN(count + 1)
			}
			drawn[sector] = cut
		}
		return cut
	}
}

func (n *inode) replay(pending []change, cut func(sector int64) int) {
	size := n.durable.size
	for i, c := range pending {
		if i < cut(-1) {
			size = c.size
		}
		if c.data == nil {
			if c.size < n.durable.size {
				n.durable.resize(c.size)
			}
			continue
		}
		for done := 0; done < len(c.data); {
			at := c.off + int64(done)
			k := min(len(c.data)-done, int(sectorBytes-at%sectorBytes))
			if i < cut(at/sectorBytes) {
				n.durable.writeAt(c.data[done:done+k], at)
			}
			done += k
		}
	}
	n.durable.resize(size)
}
