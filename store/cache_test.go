package store

import (
	"fmt"
	"testing"
)

// Names that differ little have places of their own, as a rule: of 5000 in
// 16384 places drawn at random, 3685 would be alone.
func TestCachePlacesDiffer(t *testing.T) {
	for _, format := range []string{"n%05d", "%d", "%d-a-suffix-that-is-long", "a-long-name-before-the-number-%010d"} {
		var c nodeCache
		c.grow(8192)
		nodes, alone := map[uint32]int{}, 0
		for i := range 5000 {
			nodes[c.place("/bench/put", fmt.Sprintf(format, i))]++
		}
		for _, n := range nodes {
			if n == 1 {
				alone++
			}
		}
		if alone < 3300 {
			t.Errorf("of 5000 names like %q %d have a place for themselves", fmt.Sprintf(format, 1), alone)
		}
	}
}
