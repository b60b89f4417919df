package paxos

import (
	"testing"
	"time"
)

// A peak fades however often it is measured: a busy leader gets votes, and its
// disk ends flushes, much more often than once a millisecond.
func TestPeakFadesHoweverOftenItIsMeasured(t *testing.T) {
	for _, every := range []time.Duration{0, 100 * time.Microsecond, 700 * time.Microsecond, 1900 * time.Microsecond, 10 * time.Millisecond, 3 * time.Second} {
		var p peak
		const usual = 500 * time.Microsecond
		begin := time.Minute
		p.sample(begin, 4*time.Second)
		now := begin
		for range 1000 {
			p.sample(now, usual) // several answers come together
		}
		if p.d < 3*time.Second {
			t.Errorf("measured again at once, a peak of 4s has become %v", p.d)
		}
		for now < begin+5*fadeTime {
			now += max(every, 50*time.Microsecond)
			p.sample(now, usual)
			p.sample(now, usual)
		}
		if p.d > 50*time.Millisecond {
			t.Errorf("measured every %v, a peak of 4s is %v after %v", every, p.d, 5*fadeTime)
		}
	}
}
