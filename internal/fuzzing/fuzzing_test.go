package fuzzing

import (
	"strings"
	"testing"
)

var sink []byte

// failing takes the failures of Bounded.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Helper()               {}
func (f *failing) Fatalf(string, ...any) { f.failed = true }

func TestBoundedSeesWhatIsAllocated(t *testing.T) {
	for size, want := range map[int]bool{100: false, 1 << 20: false, 8 << 20: true} {
		f := &failing{TB: t}
		Bounded(f, 2<<20, func() { sink = make([]byte, size) })
		if f.failed != want {
			t.Errorf("%d bytes under a limit of 2 MiB: failed is %v", size, f.failed)
		}
	}
	f := &failing{TB: t}
	Bounded(f, 2<<20, func() {
		for range 1 << 16 {
			sink = make([]byte, 64)
		}
	})
	if !f.failed {
		t.Error("4 MiB in small pieces were not seen")
	}
}

// What Seed writes is what go test reads.
func FuzzSeed(f *testing.F) {
	bytes, text := []byte("a\x00\xff\"\n"), "b\x80\n"
	Seed(f, "all", bytes, text, uint8(200), uint16(65535), int64(-5), uint64(1<<63), true, 7)
	f.Fuzz(func(t *testing.T, b []byte, s string, u8 uint8, u16 uint16, i64 int64, u64 uint64, yes bool, n int) {
		same := string(b) == string(bytes) && s == text && u8 == 200 && u16 == 65535 && i64 == -5 && u64 == 1<<63 && yes && n == 7
		if strings.HasSuffix(t.Name(), "/seed-all") && !same {
			t.Fatalf("read as %q %q %d %d %d %d %v %d", b, s, u8, u16, i64, u64, yes, n)
		}
		if lines := strings.Count(string(encode([]any{b, s, u8, u16, i64, u64, yes, n})), "\n"); lines != 9 {
			t.Fatalf("the file would have %d lines", lines)
		}
	})
}
