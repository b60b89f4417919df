package server

import (
	"context"
	"fmt"
	"testing"

	"github.com/seed70370324/lockd/lockd/replica"
)

// Every replica learns what the others can hold, and goes by the smallest of each.
func TestMembersTellWhatTheyCanHold(t *testing.T) {
	c := newTestCell(t, 3)
	nodes := map[string]int{"n1": 5000, "n2": 4000, "n3": 6000}
	bytes := map[string]int64{"n1": 9 << 20, "n2": 8 << 20, "n3": 7 << 20}
	c.change = func(cfg *Config) {
		cfg.Limits.MaxStateNodes, cfg.Limits.MaxStateBytes = nodes[cfg.Name], bytes[cfg.Name]
	}
	learn := func(nodes int, bytes int64) {
		t.Helper()
		for name, r := range c.running {
			waitFor(t, fmt.Sprintf("%s goes by %d nodes, %d bytes", name, nodes, bytes), func() bool {
				var m replica.Metrics
				err := r.s.ask(context.Background(), func(r *replica.Replica) { m = r.Metrics() })
				return err == nil && m.StateNodesMax == nodes && m.StateBytesMax == bytes
			})
		}
	}
	c.startAll()
	c.master()
	learn(4000, 7<<20)
	c.stop("n3")
	bytes["n3"] = 10 << 20
	c.start("n3")
	learn(4000, 8<<20)
}
