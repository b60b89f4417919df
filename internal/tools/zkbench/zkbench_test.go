package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "",
		"-only write1,handoff64 -pairs 1": "",
		"-only fly":                       `"fly" is none of write1`,
		"-pairs 0":                        "-pairs 0",
		"-seconds 0":                      "-seconds 0",
		"-seconds NaN":                    "-seconds NaN",
		"-warm -1":                        "-warm -1",
		"-pattern nowhere":                "leader, spread, best",
		"-base-port 65530":                "-base-port 65530",
		"-fly":                            "-fly",
		"more":                            `"more" is an argument too many`,
	} {
		_, err := parseFlags(strings.Fields(args), io.Discard)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

func TestPredecessor(t *testing.T) {
	children := []string{"n0000000012", "n0000000003", "n0000000007", "n0000000101"}
	for mine, want := range map[string]string{
		"n0000000003": "",
		"n0000000007": "n0000000003",
		"n0000000101": "n0000000012",
	} {
		if got := predecessor(children, mine); got != want {
			t.Errorf("before %s is %q, want %q", mine, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	if m := median([]float64{3, 1, 2}); m != 2 {
		t.Errorf("median %v", m)
	}
	if m := median([]float64{4, 1, 2, 3}); m != 2.5 {
		t.Errorf("median %v", m)
	}
	var took []time.Duration
	for i := range 100 {
		took = append(took, time.Duration(100-i)*time.Millisecond)
	}
	if r := summarize(took, 2*time.Second); r != (result{PerSec: 50, P50: 51, P99: 100}) {
		t.Errorf("%+v", r)
	}
	c := comparison{Title: "writes, 1 client", Ratio: 2.314, Pairs: []float64{2.2, 2.314, 2.4}, Pattern: spread,
		Lockd: result{14020, 4.1, 9.9}, ZooKeeper: result{6070, 8, 20}}
	want := "2.31x  writes, 1 client: lockd 14,020/s (p50 4.10 ms, p99 9.90 ms)  ZooKeeper 6,070/s (p50 8.00 ms, p99 20.00 ms)  " +
		"[pairs: 2.20 2.31 2.40; ZooKeeper's clients spread over all servers]"
	if got := c.line(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for f, want := range map[float64]string{7: "7", 999: "999", 1000: "1,000", 1234567.8: "1,234,568"} {
		if got := thousands(f); got != want {
			t.Errorf("%v: %s", f, got)
		}
	}
}

// fake is a system of one lock, in which everything takes a millisecond.
type fake struct {
	held   chan struct{} // full: somebody holds the lock
	broken error
}

func (*fake) name() string                                          { return "fake" }
func (f *fake) connect(context.Context, int, string) (fleet, error) { return f, nil }
func (f *fake) write(int, []byte) error                             { return f.lock(0) }
func (f *fake) close()                                              {}

func (f *fake) lock(int) error {
	time.Sleep(time.Millisecond)
	return f.broken
}

func (f *fake) acquire(int) (func() error, error) {
	f.held <- struct{}{}
	time.Sleep(time.Millisecond)
	return func() error { <-f.held; return f.broken }, nil
}

func TestMeasure(t *testing.T) {
	for _, x := range allTests {
		synctest.Test(t, func(t *testing.T) { // its clock stands still while anybody works
			ctx, cancel := context.WithCancel(t.Context())
			r, err := measure(ctx, &fake{held: make(chan struct{}, 1)}, x, "", 100*time.Millisecond)
			want := result{PerSec: float64(1000 * x.clients), P50: 1, P99: 1}
			if x.op == opHandoff {
				want.PerSec = 1000 // they take turns
			}
			if err != nil || r != want {
				t.Errorf("%s: %+v, %v, want %+v", x.name, r, err, want)
			}
			broken := errors.New("broken")
			if _, err := measure(ctx, &fake{held: make(chan struct{}, 1), broken: broken}, x, "", 100*time.Millisecond); !errors.Is(err, broken) {
				t.Errorf("%s: %v", x.name, err)
			}
			cancel()
			if _, err := measure(ctx, &fake{held: make(chan struct{}, 1)}, x, "", time.Hour); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", x.name, err)
			}
		})
	}
}
