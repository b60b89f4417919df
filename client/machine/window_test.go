package machine

import (
	"testing"

	"pgregory.net/rapid"
)

// A window holds what a map would, as long as the numbers in it are less than
// windowSpan apart.
func TestWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w window
		want := make(map[uint64]*request)
		next, lowest := uint64(1), uint64(1)
		for range rapid.IntRange(1, 2000).Draw(t, "steps") {
			if next-lowest < windowSpan && rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				r := &request{number: next}
				next++
				w.add(r)
				want[r.number] = r
			} else if next > lowest {
				n := lowest + uint64(rapid.IntRange(0, int(next-lowest)-1).Draw(t, "number"))
				if r := want[n]; r != nil {
					w.remove(r)
					delete(want, n)
				}
			}
			for lowest < next && want[lowest] == nil {
				lowest++
			}
			for _, n := range []uint64{0, lowest, next - 1, next, lowest + windowSpan, next / 2} {
				if got := w.get(n); got != want[n] {
					t.Fatalf("number %d is %v, want %v", n, got, want[n])
				}
			}
			if w.count != len(want) || len(w.ring) > windowSpan {
				t.Fatalf("%d of %d in %d places", w.count, len(want), len(w.ring))
			}
		}
	})
}
