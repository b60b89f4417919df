package main

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What allocates on the way of an operation: the client's calls against a cell
// in the same process, and what the store does with a command.
var allocationBenchmarks = []struct{ pkg, pattern, times string }{
	{"./client", "^BenchmarkSession$", "3000x"},
	{"./store", "^(BenchmarkPut256|BenchmarkAcquireRelease)$", "100000x"},
}

// compareAllocations prints the allocations an operation of both trees. It
// reports whether the new one allocates nowhere more.
func compareAllocations(ctx context.Context, before, after string) (ok bool, err error) {
	ok = true
	for _, b := range allocationBenchmarks {
		counts := make([]map[string]int, 2)
		for i, tree := range []string{before, after} {
			said, err := output(ctx, tree, "go", "test", "-run", "^$", "-bench", b.pattern, "-benchmem", "-benchtime", b.times, "-count", "3", b.pkg)
			if err != nil {
				return false, fmt.Errorf("count allocations: %w", err)
			}
			counts[i] = leastAllocations(said)
		}
		for _, name := range slices.Sorted(maps.Keys(counts[1])) {
			was, known := counts[0][name]
			if !known {
				continue // a benchmark that the old revision does not have
			}
			verdict := "ok"
			if counts[1][name] > was {
				ok, verdict = false, "MORE"
			}
			fmt.Printf("%-44s %d allocations an operation, %d before  %s\n", name, counts[1][name], was, verdict)
		}
	}
	return ok, nil
}

var benchmarkLine = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s.*\s(\d+) allocs/op`)

// leastAllocations reads what `go test -bench` printed: for each benchmark the
// least of its runs, since what runs beside it allocates too.
func leastAllocations(said string) map[string]int {
	least := map[string]int{}
	for line := range strings.Lines(said) {
		m := benchmarkLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[2])
		if err != nil {
			continue // the pattern takes digits alone; too many of them are no count
		}
		if old, known := least[m[1]]; !known || n < old {
			least[m[1]] = n
		}
	}
	return least
}
