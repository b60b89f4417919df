package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// comparison is what is known of one test.
type comparison struct {
	Test      string    `json:"test"`
	Title     string    `json:"title"`
	Ratio     float64   `json:"ratio"` // median of the pairs: how many times ZooKeeper's rate
	Lockd     result    `json:"lockd"` // medians
	ZooKeeper result    `json:"zookeeper"`
	Pattern   string    `json:"zookeeper_clients"`
	Pairs     []float64 `json:"pairs"`
}

// report is what -json prints.
type report struct {
	Date      string       `json:"date"`
	CPUs      int          `json:"cpus"`
	Lockd     string       `json:"lockd_version"`
	ZooKeeper string       `json:"zookeeper_version"`
	Seconds   float64      `json:"seconds"`
	Tests     []comparison `json:"tests"`
}

// compare runs the tests and prints each when it is done.
func compare(ctx context.Context, o options, tests []test, dir string, l *lockdCell, z *zooKeeper) error {
	rep := report{Date: time.Now().UTC().Format("2006-01-02"), CPUs: runtime.NumCPU(), Lockd: l.version,
		ZooKeeper: z.version(), Seconds: o.seconds.Seconds()}
	progress("lockd %s and ZooKeeper %s on %d CPUs, three servers each, data in %s", l.version, rep.ZooKeeper, rep.CPUs, dir)
	if err := warmUp(ctx, z, o.warm); err != nil {
		return err
	}
	if err := warmUp(ctx, l, min(o.warm, lockdWarm)); err != nil {
		return err
	}
	for _, t := range tests {
		c, err := compareTest(ctx, o, t, l, z)
		if err != nil {
			return err
		}
		rep.Tests = append(rep.Tests, c)
		if !o.json {
			fmt.Println(c.line())
		}
	}
	if !o.json {
		return nil
	}
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(rep)
}

// lockdWarm is how long lockd is under load before the first measurement. It
// has nothing to compile.
const lockdWarm = 10 * time.Second

// warmUp loads a system with all operations in turn.
func warmUp(ctx context.Context, s system, total time.Duration) error {
	if total <= 0 {
		return nil
	}
	progress("%s: %v under load", s.name(), total)
	end := time.Now().Add(total)
	for k := 0; time.Now().Before(end); k++ {
		where := atLeader
		if k%2 == 1 {
			where = spread
		}
		for _, name := range []string{"write64", "lock64", "handoff64", "write256"} {
			ts, err := chooseTests(name)
			if err != nil {
				return err
			}
			d := min(total/8, time.Until(end))
			if d <= 0 {
				break
			}
			if _, err := measure(ctx, s, ts[0], where, d); err != nil {
				return fmt.Errorf("warm up: %w", err)
			}
		}
	}
	return nil
}

// choosePattern tries where ZooKeeper's clients are served faster, each twice
// in turn.
func choosePattern(ctx context.Context, o options, t test, z *zooKeeper) (string, error) {
	if o.pattern != "best" {
		return o.pattern, nil
	}
	sum := map[string]float64{}
	for range 2 {
		for _, where := range []string{atLeader, spread} {
			r, err := measure(ctx, z, t, where, o.seconds/2)
			if err != nil {
				return "", err
			}
			sum[where] += r.PerSec / 2
		}
	}
	best := atLeader
	if sum[spread] > sum[atLeader] {
		best = spread
	}
	progress("%s: ZooKeeper does %s/s with all clients at the leader, %s/s with clients spread over all servers",
		t.title, thousands(sum[atLeader]), thousands(sum[spread]))
	return best, nil
}

func compareTest(ctx context.Context, o options, t test, l *lockdCell, z *zooKeeper) (comparison, error) {
	c := comparison{Test: t.name, Title: t.title}
	var err error
	if c.Pattern, err = choosePattern(ctx, o, t, z); err != nil {
		return c, err
	}
	var ours, theirs []result
	for range o.pairs {
		a, err := measure(ctx, l, t, "", o.seconds)
		if err != nil {
			return c, err
		}
		b, err := measure(ctx, z, t, c.Pattern, o.seconds)
		if err != nil {
			return c, err
		}
		if b.PerSec == 0 {
			return c, fmt.Errorf("%s: ZooKeeper did nothing in %v: measure longer with -seconds", t.title, o.seconds)
		}
		ours, theirs = append(ours, a), append(theirs, b)
		c.Pairs = append(c.Pairs, a.PerSec/b.PerSec)
	}
	c.Ratio = median(c.Pairs)
	c.Lockd, c.ZooKeeper = medians(ours), medians(theirs)
	return c, nil
}

func medians(rs []result) result {
	of := func(f func(result) float64) float64 {
		var v []float64
		for _, r := range rs {
			v = append(v, f(r))
		}
		return median(v)
	}
	return result{
		PerSec: of(func(r result) float64 { return r.PerSec }),
		P50:    of(func(r result) float64 { return r.P50 }),
		P99:    of(func(r result) float64 { return r.P99 }),
	}
}

// line is a comparison for people, the ratio first.
func (c comparison) line() string {
	where := "clients at the leader"
	if c.Pattern == spread {
		where = "clients spread over all servers"
	}
	var pairs []string
	for _, p := range c.Pairs {
		pairs = append(pairs, fmt.Sprintf("%.2f", p))
	}
	return fmt.Sprintf("%.2fx  %s: lockd %s  ZooKeeper %s  [pairs: %s; ZooKeeper's %s]",
		c.Ratio, c.Title, c.Lockd, c.ZooKeeper, strings.Join(pairs, " "), where)
}

// String is like 14,020/s (p50 4.1 ms, p99 9.9 ms).
func (r result) String() string {
	return fmt.Sprintf("%s/s (p50 %.2f ms, p99 %.2f ms)", thousands(r.PerSec), r.P50, r.P99)
}

// thousands rounds to a whole number, with commas.
func thousands(f float64) string {
	s := strconv.FormatFloat(f, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
