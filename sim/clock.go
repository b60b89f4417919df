package sim

import "time"

// driftPPM bounds how far the clocks of a run go apart from true time. Two
// clocks then differ by less than the 1 % that the product allows for:
// (1 + 0.00495) / (1 - 0.00495) < 1.01.
const driftPPM = 4950

// clock is one machine's monotonic clock: it starts anywhere and runs a little
// fast or slow.
type clock struct {
	offset int64
	ppm    int64
}

// read returns what the clock shows at a true time.
func (c clock) read(at int64) time.Duration {
	return time.Duration(c.offset + at + at*c.ppm/1_000_000)
}

// when returns the first true time at which the clock shows at least local.
func (c clock) when(local time.Duration) int64 {
	at := (int64(local) - c.offset) * 1_000_000 / (1_000_000 + c.ppm)
	if at < 0 {
		at = 0
	}
	for c.read(at) < local {
		at++
	}
	for at > 0 && c.read(at-1) >= local {
		at--
	}
	return at
}
