// Package fuzzing is what the fuzz targets of all packages share: seeds that
// are kept in files, and a bound on what decoding may allocate. Only tests use
// it.
package fuzzing

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/metrics"
	"strings"
	"testing"
)

// writeSeeds is the variable of the environment that has Seed write the files:
// `sh internal/tools/fuzz.sh seeds` sets it.
const writeSeeds = "FUZZ_WRITE_SEEDS"

// Seed gives the target a seed, which is kept in testdata/fuzz beside those
// that the fuzzer has found, under the name seed-NAME. A file that is there is
// what counts, so that what older versions encoded goes on being decoded.
func Seed(f *testing.F, name string, args ...any) {
	f.Helper()
	dir := filepath.Join("testdata", "fuzz", f.Name())
	file := filepath.Join(dir, "seed-"+name)
	if os.Getenv(writeSeeds) != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			f.Fatal(err)
		}
		if err := os.WriteFile(file, encode(args), 0o644); err != nil {
			f.Fatal(err)
		}
	}
	if _, err := os.Stat(file); err != nil {
		f.Add(args...)
	}
}

// encode gives the format of `go test` for seeds in files.
func encode(args []any) []byte {
	var b strings.Builder
	b.WriteString("go test fuzz v1\n")
	for _, a := range args {
		switch a := a.(type) {
		case []byte:
			fmt.Fprintf(&b, "[]byte(%q)\n", a)
		case string:
			fmt.Fprintf(&b, "string(%q)\n", a)
		default:
			fmt.Fprintf(&b, "%T(%v)\n", a, a)
		}
	}
	return []byte(b.String())
}

// Bounded demands that f allocates no more than limit bytes. It counts what
// other goroutines allocate meanwhile and what the runtime has not told before,
// so the limit needs some 100 KiB of room.
func Bounded(t testing.TB, limit uint64, f func()) {
	t.Helper()
	before := allocated()
	f()
	if took := allocated() - before; took > limit {
		t.Fatalf("%d bytes were allocated, the limit is %d", took, limit)
	}
}

// allocated is how many bytes the process has allocated since its start.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
