package span

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Add is the true sum, clipped to the range.
func TestAdd(t *testing.T) {
	near := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{0, 1, -1, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64, math.MinInt64 + 1}))
	rapid.Check(t, func(t *rapid.T) {
		a, b := near.Draw(t, "a"), near.Draw(t, "b")
		want := new(big.Int).Add(big.NewInt(a), big.NewInt(b))
		got := big.NewInt(int64(Add(time.Duration(a), time.Duration(b))))
		switch {
		case want.IsInt64():
		case want.Sign() > 0:
			want = big.NewInt(math.MaxInt64)
		default:
			want = big.NewInt(math.MinInt64)
		}
		if got.Cmp(want) != 0 {
			t.Fatalf("%d + %d is %v, expected %v", a, b, got, want)
		}
	})
}

func TestMillis(t *testing.T) {
	for ms, want := range map[uint64]time.Duration{0: 0, 1: time.Millisecond, math.MaxUint64: Forever,
		uint64(math.MaxInt64 / 1_000_000): time.Duration(math.MaxInt64 / 1_000_000 * 1_000_000), uint64(math.MaxInt64/1_000_000) + 1: Forever} {
		if got := Millis(ms); got != want {
			t.Errorf("%d ms are %v, expected %v", ms, got, want)
		}
	}
	for d, want := range map[time.Duration]uint64{0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, Forever: math.MaxInt64/1_000_000 + 1} {
		if got := UpToMillis(d); got != want {
			t.Errorf("%d ns are up to %d ms, expected %d", d, got, want)
		}
	}
}
