package faultfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

const (
	pageBytes   = 4096
	sectorBytes = 512
	// blockBytes is a quarter of a page: most pages of a log are mostly zeros, for
	// which there is no block.
	blockBytes = 1024
)

// block is a piece of a file. One that several contents share is never
// changed: a content takes a copy of it before it writes there.
type block struct {
	data   [blockBytes]byte
	shared atomic.Int32 // contents that have it, of other file systems too; those that are gone still count
}

var zeros [blockBytes]byte

// content is what a file holds, as far as it is not zeros.
type content struct {
	size   int64
	blocks []*block // by index; nil: zeros
}

func newContent() content { return content{} }

// at returns a block, or nil for one of zeros.
func (c *content) at(index int64) *block {
	if index >= int64(len(c.blocks)) {
		return nil
	}
	return c.blocks[index]
}

// put sets a block.
func (c *content) put(index int64, b *block) {
	for int64(len(c.blocks)) <= index {
		c.blocks = append(c.blocks, nil)
	}
	c.blocks[index] = b
}

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
		if b := c.at(at / blockBytes); b != nil {
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
		if piece := p[done : done+n]; c.at(at/blockBytes) != nil || !bytes.Equal(piece, zeros[:n]) {
			copy(c.own(at / blockBytes).data[within:], piece)
		}
		done += n
	}
}

// own gives a block that may be changed.
func (c *content) own(index int64) *block {
	b := c.at(index)
	switch {
	case b == nil:
		b = &block{}
	case b.shared.Load() > 1:
		old := b
		b = &block{data: old.data}
		old.shared.Add(-1)
	default:
		return b
	}
	b.shared.Store(1)
	c.put(index, b)
	return b
}

// resize cuts the file or makes it longer by zeros.
func (c *content) resize(size int64) {
	if size < c.size {
		if kept := (size + blockBytes - 1) / blockBytes; kept < int64(len(c.blocks)) {
			for _, b := range c.blocks[kept:] {
				if b != nil {
					b.shared.Add(-1)
				}
			}
			clear(c.blocks[kept:])
			c.blocks = c.blocks[:kept]
		}
		if within := size % blockBytes; within != 0 && c.at(size/blockBytes) != nil {
			clear(c.own(size / blockBytes).data[within:])
		}
	}
	c.size = size
}

// share gives a copy that shares all blocks.
func (c *content) share() content {
	for _, b := range c.blocks {
		if b != nil {
			b.shared.Add(1)
		}
	}
	return content{size: c.size, blocks: slices.Clone(c.blocks)}
}

// take makes a block durable. A new one is shared; into one that the durable
// content has for itself the bytes are copied, so that a block that is written
// again and again, like a mark, costs no memory each time.
func (c *content) take(from *content, index int64) {
	b, old := from.at(index), c.at(index)
	switch {
	case b == old:
		return
	case b != nil && old != nil && old.shared.Load() == 1:
		old.data = b.data
		return
	}
	if old != nil {
		old.shared.Add(-1)
	}
	if b != nil {
		b.shared.Add(1)
	}
	c.put(index, b)
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
	written []byte // holds the data of pending
	bad     []badSpot
}

// badSpot is a byte that cannot be read.
type badSpot struct {
	offset int64
	times  int // so often; negative: for good
	err    error
}

func newInode() *inode { return &inode{seen: newContent(), durable: newContent()} }

func (n *inode) write(p []byte, off int64) {
	n.seen.writeAt(p, off)
	from := len(n.written)
	n.written = append(n.written, p...)
	n.pending = append(n.pending, change{off: off, data: slices.Clip(n.written[from:]), size: n.seen.size})
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
			n.durable.take(&n.seen, int64(index))
		}
	}
	n.durable.size = n.seen.size
	n.forget()
}

// forget empties the list of what is pending and keeps its memory.
func (n *inode) forget() { n.pending, n.written = n.pending[:0], n.written[:0] }

// unreadable returns the error of a read of n bytes at off, if it touches a bad
// spot.
func (n *inode) unreadable(name string, off, length int64) error {
	for i := range n.bad {
		b := &n.bad[i]
		if b.times == 0 || b.offset < off || b.offset >= off+length {
			continue
		}
		if b.times > 0 {
			b.times--
		}
		return &fs.PathError{Op: "read", Path: name, Err: b.err}
	}
	return nil
}

// stayBad returns the spots that are bad for good.
func (n *inode) stayBad() (out []badSpot) {
	for _, b := range n.bad {
		if b.times < 0 {
			out = append(out, b)
		}
	}
	return out
}

// drop forgets what is pending, as a kernel does after a failed write-back:
// readers still see it, and no later sync makes it durable.
func (n *inode) drop() { n.forget() }

// same gives a copy of the file for a process that died while the power stayed.
func (n *inode) same() *inode {
	out := &inode{seen: n.seen.share(), durable: n.durable.share(), pending: slices.Clone(n.pending), bad: n.stayBad()}
	for i := range out.pending {
		// The original goes on writing where these lie.
		out.pending[i].data = slices.Clone(out.pending[i].data)
	}
	return out
}

// crash gives what is left of the file. Each sector, and the size, is as it was
// after some number of the pending changes; with ordered it is the same number
// for all, and of one change more there may be a first part.
func (n *inode) crash(l loss, name string) *inode {
	out := newInode()
	out.bad = n.stayBad()
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
		per = pageBytes / sectorBytes // whole pages are kept or lost
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
