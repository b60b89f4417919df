//go:build !plantedbugs

package invariant

// Planted reports whether the bug is planted: never, in the product.
func Planted(Bug) bool { return false }
