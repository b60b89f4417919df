package nodepath

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for path, want := range map[string]string{
		"/":                               "",
		"/a":                              "",
		"/a/b c/d.e":                      "",
		"/...":                            "",
		"/日本/ü":                           "",
		"/" + strings.Repeat("x", 255):    "",
		strings.Repeat("/xxx", 256):       "",
		"":                                "empty",
		"a":                               "begin with /",
		"//":                              "two slashes",
		"/a//b":                           "two slashes",
		"/a/":                             "ends in a slash",
		"/.":                              `"." is not allowed`,
		"/a/../b":                         `".." is not allowed`,
		"/" + strings.Repeat("x", 256):    "256 bytes",
		strings.Repeat("/xxx", 256) + "y": "1025 bytes",
		"/a\x00":                          "U+0000",
		"/a\nb":                           "U+000A",
		"/a\u0085b":                       "U+0085",
		"/a\x7f":                          "U+007F",
		"/\xc3\x28":                       "UTF-8",
	} {
		err := Check(path)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", path, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: error %v, expected %q", path, err, want)
		}
	}
	for path, good := range map[string]bool{
		"/a-": true, "/a/": true, "/": true, "": false, "a": false, "//": false,
		"/" + strings.Repeat("x", 245): true, "/" + strings.Repeat("x", 246): false,
	} {
		if err := CheckSequential(path); (err == nil) != good {
			t.Errorf("sequential %q: %v", path, err)
		}
	}
}
