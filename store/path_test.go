package store

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCheckPath(t *testing.T) {
	good := []string{"/", "/a", "/a/b", "/a b", "/é", "/...", "/.a", "/" + strings.Repeat("x", NameMax)}
	for _, p := range good {
		if err := CheckPath(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	bad := map[string]string{
		"": "empty", "a": "start", "//": "ends", "/a/": "ends", "/a//b": "two slashes", "/.": "is .", "/a/../b": "is ..",
		"/a\x00": "U+0000", "/a\n": "U+000A", "/\x7f": "U+007F", "/\u0085": "U+0085", "/\xff": "UTF-8",
		"/" + strings.Repeat("x", NameMax+1): "limit", strings.Repeat("/abc", PathMax/4+1): "limit",
	}
	for p, reason := range bad {
		err := CheckPath(p)
		var typed *PathError
		if !errors.As(err, &typed) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %v, want %q", p, err, reason)
		}
	}
}

// The short cut for paths without a fault takes none with one.
func TestWellFormedPathsAreGood(t *testing.T) {
	part := rapid.OneOf(rapid.SampledFrom([]string{"", ".", "..", ".a", "a.", "...", strings.Repeat("x", NameMax), strings.Repeat("x", NameMax+1), "\x7f", "é"}), rapid.StringN(0, 3, -1))
	rapid.Check(t, func(t *rapid.T) {
		path := "/" + strings.Join(rapid.SliceOfN(part, 1, 6).Draw(t, "parts"), "/")
		slow := ""
		for _, one := range strings.Split(path[1:], "/") {
			if one == "" || one == "." || one == ".." || len(one) > NameMax || strings.ContainsFunc(one, unicode.IsControl) || !utf8.ValidString(one) {
				slow = "it has a fault"
			}
		}
		if path == "/" {
			slow = ""
		}
		if len(path) <= PathMax && (badPath(path) == "") != (slow == "") {
			t.Fatalf("%q: %q", path, badPath(path))
		}
	})
}

// Paths are compared a word at a time; so they must be byte by byte.
func TestComparePathsByWords(t *testing.T) {
	letters := rapid.StringOf(rapid.SampledFrom([]rune("aaaa/b-")))
	rapid.Check(t, func(t *rapid.T) {
		head := letters.Draw(t, "head")
		a, b := head+letters.Draw(t, "a"), head+letters.Draw(t, "b")
		low := func(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
		if got, want := comparePaths(a, b), strings.Compare(low(a), low(b)); (got < 0) != (want < 0) || (got == 0) != (want == 0) {
			t.Fatalf("%q and %q: %d, want %d", a, b, got, want)
		}
	})
}

func TestPathOrderPutsNodesBeforeWhatIsBelow(t *testing.T) {
	want := []string{"/", "/a", "/a/b", "/a/b/c", "/a/c", "/a-", "/a-/x", "/a0", "/b"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, comparePaths)
	if !slices.Equal(got, want) {
		t.Fatalf("%q", got)
	}
	if below("/a-", "/a") || !below("/a/b", "/a") || !below("/a", "/a") || !below("/a", "/") {
		t.Fatal("below")
	}
}

func TestChecksumIsTheDocumentedOne(t *testing.T) {
	if got := Checksum([]byte("123456789")); got != 0x995DC9BBDF1939FA {
		t.Fatalf("%x", got)
	}
	if Checksum(nil) != 0 {
		t.Fatal("no content")
	}
}

func TestRevisionFloor(t *testing.T) {
	const start = 1_735_689_600_000 // 2025-01-01
	for _, x := range []struct {
		wall      int64
		old, want uint64
	}{
		{start + 10_999, 0, 10 << 31}, {0, 0, 1 << 31}, {-1 << 63, 0, 1 << 31}, {start + 10_000, 10<<31 + 5, 11 << 31},
		{start + 10_000, 99 << 31, 100 << 31}, {1<<63 - 1, 0, highMax << 31}, {0, 1<<63 - 1, (1<<32 - 1) << 31},
	} {
		if got := RevisionFloor(x.wall, x.old); got != x.want {
			t.Errorf("%d, %d: %x, want %x", x.wall, x.old, got, x.want)
		}
	}
}
