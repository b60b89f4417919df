package ondisk

import (
	"fmt"
	"strconv"
	"strings"
)

// Names in a replica's directory.
const (
	IdentityName = "identity" // file that says whose the data are

	LogDir        = "log"
	SegmentSuffix = ".seg"

	SnapDir    = "snap"
	SnapSuffix = ".snap"

	// TempSuffix is that of a file that is not finished.
	TempSuffix = ".tmp"
)

// ParseNumberedName returns the number of a file that is named by a number of at
// least 16 digits.
func ParseNumberedName(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) < 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n == 0 || fmt.Sprintf("%016d", n) != digits {
		return 0, false
	}
	return n, true
}
