package store

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PathError says what is wrong with a path.
type PathError struct {
	Path   string
	Reason string
}

func (e *PathError) Error() string {
	return fmt.Sprintf("bad path %q: %s", e.Path, e.Reason)
}

// CheckPath says whether path names a node: it starts with a slash, is at most
// PathMax bytes of UTF-8 without control characters, and its parts, divided by
// single slashes, are 1 to NameMax bytes long and none is "." or "..". The root
// is "/". The error is a *PathError. A path is never rewritten: two spellings
// are two nodes.
func CheckPath(path string) error {
	if reason := badPath(path); reason != "" {
		return &PathError{Path: path, Reason: reason}
	}
	return nil
}

// badPath returns the reason why path is malformed, or "".
func badPath(path string) string {
	switch {
	case path == "":
		return "it is empty; the root is /"
	case path[0] != '/':
		return "it does not start with /"
	case path == "/":
		return ""
	case len(path) > PathMax:
		return fmt.Sprintf("it is %d bytes long, the limit is %d", len(path), PathMax)
	case path[len(path)-1] == '/':
		return "it ends with /"
	}
	if wellFormed(path) {
		return ""
	}
	plain := true
	for i := 0; i < len(path); i++ {
		if c := path[i]; c < 0x20 || c >= 0x7f {
			plain = false
			break
		}
	}
	if !plain {
		if !utf8.ValidString(path) {
			return "it is not valid UTF-8"
		}
		for _, r := range path {
			if unicode.IsControl(r) {
				return fmt.Sprintf("it has the control character U+%04X", r)
			}
		}
	}
	for rest := path[1:]; ; {
		part, next, more := strings.Cut(rest, "/")
		switch {
		case part == "":
			return "it has two slashes in a row"
		case part == "." || part == "..":
			return "a part of it is " + part
		case len(part) > NameMax:
			return fmt.Sprintf("a part of it is %d bytes long, the limit is %d", len(part), NameMax)
		}
		if !more {
			return ""
		}
		rest = next
	}
}

// wellFormed says of most paths without a fault, in one pass, that they have
// none; of a path with one, or with a rune that is not ASCII, never.
func wellFormed(path string) bool {
	start := 1 // of the part
	for i := 1; ; i++ {
		if i < len(path) && path[i] != '/' {
			if c := path[i]; c < 0x20 || c >= 0x7f {
				return false
			}
			continue
		}
		n := i - start
		if n == 0 || n > NameMax || path[start] == '.' && n <= 2 {
			return false // two letters of which one is a dot: perhaps
		}
		if i == len(path) {
			return true
		}
		start = i + 1
	}
}

// badSequentialPath is badPath for the path that a sequential create is given,
// to which a number will be appended: it may end with one slash, which means an
// empty base name.
func badSequentialPath(path string) string {
	if path == "/" {
		return ""
	}
	if n := len(path); n > 1 && path[n-1] == '/' {
		if path[:n-1] == "/" {
			return "it has two slashes in a row"
		}
		return badPath(path[:n-1])
	}
	return badPath(path)
}

// split divides a checked path into its parent's path and its name; the root
// is "", "".
func split(path string) (dir, name string) {
	if path == "/" {
		return "", ""
	}
	i := strings.LastIndexByte(path, '/')
	if i == 0 {
		return "/", path[1:]
	}
	return path[:i], path[i+1:]
}

// join undoes split.
func join(dir, name string) string {
	switch dir {
	case "":
		return "/"
	case "/":
		return "/" + name
	}
	return dir + "/" + name
}

// parent is the path of the node above; that of the root is "".
func parent(path string) string {
	dir, _ := split(path)
	return dir
}

// below says whether path is prefix or lies below it.
func below(path, prefix string) bool {
	if prefix == "/" {
		return true
	}
	return strings.HasPrefix(path, prefix) && (len(path) == len(prefix) || path[len(prefix)] == '/')
}

// comparePaths orders paths so that a node comes right before everything below
// it: byte by byte, the slash before every other byte.
func comparePaths(a, b string) int {
	n, i := min(len(a), len(b)), 0
	for i+8 <= n && word(a[i:]) == word(b[i:]) {
		i += 8
	}
	for ; i < n; i++ {
		if a[i] == b[i] {
			continue
		}
		switch {
		case a[i] == '/':
			return -1
		case b[i] == '/':
			return 1
		case a[i] < b[i]:
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// word is the first eight bytes of v as a number.
func word(v string) uint64 {
	_ = v[7]
	return uint64(v[0]) | uint64(v[1])<<8 | uint64(v[2])<<16 | uint64(v[3])<<24 |
		uint64(v[4])<<32 | uint64(v[5])<<40 | uint64(v[6])<<48 | uint64(v[7])<<56
}
