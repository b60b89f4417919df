package sequencer

import (
	"math"
	"strings"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	for _, s := range []S{
		{Fence: 1, Generation: 2, Instance: 3, Cell: 0xabc, Path: "/a"},
		{Shared: true, Fence: math.MaxUint64, Generation: math.MaxUint64, Instance: math.MaxUint64, Cell: math.MaxUint64, Path: "/a:b/c"},
		{Path: "/"},
	} {
		got, err := Parse(Make(s))
		if err != nil || got != s {
			t.Errorf("Parse(Make(%+v)) = %+v, %v", s, got, err)
		}
	}
	if got, want := Make(S{Shared: true, Fence: 9, Generation: 2, Instance: 7, Cell: 255, Path: "/x"}), "lockd1:S:9:2:7:ff:/x"; got != want {
		t.Errorf("Make = %q, want %q", got, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", ":", "lockd2:X:1:1:1:1:/a", "lockd1:Y:1:1:1:1:/a", "lockd1:X:1:1:1:/a", "lockd1:X:-1:1:1:1:/a",
		"lockd1:X:1:1:1:xyz:/a", "lockd1:X:1:1:1:1:a", "lockd1:X:1:1:1:1:", "lockd1:X:99999999999999999999:1:1:1:/a",
		"lockd1:X:1:1:1:1:/" + strings.Repeat("a", 4096),
	} {
		if s, err := Parse(text); err == nil {
			t.Errorf("Parse(%.40q) = %+v, want an error", text, s)
		}
	}
}
