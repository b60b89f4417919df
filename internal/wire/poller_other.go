//go:build !linux

package wire

import "errors"

// Poller is not there on this system: NewPoller says so.
type Poller struct{}

var errNoPoller = errors.New("connections cannot be polled together on this system")

// NewPoller fails.
func NewPoller() (*Poller, error) { return nil, errNoPoller }

// Add fails.
func (*Poller) Add(*Conn, uint64) error { return errNoPoller }

// Remove does nothing.
func (*Poller) Remove(*Conn) {}

// Run fails.
func (*Poller) Run(func([]Arrival)) error { return errNoPoller }

// Close does nothing.
func (*Poller) Close() error { return nil }
