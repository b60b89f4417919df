package replica

import "github.com/seed70370324/lockd/paxos"

// Configuration returns the members with the addresses known at the moment;
// before founding those of the initial cluster, with CellIdentity 0. The value
// must not be changed, and is not changed afterwards.
func (r *Replica) Configuration() *paxos.Configuration { return r.node.Configuration() }
