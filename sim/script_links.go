package sim

import (
	"strconv"
	"strings"
)

// rate takes bits a second, like 12mbit or 500kbit, and gives bytes; "fast": 0.
func (p *scriptParser) rate() int64 {
	if p.take("fast") {
		return 0
	}
	at := p.next
	text := p.word("a rate like 12mbit or 500kbit, or fast")
	if p.err != nil {
		return 0
	}
	for unit, bits := range map[string]int64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9} {
		number, ok := strings.CutSuffix(text, unit)
		if n, err := strconv.ParseInt(number, 10, 32); ok && err == nil && n > 0 && n <= 100_000 {
			return n * bits / 8
		}
	}
	p.next = at
	p.fail("a rate like 12mbit or 500kbit is expected here, or fast")
	return 0
}

// parseSlowLink: "slow-link A B 12mbit 5ms [queue BYTES]" makes the ways between
// replicas narrow, in both directions; "slow-link A B fast" as they were.
func parseSlowLink(p *scriptParser) func(*director) {
	a, b := p.replicas(), p.replicas()
	rate, delay, queue := p.rate(), int64(0), 0
	if rate > 0 {
		delay = p.duration()
		if p.take("queue") {
			queue = p.count("a number of bytes", 1000, 1<<30)
		}
	}
	return func(d *director) {
		for _, from := range d.replicas(a) {
			for _, to := range d.replicas(b) {
				if from != to {
					d.w.SetLink(from.index, to.index, rate, delay, int64(queue))
					d.w.SetLink(to.index, from.index, rate, delay, int64(queue))
				}
			}
		}
	}
}

// parseLarge: a write of so many bytes more than a small one's.
func parseLarge(p *scriptParser, c int) func(*director) {
	key := p.key("a name for the value")
	value := p.word("the value")
	n := p.count("a number of bytes", 1, 1_000_000)
	behind := p.behind()
	return func(d *director) { d.writeBytes(d.client(c), key, value, n, behind) }
}
