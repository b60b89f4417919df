//go:build unix

package wire

import (
	"net"
	"syscall"
)

// directWriter writes to a socket from the calling goroutine without ever
// waiting for it.
type directWriter struct {
	raw syscall.RawConn
	// Of one write at a time (Conn.writing): what to write, and what came of it.
	try func(fd uintptr) bool // made once, so that a write allocates nothing
	b   []byte
	n   int
	err error
}

func (d *directWriter) init(nc net.Conn) {
	// Of a socket alone: what goes around one (encryption) must see all bytes.
	t, ok := nc.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return // the writer will see it
	}
	d.raw = raw
	d.try = func(fd uintptr) bool {
		for {
			d.n, d.err = writeSocket(int(fd), d.b)
			if d.err == syscall.EINTR {
				continue
			}
			return true // full is an answer too: nobody waits here
		}
	}
}

func (d *directWriter) can() bool { return d.raw != nil }

// write writes buffers until one does not go out as a whole. It returns how
// many did, and how many bytes of the next one.
func (d *directWriter) write(batch []*buffer) (whole, part int) {
	for i, b := range batch {
		d.b = b.b
		if d.raw.Write(d.try) != nil || d.err != nil {
			d.b = nil
			return i, 0
		}
		if d.n < len(b.b) {
			d.b = nil
			return i, d.n
		}
	}
	d.b = nil
	return len(batch), 0
}
