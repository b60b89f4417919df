//go:build plantedbugs

package invariant

import "sync/atomic"

var planted atomic.Value // Bug

// Planted reports whether the bug is planted in this test build.
func Planted(b Bug) bool {
	now, _ := planted.Load().(Bug)
	return now == b
}

// Plant plants a bug, "" takes it away. Only builds with the tag plantedbugs
// have it.
func Plant(b Bug) { planted.Store(b) }
