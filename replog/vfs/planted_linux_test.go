//go:build !plantedbugs && (amd64 || arm64)

package vfs

import (
	"testing"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/internal/plantedtest"
)

func TestPlantedBugs(t *testing.T) {
	if CanBeDirect(t) == "" {
		t.Skip("no file system on this machine makes direct writes durable: a bug in them cannot be seen")
	}
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: invariant.DirectWritesNotDurable, Test: "TestDurableCalls"},
		{Bug: invariant.DirectoriesNotSynced, Test: "TestDurableCalls"},
		{Bug: invariant.NoFdatasync, Test: "TestDurableCalls"},
	})
}
