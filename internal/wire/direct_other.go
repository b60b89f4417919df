//go:build !unix

package wire

import "net"

// directWriter is not there on this system: all is left to the writer.
type directWriter struct{}

func (*directWriter) init(net.Conn) {}

func (*directWriter) can() bool { return false }

func (*directWriter) write([]*buffer) (whole, part int) { return 0, 0 }

// directReader is not there on this system: the connection is read.
type directReader struct{}

func (*directReader) init(net.Conn) {}

func (*directReader) can() bool { return false }

func (*directReader) read([]byte) (int, error) { return 0, net.ErrClosed }

func (*directReader) readNow([]byte) (int, error) { return 0, net.ErrClosed }
