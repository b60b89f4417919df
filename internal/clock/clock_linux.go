package clock

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CLOCK_BOOTTIME costs a system call, the monotonic clock does not, and the two
// differ by how long the machine was suspended: a number that seldom changes
// and only grows. So it is looked at once a millisecond, and the monotonic
// clock is read in between. A suspension shows at most that much running time
// late, which is far below what the drift bound takes off every lease.
const lookEvery = time.Millisecond

var (
	start     = time.Now()
	suspended atomic.Int64 // CLOCK_BOOTTIME less the monotonic clock, ns
	looked    atomic.Int64 // when that was looked at, monotonic ns
)

func init() { look() }

func now() time.Duration {
	mono := int64(time.Since(start))
	if mono-looked.Load() >= int64(lookEvery) {
		mono = look()
	}
	return time.Duration(mono + suspended.Load())
}

// look compares the clocks and returns the monotonic one. The difference is
// taken low rather than high: then a thread that is held up between the two
// readings does not make the clock run ahead. Less than half a millisecond of
// difference is the noise of reading, not a suspension.
func look() int64 {
	var ts unix.Timespec
	// Raw: each call that the scheduler hears of wakes the runtime's monitor, which
	// then looks around every 20 µs until all is idle again.
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic("clock: CLOCK_BOOTTIME cannot be read: " + errno.Error())
	}
	mono := int64(time.Since(start))
	between := ts.Nano() - mono
	for {
		old := suspended.Load()
		if between < old+int64(lookEvery)/2 || suspended.CompareAndSwap(old, between) {
			break
		}
	}
	looked.Store(mono)
	return mono
}
