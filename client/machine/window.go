package machine

import "github.com/seed70370324/lockd/internal/invariant"

// window keeps the requests that have a number and no answer, by number, in a
// ring that has as many places as the numbers have been apart.
//
// Invariant: the numbers in it are less than windowSpan apart, so that a ring of
// windowSpan places has one for each.
type window struct {
	ring  []*request // a power of two of places, number modulo that is its place
	count int
}

const windowFirst = 8 // places

func (w *window) place(n uint64) *(*request) { return &w.ring[n&uint64(len(w.ring)-1)] }

// get finds a request by its number, nil if none has it.
func (w *window) get(n uint64) *request {
	if w.count == 0 {
		return nil
	}
	if r := *w.place(n); r != nil && r.number == n {
		return r
	}
	return nil
}

func (w *window) add(r *request) {
	if len(w.ring) == 0 {
		w.ring = make([]*request, windowFirst)
	}
	for *w.place(r.number) != nil {
		w.grow()
	}
	*w.place(r.number) = r
	w.count++
}

func (w *window) grow() {
	old := w.ring
	invariant.Assert(len(old) < windowSpan, "the numbers of unanswered requests are too far apart for %d places", len(old))
	w.ring = make([]*request, 2*len(old))
	for _, r := range old {
		if r != nil {
			*w.place(r.number) = r
		}
	}
}

func (w *window) remove(r *request) {
	if w.get(r.number) == r {
		*w.place(r.number) = nil
		w.count--
	}
}
