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

// fanOut is how many the heap has below each: with four it is half as deep as
// with two, and most of what is put in stays far down.
const fanOut = 4

func (q *queue) push(at int64, do func()) {
	q.next++
	new := happening{at: at, seq: q.next, do: do}
	q.heap = append(q.heap, happening{})
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / fanOut
		if !new.before(&q.heap[up]) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = new
}

// pop takes out the earliest; ok is false when there is none.
func (q *queue) pop() (first happening, ok bool) {
	if len(q.heap) == 0 {
		return happening{}, false
	}
	first = q.heap[0]
	end := len(q.heap) - 1
	last := q.heap[end]
	q.heap[end] = happening{}
	q.heap = q.heap[:end]
	if end == 0 {
		return first, true
	}
	i := 0
	for {
		least, below := -1, fanOut*i+1
		for c := below; c < min(below+fanOut, end); c++ {
			if least < 0 || q.heap[c].before(&q.heap[least]) {
				least = c
			}
		}
		if least < 0 || !q.heap[least].before(&last) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = last
	return first, true
}
