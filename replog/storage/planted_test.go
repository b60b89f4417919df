//go:build !plantedbugs

package storage

import (
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/plantedtest"
)

func TestPlantedBugs(t *testing.T) {
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: invariant.LostMarkTolerated, Test: "TestOneLostMarkIsBelievedAndNoMore"},
		{Bug: invariant.LastFlushNotWrittenAgain, Test: "TestLargeFlushFailedThenPowerCut"},
		{Bug: invariant.BelievesBelowInstalled, Test: "TestNothingBelowAnInstalledSnapshotIsBelieved"},
		{Bug: invariant.SuccessorNotNoted, Test: "TestLastSegmentGone"},
	}, "-rapid.nofailfile")
}
