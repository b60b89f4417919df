package sim

// queue holds what will happen, by time and then by the order in which it was
// put in: two things at the same instant happen in that order, always.
type queue struct {
	heap []happening
	next uint64
}

type happening struct {
	at  int64 // true time, nanoseconds
	seq uint64
	do  func()
}

func (h *happening) before(o *happening) bool {
	if h.at != o.at {
		return h.at < o.at
	}
	return h.seq < o.seq
}

func (q *queue) push(at int64, do func()) {
	q.next++
	q.heap = append(q.heap, happening{at: at, seq: q.next, do: do})
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !q.heap[i].before(&q.heap[up]) {
			break
		}
		q.heap[i], q.heap[up] = q.heap[up], q.heap[i]
		i = up
	}
}

// pop takes out the earliest; ok is false when there is none.
func (q *queue) pop() (first happening, ok bool) {
	if len(q.heap) == 0 {
		return happening{}, false
	}
	first = q.heap[0]
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap[last] = happening{}
	q.heap = q.heap[:last]
	i := 0
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if q.heap[c].before(&q.heap[least]) {
				least = c
			}
		}
		if least == i {
			return first, true
		}
		q.heap[i], q.heap[least] = q.heap[least], q.heap[i]
		i = least
	}
}
