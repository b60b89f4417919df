package nodepath

import (
	"path"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
)

// FuzzCheck: a good path is what cleaning makes of it, its parents are good,
// and what can follow it is good as long as it is short enough.
func FuzzCheck(f *testing.F) {
	for name, p := range map[string]string{"root": "/", "two": "/a/b", "empty": "", "relative": "a", "slashes": "//", "slash": "/a/",
		"dot": "/./x", "dots": "/a/..", "nul": "/a\x00", "bytes": "/\xff", "accent": "/é", "long": "/" + strings.Repeat("x", 256)} {
		fuzzing.Seed(f, name, p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if err := Check(p); err != nil {
			if err.Error() == "" || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("the reason is %q", err)
			}
			return
		}
		if path.Clean(p) != p {
			t.Fatalf("%q is good, and stands for %q too", p, path.Clean(p))
		}
		if up := path.Dir(p); Check(up) != nil {
			t.Fatalf("%q is good and its parent %q is not", p, up)
		}
		if down := strings.TrimSuffix(p, "/") + "/x"; (Check(down) == nil) != (len(down) <= Max) {
			t.Fatalf("%q is good, of what is below it: %v", p, Check(down))
		}
		if CheckSequential(p) == nil && Check(p+"9999999999") != nil {
			t.Fatalf("%q is said to take a number", p)
		}
	})
}
