//go:build !unix

package wire

import "net"

// directWriter is not there on this system: all is left to the writer.
type directWriter struct{}

func (*directWriter) init(net.Conn) {}

func (*directWriter) can() bool { return false }

func (*directWriter) write([]*buffer) (whole, part int) { return 0, 0 }
