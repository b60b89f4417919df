// Package layers holds the law of which package may import which, and of what may
// stand in a package that decides. It has tests alone: law_test.go is the law with
// its exceptions, check_test.go what finds breaches, and repository_test.go asks
// whether this repository keeps it.
package layers
