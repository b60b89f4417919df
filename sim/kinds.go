package sim

import (
	"math"
	"slices"
	"time"

	"github.com/seed70370324/lockd/client/machine"
)

// nature is what a program is. It is drawn for each life of a client from a
// stream of its own.
type nature struct {
	random   *stream
	reader   bool   // has no session
	survey   bool   // asks all addresses first
	identity uint64 // that it was given, 0 none
	strange  bool   // some of its addresses belong to no replica of the cell
	lease    time.Duration
	grace    time.Duration
	opening  time.Duration // how long it tries to open a session
	begun    time.Duration // on its clock
	// hasReplicas: not all addresses are strangers'.
	hasReplicas bool
}

const (
	defaultLease = 12 * time.Second // the machine's own
	defaultGrace = 45 * time.Second
	defaultOpen  = 10 * time.Second
)

// dress makes the options of a plain program those of another kind.
func (c *client) dress(o *machine.Options) {
	w, k := c.w, &c.w.plan.load.kinds
	s := newStream(w.seed, 1<<44|uint64(c.number())<<24|uint64(c.life))
	n := nature{random: s, begun: o.Now}
	n.reader, n.survey = s.chance(k.readers), s.chance(k.survey)
	if s.chance(k.identity) {
		n.identity = w.cellIdentity()
	}
	if s.chance(k.odd) {
		drawOdd(s, o)
	}
	if s.chance(k.strange) && w.faulty && len(w.strangers) > 0 {
		n.strange = true
		for m := s.between(1, min(4, int64(len(w.strangers)))); m > 0; m-- {
			address := pick(s, w.strangers).p.address()
			if !slices.Contains(o.Addresses, address) {
				o.Addresses = slices.Insert(o.Addresses, int(s.below(int64(len(o.Addresses)+1))), address)
			}
		}
		if s.chance(150_000) {
			o.Addresses = slices.DeleteFunc(o.Addresses, w.replicaAt)
		}
		// One that takes another cell for the one that is meant must not wait for ever.
		o.OpenTimeout, o.Grace = min(o.OpenTimeout, nanos(15*second)), min(o.Grace, nanos(20*second))
	}
	o.Survey, o.NoSession, o.CellIdentity = n.survey, n.reader, n.identity
	n.lease, n.grace, n.opening = o.Lease, o.Grace, o.OpenTimeout
	if n.lease == 0 {
		n.lease = defaultLease
	}
	if n.grace == 0 {
		n.grace = defaultGrace
	}
	if n.opening == 0 {
		n.opening = defaultOpen
	}
	n.hasReplicas = slices.ContainsFunc(o.Addresses, w.replicaAt)
	c.nature, c.answers = n, nil
	c.lived, c.liveAt, c.heardAt, c.floods = false, 0, 0, nil
}

// drawOdd draws options that few give.
func drawOdd(s *stream, o *machine.Options) {
	if s.chance(400_000) {
		o.Lease, o.Grace, o.OpenTimeout, o.DriftPPM, o.Cell = 0, 0, 0, 0, ""
		return
	}
	if s.chance(600_000) {
		o.Grace = nanos(pick(s, []int64{100 * millisecond, s.between(100*millisecond, 3*second), math.MaxInt64}))
	}
	if s.chance(400_000) {
		o.OpenTimeout = nanos(pick(s, []int64{s.between(100*millisecond, 3*second), math.MaxInt64}))
	}
}

// number is the client's as plans count, from 1.
func (c *client) number() int { return c.index - len(c.w.replicas) + 1 }

// replicaAt reports whether an address is a replica's.
func (w *World) replicaAt(address string) bool {
	return slices.ContainsFunc(w.replicas, func(p *process) bool { return p.address() == address })
}
