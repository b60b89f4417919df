package sim

import (
	"fmt"
	"io"
	"time"
)

// Options of a run.
type Options struct {
	Seed uint64
	// Plan, if set, is what is run, instead of the plan drawn for Seed.
	Plan *Plan
	// Story, if set, gets a line for each thing that happens.
	Story io.Writer
	// Search is how long the linearizability of one path may be looked into, in
	// real time; 0 is 300 ms. What takes longer counts as undecided.
	Search time.Duration
	// NoModel leaves out the comparison with sim/model, to see what it costs.
	NoModel bool

	workOnly bool // the run may end where its faults do: what fails later does not count
}

// Report is what came out of a run.
type Report struct {
	Seed      uint64
	Trace     uint64        // hash of everything that happened
	Events    uint64        // in the trace
	Simulated time.Duration // time that passed in the run
	Failure   *Failure      // nil: passed
	Undecided int           // paths whose linearizability was not decided in time
	Summary   string        // one line of numbers
	Faults    FaultCounts   // what went wrong, and how often
	Planned   int           // faults that were planned and came
	// Operations says, for each client, how many it had; Done how many were done
	// in all.
	Operations []int
	Raws       []int // the same of raw clients
	Done       int
}

// Run runs one seed. It needs nothing but its options, so that many may run at
// once.
func Run(o Options) Report {
	p := DrawPlan(o.Seed)
	if o.Plan != nil {
		p = *o.Plan
	}
	w := newWorld(p.p)
	w.story.out, w.workOnly = o.Story, o.workOnly
	if o.NoModel {
		w.history.model = nil
	}
	w.play()
	return w.finish(o)
}

// finish looks for linearizability and reports.
func (w *World) finish(o Options) Report {
	if o.Search == 0 {
		o.Search = 300 * time.Millisecond
	}
	if w.failure == nil && !w.workOnly {
		w.history.checkLinearizable(o.Search)
	}
	for _, p := range w.replicas {
		p.countThrift()
	}
	w.countLinks()
	r := Report{Seed: w.seed, Trace: w.trace.hash, Events: w.trace.events, Simulated: nanos(w.now),
		Failure: w.failure, Undecided: w.undecided, Summary: w.summary(), Faults: w.faults}
	r.Planned, r.Done = w.plannedCame, w.acted
	for _, c := range w.clients {
		r.Operations = append(r.Operations, c.ops)
	}
	for _, c := range w.raws {
		r.Raws = append(r.Raws, c.ops)
	}
	if w.telling() {
		w.tellRepeated()
		w.tell("end", "%s", r.Summary)
	}
	return r
}

func (w *World) summary() string {
	c := &w.counts
	return fmt.Sprintf("%d replicas, %d clients, %d slots, %d commands, %d answers (%d errors), %d repeats, %d changes told by watches (%d marked), %d masters (%d beside another), "+
		"%d crashes, %d partitions, %d pauses, %d grants, %d lost, %d held on while frozen, %d writes fenced off, "+
		"%d sessions expired (%d frozen), %d refused to start, %d snapshots, %d installed, %d locks broken, %d sequencers checked",
		w.plan.replicas, w.plan.clients, len(w.history.slots), c.commands, c.answers, c.unknown, c.repeats, c.watched, c.missed, c.masters, c.doubled,
		c.crashes, c.partitions, c.pauses, c.grants, c.lost, c.zombies, c.fenced, c.expired, c.expiredPaused, c.refused,
		c.snapshots, c.installs, c.breaks, c.checked)
}

func (w *World) tellPlan() {
	if !w.telling() {
		return
	}
	p := w.plan
	w.tell("plan", "%d replicas, %d clients, %s of work", p.replicas, p.clients, tellTime(p.work))
	w.tell("plan", "network %s to %s, drop %d ppm, duplicate %d ppm, late %d ppm by up to %s",
		tellTime(p.latencyLo), tellTime(p.latencyHi), p.drop, p.duplicate, p.late, tellTime(p.lateMost))
	w.tell("plan", "disks %s to %s, slow %d ppm by up to %s, tearing %v; clocks drift %v",
		tellTime(p.flushLo), tellTime(p.flushHi), p.slowFlush, tellTime(p.slowMost), p.tearing, p.drifting)
	for k, every := range p.every {
		if every > 0 {
			w.tell("plan", "%v every %s or so", plannedKind(k), tellTime(every))
		}
	}
	w.tell("plan", "crash after a promise %d ppm, after a vote %d ppm, quick restart %v; snapshot every %d slots",
		p.crashAtPromise, p.crashAtVote, p.quickRestart, p.snapshotSlots)
}
