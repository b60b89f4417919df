//go:build plantedbugs

package client_test

import (
	"os"

	"github.com/seed70370324/lockd/internal/invariant"
)

func init() { invariant.Plant(invariant.Bug(os.Getenv("LOCKD_PLANT"))) }
