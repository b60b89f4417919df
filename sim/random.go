package sim

import (
	"math/bits"
	"math/rand/v2"
)

// stream is a source of random numbers of its own. Each concern (network,
// disks, clocks, faults, workload) draws from one, so that a change in one
// does not shift the numbers of the others.
type stream struct{ pcg rand.PCG }

func newStream(seed, label uint64) *stream {
	s := &stream{}
	s.seed(seed, label)
	return s
}

// seed lets the stream begin anew, as that of this label.
func (s *stream) seed(seed, label uint64) {
	s.pcg.Seed(seed, label*0x9e3779b97f4a7c15+1)
	s.pcg.Uint64()
}

func (s *stream) uint64() uint64 { return s.pcg.Uint64() }

// below returns a number in [0, n); n must be positive.
func (s *stream) below(n int64) int64 {
	hi, _ := bits.Mul64(s.pcg.Uint64(), uint64(n))
	return int64(hi)
}

// between returns a number in [lo, hi].
func (s *stream) between(lo, hi int64) int64 { return lo + s.below(hi-lo+1) }

// skewed returns a number in [lo, hi], small ones far more often.
func (s *stream) skewed(lo, hi int64) int64 {
	return lo + s.below(s.below(s.below(hi-lo+1)+1)+1)
}

// chance is true in ppm of a million cases.
func (s *stream) chance(ppm int64) bool { return s.below(1_000_000) < ppm }

func (s *stream) bytes(n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		v := s.uint64()
		for i := 0; i < 8; i++ {
			b = append(b, byte(v>>(8*i)))
		}
	}
	return b[:n]
}

func pick[T any](s *stream, from []T) T { return from[s.below(int64(len(from)))] }
