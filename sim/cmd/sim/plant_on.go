//go:build plantedbugs

package main

import (
	"fmt"

	"github.com/seed70370324/lockd/internal/invariant"
)

// plant plants a bug in this process for good.
func plant(name string) error {
	for _, b := range invariant.Bugs {
		if string(b) == name {
			invariant.Plant(b)
			return nil
		}
	}
	return fmt.Errorf("there is no planted bug %q", name)
}
