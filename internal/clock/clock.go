// Package clock reads the clock that leases are counted on: one that goes on
// while the machine is suspended, and that all processes of the machine share
// (CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC on macOS; elsewhere the process's
// monotonic clock, which may stand still during a suspend).
package clock

import "time"

// Now returns the time since an arbitrary start; only differences count, and
// only within one boot of one machine.
func Now() time.Duration { return now() }
