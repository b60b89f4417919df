package store

import (
	"cmp"
	"slices"

	"github.com/seed70370324/lockd/store/pb"
)

// keptResult is the result of a request, kept for repeats.
type keptResult struct {
	hash uint64
	*pb.Result
}

// keptResults are the results that a session keeps, by ascending number. Those
// that are dropped leave at the front and new ones come to the end, each in
// constant time as a rule: what is gone at the front is closed up when as much
// of it has come together as is left.
//
// It belongs to the session's record, and may be written when that may be.
type keptResults struct {
	list []keptResult
	gone int // places at the front of list that are empty
}

// spareMax bounds the room that a session holds on to which keeps nothing.
const spareMax = 16

func (k *keptResults) all() []keptResult { return k.list[k.gone:] }

// clone returns what can be written apart from k.
func (k *keptResults) clone() keptResults { return keptResults{list: slices.Clone(k.all())} }

func (k *keptResults) find(number uint64) (*keptResult, bool) {
	list := k.all()
	i, found := slices.BinarySearchFunc(list, number, func(r keptResult, number uint64) int {
		return cmp.Compare(r.Number, number)
	})
	if !found {
		return nil, false
	}
	return &list[i], true
}

// follows says whether number is above all that are kept.
func (k *keptResults) follows(number uint64) bool {
	list := k.all()
	return len(list) == 0 || list[len(list)-1].Number < number
}

// add appends a result, whose number follows.
func (k *keptResults) add(r keptResult) {
	if len(k.list) == cap(k.list) && k.gone > 0 && k.gone >= len(k.list)/2 {
		left := copy(k.list, k.list[k.gone:])
		clear(k.list[left:])
		k.list, k.gone = k.list[:left], 0
	}
	k.list = append(k.list, r)
}

// dropFirst drops the first of the results that are kept.
func (k *keptResults) dropFirst() {
	k.list[k.gone] = keptResult{}
	k.gone++
	if k.gone < len(k.list) {
		return
	}
	k.list, k.gone = k.list[:0], 0
	if cap(k.list) > spareMax {
		k.list = nil
	}
}

// record keeps the result of a request for repeats. A session that has ended
// with it keeps nothing.
func (s *Store) record(id uint64, r *pb.Result) {
	x, ok := s.ownSession(id)
	if !ok {
		return
	}
	if r.Number >= x.lowest {
		kept := keptResult{hashOfResult(id, r.Number, r), r}
		if x.results.follows(r.Number) {
			x.results.add(kept)
		} else if old, found := x.results.find(r.Number); found {
			// Only where a planted bug executes a request again.
			s.sum -= old.hash
			s.countResult(x, old.Result, -1)
			*old = kept
		}
		s.sum += kept.hash
		s.countResult(x, r, +1)
		x.last = max(x.last, r.Number)
	}
	s.rehashSession(id, x)
}

// dropResults drops a session's results below the given number.
func (s *Store) dropResults(x *session, below uint64) {
	for _, r := range x.results.all() {
		if r.Number >= below {
			return
		}
		s.sum -= r.hash
		s.countResult(x, r.Result, -1)
		x.results.dropFirst()
	}
}

func (s *Store) countResult(x *session, r *pb.Result, by int) {
	size := by * resultSize(r)
	x.resultBytes += size
	s.bytes += int64(size)
}
