// Package span adds durations that may be as long as anybody can write down:
// "for ever" is math.MaxInt64 nanoseconds to a Go programmer, and a sum with it
// must stay in the far future instead of wrapping around to the past.
package span

import (
	"math"
	"time"
)

// Forever is the longest duration.
const Forever = time.Duration(math.MaxInt64)

// Add returns a + b, or the nearest duration there is if that is out of range.
func Add(a, b time.Duration) time.Duration {
	switch s := a + b; {
	case b > 0 && s < a:
		return Forever
	case b < 0 && s > a:
		return math.MinInt64
	default:
		return s
	}
}

// Millis returns ms milliseconds, or Forever if that is out of range.
func Millis(ms uint64) time.Duration {
	if ms > uint64(Forever/time.Millisecond) {
		return Forever
	}
	return time.Duration(ms) * time.Millisecond
}

// UpToMillis returns d in milliseconds, rounded up; d must not be negative.
func UpToMillis(d time.Duration) uint64 {
	ms := uint64(d / time.Millisecond)
	if d%time.Millisecond != 0 {
		ms++
	}
	return ms
}
