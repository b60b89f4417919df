package replog

import (
	"errors"

	"github.com/seed70370324/lockd/paxos"
)

// newEngine makes the Paxos replica.
var newEngine = func(paxos.Options, paxos.Restored) (engine, error) {
	return nil, errors.New("this build has no Paxos replica")
}
