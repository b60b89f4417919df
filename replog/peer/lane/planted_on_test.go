//go:build plantedbugs

package lane

import (
	"os"
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/plantedtest"
)

// TestMain plants the bug that TestPlantedBugsAreFound names.
func TestMain(m *testing.M) {
	invariant.Plant(invariant.Bug(os.Getenv(plantedtest.Variable)))
	os.Exit(m.Run())
}
