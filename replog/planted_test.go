//go:build !plantedbugs

package replog

import (
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/plantedtest"
)

func TestPlantedBugs(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: invariant.IdentityBeforeSlotOne, Test: "TestIdentityWaitsForSlotOne"},
		{Bug: invariant.BelievesBelowInstalled, Test: "TestLateAcceptWhileASnapshotIsInstalled"},
	})
}
