//go:build plantedbugs

package lane

import (
	"os"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
)

// TestMain plants the bug that TestPlantedBugsAreFound names.
func TestMain(m *testing.M) {
	invariant.Plant(invariant.Bug(os.Getenv("LANE_PLANT")))
	os.Exit(m.Run())
}
