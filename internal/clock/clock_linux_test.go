package clock

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func bootTime(t testing.TB) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

// The clock is CLOCK_BOOTTIME, never ahead of it by more than the noise of
// reading, and never goes back.
func TestClockIsBootTime(t *testing.T) {
	last, near := Now(), 0
	for range 200_000 {
		before := bootTime(t)
		n := Now()
		after := bootTime(t)
		if n < last {
			t.Fatalf("went back from %v to %v", last, n)
		}
		last = n
		if n > after+lookEvery {
			t.Fatalf("ahead: %v, CLOCK_BOOTTIME was at most %v", n, after)
		}
		if n >= before-lookEvery {
			near++
		}
	}
	// A thread that was held up while it compared the clocks leaves it behind
	// until the next look.
	if near == 0 {
		t.Fatalf("always behind: %v now, CLOCK_BOOTTIME %v", Now(), bootTime(t))
	}
}

// A suspension shows as a step of the difference between the clocks.
func TestSuspensionIsSeen(t *testing.T) {
	before := Now()
	suspended.Add(-int64(time.Hour)) // as if the machine were suspended for an hour now
	looked.Store(0)
	if after := Now(); after < before {
		t.Fatalf("%v before, %v after", before, after)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
