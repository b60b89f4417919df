//go:build plantedbugs

package replica

import (
	"os"

	"github.com/seed70370324/lockd/internal/invariant"
)

func init() { invariant.Plant(invariant.Bug(os.Getenv(plantVariable))) }
