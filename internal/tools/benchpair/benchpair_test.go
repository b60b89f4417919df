package main

import "testing"

func TestMedianInterval(t *testing.T) {
	// From tables of the binomial distribution: the largest k with P(X < k) <= 2.5 %.
	for n, k := range map[int]int{1: 1, 5: 1, 6: 1, 8: 1, 9: 2, 12: 3, 20: 6, 25: 8, 50: 18} {
		var numbers []float64
		for i := range n {
			numbers = append(numbers, float64(n-i)) // descending: they are to be sorted
		}
		low, high := medianInterval(numbers)
		if low != float64(k) || high != float64(n+1-k) {
			t.Errorf("%d numbers: the %v. to the %v., want the %d. to the %d.", n, low, high, k, n+1-k)
		}
		if numbers[0] != float64(n) {
			t.Error("the numbers were sorted in place")
		}
	}
}

func TestLeastAllocations(t *testing.T) {
	got := leastAllocations(`goos: linux
BenchmarkSession/put-2         	    3000	    254000 ns/op	     300 B/op	       5 allocs/op
BenchmarkSession/put-2         	    3000	    254000 ns/op	     300 B/op	       4 allocs/op
BenchmarkPut256   	  100000	      2600 ns/op	     120 B/op	       2 allocs/op
PASS
`)
	if len(got) != 2 || got["BenchmarkSession/put"] != 4 || got["BenchmarkPut256"] != 2 {
		t.Errorf("read %v", got)
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{
		{}, {"-old", "x", "more"}, {"-old", "x", "-pairs", "0"}, {"-old", "x", "-seconds", "NaN"},
		{"-old", "x", "-only", "write2"}, {"-old", "x", "-base-port", "70000"},
	} {
		if _, err := parseFlags(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
	if o, err := parseFlags([]string{"-old", "x", "-only", "lock1, write64"}); err != nil || len(o.tests) != 2 {
		t.Errorf("%v %v", o, err)
	}
}
