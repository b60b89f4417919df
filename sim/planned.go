package sim

import "sort"

// plannedKind is a kind of fault whose times are drawn before the run begins.
type plannedKind int

// The planned faults.
const (
	planCrash plannedKind = iota
	planPartition
	planPause
	planClientPause
	planClientCrash
	planReset
	planHandOver
	planDisk
	planDepose
	planSlowDisk
	planFullDisk
	planSpoil
	planSecond
	planRelay
	planHalfCut
	planMasterCrash
	planOddDisk
	planWound
	planNarrow
	planStray
	planWrongStart
	plannedKinds
)

var plannedNames = [plannedKinds]string{"crash", "partition", "pause", "client-pause", "client-crash", "reset", "hand-over",
	"disk", "depose", "slow-disk", "full-disk", "spoil", "second", "relay", "half-cut", "master-crash", "odd-disk", "wound", "narrow", "stray", "wrong-start"}

func (k plannedKind) String() string { return plannedNames[k] }

func (w *World) plannedFault(k plannedKind) func() {
	return [plannedKinds]func(){w.faultCrash, w.faultPartition, w.faultPause, w.faultClientPause, w.faultClientCrash, w.faultReset,
		w.faultHandOver, w.faultDisk, w.faultDepose, w.faultSlowDisk, w.faultFullDisk, w.faultSpoil, w.faultSecond, w.faultRelay, w.faultHalfCut, w.faultMasterCrash, w.faultOddDisk, w.faultWound,
		w.faultNarrow, w.faultStray, w.faultWrongStart}[k]
}

// planned is one fault of a run. It has random numbers of its own: without it
// the other faults of the run stay what they are.
type planned struct {
	at     int64 // since the faults began
	kind   plannedKind
	number uint64 // names its stream
}

// drawPlanned draws the times of all planned faults, from a stream for each
// kind.
func (p *plan) drawPlanned() []planned {
	var all []planned
	for k, every := range p.every {
		if every <= 0 {
			continue
		}
		s := newStream(p.seed, 100+uint64(k))
		n := uint64(0)
		for at := p.calm + s.between(every/10, every*2); at < p.work; at += s.between(every/10, every*2) {
			n++
			all = append(all, planned{at: at, kind: plannedKind(k), number: uint64(k)<<32 | n})
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].at < all[j].at })
	return all
}

// startFaults lets the planned faults come at their times.
func (w *World) startFaults() {
	for _, f := range w.plan.planned {
		w.after(f.at, func() {
			if w.faulty {
				w.plannedCame++
				shared := w.faultRandom
				w.faultRandom = newStream(w.seed, 1<<48|f.number)
				w.plannedFault(f.kind)()
				w.faultRandom = shared
			}
		})
	}
}

// opSpan names operations of a client by their numbers, both included.
type opSpan struct {
	client   int // as the plan counts them, from 1
	from, to int
}

// skips reports whether a client's operation is left out.
func (p *plan) skips(client, op int) bool {
	for _, s := range p.skipped {
		if s.client == client && s.from <= op && op <= s.to {
			return true
		}
	}
	return false
}
