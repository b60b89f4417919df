package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Shrink makes a failing run shorter by machine. It leaves out faults and
// operations of clients, ends the run earlier, takes fewer replicas and clients,
// and runs what is left again; what still fails in the same way is kept. It is
// the hand work of reading a long story, done beforehand; what is left need not
// be the shortest there is.
type Shrink struct {
	// Runs bounds how many runs are made; 0: 500. The same bound gives the same
	// result.
	Runs int
	// Each, if set, is told of every step that made the run shorter.
	Each func(what string, r Report)

	best     plan
	result   Report
	kind     string
	workOnly bool // the failure comes before the faults end
	used     int
}

// Kind is what a failure has in common with others of the same cause: the
// check, and of a panic its first line without the numbers.
func (f *Failure) Kind() string {
	if f == nil {
		return ""
	}
	if f.Check != "panic" && f.Check != "fatal" {
		return f.Check
	}
	first, _, _ := strings.Cut(f.Text, "\n")
	return f.Check + ": " + strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, first)
}

// Run shrinks a plan. It gives the plan as it is then, and its run; ok is false
// if the run of the first plan does not fail at all.
func (s *Shrink) Run(from Plan) (to Plan, r Report, ok bool) {
	if s.Runs <= 0 {
		s.Runs = 500
	}
	s.best = from.p
	s.result = Run(Options{Plan: &from})
	s.used = 1
	if s.result.Failure == nil {
		return from, s.result, false
	}
	s.kind = s.result.Failure.Kind()
	s.workOnly = s.result.Failure.At < s.best.work
	for round := 0; s.used < s.Runs; round++ {
		before := s.best.size()
		s.end()
		s.earlier()
		s.switches()
		s.machines()
		s.faults()
		s.operations()
		if s.best.size() == before && round > 0 {
			break
		}
	}
	return Plan{s.best}, s.result, true
}

// size is compared to see whether a round has helped.
func (p *plan) size() string {
	return Plan{*p}.String()
}

// clone gives a copy to change.
func (p *plan) clone() plan {
	c := *p
	c.planned, c.skipped = slices.Clone(p.planned), slices.Clone(p.skipped)
	return c
}

// try runs a plan and keeps it if it fails in the same way.
func (s *Shrink) try(what string, c plan) bool {
	if s.used >= s.Runs {
		return false
	}
	s.used++
	r := Run(Options{Plan: &Plan{c}, workOnly: s.workOnly})
	// Without a fault more may be done until the failure comes: a story that is much
	// longer is not worth one fault less.
	if r.Failure.Kind() != s.kind || r.Done > s.result.Done*5/4+5 {
		return false
	}
	s.best, s.result = c, r
	if s.Each != nil {
		s.Each(what, r)
	}
	return true
}

// end lets the run end with the failure, or begins to get well earlier.
func (s *Shrink) end() {
	if s.workOnly {
		c := s.best.clone()
		c.work = s.result.Failure.At + 1
		c.planned = slices.DeleteFunc(c.planned, func(f planned) bool { return f.at >= c.work })
		if c.work < s.best.work || len(c.planned) < len(s.best.planned) {
			s.try("ends with the failure", c)
		}
		return
	}
	for _, part := range []int64{8, 4, 2} {
		for {
			c := s.best.clone()
			c.work -= c.work / part
			c.planned = slices.DeleteFunc(c.planned, func(f planned) bool { return f.at >= c.work })
			if c.work < second || !s.try(fmt.Sprintf("works for %s", tellTime(c.work)), c) {
				break
			}
		}
	}
}

// earlier lets all planned faults come earlier, and the run end earlier.
func (s *Shrink) earlier() {
	for _, part := range []int64{1, 2, 4} {
		for {
			c := s.best.clone()
			by := c.work / 2
			if len(c.planned) > 0 {
				by = c.planned[0].at
			}
			by /= part
			for i := range c.planned {
				c.planned[i].at -= by
			}
			c.work -= by
			if by < 10*millisecond || c.work < second || !s.try(fmt.Sprintf("everything %s earlier", tellTime(by)), c) {
				break
			}
		}
	}
}

// switches turns off what is drawn all through the run, one by one.
func (s *Shrink) switches() {
	for i := range s.best.fields() {
		c := s.best.clone()
		f := c.fields()[i]
		if !f.off || f.zero() {
			continue
		}
		f.clear()
		s.try("without "+f.name, c)
	}
	if s.best.load.outstanding > 1 {
		c := s.best.clone()
		c.load.outstanding = 1
		s.try("one call of a client at a time", c)
	}
}

// machines takes fewer replicas and clients.
func (s *Shrink) machines() {
	for _, n := range []int{1, 3} {
		if n < s.best.replicas {
			c := s.best.clone()
			c.replicas = n
			s.try(fmt.Sprintf("with %d replicas", n), c)
		}
	}
	for n := 1; n < s.best.clients; n++ {
		c := s.best.clone()
		c.clients = n
		c.skipped = slices.DeleteFunc(c.skipped, func(k opSpan) bool { return k.client > n && k.client < rawNumber })
		if s.try(fmt.Sprintf("with %d clients", n), c) {
			return
		}
	}
}

// faults leaves out planned faults: halves of them, then smaller and smaller
// parts.
func (s *Shrink) faults() {
	for size := (len(s.best.planned) + 1) / 2; size > 0; size /= 2 {
		for from := 0; from < len(s.best.planned); {
			to := min(from+size, len(s.best.planned))
			c := s.best.clone()
			c.planned = slices.Delete(c.planned, from, to)
			if !s.try(fmt.Sprintf("without %d of the planned faults", to-from), c) {
				from = to
			}
		}
	}
}

// operations leaves out operations of the clients in the same way: large parts
// of each first.
func (s *Shrink) operations() {
	most := 0
	for _, n := range slices.Concat(s.result.Operations, s.result.Raws) {
		most = max(most, n)
	}
	for size := most; size > 0; size /= 2 {
		for client := 1; client <= min(s.best.clients, len(s.result.Operations)); client++ {
			s.operationsOf(client, s.result.Operations[client-1], size)
		}
		for i := 0; i < min(s.best.raws, len(s.result.Raws)); i++ {
			s.operationsOf(rawNumber+i, s.result.Raws[i], size)
		}
	}
}

func (s *Shrink) operationsOf(client, all, size int) {
	for from := 1; from <= all && s.used < s.Runs; from += size {
		to := min(from+size-1, all)
		if s.best.skipsAll(client, from, to) {
			continue
		}
		c := s.best.clone()
		c.skip(client, from, to)
		s.try(fmt.Sprintf("client %d without the operations %d to %d", client, from, to), c)
	}
}

func (p *plan) skipsAll(client, from, to int) bool {
	for op := from; op <= to; op++ {
		if !p.skips(client, op) {
			return false
		}
	}
	return true
}

// skip leaves out operations; spans that touch become one.
func (p *plan) skip(client, from, to int) {
	var kept []opSpan
	for _, k := range p.skipped {
		if k.client == client && k.from <= to+1 && from <= k.to+1 {
			from, to = min(from, k.from), max(to, k.to)
		} else {
			kept = append(kept, k)
		}
	}
	p.skipped = append(kept, opSpan{client: client, from: from, to: to})
	slices.SortFunc(p.skipped, func(a, b opSpan) int {
		if a.client != b.client {
			return a.client - b.client
		}
		return a.from - b.from
	})
}
