package replog_test

import (
	"testing"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
)

// A node keeps what each member last said that it can hold, also while that one
// is away, and tells the smallest of each; 0 is no limit.
func TestStateLimitsOfTheMembers(t *testing.T) {
	limits := map[string]replog.StateLimits{"n1": {Nodes: 500, Bytes: 0}, "n2": {Nodes: 0, Bytes: 3000}, "n3": {Nodes: 400, Bytes: 9000}}
	c := newCell(t, 1, 3, func(o *replog.NodeOptions) { o.State = limits[o.Name] })
	c.mustStart(0, 1, 2)
	c.until("founded", founded(c))
	c.untilLed()
	check := func(when string, want replog.StateLimits) {
		t.Helper()
		n := c.hosts[0].node
		if got := n.StateLimits(); got != want {
			t.Errorf("%s: the least is %+v, want %+v", when, got, want)
		}
		for i, name := range []string{"n1", "n2", "n3"} {
			if got := n.Status().State[paxos.ReplicaID(i+1)]; got != limits[name] {
				t.Errorf("%s: %s is said to hold %+v, it says %+v", when, name, got, limits[name])
			}
		}
	}
	check("all are there", replog.StateLimits{Nodes: 400, Bytes: 3000})
	c.crash(2)
	c.write(5)
	check("one is away", replog.StateLimits{Nodes: 400, Bytes: 3000})
	limits["n3"] = replog.StateLimits{Nodes: 450, Bytes: 2000}
	c.mustStart(2)
	c.untilSame()
	check("it is back with other limits", replog.StateLimits{Nodes: 450, Bytes: 2000})
}
