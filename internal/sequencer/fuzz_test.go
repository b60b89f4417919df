package sequencer

import (
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
)

// FuzzParse: a text that can be taken apart says the same when it is put
// together again; a sequencer of any path and numbers can be taken apart.
func FuzzParse(f *testing.F) {
	fuzzing.Seed(f, "good", "lockd1:X:1:2:3:ff:/a", uint64(7))
	fuzzing.Seed(f, "shared", "lockd1:S:18446744073709551615:0:0:0:/a:b/c", uint64(1<<63))
	fuzzing.Seed(f, "zeros", "lockd1:X:0001:2:3:00FF:/a", uint64(0))
	fuzzing.Seed(f, "signs", "lockd1:X:+1:-2:3:0x1:/a", uint64(0))
	fuzzing.Seed(f, "newer", "lockd2:X:1:2:3:ff:/a", uint64(0))
	f.Fuzz(func(t *testing.T, text string, n uint64) {
		if s, err := Parse(text); err == nil {
			if again, err := Parse(Make(s)); err != nil || again != s {
				t.Fatalf("%q parses to %+v, which makes %q, which parses to %+v, %v", text, s, Make(s), again, err)
			}
		}
		if len(text) > 1024 {
			text = text[:1024] // no path is longer
		}
		given := S{Shared: n%2 == 0, Fence: n, Generation: n * 3, Instance: n >> 7, Cell: ^n, Path: "/" + text}
		if s, err := Parse(given.String()); err != nil || s != given {
			t.Fatalf("%q parses to %+v, %v", given, s, err)
		}
	})
}
