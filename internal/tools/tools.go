//go:build tools

// Package tools pins the programs that make check runs.
package tools

import _ "honnef.co/go/tools/cmd/staticcheck"
