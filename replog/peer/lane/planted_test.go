//go:build !plantedbugs

package lane

import (
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/plantedtest"
)

func TestPlantedBugsAreFound(t *testing.T) {
	t.Parallel()
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: invariant.PartsWithoutWindow, Test: "TestMessagesArriveWhole"},
		{Bug: invariant.PartsWithoutWindow, Test: "TestLinks"},
		{Bug: invariant.PartsOutOfPlace, Test: "TestPartOutOfPlace"},
	}, "-rapid.nofailfile")
}
