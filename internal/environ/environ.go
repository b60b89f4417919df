// Package environ finds variables of the environment that were meant for a
// program and are none of its own: a mistyped one would be ignored without a
// word.
package environ

import (
	"slices"
	"strings"
)

// near is how many letters a mistyped name may be away from a known one.
const near = 2

// Check looks at the variables whose names begin with prefix and are none of
// known. mistyped is the first (in alphabetical order) that is close to a known
// one, and meant that one; strange are those that are close to none.
func Check(environment []string, prefix string, known []string) (mistyped, meant string, strange []string) {
	var names []string
	for _, e := range environment {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, prefix) && !slices.Contains(known, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		best := near + 1
		for _, k := range known {
			if d := distance(plain(name[len(prefix):]), plain(k[len(prefix):])); d < best {
				best, meant = d, k
			}
		}
		if best <= near {
			return name, meant, nil
		}
		strange = append(strange, name)
	}
	return "", "", strange
}

// plain is a name without what is forgotten most easily.
func plain(name string) string {
	return strings.ToUpper(strings.ReplaceAll(strings.ReplaceAll(name, "_", ""), "-", ""))
}

// distance is how many letters must be put in, taken out or exchanged to make b
// of a (Levenshtein 1965); short names resemble each other, so they must be
// equal.
func distance(a, b string) int {
	if min(len(a), len(b)) < 4 {
		if a == b {
			return 0
		}
		return near + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := last
			if a[i] != b[j] {
				change++
			}
			last = row[j+1]
			row[j+1] = min(change, last+1, row[j]+1)
		}
	}
	return row[len(b)]
}
