package wire

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// arrivalsAtOnce is how many connections Poller.Run tells of at a time.
const arrivalsAtOnce = 64

// Poller watches many connections from one goroutine, by epoll(7). Go's own
// poller wakes a goroutine for each of them, which then reads twice, the second
// time to learn that there is no more; with small frames on many connections that
// costs as much as the frames do.
type Poller struct {
	file *os.File // the epoll instance, which Go's poller watches
	raw  syscall.RawConn
	err  atomic.Pointer[error]
	// closed: Close was called. What Read returns then is no error of package os.
	closed atomic.Bool
}

// NewPoller makes a poller without connections. Close must be called in the end.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // so that Go's poller takes it
	}
	if err != nil {
		return nil, fmt.Errorf("make an epoll instance: %w", err)
	}
	p := &Poller{file: os.NewFile(uintptr(fd), "epoll")}
	if p.raw, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("watch an epoll instance: %w", err)
	}
	return p, nil
}

// Add watches a connection whose handshake is over and for which nothing is
// buffered and no read timeout set. Run tells of what has arrived on it before
// and what will arrive, under the key, until Remove, or until the connection is
// closed: of that it does not tell. Whoever reads, reads with ReadArrived.
func (p *Poller) Add(c *Conn, key uint64) error {
	if err := c.rest(); err != nil {
		return err
	}
	// Edge-triggered: told once for what arrives. So each time all must be read.
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(key), Pad: int32(key >> 32)}
	return p.control(c, unix.EPOLL_CTL_ADD, &ev)
}

// Remove ends the watch of a connection that was added and may be closed.
func (p *Poller) Remove(c *Conn) {
	// It fails if the connection is closed, and then it is not watched either.
	_ = p.control(c, unix.EPOLL_CTL_DEL, nil)
}

func (p *Poller) control(c *Conn, op int, ev *unix.EpollEvent) error {
	var err error
	if cerr := p.raw.Control(func(epoll uintptr) {
		if serr := c.reader.raw.Control(func(fd uintptr) {
			err = unix.EpollCtl(int(epoll), op, int(fd), ev)
		}); serr != nil {
			err = serr
		}
	}); cerr != nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("watch a connection: %w", err)
	}
	return nil
}

// Run calls f with the connections on which something has arrived, again and
// again, until Close, and then returns nil. Arrivals are valid during the call.
func (p *Poller) Run(f func([]Arrival)) error {
	var events [arrivalsAtOnce]unix.EpollEvent
	var arrivals [arrivalsAtOnce]Arrival
	err := p.raw.Read(func(fd uintptr) bool {
		for {
			n, err := epollWait(int(fd), events[:])
			switch {
			case err == unix.EINTR:
				continue
			case err != nil:
				p.err.Store(&err)
				return true
			}
			for i := range events[:n] {
				ev := &events[i]
				arrivals[i] = Arrival{
					Key:   uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32,
					Ended: ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0,
				}
			}
			if n > 0 {
				f(arrivals[:n])
			}
			if n < len(events) {
				// All has been told. What comes from now on is an event of the epoll
				// instance itself, for which Read waits: it asked for these before the
				// first look, and not again since.
				return false
			}
		}
	})
	if e := p.err.Load(); e != nil {
		return fmt.Errorf("wait for connections: %w", *e)
	}
	if p.closed.Load() {
		return nil
	}
	return fmt.Errorf("wait for connections: %w", err)
}

// Close makes Run return, and waits until it has. The f of Run must not call it.
func (p *Poller) Close() error {
	p.closed.Store(true)
	return p.file.Close()
}
