package sim

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// twiceOf is one seed in how many that runs twice, to see that its trace is
// the same.
const twiceOf = 20

// Batch runs many seeds on all cores, each in a world of its own.
type Batch struct {
	// Next gives the next seed; false ends the batch. Called by one goroutine at
	// a time.
	Next func() (seed uint64, ok bool)
	// Each, if set, is told of every finished run, one at a time.
	Each func(Report)
	// Workers is how many run at once; 0: one for each core.
	Workers int
	// StopAtFailure ends the batch with the first failing seed.
	StopAtFailure bool
	// NoModel is that of the Options of each run.
	NoModel bool
}

// Result of a batch.
type Result struct {
	Passed, Failed, Twice, Undecided int
	Simulated                        time.Duration
	Elapsed                          time.Duration // real time
	CPU                              time.Duration // that the process took of the cores meanwhile; 0 if this system does not tell
	Workers                          int
	Faults                           FaultCounts
	First                            *Report // first seed that failed, by the order of the seeds' start
	Failures                         []Report
}

// Run runs the batch to its end.
func (b *Batch) Run() Result {
	workers := b.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	began, cpu := time.Now(), cpuTime()
	var mu sync.Mutex
	var wg sync.WaitGroup
	r := Result{Workers: workers}
	stop := false
	for range workers {
		wg.Go(func() {
			for {
				mu.Lock()
				seed, ok := uint64(0), false
				if !stop {
					seed, ok = b.Next()
				}
				mu.Unlock()
				if !ok {
					return
				}
				report, twice := runChecked(seed, b.NoModel)
				mu.Lock()
				r.add(report, twice)
				stop = stop || (b.StopAtFailure && report.Failure != nil)
				if b.Each != nil {
					b.Each(report)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.Elapsed, r.CPU = time.Since(began), cpuTime()-cpu
	return r
}

func (r *Result) add(report Report, twice bool) {
	r.Simulated += report.Simulated
	r.Faults.Add(&report.Faults)
	r.Undecided += report.Undecided
	if twice {
		r.Twice++
	}
	if report.Failure == nil {
		r.Passed++
		return
	}
	r.Failed++
	r.Failures = append(r.Failures, report)
	if r.First == nil || report.Seed < r.First.Seed {
		r.First = &r.Failures[len(r.Failures)-1]
	}
}

// runChecked runs a seed, and some of them twice: the second run must have the
// trace of the first, and tell the same story to the byte.
func runChecked(seed uint64, noModel bool) (Report, bool) {
	if seed%twiceOf != 0 {
		return Run(Options{Seed: seed, NoModel: noModel}), false
	}
	first, second := sha256.New(), sha256.New()
	report := Run(Options{Seed: seed, Story: first, NoModel: noModel})
	again := Run(Options{Seed: seed, Story: second, NoModel: noModel})
	report.Simulated += again.Simulated
	if again.Trace != report.Trace || again.Events != report.Events || !bytes.Equal(first.Sum(nil), second.Sum(nil)) {
		report.Failure = &Failure{Check: "determinism", At: int64(again.Simulated),
			Text: fmt.Sprintf("two runs of the seed differ: trace %016x of %d events and %016x of %d, stories %x and %x",
				report.Trace, report.Events, again.Trace, again.Events, first.Sum(nil)[:8], second.Sum(nil)[:8])}
	}
	return report, true
}
