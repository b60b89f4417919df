// Package sequencer makes and reads sequencers: the text that a lock's holder
// passes along with its requests, so that other servers can tell whether it
// still holds the lock (Burrows, "The Chubby lock service", OSDI 2006,
// section 2.4).
//
//	lockd1:<X|S>:<fence>:<generation>:<instance>:<cell identity in hex>:<path>
//
// A server that has seen a sequencer of a lock can refuse every one with a
// lower fence without asking anybody.
package sequencer

import (
	"fmt"
	"strconv"
	"strings"
)

// prefix names the format and its version.
const prefix = "lockd1"

// maxLength bounds what Parse looks at: the longest path and the numbers.
const maxLength = 2048

// S is a sequencer taken apart.
type S struct {
	Shared     bool   // held in shared mode, else exclusively
	Fence      uint64 // grows with every grant that ends another holder's time
	Generation uint64 // the lock's generation
	Instance   uint64 // of the node: a node made anew has another
	Cell       uint64 // identity of the cell
	Path       string
}

// Make returns the text of s.
func Make(s S) string {
	b := make([]byte, 0, len(prefix)+len(s.Path)+96)
	b = append(b, prefix...)
	if s.Shared {
		b = append(b, ":S:"...)
	} else {
		b = append(b, ":X:"...)
	}
	b = strconv.AppendUint(b, s.Fence, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, s.Generation, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, s.Instance, 10)
	b = append(b, ':')
	b = strconv.AppendUint(b, s.Cell, 16)
	b = append(b, ':')
	b = append(b, s.Path...)
	return string(b)
}

// String is Make.
func (s S) String() string { return Make(s) }

// Parse takes a sequencer apart. The error says, for people, what is wrong
// with the text.
func Parse(text string) (S, error) {
	if len(text) > maxLength {
		return S{}, fmt.Errorf("not a sequencer: %d bytes long, at most %d are possible", len(text), maxLength)
	}
	part := strings.SplitN(text, ":", 7)
	if part[0] != prefix {
		return S{}, fmt.Errorf("not a sequencer: it does not begin with %q", prefix+":")
	}
	if len(part) != 7 {
		return S{}, fmt.Errorf("not a sequencer: %d parts where 7 are needed; was it cut short?", len(part))
	}
	var s S
	switch part[1] {
	case "X":
	case "S":
		s.Shared = true
	default:
		return S{}, fmt.Errorf("not a sequencer: mode %q, known are X and S", part[1])
	}
	for _, f := range [...]struct {
		name string
		text string
		base int
		into *uint64
	}{
		{"fence", part[2], 10, &s.Fence},
		{"lock generation", part[3], 10, &s.Generation},
		{"instance", part[4], 10, &s.Instance},
		{"cell identity", part[5], 16, &s.Cell},
	} {
		n, err := strconv.ParseUint(f.text, f.base, 64)
		if err != nil {
			return S{}, fmt.Errorf("not a sequencer: its %s is %q, which is no number", f.name, f.text)
		}
		*f.into = n
	}
	s.Path = part[6]
	if !strings.HasPrefix(s.Path, "/") {
		return S{}, fmt.Errorf("not a sequencer: its path %q does not begin with a slash", s.Path)
	}
	return s, nil
}
