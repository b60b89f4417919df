//go:build plantedbugs

package replog

import (
	"os"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/plantedtest"
)

// In this build the environment says which bug is planted.
func init() { invariant.Plant(invariant.Bug(os.Getenv(plantedtest.Variable))) }
