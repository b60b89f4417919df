package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// now reads a clock that all processes of the machine share, as the watchdog of
// `lockctl lock` needs; here it goes on while the machine sleeps.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("clock: CLOCK_MONOTONIC cannot be read: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
