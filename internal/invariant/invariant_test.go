package invariant

import (
	"strings"
	"testing"
)

// TestUnreachable sees that the mark is silent until it is asked to panic.
func TestUnreachable(t *testing.T) {
	before := unreachablePanics
	defer func() { unreachablePanics = before }()
	unreachablePanics = false
	Unreachable("in the product the branch itself keeps things safe")

	PanicAtUnreachable()
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "because of this") {
			t.Errorf("recovered %v, want a panic with the reason", r)
		}
	}()
	Unreachable("because of this")
}
