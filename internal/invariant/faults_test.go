package invariant

import (
	"strings"
	"testing"
)

func TestFaults(t *testing.T) {
	var f Faults
	f.That(true, "is fine")
	f.Count("apples", 2, 2)
	if err := f.Err(); err != nil {
		t.Fatalf("nothing is wrong, and there is %v", err)
	}
	f.That(false, "pear %d is bad", 7)
	f.Count("apples", 2, 3)
	for range 2 * mostFaults {
		f.That(false, "one more")
	}
	err := f.Err()
	if err == nil || !strings.HasPrefix(err.Error(), "pear 7 is bad\napples: 2 counted, 3 found\none more") {
		t.Fatalf("it says %v", err)
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != mostFaults {
		t.Fatalf("%d faults are kept, %d are enough", lines, mostFaults)
	}
}
