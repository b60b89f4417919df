// Package nodepath knows which paths of nodes are well formed, so that a
// client can say what is wrong with one before it sends it. The service checks
// again; its word counts.
package nodepath

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a path, in bytes.
const (
	Max     = 1024 // a whole path
	NameMax = 255  // one part of it
)

// Check tells what is wrong with a path, nil if nothing is. A path is "/" or a
// sequence of names, each after a slash. Names are valid UTF-8 without control
// characters, not empty, and not "." or "..".
func Check(path string) error {
	switch {
	case path == "":
		return errors.New("it is empty; paths begin with /")
	case path[0] != '/':
		return errors.New("it does not begin with /")
	case len(path) > Max:
		return fmt.Errorf("it has %d bytes, the limit is %d", len(path), Max)
	case path == "/":
		return nil
	}
	rest := path[1:]
	for {
		name, more, found := strings.Cut(rest, "/")
		if err := checkName(name, found); err != nil {
			return err
		}
		if !found {
			return nil
		}
		rest = more
	}
}

// CheckSequential is Check for a path that gets a number of ten digits
// appended: it may end in a slash, for an empty base name.
func CheckSequential(path string) error {
	return Check(path + "0000000000")
}

func checkName(name string, more bool) error {
	switch {
	case name == "" && more:
		return errors.New("it has two slashes in a row")
	case name == "":
		return errors.New("it ends in a slash")
	case name == "." || name == "..":
		return fmt.Errorf("%q is not allowed as a part; write the path out in full", name)
	case len(name) > NameMax:
		return fmt.Errorf("a part of it has %d bytes, the limit is %d", len(name), NameMax)
	case !utf8.ValidString(name):
		return fmt.Errorf("the part %q is not valid UTF-8", name)
	}
	for _, r := range name {
		if r < 0x20 || r >= 0x7f && r <= 0x9f {
			return fmt.Errorf("the part %q has a control character, %U", name, r)
		}
	}
	return nil
}
