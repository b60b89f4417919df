//go:build plantedbugs

package replog

import (
	"os"

	"github.com/seed70370324/lockd/internal/invariant"
)

// In this build the environment says which bug is planted.
func init() { invariant.Plant(invariant.Bug(os.Getenv("LOCKD_PLANTED_BUG"))) }
