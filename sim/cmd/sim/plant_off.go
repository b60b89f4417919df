//go:build !plantedbugs

package main

import "errors"

func plant(string) error {
	return errors.New("this build has no planted bugs: run it with -tags plantedbugs")
}
