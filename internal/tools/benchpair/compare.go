package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// test is a workload of lockctl bench with a number of clients.
type test struct {
	name     string
	workload string
	clients  int
}

var allTests = []test{
	{"write1", "write", 1},
	{"write64", "write", 64},
	{"lock1", "lock", 1},
	{"lock64", "lock", 64},
}

func testNames() (names []string) {
	for _, t := range allTests {
		names = append(names, t.name)
	}
	return names
}

func chooseTests(only string) ([]test, error) {
	if only == "" {
		return allTests, nil
	}
	var out []test
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(allTests, func(t test) bool { return t.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("-only: %q is none of %s", name, strings.Join(testNames(), ", "))
		}
		out = append(out, allTests[i])
	}
	return out, nil
}

// compare measures every workload in pairs and prints a line for each. It
// reports whether the new build is slower in none of them.
func compare(ctx context.Context, o options, before, after *build) (ok bool, err error) {
	ok = true
	for _, t := range o.tests {
		for _, b := range []*build{before, after} { // does not count
			if _, err := b.measure(ctx, t, o.duration/3); err != nil {
				return false, err
			}
		}
		var ratios, olds, news []float64
		for i := range o.pairs {
			pair := []*build{before, after}
			if i%2 == 1 { // what follows on the other one's load is not always the same
				slices.Reverse(pair)
			}
			rate := map[*build]float64{}
			for _, b := range pair {
				if rate[b], err = b.measure(ctx, t, o.duration); err != nil {
					return false, err
				}
			}
			olds, news = append(olds, rate[before]), append(news, rate[after])
			ratios = append(ratios, rate[after]/rate[before])
		}
		low, high := medianInterval(ratios)
		verdict := "ok"
		if high < o.bound {
			ok, verdict = false, fmt.Sprintf("SLOWER: the upper end is below %.2f", o.bound)
		}
		fmt.Printf("%-8s %.3fx [%.3f, %.3f]  new %.0f/s, %s %.0f/s  %s\n",
			t.name, median(ratios), low, high, median(news), before.name, median(olds), verdict)
	}
	return ok, nil
}

// measure runs a workload on the build's cell with the build's own lockctl and
// returns the operations a second.
func (b *build) measure(ctx context.Context, t test, d time.Duration) (float64, error) {
	said, err := output(ctx, "", filepath.Join(b.bin, "lockctl"), "--endpoints", b.endpoints(), "--output", "json",
		"bench", t.workload, "--clients", strconv.Itoa(t.clients), "--duration", d.String())
	if err != nil {
		return 0, fmt.Errorf("measure %s of %s: %w", t.name, b.name, err)
	}
	var results []struct {
		PerSec float64 `json:"operations_per_second"`
	}
	if err := json.Unmarshal([]byte(said), &results); err != nil || len(results) != 1 || results[0].PerSec == 0 {
		return 0, fmt.Errorf("measure %s of %s: lockctl bench printed no rate: %v %s", t.name, b.name, err, tail(said))
	}
	return results[0].PerSec, nil
}

func median(of []float64) float64 {
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// medianInterval returns an interval that holds the median of what the numbers
// are drawn from with a confidence of at least 95 %, whatever its distribution:
// the k-th smallest and the k-th largest number, for the largest k at which a
// fair coin shows fewer than k heads in n throws with a chance of 2.5 % at most
// (David and Nagaraja, Order Statistics, section 7.1). With fewer than 6 numbers
// there is none, and it returns the smallest and the largest.
func medianInterval(of []float64) (low, high float64) {
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	if n == 0 {
		return 0, 0
	}
	chance := 1.0 // of i heads, times 2^n
	for range n {
		chance /= 2
	}
	k, sum := 0, 0.0
	for i := 0; i <= n/2; i++ {
		sum += chance
		if sum > 0.025 {
			break
		}
		k = i + 1
		chance = chance * float64(n-i) / float64(i+1)
	}
	k = max(k, 1)
	return s[k-1], s[n-k]
}
