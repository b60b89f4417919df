package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Plan is everything that was drawn for a run before it began. The same plan
// gives the same run. As text it is a line for each number that is not 0, each
// fault to come, and each operation that is left out.
type Plan struct{ p plan }

// DrawPlan draws the plan of a seed.
func DrawPlan(seed uint64) Plan { return Plan{drawPlan(seed)} }

// planField is a number of a plan, under the name it has in a plan file.
type planField struct {
	name string
	// One of these.
	count *int
	n     *int64 // a plain number
	t     *int64 // a time
	b     *bool
	// off: without it (0, false) the run is simpler.
	off bool
}

// fields lists all numbers of a plan but its seed, its faults and what is left
// out.
func (p *plan) fields() []planField {
	l := &p.load
	fields := []planField{
		{name: "replicas", count: &p.replicas}, {name: "clients", count: &p.clients},
		{name: "work", t: &p.work}, {name: "calm", t: &p.calm},
		{name: "latency-least", t: &p.latencyLo}, {name: "latency-most", t: &p.latencyHi},
		{name: "drop-ppm", n: &p.drop, off: true}, {name: "duplicate-ppm", n: &p.duplicate, off: true},
		{name: "late-ppm", n: &p.late, off: true}, {name: "late-most", t: &p.lateMost}, {name: "ordered", b: &p.ordered},
		{name: "flush-least", t: &p.flushLo}, {name: "flush-most", t: &p.flushHi},
		{name: "slow-flush-ppm", n: &p.slowFlush, off: true}, {name: "slow-flush-most", t: &p.slowMost},
		{name: "tearing", b: &p.tearing, off: true}, {name: "drifting", b: &p.drifting, off: true},
		{name: "crash-at-promise-ppm", n: &p.crashAtPromise, off: true}, {name: "crash-at-vote-ppm", n: &p.crashAtVote, off: true},
		{name: "long-down", b: &p.longDown, off: true}, {name: "quick-restart", b: &p.quickRestart},
		{name: "crash-in-open-ppm", n: &p.crashInOpen, off: true}, {name: "cut-at-accept-ppm", n: &p.cutAtAccept, off: true},
		{name: "seize-holder-ppm", n: &p.seizeHolder, off: true}, {name: "power-cut", b: &p.powerCut, off: true}, {name: "wiping", b: &p.wiping, off: true},
		{name: "snapshot-slots", count: &p.snapshotSlots}, {name: "trail-slots", count: &p.trailSlots}, {name: "segment-bytes", n: &p.segmentBytes},
		{name: "restart-at-end", b: &p.restartAtEnd, off: true},
		{name: "registers", count: &l.pathsOfEach}, {name: "locks", count: &l.locks}, {name: "think", t: &l.think},
		{name: "window-slots", count: &p.limits.windowSlots, off: true}, {name: "window-bytes", count: &p.limits.windowBytes, off: true},
		{name: "batch-bytes", count: &p.limits.batchBytes, off: true}, {name: "memory-bytes", count: &p.limits.memoryBytes, off: true},
		{name: "snapshot-bytes", n: &p.limits.snapshotBytes, off: true}, {name: "pending", count: &p.limits.pending, off: true},
		{name: "pending-session", count: &p.limits.pendingSession, off: true}, {name: "watches", count: &p.limits.watches, off: true},
		{name: "room", count: &p.limits.room, off: true}, {name: "noise", b: &p.noise, off: true}, {name: "turn-most", t: &p.turnMost, off: true},
		{name: "slow-replicas", count: &p.slowReplicas, off: true}, {name: "heal-majority", b: &p.healMajority, off: true},
		{name: "lease-most", t: &l.leaseMost, off: true}, {name: "ephemeral-locks", b: &l.ephemeralLocks, off: true},
		{name: "link-bytes", count: &p.limits.linkBytes, off: true}, {name: "odd-answers-ppm", n: &p.oddAnswers, off: true}, {name: "strange-founding", b: &p.strangeFounding, off: true}, {name: "founding-crash", b: &p.foundingCrash, off: true},
		{name: "lazy-loop", b: &p.lazyLoop, off: true},
		{name: "hasty-close", b: &l.hastyClose, off: true},
		{name: "raws", count: &p.raws, off: true}, {name: "raw-think", t: &p.rawThink}, {name: "raw-wild-ppm", n: &p.rawWild, off: true},
		{name: "sessions", count: &p.limits.sessions, off: true}, {name: "connection-sessions", count: &p.limits.connSessions, off: true},
		{name: "connections", count: &p.limits.connections, off: true},
		{name: "watch-topic-bytes", count: &p.limits.watchTopic, off: true}, {name: "watch-log-bytes", count: &p.limits.watchLog, off: true},
		{name: "state-nodes", count: &p.limits.stateNodes, off: true}, {name: "state-bytes", n: &p.limits.stateBytes, off: true},
		{name: "frame-bytes", count: &p.limits.frame, off: true},
		{name: "outstanding", count: &l.outstanding}, {name: "lease", t: &l.lease}, {name: "value-bytes", n: &l.valueBytes, off: true},
		{name: "variety-ppm", n: &l.variety, off: true},
	}
	fields = append(fields, l.kinds.fields()...)
	for k := range l.weights {
		if opKind(k) >= opRelease {
			continue // these come with the locks that are held
		}
		fields = append(fields, planField{name: "weight-" + strings.ReplaceAll(opKind(k).String(), " ", "-"), n: &l.weights[k]})
	}
	return fields
}

func (f *planField) String() string {
	switch {
	case f.count != nil:
		return strconv.Itoa(*f.count)
	case f.n != nil:
		return strconv.FormatInt(*f.n, 10)
	case f.t != nil:
		return nanos(*f.t).String()
	}
	return strconv.FormatBool(*f.b)
}

// zero reports whether it is 0 or false.
func (f *planField) zero() bool {
	switch {
	case f.count != nil:
		return *f.count == 0
	case f.n != nil:
		return *f.n == 0
	case f.t != nil:
		return *f.t == 0
	}
	return !*f.b
}

func (f *planField) clear() {
	switch {
	case f.count != nil:
		*f.count = 0
	case f.n != nil:
		*f.n = 0
	case f.t != nil:
		*f.t = 0
	default:
		*f.b = false
	}
}

func (f *planField) set(text string) error {
	var err error
	switch {
	case f.count != nil:
		*f.count, err = strconv.Atoi(text)
		if err == nil && (*f.count < 0 || *f.count > 2<<20) {
			err = fmt.Errorf("%d is too much", *f.count)
		}
	case f.n != nil:
		*f.n, err = strconv.ParseInt(text, 10, 64)
		if err == nil && (*f.n < 0 || *f.n > 1<<30) {
			err = fmt.Errorf("%d is too much", *f.n)
		}
	case f.t != nil:
		*f.t, err = planTime(text)
	default:
		*f.b, err = strconv.ParseBool(text)
	}
	return err
}

func planTime(text string) (int64, error) {
	d, err := time.ParseDuration(text)
	if err == nil && (d < 0 || d > time.Hour) {
		err = fmt.Errorf("%v is no time between 0 and an hour", d)
	}
	return int64(d), err
}

// String gives the text of the plan file.
func (o Plan) String() string {
	p := &o.p
	var s strings.Builder
	s.WriteString("# A run of the simulator. Play it with: go run ./sim/cmd/sim -plan FILE\n")
	fmt.Fprintf(&s, "seed %d\n", p.seed)
	for _, f := range p.fields() {
		if !f.zero() {
			fmt.Fprintf(&s, "%s %v\n", f.name, &f)
		}
	}
	for _, d := range p.load.lockDelays {
		fmt.Fprintf(&s, "lock-delay %v\n", nanos(d*millisecond))
	}
	for _, f := range p.planned {
		fmt.Fprintf(&s, "fault %v %v %d\n", nanos(f.at), f.kind, f.number)
	}
	for _, k := range p.skipped {
		fmt.Fprintf(&s, "skip %d %d %d\n", k.client, k.from, k.to)
	}
	return s.String()
}

// ParsePlan reads a plan file. An error names the line.
func ParsePlan(text string) (Plan, error) {
	var p plan
	fields := map[string]planField{}
	for _, f := range p.fields() {
		fields[f.name] = f
	}
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := p.takeLine(fields, words[0], words[1:]); err != nil {
			return Plan{}, fmt.Errorf("line %d (%s): %w", i+1, strings.Join(words, " "), err)
		}
	}
	if err := p.check(); err != nil {
		return Plan{}, err
	}
	return Plan{p}, nil
}

func (p *plan) takeLine(fields map[string]planField, name string, args []string) error {
	wants := 1
	if name == "fault" || name == "skip" {
		wants = 3
	}
	if len(args) != wants {
		return fmt.Errorf("%d words are expected behind %q", wants, name)
	}
	var err error
	switch name {
	case "seed":
		p.seed, err = strconv.ParseUint(args[0], 10, 64)
	case "lock-delay":
		var d int64
		d, err = planTime(args[0])
		p.load.lockDelays = append(p.load.lockDelays, d/millisecond)
	case "fault":
		var f planned
		if f, err = parsePlanned(args); err == nil {
			p.planned = append(p.planned, f)
		}
	case "skip":
		var k opSpan
		for i, to := range []*int{&k.client, &k.from, &k.to} {
			if *to, err = strconv.Atoi(args[i]); err != nil {
				return err
			}
		}
		p.skipped = append(p.skipped, k)
	default:
		f, ok := fields[name]
		if !ok {
			return fmt.Errorf("a plan has no %q", name)
		}
		err = f.set(args[0])
	}
	return err
}

func parsePlanned(args []string) (planned, error) {
	at, err := planTime(args[0])
	if err != nil {
		return planned{}, err
	}
	number, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return planned{}, err
	}
	for k, name := range plannedNames {
		if name == args[1] {
			return planned{at: at, kind: plannedKind(k), number: number}, nil
		}
	}
	return planned{}, fmt.Errorf("there is no fault %q: it is one of %s", args[1], strings.Join(plannedNames[:], ", "))
}

// check looks whether a run can be made of the plan.
func (p *plan) check() error {
	var sum int64
	for _, n := range p.load.weights {
		sum += n
	}
	bad := func(what string) error { return fmt.Errorf("no run can be made of this plan: %s", what) }
	switch {
	case p.replicas < 1 || p.replicas > 9:
		return bad("1 to 9 replicas are possible")
	case p.raws > 0 && p.rawThink < 1, p.raws > 9:
		return bad("raw-think is missing, or there are more than 9 raws")
	case p.clients < 1 || p.clients > 60:
		return bad("1 to 60 clients are possible")
	case p.latencyHi < p.latencyLo || p.latencyLo < 1 || p.flushHi < p.flushLo || p.flushLo < 1:
		return bad("latency and flush need a least and a most time")
	case p.calm < 1 || p.load.think < 1 || p.load.lease < second:
		return bad("calm, think and lease (a second at least) are missing")
	case p.late > 0 && p.lateMost < 1, p.slowFlush > 0 && p.slowMost < p.flushHi:
		return bad("late-most, or slow-flush-most (at least flush-most), is missing")
	case p.snapshotSlots < 1 || p.trailSlots < 1 || p.segmentBytes < 1:
		return bad("snapshot-slots, trail-slots and segment-bytes are needed")
	case p.load.pathsOfEach < 1 || p.load.locks < 1 || p.load.locks > 26 || p.load.outstanding < 1 || sum < 1 || len(p.load.lockDelays) == 0:
		return bad("registers, locks, outstanding, a weight and a lock-delay are needed")
	}
	return nil
}
