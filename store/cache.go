package store

// nodeCache has what the tree holds for some of the nodes that were looked up,
// each at a place that the hash of its path tells: a search in a tree of many
// nodes reads a dozen of them. It saves searches and decides nothing. A clone
// begins without one.
//
// Invariant: what it has for a path is what the tree has.
type nodeCache struct {
	places []nodeItem // a power of two, or none
	shift  uint8      // a hash shifted right by it is a place

	// While a Multi may still be undone, the places that were written since it
	// began: they may have what the tree will not have any more.
	trial bool
	tried []uint32
}

// The cache has two to four places for a node, since nodes of one place take
// turns in it, and no more than this many (640 KiB).
const (
	placesMin = 1 << 6
	placesMax = 1 << 14
)

// place takes the high bits of the hash times an odd number: each of them
// depends on all bits of the hash, which its own high bits do not.
func (c *nodeCache) place(dir, name string) uint32 {
	return uint32(newHash(hashNode).str(dir).str(name).sum() * 0x9e3779b97f4a7c15 >> c.shift)
}

// get returns what the tree holds for a node, or nothing.
func (c *nodeCache) get(dir, name string) nodeItem {
	if len(c.places) == 0 {
		return nodeItem{}
	}
	if at := &c.places[c.place(dir, name)]; at.node != nil && at.name == name && at.dir == dir {
		return *at
	}
	return nodeItem{}
}

// put takes in what the tree holds now; without a node, that it has none.
func (c *nodeCache) put(i nodeItem) {
	if len(c.places) == 0 {
		return
	}
	at := c.place(i.dir, i.name)
	c.places[at] = i
	if c.trial {
		c.tried = append(c.tried, at)
	}
}

// grow makes room for so many nodes; what was there is forgotten.
func (c *nodeCache) grow(nodes int) {
	n := max(len(c.places), placesMin)
	for n < 2*nodes && n < placesMax {
		n *= 2
	}
	if n == len(c.places) {
		return
	}
	c.places, c.tried, c.shift = make([]nodeItem, n), c.tried[:0], 64
	for ; n > 1; n /= 2 {
		c.shift--
	}
}

// try begins what may be undone, keep and undo end it.
func (c *nodeCache) try() { c.trial = true }

func (c *nodeCache) keep() { c.trial, c.tried = false, c.tried[:0] }

func (c *nodeCache) undo() {
	for _, at := range c.tried {
		c.places[at] = nodeItem{}
	}
	c.keep()
}
