package e2e

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// soakTable is the books of a soak: a row for each interval.
type soakTable struct {
	load  *soakLoad
	meter *soakMeter
	rows  []soakRow
}

type soakRow struct {
	at      time.Duration
	served  [soakKinds]int64 // so far
	slow    time.Duration    // longest operation that ended in it
	samples []soakSample     // at its end, after a collection
}

// row ends an interval.
func (b *soakTable) row(ctx context.Context, at time.Duration) {
	r := soakRow{at: at, slow: time.Duration(b.load.slow.Swap(0))}
	for k := range r.served {
		r.served[k] = b.load.served[k].Load()
	}
	r.samples = b.meter.sample(ctx, true)
	b.rows = append(b.rows, r)
}

func (b *soakTable) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "until\tops/s\twrites/s\treads/s\tcycles/s\tslowest\t")
	names := []string{soakSelf}
	for _, r := range b.meter.c.replicas {
		names = append(names, r.name)
	}
	for _, n := range names {
		fmt.Fprintf(tw, "%s heap\tlog\tinuse\trss\tgor\tfds\tage\t", n)
	}
	fmt.Fprintln(tw)
	var last soakRow
	for _, r := range b.rows {
		took := (r.at - last.at).Seconds()
		var all, writes int64
		for k := range r.served {
			n := r.served[k] - last.served[k]
			all += n
			if k < soakRead {
				writes += n
			}
		}
		rate := func(n int64) float64 { return float64(n) / took }
		fmt.Fprintf(tw, "%v\t%.0f\t%.0f\t%.0f\t%.0f\t%v\t", r.at.Round(time.Second), rate(all), rate(writes),
			rate(r.served[soakRead]-last.served[soakRead]), rate(r.served[soakCycle]-last.served[soakCycle]), r.slow.Round(time.Millisecond))
		for _, n := range names {
			i := slices.IndexFunc(r.samples, func(s soakSample) bool { return s.who == n })
			if i < 0 {
				fmt.Fprint(tw, "down\t\t\t\t\t\t\t")
				continue
			}
			s, star := r.samples[i], ""
			if s.master {
				star = "*"
			}
			fmt.Fprintf(tw, "%s%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\t%.0fs\t", star, s.alloc/soakMiB, s.log/soakMiB, s.inuse/soakMiB, s.rss/soakMiB, s.goroutines, s.fds, s.age.Seconds())
		}
		fmt.Fprintln(tw)
		last = r
	}
	_ = tw.Flush() // into memory
	fmt.Fprintln(w, "heap (after a collection), log (of it, as counted), inuse and rss in MiB; * master; a write goes through the log once, a cycle three times")
}

// printKills tells how long each kill was felt.
func printKills(w io.Writer, kills []*soakKill) {
	var first, worst []time.Duration
	for _, k := range kills {
		f, s, ready := time.Duration(k.first.Load()), time.Duration(k.worst.Load()), "not ready before the next"
		if k.ready > 0 {
			ready = "ready after " + k.ready.Round(time.Millisecond).String()
		}
		fmt.Fprintf(w, "kill -9 of master %s at %v: first write answered after %v, slowest operation %v; started again, %s\n",
			k.victim, k.window.Round(time.Second), f.Round(time.Millisecond), s.Round(time.Millisecond), ready)
		first, worst = append(first, f), append(worst, s)
	}
	if len(kills) == 0 {
		return
	}
	fmt.Fprintf(w, "without service: %s; slowest operation: %s\n", spread(first), spread(worst))
}

func spread(d []time.Duration) string {
	d = slices.Sorted(slices.Values(d))
	return fmt.Sprintf("p50 %v, max %v", d[len(d)/2].Round(time.Millisecond), d[len(d)-1].Round(time.Millisecond))
}

// printTotals tells what the clients did in all.
func (l *soakLoad) printTotals(w io.Writer) {
	var parts []string
	for k, name := range soakKindNames {
		parts = append(parts, fmt.Sprintf("%s %d", name, l.served[k].Load()))
	}
	fmt.Fprintf(w, "done: %s; conflicts on shared counters %d; given up by the client %d; sessions in jeopardy %d times, expired %d\n",
		strings.Join(parts, ", "), l.conflicts.Load(), l.abandoned.Load(), l.jeopardies.Load(), l.expiries.Load())
	stalls, longest := l.c.stalls()
	fmt.Fprintf(w, "masters that did not get to run for more than half a second: %d times, longest %v (many: the machine is too busy for this test)\n", stalls, longest)
}

// stalls finds in what the replicas said how often a master did not get to run.
func (c *cell) stalls() (n int, longest time.Duration) {
	for _, r := range c.replicas {
		for line := range strings.Lines(r.said()) {
			if !strings.Contains(line, "did not run for a while") {
				continue
			}
			n++
			_, gap, _ := strings.Cut(strings.TrimSpace(line), "gap=")
			if d, err := time.ParseDuration(gap); err == nil {
				longest = max(longest, d)
			}
		}
	}
	return n, longest
}
