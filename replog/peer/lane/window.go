package lane

import "time"

const (
	minWindow   = 16 << 10
	firstWindow = 32 << 10
	maxWindow   = 8 << 20
	// minPart takes 33 ms at 1 Mbit/s.
	minPart = 4 << 10
	maxPart = 64 << 10
	// queueTarget is how long what is under way may wait for itself. Heartbeats
	// wait for it too, so it is far below the silence after which a leader is
	// given up.
	queueTarget = 100 * time.Millisecond
	// baseFor is how long the base counts before it is measured anew: a route may
	// have become longer.
	baseFor = 30 * time.Second
)

// window decides how many bytes of parts may be under way to a peer.
type window struct {
	size   int
	base   time.Duration // shortest round trip, 0: not measured
	baseAt time.Duration // when it was
	cutAt  time.Duration // when the window was last made smaller
}

// mark remembers when a part was sent.
type mark struct {
	end    uint64 // position in the connection's stream
	at     time.Duration
	flight int  // bytes under way, with it
	clean  bool // no other part was under way: nothing of ours queued
}

// part is how large a part is: of a narrow link's window not much, since the time
// that it takes itself counts as queue.
func (w *window) part() int { return min(max(w.size/16, minPart), maxPart) }

// whole is the largest message that travels in one frame, if nothing else is to:
// parts cost more, and local networks need none.
func (w *window) whole() int { return min(max(w.size/4, minPart), maxPart) }

// stale reports whether the base must be measured anew.
func (w *window) stale(now time.Duration) bool { return w.base != 0 && now-w.baseAt > baseFor }

// acked takes a round trip, with which so many bytes are acknowledged.
func (w *window) acked(now time.Duration, m mark, bytes int) {
	took := max(now-m.at, 1)
	if w.base == 0 || took < w.base || m.clean && w.stale(now) {
		w.base, w.baseAt = took, now
	}
	switch queued := took - w.base; {
	case queued < queueTarget/4:
		// A link that was not made use of shows nothing of what it could carry.
		if m.flight > w.size/4 {
			w.size = min(w.size+bytes/2, maxWindow)
		}
	case queued > queueTarget && m.at >= w.cutAt:
		// What was under way took so long to arrive: that is the rate. Whatever was
		// sent before tells nothing of the smaller window.
		size := int(int64(m.flight) * (w.base + queueTarget).Microseconds() / max(took.Microseconds(), 1))
		w.size = max(min(size, w.size), w.size/2, minWindow)
		w.cutAt = now
	}
}
