//go:build unix

package wire

import (
	"io"
	"net"
	"os"
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

// rawSocket gives the socket of a connection, nil if it is none: what goes around
// a socket (encryption) must see all bytes.
func rawSocket(nc net.Conn) syscall.RawConn {
	t, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil // who reads or writes the connection will see it
	}
	return raw
}

func (d *directWriter) init(nc net.Conn) {
	if d.raw = rawSocket(nc); d.raw == nil {
		return
	}
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

// directReader reads a socket as net.Conn does, with cheaper system calls.
type directReader struct {
	raw syscall.RawConn
	// Of one read at a time: where to, and what came of it.
	try func(fd uintptr) bool // made once, so that a read allocates nothing
	now func(fd uintptr) bool // the same without waiting
	b   []byte
	n   int
	err error
}

func (d *directReader) init(nc net.Conn) {
	if d.raw = rawSocket(nc); d.raw == nil {
		return
	}
	d.try = func(fd uintptr) bool {
		for {
			d.n, d.err = readSocket(int(fd), d.b)
			switch d.err {
			case syscall.EINTR:
			case syscall.EAGAIN:
				return false // the poller waits for more
			default:
				return true
			}
		}
	}
	d.now = func(fd uintptr) bool { return d.try(fd) || true }
}

func (d *directReader) can() bool { return d.raw != nil }

// read is net.Conn.Read, for a b that is not empty.
func (d *directReader) read(b []byte) (int, error) { return d.readBy(d.try, b) }

// readNow is read without waiting: nothing is there if it returns 0 and no error.
func (d *directReader) readNow(b []byte) (int, error) { return d.readBy(d.now, b) }

func (d *directReader) readBy(try func(fd uintptr) bool, b []byte) (int, error) {
	d.b, d.n, d.err = b, 0, nil
	err := d.raw.Read(try)
	d.b = nil
	switch {
	case err != nil:
		return 0, err
	case d.err == syscall.EAGAIN:
		return 0, nil
	case d.err != nil:
		return 0, os.NewSyscallError("read", d.err)
	case d.n == 0:
		return 0, io.EOF
	}
	return d.n, nil
}
